#pragma once
// Which kernel attends the sequences of a step, and by which tiles.
#include <cstdint>
#include <span>
#include <vector>

#include "cuda/kernels.h"

namespace capstan::cuda {

struct AttentionPlan {
  std::vector<AttentionTile> tiles;       // for launch_attention
  std::vector<AttentionTile> wide_tiles;  // for launch_attention_wgmma, those with most keys first
  int longest = 0;                        // keys of a sequence in `tiles`, at most
};

// `multiprocessors`: of a device for launch_attention_wgmma; 0 where it is not to be used.
void plan_attention(std::span<const int32_t> cu_seqlens, std::span<const int32_t> context_lens, int group,
                    int num_kv_heads, int multiprocessors, AttentionPlan& plan);

// How launch_attention shares the work of tiles of 16 rows, with the same bits: blocks have a chunk of theirs while
// these are no more than kMostCuts, then all chunks, and warps have them where the rows alone keep the device busy.
constexpr int kMostCuts = 4096;
constexpr int kManyTiles = 2048;
inline int cut_attention(int num_tiles, int num_kv_heads, int chunks) {
  return int64_t{num_tiles} * num_kv_heads * chunks <= kMostCuts ? chunks : 1;
}
inline bool is_many_rows(int num_tiles, int num_kv_heads, int num_chunks) {
  return num_chunks == 1 && int64_t{num_tiles} * num_kv_heads > kManyTiles;
}

}  // namespace capstan::cuda
