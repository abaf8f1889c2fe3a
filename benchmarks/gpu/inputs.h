#pragma once
// Inputs of the kernel benchmarks: values that depend only on their index, so that the device and the host compute the
// same ones.
#include <cstring>

#include "cuda/launch.h"
#include "cuda/layout.h"
#include "cuda/memory.h"
#include "native/base/number.h"

namespace capstan::benchmarks {

using namespace cuda;
using cuda::round_up;  // the CPU backend has a function of this name too

// Small shapes, to check on the CPU that the program runs.
inline bool is_tiny = false;

CAPSTAN_BOTH uint32_t scrambled(int64_t i, uint32_t seed) {
  uint32_t x = static_cast<uint32_t>(i) * 0x9e3779b9u + seed * 0x632be5abu + 0x7f4a7c15u;
  x = (x ^ x >> 16) * 0x85ebca6bu;
  x = (x ^ x >> 13) * 0xc2b2ae35u;
  return x ^ x >> 16;
}

// Words of 32 bits. Those in `mask` are random, and those in `bits` are always set.
struct Pattern {
  uint32_t seed = 0, bits = 0, mask = 0xffffffffu;
};
CAPSTAN_BOTH uint32_t word_at(const Pattern& pattern, int64_t i) {
  return (scrambled(i, pattern.seed) & pattern.mask) | pattern.bits;
}

// bf16 of both signs, with magnitudes from `size`, a power of two, to twice as much.
inline Pattern bf16_pattern(uint32_t seed, float size) {
  uint32_t bits;
  std::memcpy(&bits, &size, sizeof bits);
  const uint32_t high = bits >> 16 & 0x7f80u;
  return {seed, high << 16 | high, 0x807f807fu};
}
inline float bf16_at(const Pattern& pattern, int64_t i) {
  return bf16_to_float(static_cast<uint16_t>(word_at(pattern, i / 2) >> i % 2 * 16));
}
// Floats of both signs, with magnitudes from 0.5 to 2.
inline Pattern float_pattern(uint32_t seed) {
  return {seed, 0x3f000000u, 0x80ffffffu};
}
inline float float_at(const Pattern& pattern, int64_t i) {
  return bits_float(word_at(pattern, i));
}

// Approximately normal with deviation 2. One in 4,096 values is far above the others, as in a model's logits.
CAPSTAN_BOTH float logit_at(int64_t i, int64_t count) {
  const uint32_t x = scrambled(i, 0);
  const int bytes = static_cast<int>((x & 0xff) + (x >> 8 & 0xff) + (x >> 16 & 0xff) + (x >> 24));
  return static_cast<float>(bytes - 510) / 74.0f + (scrambled(i + count, 0) % 4096 == 0 ? 12.0f : 0.0f);
}

DeviceBuffer filled_words(int64_t words, const Pattern& pattern, cudaStream_t stream);
inline DeviceBuffer filled_bf16(int64_t count, const Pattern& pattern, cudaStream_t stream) {
  return filled_words(round_up(count, 8) / 2, pattern, stream);
}
DeviceBuffer filled_logits(int64_t count, cudaStream_t stream);

}  // namespace capstan::benchmarks
