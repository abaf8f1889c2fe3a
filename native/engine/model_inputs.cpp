#include <algorithm>

#include "native/engine/batch.h"

namespace capstan {

namespace {

int32_t input_id(const ScheduledSequence& scheduled, int position) {
  const Sequence& seq = *scheduled.seq;
  if (position < seq.num_tokens()) return seq.token_ids[static_cast<size_t>(position)];
  if (scheduled.num_drafts > 0) return seq.drafts[static_cast<size_t>(position - seq.num_tokens())].token_id;
  // The host does not know this id: the step in flight draws it.
  return -1 - seq.in_flight_row;
}

}  // namespace

void build_model_inputs(Batch& batch, int block_size, size_t num_kv_groups) {
  const size_t num_seqs = batch.plan.sequences.size();
  batch.input_ids.clear();
  batch.positions.clear();
  batch.kv_arrays.resize(1);
  auto& [slot_mapping, block_tables] = batch.kv_arrays[0];
  slot_mapping.clear();
  batch.cu_seqlens_q.assign(1, 0);
  batch.context_lens.clear();
  size_t max_blocks = 0;
  for (const ScheduledSequence& scheduled : batch.plan.sequences) {
    const Sequence& seq = *scheduled.seq;
    for (int position = scheduled.first_position; position < scheduled.first_position + scheduled.num_tokens;
         ++position) {
      batch.input_ids.push_back(input_id(scheduled, position));
      batch.positions.push_back(position);
      slot_mapping.push_back(seq.block_table[static_cast<size_t>(position / block_size)] * block_size +
                             position % block_size);
    }
    batch.cu_seqlens_q.push_back(batch.cu_seqlens_q.back() + scheduled.num_tokens);
    batch.context_lens.push_back(scheduled.first_position + scheduled.num_tokens);
    max_blocks = std::max(max_blocks, seq.block_table.size());
  }
  batch.max_blocks_per_seq = static_cast<int>(max_blocks);
  block_tables.assign(num_seqs * max_blocks, -1);
  for (size_t i = 0; i < num_seqs; ++i)
    std::ranges::copy(batch.plan.sequences[i].seq->block_table,
                      block_tables.begin() + static_cast<ptrdiff_t>(i * max_blocks));
  batch.kv_arrays.resize(num_kv_groups, batch.kv_arrays[0]);
  batch.set_kv_groups();
}

}  // namespace capstan
