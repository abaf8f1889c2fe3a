#include "cuda/attention_plan.h"

#include <algorithm>

#include "cuda/attention_layout.h"

namespace capstan::cuda {
namespace {

// launch_attention_wgmma needs at least half a block of rows that read the same keys. With fewer rows launch_attention
// is better: it also splits the keys among warps.
bool is_wide(int num_rows) {
  return num_rows >= kGroupRows;
}

void add_tiles(size_t seq, int num_rows, int rows_of_tile, std::vector<AttentionTile>& tiles) {
  for (int row = 0; row < num_rows; row += rows_of_tile)
    tiles.push_back({static_cast<int32_t>(seq), row});
}

}  // namespace

void plan_attention(std::span<const int32_t> cu_seqlens, std::span<const int32_t> context_lens, int group,
                    int num_kv_heads, const WideTiles& wide, AttentionPlan& plan) {
  const auto rows_of = [&](size_t seq) { return (cu_seqlens[seq + 1] - cu_seqlens[seq]) * group; };
  const size_t num_seqs = context_lens.size();
  plan.wide_tiles.clear();
  for (size_t seq = 0; wide.multiprocessors > 0 && seq < num_seqs; ++seq)
    if (is_wide(rows_of(seq))) add_tiles(seq, rows_of(seq), wide.rows, plan.wide_tiles);
  // A block reads all keys of its rows in sequence, so that few blocks would leave most of the device idle.
  if (static_cast<int>(plan.wide_tiles.size()) * num_kv_heads * 2 < wide.multiprocessors) plan.wide_tiles.clear();

  plan.tiles.clear();
  plan.longest = 0;
  for (size_t seq = 0; seq < num_seqs; ++seq) {
    if (!plan.wide_tiles.empty() && is_wide(rows_of(seq))) continue;
    add_tiles(seq, rows_of(seq), 16, plan.tiles);
    plan.longest = std::max(plan.longest, context_lens[seq]);
  }
  const auto last_position = [&](const AttentionTile& tile) {
    const auto seq = static_cast<size_t>(tile.seq);
    return context_lens[seq] - std::max(rows_of(seq) - tile.first_row - wide.rows, 0) / group;
  };
  std::ranges::stable_sort(plan.wide_tiles, std::ranges::greater{}, last_position);
}

}  // namespace capstan::cuda
