#pragma once
// Shared by the attention kernels: the rows of a warp, and the stores of outputs.
#include "cuda/kernels.h"

namespace capstan::cuda {

constexpr float kMinusInfinity = -__builtin_inff();

// tanh(x), with an absolute error below 2^-21.
__device__ __forceinline__ float tanh_approx(float x) {
  return fmaf(-2.0f, rcp_approx(1.0f + ex2_approx(x * (2 * kLog2E))), 1.0f);
}
// With a soft cap, scores are multiplied by this factor and replaced by their tanh.
__device__ __forceinline__ float factor_of_tanh(const AttentionArgs& args) {
  return args.scale * rcp_approx(args.soft_cap);
}
// The factor of scores for ex2_approx, after tanh if there is a soft cap.
__device__ __forceinline__ float factor_of_scores(const AttentionArgs& args) {
  return (args.soft_cap > 0 ? args.soft_cap : args.scale) * kLog2E;
}
// The sum of a row's weights, with that of the head's sink. `max` is the largest score in base 2.
__device__ __forceinline__ float sum_with_sink(const AttentionArgs& args, int head, float max, float sum) {
  return args.sinks == nullptr ? sum : sum + ex2_approx(fmaf(args.sinks[head], kLog2E, -max));
}

// The last key that a row at `position` sees.
__device__ __forceinline__ int last_key(const AttentionArgs& args, int position, int context) {
  const int last = position + args.reach;
  return last < context ? last : context - 1;
}

// The lane's two rows of its warp's 16 rows. The tile has kCount rows.
struct Rows {
  int token[2];  // index in the step; rows beyond the end of the sequence repeat its last row
  int head[2];
  int position[2];
  bool is_real[2];
  int first_position, last_position;  // of all kCount rows
};

template <int kCount>
__device__ __forceinline__ Rows find_rows(const AttentionArgs& args, const AttentionTile& tile, int kv_head, int warp) {
  const int group = args.num_heads / args.layout.num_kv_heads;
  const int begin = args.cu_seqlens_q[tile.seq], count = args.cu_seqlens_q[tile.seq + 1] - begin;
  const int context = args.context_lens[tile.seq];
  Rows rows;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int wanted = tile.first_row + warp * 16 + lane_id() / 4 + r * 8;
    const int row = wanted < count * group ? wanted : count * group - 1;
    rows.is_real[r] = row == wanted;
    rows.token[r] = begin + row / group;
    rows.head[r] = kv_head * group + row % group;
    rows.position[r] = context - count + row / group;
  }
  const int last = tile.first_row + kCount - 1 < count * group ? tile.first_row + kCount - 1 : count * group - 1;
  rows.first_position = context - count + tile.first_row / group;
  rows.last_position = context - count + last / group;
  return rows;
}

// Stores dimensions `dim` (even) and dim + 1 of a head.
template <class T>
__device__ __forceinline__ void store_outputs(const AttentionArgs& args, int64_t token, int head, int dim, float low,
                                              float high) {
  const int head_dim = args.layout.head_dim;
  if (dim >= head_dim) return;
  const int k = head * head_dim + dim;
  const auto at = [&](int of) {
    return args.acts + act_index(args.is_row_major, token, args.split.place(of), args.split.padded());
  };
  const uint32_t pair = to_bits_pair<T>(low, high);
  // With an even head in even parts the pair is contiguous.
  if ((args.split.part_cols | head_dim) % 2 == 0) {
    *reinterpret_cast<uint32_t*>(at(k)) = pair;
    return;
  }
  *at(k) = static_cast<uint16_t>(pair);
  if (dim + 1 < head_dim) *at(k + 1) = static_cast<uint16_t>(pair >> 16);
}

}  // namespace capstan::cuda
