#pragma once
// The sequences and tokens of one step. Fields are grouped by who writes them; nobody else may. Kept from step to step
// so that nothing is allocated once their sizes have settled; alive from launch to collect.
#include <cstdint>
#include <vector>

#include "native/backend/backend.h"
#include "native/engine/sequence.h"

namespace capstan {

struct ScheduledSequence {
  Sequence* seq = nullptr;
  uint32_t epoch = 0;  // of seq when planned
  int first_position = 0;
  int num_tokens = 0;    // scheduled tokens
  bool samples = false;  // the last row's logits give the next token
  int first_sample_row =
      0;  // sampler: its rows are [first, first + count) of sample_rows; with `samples` the last one draws
  int num_sample_rows = 0;
};

struct Batch {
  // ---- scheduler ----
  std::vector<ScheduledSequence> sequences;
  int num_tokens = 0;
  uint64_t step = 0;
  // ---- model inputs (shapes: backend.h, StepInput) ----
  std::vector<int32_t> input_ids, positions, slot_mapping, cu_seqlens_q, context_lens, block_tables;
  int max_blocks_per_seq = 0;
  // ---- sampler ----
  std::vector<int32_t> logits_rows;    // (num_sample_rows) rows of the step whose logits are wanted
  std::vector<SampleRow> sample_rows;  // (num_sample_rows)
  // ---- model runner ----
  std::vector<SampleResult> results;  // (num_sample_rows), valid after collect

  void clear() {
    sequences.clear();
    num_tokens = 0;
  }
  StepInput input() const {
    return {input_ids, positions, slot_mapping, cu_seqlens_q, context_lens, block_tables, max_blocks_per_seq};
  }
};

// Fills the model inputs from the scheduled sequences.
void build_model_inputs(Batch& batch, int block_size);

// Fills the rows to sample from the scheduled sequences.
void build_sample_rows(Batch& batch);
// Ids that must not come next for bad words and min_tokens, ascending; all earlier tokens are known.
std::span<const int32_t> banned_ids(Sequence& seq);

}  // namespace capstan
