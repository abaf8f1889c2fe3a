#pragma once
// Assigns the sequences of a step to the attention kernels, as tiles of rows.
#include <cstdint>
#include <span>
#include <vector>

#include "cuda/kernels.h"

namespace capstan::cuda {

struct AttentionPlan {
  std::vector<AttentionTile> tiles;       // for launch_attention
  std::vector<AttentionTile> wide_tiles;  // for launch_attention_wgmma, most keys first
  int longest = 0;                        // the largest number of keys of a sequence in `tiles`
};

// How launch_attention_wgmma may be used.
struct WideTiles {
  int multiprocessors = 0;  // 0: not at all
  int rows = 0;             // of a tile (wide_rows)
};
void plan_attention(std::span<const int32_t> cu_seqlens, std::span<const int32_t> context_lens, int group,
                    int num_kv_heads, const WideTiles& wide, AttentionPlan& plan);

// How launch_attention distributes tiles of 16 rows; the bits are always the same. Up to kMaxSplits (tile, head, chunk)
// triples, each block has one chunk. Above, a block has all chunks of a tile. When the tiles alone keep the device
// busy, a warp has all chunks of a tile.
constexpr int kMaxSplits = 4096;
constexpr int kMaxBlockTiles = 2048;
inline int attention_splits(int num_tiles, int num_kv_heads, int chunks) {
  return int64_t{num_tiles} * num_kv_heads * chunks <= kMaxSplits ? chunks : 1;
}
inline bool prefers_warp_per_tile(int num_tiles, int num_kv_heads, int num_chunks) {
  return num_chunks == 1 && int64_t{num_tiles} * num_kv_heads > kMaxBlockTiles;
}

}  // namespace capstan::cuda
