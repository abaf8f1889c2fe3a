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
void plan_attention(std::span<const int32_t> cu_seqlens, std::span<const int32_t> context_lens, int group, int num_kv_heads, int multiprocessors, AttentionPlan& plan);

}  // namespace capstan::cuda
