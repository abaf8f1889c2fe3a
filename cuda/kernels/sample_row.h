#pragma once
// How one block goes over a row of logits. Time is what the row takes to arrive: each thread has four loads of 16 bytes
// under way, and no pass does more with a value than the loads leave time for.
#include "cuda/device.h"

namespace capstan::cuda {

constexpr int kSampleThreads = 1024;
constexpr int kSampleWarps = kSampleThreads / kWarpSize;
static_assert(kSampleWarps == kWarpSize);  // a warp joins what the warps have
constexpr int kRowLoads = 4;
constexpr float kMasked = -__builtin_inff();
constexpr float kLowest = -3.4028235e38f;
constexpr int32_t kNoId = 0x7fffffff;

// ---- over the block, the same in all threads. Each ends with a barrier, so that the memory may be used again.
// -----------------------------------

template <class T, class Join>
__device__ __forceinline__ T over_warp(T value, Join&& join) {
  for (int bits = kWarpSize / 2; bits > 0; bits /= 2)
    value = join(value, __shfl_xor_sync(0xffffffffu, value, bits));
  return value;
}
template <class T, class Join>
__device__ __forceinline__ T over_block(T value, void* of_warps, Join&& join) {
  T* const warps = static_cast<T*>(of_warps);
  value = over_warp(value, join);
  if (lane_id() == 0) warps[warp_id()] = value;
  __syncthreads();
  value = over_warp(warps[lane_id()], join);
  __syncthreads();
  return value;
}
template <class T>
__device__ __forceinline__ T block_max(T value, void* of_warps) {
  return over_block(value, of_warps, [](T a, T b) { return a > b ? a : b; });
}
template <class T>
__device__ __forceinline__ T block_min(T value, void* of_warps) {
  return over_block(value, of_warps, [](T a, T b) { return a < b ? a : b; });
}
template <class T>
__device__ __forceinline__ T block_sum(T value, void* of_warps) {
  return over_block(value, of_warps, [](T a, T b) { return a + b; });
}

// ---- rows
// -------------------------------------------------------------------------------------------------------------------------------------

constexpr int kBatch = 4 * kRowLoads;
// What a thread has of a row at a time.
struct Batch {
  float values[kBatch];
  int first;
  bool is_single;  // only values[0] is of the row
  __device__ __forceinline__ int id(int j) const { return first + j / 4 * (4 * kSampleThreads) + j % 4; }
};

// Numbers from `row` to where 16-byte loads may begin.
__device__ __forceinline__ int values_to_boundary(const float* row) {
  return static_cast<int>((16 - reinterpret_cast<uintptr_t>(row) % 16) % 16 / sizeof(float));
}

// Calls `f` with batches; what is beyond the row is `fill` in them.
template <class F>
__device__ __forceinline__ void each_batch(const float* row, int count, float fill, F&& f) {
  constexpr int kStride = kSampleThreads * kRowLoads;
  const int thread = static_cast<int>(threadIdx.x), to_boundary = values_to_boundary(row);
  const int head = to_boundary < count ? to_boundary : count, num_vectors = (count - head) / 4;
  const auto* vectors = reinterpret_cast<const float4*>(row + head);
#if defined(__CUDA_ARCH__)
  __builtin_assume(__isGlobal(vectors));  // of what lies in shared memory, the compiler would not know
#endif
  // Up to three before the first vector, and as many behind the last, go to a thread each.
  const int single = thread < head ? thread : 4 * num_vectors + thread;
  for (int v = single < count ? thread - kStride : thread; v < num_vectors; v += kStride) {
    Batch batch;
    batch.is_single = v < 0;
    batch.first = v < 0 ? single : head + 4 * v;
#pragma unroll
    for (int load = 0; load < kRowLoads; ++load) {
      float4 vector = {fill, fill, fill, fill};
      if (v >= 0 && v + load * kSampleThreads < num_vectors) vector = vectors[v + load * kSampleThreads];
      batch.values[load * 4] = vector.x, batch.values[load * 4 + 1] = vector.y, batch.values[load * 4 + 2] = vector.z,
                          batch.values[load * 4 + 3] = vector.w;
    }
    if (v < 0) batch.values[0] = row[single];
    f(batch);
  }
}

// What one pass finds out about a row.
struct Survey {
  float own[kSampleThreads];  // the largest value that each thread has seen
  float best;                 // of all
  int32_t best_id;            // the lowest of those that have it; kNoId: all are masked
  float sum;                  // of exp((value - best) / temperature), with kSums
};
// False where the row has infinity, or what is no number.
template <bool kSums>
__device__ __noinline__ bool take_survey(const float* row, int count, float temperature, Survey& survey,
                                         void* of_warps) {
  const float scale = kSums ? kLog2E / temperature : 0;
  float own = kLowest, sum = 0;
  bool is_bad = false;
  int at = kNoId;  // where the batch begins that has the largest
  each_batch(row, count, kLowest, [&](const Batch& batch) {
    float top = batch.values[0];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      top = fmaxf(top, batch.values[j]);
      is_bad |= !(fabsf(batch.values[j]) <= -kLowest);
    }
    const float before = own;
    if (top > own || (top == own && batch.first < at)) own = top, at = batch.first;
    if constexpr (kSums) {
      sum *= exp2_near((before - own) * scale);
#pragma unroll
      for (int j = 0; j < kBatch; ++j)
        sum += exp2_near((batch.values[j] - own) * scale);
    }
  });
  const float best = block_max(own, of_warps);
  if (kSums) sum = block_sum(sum * exp2_near((own - best) * scale), of_warps);
  int32_t id = kNoId;
  if (own == best && at != kNoId) {
    const Batch places{{}, at, false};
#pragma unroll
    for (int j = kBatch - 1; j >= 0; --j) {
      const int place = places.id(j) < count ? places.id(j) : at;
      id = row[place] == best ? place : id;
    }
  }
  id = block_min(id, of_warps);
  survey.own[threadIdx.x] = own;
  if (threadIdx.x == 0) survey.best = best, survey.best_id = id, survey.sum = sum;
  return block_max(is_bad ? 1 : 0, of_warps) == 0;  // the barrier shows the survey to all
}

}  // namespace capstan::cuda
