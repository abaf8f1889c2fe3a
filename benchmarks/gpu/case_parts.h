#pragma once
// Shared by the sources of the kernel cases.
#include <algorithm>
#include <cmath>
#include <vector>

#include "benchmarks/gpu/kernel_cases.h"

namespace capstan::benchmarks {

// All copies of the weights together exceed any cache.
constexpr int64_t kRotatedBytes = int64_t{400} << 20;

inline int64_t num_copies(int64_t bytes) {
  return is_tiny ? 1 : std::max<int64_t>(1, kRotatedBytes / bytes);
}

// The n-th draw below `count`.
inline int64_t draw(int n, uint32_t seed, int64_t count) {
  return static_cast<int64_t>(scrambled(n, seed) % static_cast<uint64_t>(count));
}

inline Output output_of(const DeviceBuffer& buffer) {
  return {buffer.as<void>(), buffer.bytes()};
}

inline DeviceBuffer floats(int64_t count, cudaStream_t stream, uint32_t seed) {
  return filled_words(count, float_pattern(seed), stream);
}
template <class T>
DeviceBuffer uploaded(const std::vector<T>& from, cudaStream_t stream) {
  DeviceBuffer buffer(from.size() * sizeof(T), "a list");
  check(cudaMemcpyAsync(buffer.as<void>(), from.data(), buffer.bytes(), cudaMemcpyHostToDevice, stream), "a list");
  check(cudaStreamSynchronize(stream), "a list");
  return buffer;
}
inline DeviceBuffer ids(const std::vector<int32_t>& values, cudaStream_t stream) {
  return uploaded(values, stream);
}
inline DeviceBuffer zeros(int64_t words, cudaStream_t stream) {
  DeviceBuffer buffer(static_cast<size_t>(words) * 4, "zeros");
  check(cudaMemsetAsync(buffer.as<void>(), 0, buffer.bytes(), stream), "zeros");
  return buffer;
}

constexpr int kRank = 16;  // of adapters

// Seeds of the inputs.
enum : uint32_t { kWeights = 1, kActs, kHidden, kNorm, kBefore, kPartials, kCache, kQueries, kRope };

// Half a unit in the last place of bf16, plus some error of f32 sums.
inline double bf16_tolerance(double value) {
  return 0.004 * (std::abs(value) + 0.01);
}

}  // namespace capstan::benchmarks
