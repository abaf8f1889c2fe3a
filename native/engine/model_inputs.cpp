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

// Fills the slots and block tables of one KV group.
void fill_kv_arrays(const Batch& batch, size_t group, int block_size, Batch::KvArrays& arrays) {
  const auto width = static_cast<size_t>(batch.max_blocks_per_seq);
  arrays.slot_mapping.clear();
  arrays.block_tables.assign(batch.plan.sequences.size() * width, -1);
  auto row = arrays.block_tables.begin();
  for (const ScheduledSequence& scheduled : batch.plan.sequences) {
    const std::vector<int32_t>& block_ids = scheduled.seq->block_tables[group].block_ids;
    const int end_position = scheduled.first_position + scheduled.num_tokens;
    for (int position = scheduled.first_position; position < end_position; ++position)
      arrays.slot_mapping.push_back(block_ids[static_cast<size_t>(position / block_size)] * block_size +
                                    position % block_size);
    std::ranges::copy(block_ids, row);
    row += batch.max_blocks_per_seq;
  }
}

void fill_state_arrays(Batch& batch) {
  batch.state_writes.assign(batch.input_ids.size(), -1);
  size_t first_row = 0;
  for (const ScheduledSequence& scheduled : batch.plan.sequences) {
    batch.state_reads.push_back(scheduled.state_read);
    for (const StateWrite& write : scheduled.state_writes)
      batch.state_writes[first_row + static_cast<size_t>(write.row)] = write.slot;
    first_row += static_cast<size_t>(scheduled.num_tokens);
  }
}

void fill_adapters(Batch& batch) {
  batch.adapters.clear();
  batch.adapter_indices.clear();
  for (const ScheduledSequence& scheduled : batch.plan.sequences) {
    const Adapter* adapter = scheduled.seq->adapter.get();
    const auto found = std::ranges::find(batch.adapters, adapter);
    batch.adapter_indices.push_back(adapter == nullptr ? -1 : static_cast<int32_t>(found - batch.adapters.begin()));
    if (adapter != nullptr && found == batch.adapters.end()) batch.adapters.push_back(adapter);
  }
}

}  // namespace

void build_model_inputs(Batch& batch, int block_size, KvGroupRange kv_groups, bool has_states) {
  batch.input_ids.clear();
  batch.positions.clear();
  batch.cu_seqlens_q.assign(1, 0);
  batch.context_lens.clear();
  size_t max_blocks = 0;
  for (const ScheduledSequence& scheduled : batch.plan.sequences) {
    const int end_position = scheduled.first_position + scheduled.num_tokens;
    for (int position = scheduled.first_position; position < end_position; ++position) {
      batch.input_ids.push_back(input_id(scheduled, position));
      batch.positions.push_back(position);
    }
    batch.cu_seqlens_q.push_back(batch.cu_seqlens_q.back() + scheduled.num_tokens);
    batch.context_lens.push_back(end_position);
    for (const BlockTable& table : scheduled.seq->block_tables)
      max_blocks = std::max(max_blocks, table.block_ids.size());
  }
  batch.max_blocks_per_seq = static_cast<int>(max_blocks);
  batch.kv_arrays.resize(kv_groups.count);
  for (size_t group = 0; group < kv_groups.count; ++group)
    fill_kv_arrays(batch, kv_groups.first + group, block_size, batch.kv_arrays[group]);
  batch.set_kv_groups();
  batch.state_reads.clear();
  batch.state_writes.clear();
  if (has_states) fill_state_arrays(batch);
  fill_adapters(batch);
}

void build_token_types(Batch& batch) {
  batch.token_types.clear();
  for (const ScheduledSequence& scheduled : batch.plan.sequences) {
    const std::vector<int32_t>& types = scheduled.seq->token_types;
    for (int position = scheduled.first_position; position < scheduled.first_position + scheduled.num_tokens;
         ++position)
      batch.token_types.push_back(types.empty() ? 0 : types[static_cast<size_t>(position)]);
  }
}

}  // namespace capstan
