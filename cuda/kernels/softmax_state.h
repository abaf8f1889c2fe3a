#pragma once
// Softmax states of launch_attention: of a tile of keys, and merged ones.
#include "cuda/kernels/attention.h"

namespace capstan::cuda {

// Merges the softmax states of two runs of keys by rescaling both to the larger maximum. The operations are explicit,
// so that the compiler cannot fuse them differently elsewhere.
struct SoftmaxMerge {
  float max, before, behind;

  __device__ __forceinline__ SoftmaxMerge(float max_before, float max_behind)
      : max(fmaxf(max_before, max_behind)), before(factor(max_before, max)), behind(factor(max_behind, max)) {}
  __device__ __forceinline__ float operator()(float sum_before, float sum_behind) const {
    return fmaf(sum_before, before, sum_behind * behind);
  }

  // The maximum of a row that sees none of the keys is -inf.
  __device__ static __forceinline__ float factor(float from, float to) {
    return from == kMinusInfinity ? 0.0f : ex2_approx(from - to);
  }
};

// Softmax state of the lane's two rows (g and g + 8) over some keys, with weighted sums of the values for kDims tiles
// of 8 dimensions.
template <int kDims>
struct SoftmaxState {
  float max[2], sum[2];
  float out[kDims][4];

  // In shared memory a lane's floats are kWarpSize apart.
  __device__ __forceinline__ void put(float* to) const {
#pragma unroll
    for (int r = 0; r < 2; ++r)
      to[r * kWarpSize] = max[r], to[(2 + r) * kWarpSize] = sum[r];
#pragma unroll
    for (int i = 0; i < kDims; ++i)
#pragma unroll
      for (int r = 0; r < 4; ++r)
        to[(4 + i * 4 + r) * kWarpSize] = out[i][r];
  }
  // Loads kDims tiles of dimensions, from tile `first` on, of a state stored by `put`.
  __device__ __forceinline__ void get(const float* from, int first) {
#pragma unroll
    for (int r = 0; r < 2; ++r)
      max[r] = from[r * kWarpSize], sum[r] = from[(2 + r) * kWarpSize];
#pragma unroll
    for (int i = 0; i < kDims; ++i)
#pragma unroll
      for (int r = 0; r < 4; ++r)
        out[i][r] = from[(4 + (first + i) * 4 + r) * kWarpSize];
  }
  // *this = `before` merged with `behind`, in this order of keys.
  __device__ __forceinline__ void add(const SoftmaxState& before, const SoftmaxState& behind) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const SoftmaxMerge merge(before.max[r], behind.max[r]);
      max[r] = merge.max;
      sum[r] = merge(before.sum[r], behind.sum[r]);
#pragma unroll
      for (int i = 0; i < kDims; ++i)
#pragma unroll
        for (int c = 0; c < 2; ++c)
          out[i][r * 2 + c] = merge(before.out[i][r * 2 + c], behind.out[i][r * 2 + c]);
    }
  }
  // Merges with a state in shared memory, because the registers cannot hold two.
  __device__ __forceinline__ void add_behind(const float* before) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const SoftmaxMerge merge(before[r * kWarpSize], max[r]);
      max[r] = merge.max;
      sum[r] = merge(before[(2 + r) * kWarpSize], sum[r]);
#pragma unroll
      for (int i = 0; i < kDims; ++i)
#pragma unroll
        for (int c = 0; c < 2; ++c)
          out[i][r * 2 + c] = merge(before[(4 + i * 4 + r * 2 + c) * kWarpSize], out[i][r * 2 + c]);
    }
  }
};

// Floats of a warp's state in shared memory, with all dimensions.
template <int D>
constexpr int kSlot = (4 + D * 16) * kWarpSize;

}  // namespace capstan::cuda
