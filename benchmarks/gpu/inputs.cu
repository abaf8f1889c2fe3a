#include "benchmarks/gpu/inputs.h"

namespace capstan::benchmarks {
namespace {

__global__ void fill_kernel(uint32_t* to, int64_t count, Pattern pattern) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x)
    to[i] = word_at(pattern, i);
}
__global__ void logits_kernel(float* to, int64_t count) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x)
    to[i] = logit_at(i, count);
}

}  // namespace

DeviceBuffer filled_words(int64_t words, const Pattern& pattern, cudaStream_t stream) {
  DeviceBuffer buffer(static_cast<size_t>(words) * 4, "numbers");
  launch(fill_kernel, dim3(is_tiny ? 2 : 1024), dim3(256), 0, stream, buffer.as<uint32_t>(), words, pattern);
  return buffer;
}

DeviceBuffer filled_logits(int64_t count, cudaStream_t stream) {
  DeviceBuffer buffer(static_cast<size_t>(count) * 4, "numbers");
  launch(logits_kernel, dim3(is_tiny ? 2 : 1024), dim3(256), 0, stream, buffer.as<float>(), count);
  return buffer;
}

}  // namespace capstan::benchmarks
