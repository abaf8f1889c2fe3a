#include "native/backend/cpu/attention_plan.h"

#include <algorithm>

#include "native/backend/cpu/kernels.h"

namespace capstan {

namespace {

int64_t visible_keys(int position, int window) {
  return window > 0 ? std::min(position + 1, window) : position + 1;
}

}  // namespace

void plan_attention(const StepInput& step, int num_heads, int num_kv_heads, int window, int num_threads,
                    std::vector<AttentionItem>& items) {
  items.clear();
  const int heads_per_kv = num_heads / num_kv_heads;
  const int num_seqs = static_cast<int>(step.context_lens.size());
  const int64_t num_head_rows = static_cast<int64_t>(step.positions.size()) * num_heads;
  const int items_wanted = num_threads == 1 ? 1 : 4 * num_threads;
  // Positions per item: full tiles of rows, fewer when there would be too few items; then the heads are cut too.
  int most_positions = std::max(1, kAttentionRows / heads_per_kv);
  while (most_positions > 1 && num_head_rows / (int64_t{most_positions} * heads_per_kv) < items_wanted)
    most_positions /= 2;
  const int64_t items_of_whole_heads = num_head_rows / (int64_t{most_positions} * heads_per_kv);
  const int head_cuts = items_of_whole_heads >= num_threads ? 1 : std::min(heads_per_kv, num_threads);
  for (int seq = 0; seq < num_seqs; ++seq) {
    const int row_begin = step.cu_seqlens_q[seq], row_end = step.cu_seqlens_q[seq + 1];
    for (int row = row_begin; row < row_end; row += most_positions) {
      const int rows = std::min(most_positions, row_end - row);
      const int position = step.positions[row];
      for (int kv_head = 0; kv_head < num_kv_heads; ++kv_head) {
        for (int cut = 0; cut < head_cuts; ++cut) {
          const int head_begin = heads_per_kv * cut / head_cuts, head_end = heads_per_kv * (cut + 1) / head_cuts;
          if (head_begin == head_end) continue;
          items.push_back({seq, kv_head, row, rows, position, head_begin, head_end - head_begin,
                           int64_t{rows} * (head_end - head_begin) * visible_keys(position + rows - 1, window)});
        }
      }
    }
  }
  std::sort(items.begin(), items.end(), [](const AttentionItem& a, const AttentionItem& b) {
    return a.cost != b.cost             ? a.cost > b.cost
           : a.first_row != b.first_row ? a.first_row < b.first_row
                                        : a.kv_head < b.kv_head;
  });
}

}  // namespace capstan
