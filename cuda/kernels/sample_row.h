#pragma once
// One block's pass over a row of logits. The pass is bound by memory: each thread has four loads of 16 bytes in flight.
#include "cuda/device.h"

namespace capstan::cuda {

constexpr int kSampleThreads = 1024;
constexpr int kSampleWarps = kSampleThreads / kWarpSize;
static_assert(kSampleWarps == kWarpSize);  // one warp reduces the results of all warps
constexpr int kRowLoads = 4;
constexpr float kMasked = -__builtin_inff();
constexpr float kLowest = -3.4028235e38f;
constexpr int32_t kNoId = 0x7fffffff;

// ---- reductions over the block
// All threads get the same result. Each reduction ends with a barrier, so that the scratch memory can be reused.

template <class T, class Combine>
__device__ __forceinline__ T warp_reduce(T value, Combine&& combine) {
  for (int bits = kWarpSize / 2; bits > 0; bits /= 2)
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, bits));
  return value;
}
template <class T, class Combine>
__device__ __forceinline__ T block_reduce(T value, void* warp_scratch, Combine&& combine) {
  T* const warps = static_cast<T*>(warp_scratch);
  value = warp_reduce(value, combine);
  if (lane_id() == 0) warps[warp_id()] = value;
  __syncthreads();
  value = warp_reduce(warps[lane_id()], combine);
  __syncthreads();
  return value;
}
template <class T>
__device__ __forceinline__ T block_max(T value, void* warp_scratch) {
  return block_reduce(value, warp_scratch, [](T a, T b) { return a > b ? a : b; });
}
template <class T>
__device__ __forceinline__ T block_min(T value, void* warp_scratch) {
  return block_reduce(value, warp_scratch, [](T a, T b) { return a < b ? a : b; });
}
template <class T>
__device__ __forceinline__ T block_sum(T value, void* warp_scratch) {
  return block_reduce(value, warp_scratch, [](T a, T b) { return a + b; });
}

// ---- rows

constexpr int kBatch = 4 * kRowLoads;
// What a thread holds of a row at a time.
struct Batch {
  float values[kBatch];
  int first;
  bool is_single;  // only values[0] belongs to the row
  __device__ __forceinline__ int id(int j) const { return first + j / 4 * (4 * kSampleThreads) + j % 4; }
};

// Number of values before the first 16-byte boundary.
__device__ __forceinline__ int values_to_boundary(const float* row) {
  return static_cast<int>((16 - reinterpret_cast<uintptr_t>(row) % 16) % 16 / sizeof(float));
}

// Calls `f` with batches. Values after the end of the row are `fill`.
template <class F>
__device__ __forceinline__ void for_each_batch(const float* row, int count, float fill, F&& f) {
  constexpr int kStride = kSampleThreads * kRowLoads;
  const int thread = static_cast<int>(threadIdx.x), to_boundary = values_to_boundary(row);
  const int head = to_boundary < count ? to_boundary : count, num_vectors = (count - head) / 4;
  const auto* vectors = reinterpret_cast<const float4*>(row + head);
#if defined(__CUDA_ARCH__)
  // without this the compiler cannot know that the address is not in shared memory
  __builtin_assume(__isGlobal(vectors));
#endif
  // Up to three values before the first vector, and up to three after the last, are single.
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

// The result of one pass over a row.
struct RowSummary {
  float thread_max[kSampleThreads];  // the largest value of each thread
  float best;                        // the largest of all values
  int32_t best_id;                   // the lowest id of `best`; kNoId: all ids are masked
  float sum;                         // of exp((value - best) / temperature); only with kSums
};
// Returns false when the row contains NaN or Inf.
template <bool kSums>
__device__ __noinline__ bool summarize_row(const float* row, int count, float temperature, RowSummary& summary,
                                           void* warp_scratch) {
  const float scale = kSums ? kLog2E / temperature : 0;
  float thread_max = kLowest, sum = 0;
  bool is_bad = false;
  int at = kNoId;  // start of the batch with the largest value
  for_each_batch(row, count, kLowest, [&](const Batch& batch) {
    float top = batch.values[0];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      top = fmaxf(top, batch.values[j]);
      is_bad |= !(fabsf(batch.values[j]) <= -kLowest);
    }
    const float before = thread_max;
    if (top > thread_max || (top == thread_max && batch.first < at)) thread_max = top, at = batch.first;
    if constexpr (kSums) {
      sum *= ex2_approx((before - thread_max) * scale);
#pragma unroll
      for (int j = 0; j < kBatch; ++j)
        sum += ex2_approx((batch.values[j] - thread_max) * scale);
    }
  });
  const float best = block_max(thread_max, warp_scratch);
  if (kSums) sum = block_sum(sum * ex2_approx((thread_max - best) * scale), warp_scratch);
  int32_t id = kNoId;
  if (thread_max == best && at != kNoId) {
    const Batch places{{}, at, false};
#pragma unroll
    for (int j = kBatch - 1; j >= 0; --j) {
      const int place = places.id(j) < count ? places.id(j) : at;
      id = row[place] == best ? place : id;
    }
  }
  id = block_min(id, warp_scratch);
  summary.thread_max[threadIdx.x] = thread_max;
  if (threadIdx.x == 0) summary.best = best, summary.best_id = id, summary.sum = sum;
  return block_max(is_bad ? 1 : 0, warp_scratch) == 0;  // the barrier of the reduction publishes the summary
}

}  // namespace capstan::cuda
