#pragma once
// Device functions for one row, used by separate and by fused kernels with the same bits.
#include "cuda/fp8.h"
#include "cuda/kernels.h"

namespace capstan::cuda {

constexpr int kNormThreads = 256;
constexpr int kNormWarps = kNormThreads / kWarpSize;

// The thread's share of a row's sum of squares. The block has kNormThreads threads.
__device__ __forceinline__ float partial_sum_of_squares(const float* row, int64_t size) {
  float square = 0;
  for (int64_t k = threadIdx.x; k < size; k += kNormThreads)
    square = fmaf(row[k], row[k], square);
  return square;
}

// The mean and the factor of a row's norm. The mean of an RMS norm counts as 0.
struct RowNorm {
  float mean, scale;
};

// The factor of a row, from the warps' sums of squares.
__device__ __forceinline__ float norm_scale(const float* warp_squares, int64_t size, float eps) {
  float sum = 0;
  for (int w = 0; w < kNormWarps; ++w)
    sum += warp_squares[w];
  return 1.0f / sqrtf(sum / static_cast<float>(size) + eps);
}

// The norm of a row of `size` values. All threads of the block call it. `sums` are kRowNormFloats that no other call
// uses.
constexpr int kRowNormFloats = 2 * kNormWarps;
__device__ __forceinline__ RowNorm row_norm(const float* row, int64_t size, float eps, bool is_layer_norm,
                                            float* sums) {
  RowNorm norm{0, 1};
  if (is_layer_norm) {
    float sum = 0;
    for (int64_t k = threadIdx.x; k < size; k += kNormThreads)
      sum += row[k];
    sum = warp_sum(sum);
    if (lane_id() == 0) sums[kNormWarps + warp_id()] = sum;
    __syncthreads();
    float total = 0;
    for (int w = 0; w < kNormWarps; ++w)
      total += sums[kNormWarps + w];
    norm.mean = total / static_cast<float>(size);
  }
  float square = 0;
  for (int64_t k = threadIdx.x; k < size; k += kNormThreads) {
    const float centred = row[k] - norm.mean;
    square = fmaf(centred, centred, square);
  }
  square = warp_sum(square);
  if (lane_id() == 0) sums[warp_id()] = square;
  __syncthreads();
  norm.scale = norm_scale(sums, size, eps);
  return norm;
}

// Feature k of a normed row.
__device__ __forceinline__ float normed(const NormArgs& args, const RowNorm& norm, float value, int64_t k) {
  if (args.weight == nullptr) return value;
  if (args.bias == nullptr) return value * norm.scale * args.weight[k];
  return fmaf((value - norm.mean) * norm.scale, args.weight[k], args.bias[k]);
}

// 1 / RMS over all heads of q or k, which are added in order, so that the number of ranks changes no bit. More ranks
// than KV heads hold copies of them.
__device__ __forceinline__ float scale_of_all_heads(const QkvArgs& args, int64_t token, bool is_q) {
  const int num_kv_heads = args.layout.num_kv_heads, per_rank = is_q ? args.num_heads : num_kv_heads,
            total = is_q ? args.num_heads * args.world_size : args.total_kv_heads;
  const int64_t first = token * (args.num_heads + num_kv_heads) + (is_q ? 0 : args.num_heads);
  float sum = 0;
#pragma unroll 4
  for (int head = 0; head < total; ++head) {
    const int rank = head * args.world_size / total, own = total >= args.world_size ? head % per_rank : 0;
    sum += args.squares[rank][first + own];
  }
  return 1.0f / sqrtf(sum / static_cast<float>(total * args.layout.head_dim) + args.eps);
}

// 1 / RMS of a head.
__device__ __forceinline__ float scale_of_head(const QkvArgs& args, const float* row) {
  float square = 0;
  for (int d = lane_id(); d < args.layout.head_dim; d += kWarpSize)
    square = fmaf(row[d], row[d], square);
  return 1.0f / sqrtf(warp_sum(square) / static_cast<float>(args.layout.head_dim) + args.eps);
}

// The norm of a head, in place. kIsOfAllHeads: the norm may be over all heads.
template <bool kIsOfAllHeads>
__device__ __forceinline__ void norm_head(const QkvArgs& args, int64_t token, int head, float* row) {
  const bool is_q = head < args.num_heads;
  const int head_dim = args.layout.head_dim, lane = lane_id();
  const float* norm = is_q ? args.q_norm : args.k_norm;
  if (norm == nullptr) return;
  float scale;
  if (kIsOfAllHeads && args.squares[0] != nullptr) {
    scale = scale_of_all_heads(args, token, is_q);
    norm += (is_q ? head : head - args.num_heads) * head_dim;
  } else {
    scale = scale_of_head(args, row);
  }
  for (int d = lane; d < head_dim; d += kWarpSize)
    row[d] = row[d] * scale * norm[d];
  __syncwarp();
}

__device__ __forceinline__ void rotate_head(const QkvArgs& args, int64_t token, float* row) {
  const int half = args.rotary_dim / 2;
  const float* rope = args.rope + int64_t{args.positions[token]} * args.rotary_dim;
  for (int d = lane_id(); d < half; d += kWarpSize) {
    const float first = row[d], second = row[d + half], c = rope[d], s = rope[d + half];
    row[d] = fmaf(first, c, -(second * s));
    row[d + half] = fmaf(second, c, first * s);
  }
  __syncwarp();
}

// One warp finishes a head of q, k or v, whose values are in `row` (head_dim floats of shared memory): QK norm and RoPE
// in place, then the store to q or to the cache. kHasAll: also norms over all heads, of v or after RoPE, and
// query_scales. The registers of launch_gemv do not suffice for them.
template <class T, bool kHasAll>
__device__ __forceinline__ void finish_head(const QkvArgs& args, int64_t token, int head, float* row) {
  const int num_kv_heads = args.layout.num_kv_heads, head_dim = args.layout.head_dim, lane = lane_id();
  const bool is_q = head < args.num_heads, is_v = head >= args.num_heads + num_kv_heads;
  const bool rotates_first = kHasAll && args.rotates_before_norm;
  if (!is_v) {
    if (rotates_first) rotate_head(args, token, row);
    norm_head<kHasAll>(args, token, head, row);
    if (!rotates_first) rotate_head(args, token, row);
  } else if (kHasAll && args.has_v_norm) {
    const float scale = scale_of_head(args, row);
    for (int d = lane; d < head_dim; d += kWarpSize)
      row[d] *= scale;
    __syncwarp();
  }

  if (is_q) {
    uint16_t* to = args.q + (token * args.num_heads + head) * args.layout.k_dim;
    const float scale = kHasAll && args.query_scales != nullptr ? args.query_scales[args.positions[token]] : 1.0f;
    for (int d = lane; d < args.layout.k_dim; d += kWarpSize)
      to[d] = d < head_dim ? to_bits<T>(row[d] * scale) : 0;
    return;
  }
  const int64_t slot = args.slots[token];
  if (slot < 0) return;
  const int kv_head = (head - args.num_heads) % num_kv_heads;
  if (args.layout.is_fp8) return append_fp8(args.layout, static_cast<uint8_t*>(args.cache), slot, kv_head, is_v, row);
  auto* const cache = static_cast<uint16_t*>(args.cache);
  if (is_v) {
    for (int d = lane; d < head_dim; d += kWarpSize)
      cache[args.layout.value(slot, kv_head, d)] = to_bits<T>(row[d]);
  } else {
    for (int d = lane; d < args.layout.k_dim; d += kWarpSize)
      cache[args.layout.key(slot, kv_head, d)] = d < head_dim ? to_bits<T>(row[d]) : 0;
  }
}

}  // namespace capstan::cuda
