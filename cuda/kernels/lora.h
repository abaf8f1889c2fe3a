#pragma once
// B · t of an adapter, for the kernels that add it to their results.
#include "cuda/kernels/epilogue.h"
#include "cuda/lora.h"

namespace capstan::cuda {

// Returns B · t for one feature of the matrix.
template <class T>
__device__ __forceinline__ float lora_feature(const DeviceLora& lora, const float* t, int64_t feature) {
  const LoraRange range = lora.ranges[feature];
  float sum = 0;
#pragma unroll 4
  for (int j = 0; j < range.count; ++j)
    sum = fmaf(to_float<T>(lora.b[j * lora.rows + feature]), t[range.first + j], sum);
  return sum;
}

}  // namespace capstan::cuda
