#pragma once
// Index arithmetic of launch_gemm: the assignment of tiles of features to blocks and warps.
#include <cstdint>

#include "cuda/layout.h"

namespace capstan::cuda {

// Groups of one tile per warp of a block. Block b has groups b, b + num_blocks, b + 2 num_blocks, ….
struct TileGroups {
  int warps = 0;
  int64_t num_blocks = 0, num_tiles = 0;

  CAPSTAN_BOTH int64_t first(int64_t block) const { return block * warps; }
  // From one tile of a warp to its next one.
  CAPSTAN_BOTH int64_t stride() const { return num_blocks * warps; }
  CAPSTAN_BOTH int64_t iterations(int64_t block) const { return (num_tiles - first(block) + stride() - 1) / stride(); }
};

// The number of warps per block that minimizes the time of num_blocks blocks over all groups. Among equals the largest,
// because the warps of a block share activations.
inline int choose_warps(int64_t num_tiles, int64_t num_blocks, int most) {
  int best = 0;
  int64_t least = 0;
  for (int warps = 1; warps <= most; ++warps) {
    const int64_t groups = (num_tiles + warps - 1) / warps, time = (groups + num_blocks - 1) / num_blocks * warps;
    if (best == 0 || time <= least) best = warps, least = time;
  }
  return best;
}

// Every block has at least one group.
inline TileGroups group_tiles(int64_t num_tiles, int64_t max_blocks, int max_warps) {
  const int warps = choose_warps(num_tiles, max_blocks, max_warps);
  const int64_t groups = (num_tiles + warps - 1) / warps;
  return {warps, groups < max_blocks ? groups : max_blocks, num_tiles};
}

}  // namespace capstan::cuda
