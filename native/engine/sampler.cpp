#include <algorithm>

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

bool ends_with(std::span<const int32_t> ids, std::span<const int32_t> end) {
  return ids.size() >= end.size() && std::ranges::equal(ids.subspan(ids.size() - end.size()), end);
}

}  // namespace

std::span<const int32_t> banned_ids(Sequence& seq) {
  const SamplingParams& sampling = seq.sampling;
  const bool is_early = seq.num_completion_ahead() < sampling.min_tokens && !seq.is_min_waived;
  const std::vector<int32_t>& always = is_early ? seq.early_bad_ids : seq.bad_ids;
  if (sampling.bad_words.empty()) return always;
  seq.banned_ids = always;
  const auto completion = std::span<const int32_t>(seq.token_ids).subspan(static_cast<size_t>(seq.num_prompt_tokens));
  for (const std::vector<int32_t>& word : sampling.bad_words)
    if (ends_with(completion, std::span(word).first(word.size() - 1))) seq.banned_ids.push_back(word.back());
  std::ranges::sort(seq.banned_ids);
  return seq.banned_ids;
}

namespace {

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
  if (seq.forced_id >= 0) {
    row.allowed_mask = seq.forced_mask;
    return row;
  }
  row.banned_ids = banned_ids(seq);
  row.allowed_mask = seq.grammar ? seq.grammar_mask : seq.allowed_mask;
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
