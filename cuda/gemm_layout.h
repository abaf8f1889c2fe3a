#pragma once
// Index arithmetic of the product by warps that stream tiles of features: who has which of them.
#include <cstdint>

#include "cuda/layout.h"

namespace capstan::cuda {

// Tiles in groups of one for each warp of a block; a block has every num_blocks-th group from its own on.
struct TileGroups {
  int warps = 0;
  int64_t num_blocks = 0, num_tiles = 0;

  CAPSTAN_BOTH int64_t first(int64_t block) const { return block * warps; }
  // From a warp's tile to its next.
  CAPSTAN_BOTH int64_t stride() const { return num_blocks * warps; }
  CAPSTAN_BOTH int64_t turns(int64_t block) const { return (num_tiles - first(block) + stride() - 1) / stride(); }
};

// Warps of a block, so that rounds of groups over so many blocks take least; of equals the most, which share
// activations.
inline int choose_warps(int64_t num_tiles, int64_t num_blocks, int most) {
  int best = 0;
  int64_t least = 0;
  for (int warps = 1; warps <= most; ++warps) {
    const int64_t groups = (num_tiles + warps - 1) / warps, time = (groups + num_blocks - 1) / num_blocks * warps;
    if (best == 0 || time <= least) best = warps, least = time;
  }
  return best;
}

// No block without a group.
inline TileGroups group_tiles(int64_t num_tiles, int64_t most_blocks, int most_warps) {
  const int warps = choose_warps(num_tiles, most_blocks, most_warps);
  const int64_t groups = (num_tiles + warps - 1) / warps;
  return {warps, groups < most_blocks ? groups : most_blocks, num_tiles};
}

}  // namespace capstan::cuda
