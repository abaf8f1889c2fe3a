#include "native/engine/banned_ids.h"
#include "native/engine/batch.h"
#include "native/engine/token_counts.h"

namespace capstan {
namespace {

void add_prompt_logprob_rows(Batch& batch, const ScheduledSequence& scheduled, int first_row) {
  const Sequence& seq = *scheduled.seq;
  // Empty when not requested, and when the prompt is recomputed after a preemption.
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

// The row that draws the token after the first `num_drafts` drafts.
SampleRow make_sample_row(Sequence& seq, size_t num_drafts) {
  const SamplingParams& sampling = seq.sampling;
  const Draft* draft = num_drafts > 0 ? &seq.drafts[num_drafts - 1] : nullptr;
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
  row.position = static_cast<uint32_t>(seq.num_tokens_ahead()) + static_cast<uint32_t>(num_drafts);
  row.choice_idx = static_cast<uint32_t>(seq.choice_idx);
  row.counts = {seq.prompt_ids, draft != nullptr ? draft->completion_counts : seq.completion_counts};
  row.logit_bias = sampling.logit_bias;
  if (draft != nullptr ? draft->is_forced : seq.forced_id >= 0) {
    row.allowed_mask = draft != nullptr ? draft->mask : seq.forced_mask;
    return row;
  }
  row.banned_ids = banned_ids(seq, num_drafts);
  row.allowed_mask = seq.allowed_mask;
  if (seq.grammar) row.allowed_mask = draft != nullptr ? draft->mask : seq.grammar_mask;
  return row;
}

// Counts the tokens up to a draft. Those up to the drafts before it are counted.
void count_draft(Sequence& seq, size_t idx) {
  Draft& draft = seq.drafts[idx];
  draft.completion_counts = idx == 0 ? seq.completion_counts : seq.drafts[idx - 1].completion_counts;
  count_token(draft.completion_counts, draft.token_id);
}

}  // namespace

void build_sample_rows(Batch& batch) {
  batch.logits_rows.clear();
  batch.sample_rows.clear();
  int first_row = 0;
  for (ScheduledSequence& scheduled : batch.plan.sequences) {
    scheduled.first_sample_row = static_cast<int>(batch.sample_rows.size());
    add_prompt_logprob_rows(batch, scheduled, first_row);
    first_row += scheduled.num_tokens;
    if (scheduled.samples && !scheduled.seq->is_pooled) {
      if (scheduled.seq->has_penalties())
        for (size_t i = 0; i < static_cast<size_t>(scheduled.num_drafts); ++i)
          count_draft(*scheduled.seq, i);
      for (int i = 0; i <= scheduled.num_drafts; ++i) {
        batch.logits_rows.push_back(first_row - 1 - scheduled.num_drafts + i);
        batch.sample_rows.push_back(make_sample_row(*scheduled.seq, static_cast<size_t>(i)));
      }
    }
    scheduled.num_sample_rows = static_cast<int>(batch.sample_rows.size()) - scheduled.first_sample_row;
  }
  batch.results.resize(batch.sample_rows.size());
}

SampleRow make_draft_row(Sequence& seq) {
  if (seq.has_penalties() && !seq.drafts.empty()) count_draft(seq, seq.drafts.size() - 1);
  SampleRow row = make_sample_row(seq, seq.drafts.size());
  row.num_logprobs = -1;
  return row;
}

}  // namespace capstan
