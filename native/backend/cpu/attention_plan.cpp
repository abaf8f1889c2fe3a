#include "native/backend/cpu/attention_plan.h"

#include <algorithm>
#include <tuple>

#include "native/backend/cpu/kernels.h"

namespace capstan {

namespace {

// Items per thread that a step is cut into, so that a preempted thread delays the others little.
constexpr int kItemsPerThread = 4;

int num_wanted_items(int num_threads) {
  return num_threads == 1 ? 1 : kItemsPerThread * num_threads;
}

int64_t num_visible_keys(int position, int window, int num_keys) {
  return end_visible_key(position, window, num_keys) - first_visible_key(position, window);
}

int num_visible_chunks(int position, int window, int num_keys) {
  return (end_visible_key(position, window, num_keys) - 1) / kKvChunk - first_visible_key(position, window) / kKvChunk +
         1;
}

// Returns num_keys of end_visible_key.
int num_keys_of(const StepInput& step, const AttentionShape& shape, int seq) {
  return shape.is_causal ? 0 : step.context_lens[seq];
}

// How the rows and heads of a batch are cut into items, before their chunks are split.
struct Cut {
  int num_positions = 1;  // per item, at most
  int num_head_cuts = 1;  // per KV head
};

// Items have full tiles of rows. When that makes too few items for the threads, they get fewer positions, and then the
// query heads are split too. num_rows: the rows, or (chunk, row) pairs when the chunks can be split.
Cut choose_cut(int64_t num_rows, const AttentionShape& shape) {
  const int heads_per_kv = shape.num_heads / shape.num_kv_heads;
  Cut cut;
  cut.num_positions = std::max(1, kAttentionRows / heads_per_kv);
  const auto num_items = [&] { return num_rows * shape.num_kv_heads / cut.num_positions; };
  while (cut.num_positions > 1 && num_items() < num_wanted_items(shape.num_threads))
    cut.num_positions /= 2;
  if (num_items() < shape.num_threads) cut.num_head_cuts = std::min(heads_per_kv, shape.num_threads);
  return cut;
}

constexpr auto kIsBefore = [](const AttentionItem& a, const AttentionItem& b) {
  return std::tuple(-a.cost, a.first_row, a.kv_head, a.first_head, a.first_chunk) <
         std::tuple(-b.cost, b.first_row, b.kv_head, b.first_head, b.first_chunk);
};

// Adds an item for each (KV head, cut of the heads) of rows [row, row + rows) of a sequence.
void add_items(const StepInput& step, const AttentionShape& shape, int seq, int row, int rows, int num_head_cuts,
               std::vector<AttentionItem>& items) {
  const int heads_per_kv = shape.num_heads / shape.num_kv_heads;
  const int num_keys = num_keys_of(step, shape, seq);
  for (int kv_head = 0; kv_head < shape.num_kv_heads; ++kv_head) {
    for (int cut = 0; cut < num_head_cuts; ++cut) {
      AttentionItem item{seq, kv_head, row, rows, step.positions[row]};
      const int last_position = item.first_position + rows - 1;
      item.first_head = heads_per_kv * cut / num_head_cuts;
      item.num_heads = heads_per_kv * (cut + 1) / num_head_cuts - item.first_head;
      if (item.num_heads == 0) continue;
      item.first_chunk = first_visible_key(item.first_position, shape.window) / kKvChunk;
      item.end_chunk = (end_visible_key(last_position, shape.window, num_keys) - 1) / kKvChunk + 1;
      item.cost = int64_t{rows} * item.num_heads * num_visible_keys(last_position, shape.window, num_keys);
      items.push_back(item);
    }
  }
}

// Splits the chunks of item `idx` over several items of at most about `wanted_cost`, if `num_states` states are left.
void split_chunks(size_t idx, int64_t wanted_cost, int64_t max_states, int64_t& num_states, AttentionPlan& plan) {
  const AttentionItem whole = plan.items[idx];
  const int num_chunks = whole.end_chunk - whole.first_chunk;
  const int64_t states = int64_t{num_chunks} * whole.num_rows * whole.num_heads;
  if (num_chunks < 2 || whole.cost <= wanted_cost || num_states + states > max_states) return;
  const int num_items = static_cast<int>(std::min<int64_t>(num_chunks, (whole.cost + wanted_cost - 1) / wanted_cost));
  for (int i = 0; i < num_items; ++i) {
    AttentionItem item = whole;
    item.first_chunk = whole.first_chunk + num_chunks * i / num_items;
    item.end_chunk = whole.first_chunk + num_chunks * (i + 1) / num_items;
    item.split = static_cast<int>(plan.splits.size());
    item.cost = whole.cost * (item.end_chunk - item.first_chunk) / num_chunks;
    if (i == 0)
      plan.items[idx] = item;
    else
      plan.items.push_back(item);
  }
  plan.splits.push_back({num_items, whole.first_chunk, whole.end_chunk, num_states});
  num_states += states;
}

}  // namespace

int64_t max_attention_items(const AttentionShape& shape, int max_num_tokens) {
  const int64_t most_rows = int64_t{max_num_tokens} * shape.num_kv_heads;
  const int64_t most_head_cuts = int64_t{shape.num_threads} * shape.num_threads;  // fewer items than threads are cut
  return std::max(most_rows, most_head_cuts) + 2 * num_wanted_items(shape.num_threads);
}

int max_attention_splits(const AttentionShape& shape) {
  // A split item costs more than the cost of all items divided by the wanted items, so there are fewer than these.
  return shape.num_threads == 1 ? 0 : num_wanted_items(shape.num_threads);
}

int64_t max_attention_states(const AttentionShape& shape, int max_num_seqs, int max_model_len) {
  if (shape.num_threads == 1) return 0;
  const int64_t split_heads = int64_t{max_attention_splits(shape)} * (shape.num_heads / shape.num_kv_heads);
  const int64_t rows = std::max(std::min<int64_t>(split_heads, int64_t{max_num_seqs} * shape.num_heads),
                                int64_t{kSplitPositions} * shape.num_heads);
  return rows * ((max_model_len + kKvChunk - 1) / kKvChunk);
}

void plan_attention(const StepInput& step, const AttentionShape& shape, AttentionPlan& plan) {
  plan.items.clear();
  plan.splits.clear();
  const auto num_rows = static_cast<int64_t>(step.positions.size());
  int64_t num_chunk_rows = 0;
  for (int seq = 0; seq < static_cast<int>(step.context_lens.size()); ++seq)
    for (int row = step.cu_seqlens_q[seq]; row < step.cu_seqlens_q[seq + 1]; ++row)
      num_chunk_rows += num_visible_chunks(step.positions[row], shape.window, num_keys_of(step, shape, seq));
  const bool can_split = num_chunk_rows * shape.num_heads <= shape.max_states;
  const auto [num_positions, num_head_cuts] = choose_cut(can_split ? num_chunk_rows : num_rows, shape);
  for (int seq = 0; seq < static_cast<int>(step.context_lens.size()); ++seq) {
    const int row_begin = step.cu_seqlens_q[seq], row_end = step.cu_seqlens_q[seq + 1];
    for (int row = row_begin; row < row_end; row += num_positions)
      add_items(step, shape, seq, row, std::min(num_positions, row_end - row), num_head_cuts, plan.items);
  }
  int64_t cost = 0, num_states = 0;
  for (const AttentionItem& item : plan.items)
    cost += item.cost;
  const int64_t wanted_cost = std::max<int64_t>(1, cost / num_wanted_items(shape.num_threads));
  const size_t num_whole = plan.items.size();
  for (size_t i = 0; i < num_whole; ++i)
    split_chunks(i, wanted_cost, shape.max_states, num_states, plan);
  std::sort(plan.items.begin(), plan.items.end(), kIsBefore);
}

}  // namespace capstan
