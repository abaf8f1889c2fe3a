#pragma once
// Everything that one step needs. Fields are grouped by the component that writes them; only that component may.
// A batch is reused from step to step so that steps do not allocate. It must not move between launch and collect.
#include <cstdint>
#include <span>
#include <vector>

#include "native/backend/backend.h"
#include "native/engine/sequence.h"
#include "native/engine/step_plan.h"

namespace capstan {

struct Batch {
  // ---- engine ----
  uint64_t step = 0;  // number of the step, from 1
  Clock::time_point launch_time;
  // ---- scheduler ----
  StepPlan plan;
  // ---- model inputs (shapes: backend.h, StepInput) ----
  std::vector<int32_t> input_ids, positions, cu_seqlens_q, context_lens;
  struct KvArrays {
    std::vector<int32_t> slot_mapping, block_tables;
  };
  std::vector<KvArrays> kv_arrays;      // by KV group
  std::vector<KvGroupInput> kv_groups;  // views of kv_arrays
  int max_blocks_per_seq = 0;
  std::vector<int32_t> state_reads, state_writes, token_types;
  std::vector<const Adapter*> adapters;  // the distinct ones of the step
  std::vector<int32_t> adapter_indices;  // empty without adapters
  // ---- sampler ----
  std::vector<int32_t> logits_rows;    // (num_sample_rows) rows of the step whose logits are needed
  std::vector<SampleRow> sample_rows;  // (num_sample_rows)
  // ---- MTP drafter (shapes: backend.h, mtp_input and store_hidden); empty without an MTP head ----
  bool is_of_head = false;  // a step of the head alone
  std::vector<int32_t> hidden_before;
  std::vector<StoredHidden> stored_before;  // rows of the step before, which are stored first
  std::vector<StoredHidden> stored;         // rows of this step
  // ---- pooling ----
  std::vector<PoolRow> pool_rows;
  // ---- model runner ----
  std::vector<SampleResult> results;  // (num_sample_rows), valid after collect

  // Call when kv_arrays are filled.
  void set_kv_groups() {
    kv_groups.clear();
    for (const KvArrays& arrays : kv_arrays)
      kv_groups.push_back({arrays.slot_mapping, arrays.block_tables});
  }
  // Without the adapters, which each rank has its part of.
  StepInput input() const {
    return {input_ids,          positions,   cu_seqlens_q, context_lens, kv_groups,
            max_blocks_per_seq, state_reads, state_writes, token_types};
  }
};

// The KV groups of a model among those of the sequences.
struct KvGroupRange {
  size_t first = 0, count = 0;
};

// Fills the model inputs from the plan.
void build_model_inputs(Batch& batch, int block_size, KvGroupRange kv_groups, bool has_states);
// Fills the types of the tokens. Call for models that have any.
void build_token_types(Batch& batch);

// What an engine returns in place of text.
struct PooledModel {
  Pooling pooling = Pooling::kNone;
  int64_t hidden_size = 0;
  int64_t result_size = 0;
  int num_token_types = 0;  // 0 = the model has none
};

// Fills the rows to pool from the plan. Clears the sum of a sequence that begins.
void build_pool_rows(Batch& batch, Pooling pooling);

// Fills the rows to sample from the plan. Writes what the sampler keeps in the drafts.
void build_sample_rows(Batch& batch);
// Returns the row that draws one more draft of a sequence, as the token at its place is drawn: with the same noise, so
// that equal logits give an equal token.
SampleRow make_draft_row(Sequence& seq);

}  // namespace capstan
