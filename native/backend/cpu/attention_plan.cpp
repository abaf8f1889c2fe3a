#include "native/backend/cpu/attention_plan.h"

#include <algorithm>
#include <tuple>

#include "native/backend/cpu/kernels.h"

namespace capstan {

namespace {

int64_t num_visible_keys(int position, int window) {
  return window > 0 ? std::min(position + 1, window) : position + 1;
}

// How the rows and heads of a batch are cut into items.
struct Cut {
  int num_positions = 1;  // per item, at most
  int num_head_cuts = 1;  // per KV head
};

// Items have full tiles of rows. When that makes too few items for the threads, they get fewer positions, and then the
// query heads are split too.
Cut choose_cut(int64_t num_head_rows, int heads_per_kv, int num_threads) {
  const int num_wanted_items = num_threads == 1 ? 1 : 4 * num_threads;
  Cut cut;
  cut.num_positions = std::max(1, kAttentionRows / heads_per_kv);
  const auto num_items = [&] { return num_head_rows / (int64_t{cut.num_positions} * heads_per_kv); };
  while (cut.num_positions > 1 && num_items() < num_wanted_items)
    cut.num_positions /= 2;
  if (num_items() < num_threads) cut.num_head_cuts = std::min(heads_per_kv, num_threads);
  return cut;
}

constexpr auto kIsBefore = [](const AttentionItem& a, const AttentionItem& b) {
  return std::tuple(-a.cost, a.first_row, a.kv_head) < std::tuple(-b.cost, b.first_row, b.kv_head);
};

}  // namespace

void plan_attention(const StepInput& step, int num_heads, int num_kv_heads, int window, int num_threads,
                    std::vector<AttentionItem>& items) {
  items.clear();
  const int heads_per_kv = num_heads / num_kv_heads;
  const int num_seqs = static_cast<int>(step.context_lens.size());
  const int64_t num_head_rows = static_cast<int64_t>(step.positions.size()) * num_heads;
  const auto [num_positions, num_head_cuts] = choose_cut(num_head_rows, heads_per_kv, num_threads);
  for (int seq = 0; seq < num_seqs; ++seq) {
    const int row_begin = step.cu_seqlens_q[seq], row_end = step.cu_seqlens_q[seq + 1];
    for (int row = row_begin; row < row_end; row += num_positions) {
      const int rows = std::min(num_positions, row_end - row);
      const int position = step.positions[row];
      for (int kv_head = 0; kv_head < num_kv_heads; ++kv_head) {
        for (int cut = 0; cut < num_head_cuts; ++cut) {
          const int head_begin = heads_per_kv * cut / num_head_cuts;
          const int num_item_heads = heads_per_kv * (cut + 1) / num_head_cuts - head_begin;
          if (num_item_heads == 0) continue;
          const int64_t cost = int64_t{rows} * num_item_heads * num_visible_keys(position + rows - 1, window);
          items.push_back({seq, kv_head, row, rows, position, head_begin, num_item_heads, cost});
        }
      }
    }
  }
  std::sort(items.begin(), items.end(), kIsBefore);
}

}  // namespace capstan
