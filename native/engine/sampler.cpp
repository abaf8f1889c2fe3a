#include "native/engine/batch.h"

namespace capstan {
namespace {

void add_prompt_logprob_rows(Batch& batch, const ScheduledSequence& scheduled, int first_row) {
  const Sequence& seq = *scheduled.seq;
  // A prompt that is computed again after a preemption owes them no more.
  if (seq.prompt_logprobs.empty()) return;
  for (int i = 0; i < scheduled.num_tokens; ++i) {
    const int next = scheduled.first_position + i + 1;
    if (next >= seq.num_prompt_tokens) return;
    SampleRow row;
    row.wants_sample = false;
    row.target_id = seq.token_ids[static_cast<size_t>(next)];
    row.num_logprobs = seq.sampling.num_prompt_logprobs;
    batch.logits_rows.push_back(first_row + i);
    batch.sample_rows.push_back(row);
  }
}

// The ids that both the request and the grammar's state allow.
std::span<const uint32_t> fill_grammar_mask(Sequence& seq) {
  seq.grammar->fill_mask(seq.grammar_mask);
  for (size_t i = 0; i < seq.allowed_mask.size(); ++i) seq.grammar_mask[i] &= seq.allowed_mask[i];
  return seq.grammar_mask;
}

SampleRow make_sample_row(Sequence& seq) {
  const SamplingParams& sampling = seq.sampling;
  SampleRow row;
  row.num_logprobs = sampling.num_logprobs;
  row.temperature = sampling.temperature;
  row.top_k = sampling.top_k;
  row.top_p = sampling.top_p;
  row.min_p = sampling.min_p;
  row.presence_penalty = sampling.presence_penalty;
  row.frequency_penalty = sampling.frequency_penalty;
  row.repetition_penalty = sampling.repetition_penalty;
  row.seed = seq.seed;
  row.position = static_cast<uint32_t>(seq.num_tokens_ahead());
  row.choice_idx = static_cast<uint32_t>(seq.choice_idx);
  row.counts = {seq.prompt_ids, seq.completion_counts};
  row.logit_bias = sampling.logit_bias;
  if (seq.num_tokens_ahead() - seq.num_prompt_tokens < sampling.min_tokens) row.banned_ids = seq.ending_ids;
  row.allowed_mask = seq.grammar ? fill_grammar_mask(seq) : seq.allowed_mask;
  return row;
}

}  // namespace

void build_sample_rows(Batch& batch) {
  batch.logits_rows.clear();
  batch.sample_rows.clear();
  int first_row = 0;
  for (ScheduledSequence& scheduled : batch.sequences) {
    scheduled.first_sample_row = static_cast<int>(batch.sample_rows.size());
    add_prompt_logprob_rows(batch, scheduled, first_row);
    first_row += scheduled.num_tokens;
    if (scheduled.samples) {
      batch.logits_rows.push_back(first_row - 1);
      batch.sample_rows.push_back(make_sample_row(*scheduled.seq));
    }
    scheduled.num_sample_rows = static_cast<int>(batch.sample_rows.size()) - scheduled.first_sample_row;
  }
  batch.results.resize(batch.sample_rows.size());
}

}  // namespace capstan
