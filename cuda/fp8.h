#pragma once
// Keys and values in 8 bits: e4m3 (1 sign, 4 exponent and 3 fraction bits; at most 448). Each head of each token has a
// power of two as its scale, so that scaling is exact. The arithmetic on bits is the same on all devices and on the
// host.
#include <cstdint>

#include "cuda/device.h"
#include "cuda/layout.h"

namespace capstan::cuda {

// Range of the scale's exponent. Values that need a larger exponent saturate at 448 · 2^7 = 57,344. Values that need a
// smaller one lose digits.
constexpr int kMinExponent = -22, kMaxExponent = 7;
// Marks a head that contains NaN or Inf. Everything computed from it is NaN.
constexpr int kNonFiniteExponent = 127;

CAPSTAN_BOTH uint32_t bits_of_float(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}
CAPSTAN_BOTH float float_of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
CAPSTAN_BOTH float power_of_two(int exponent) {
  return float_of_bits(static_cast<uint32_t>(exponent + 127) << 23);
}

// The smallest exponent with which `largest`, the largest magnitude of a head, is at most 448.
CAPSTAN_BOTH int fp8_exponent(float largest) {
  const uint32_t bits = bits_of_float(largest);
  const int exponent = static_cast<int>(bits >> 23) - 127 - 8 + ((bits & 0x7fffff) > 0x600000 ? 1 : 0);
  return exponent < kMinExponent ? kMinExponent : exponent > kMaxExponent ? kMaxExponent : exponent;
}

// Rounds to nearest, ties to even, and saturates at 448. `value` is not NaN.
CAPSTAN_BOTH uint8_t to_fp8(float value) {
  const uint32_t sign = bits_of_float(value) >> 24 & 0x80;
  const float size = value < 0 ? -value : value;
  if (size >= 448.0f) return static_cast<uint8_t>(sign | 0x7e);
  // Below 2^-6 the spacing is 2^-9. The addition rounds to it.
  if (size < 0.015625f) return static_cast<uint8_t>(sign | (bits_of_float(size + 16384.0f) & 0xf));
  const uint32_t bits = bits_of_float(size);
  return static_cast<uint8_t>(sign | (((bits + 0x7ffff + (bits >> 20 & 1)) >> 20) - ((127 - 7) << 3)));
}

// The scale as a T. In the upper bits of T, an e4m3 number reads as itself times 2^-120 (bf16) or 2^-8 (f16); the scale
// includes the inverse factor.
template <class T>
CAPSTAN_BOTH uint32_t fp8_scale(uint8_t exponent) {
  const int value = static_cast<int8_t>(exponent);
  if constexpr (T::kIsBf16)
    return value == kNonFiniteExponent ? 0x7fc0u : static_cast<uint32_t>(127 + 120 + value) << 7 & 0xffffu;
  return value == kNonFiniteExponent ? 0x7e00u : static_cast<uint32_t>(15 + 8 + value) << 10 & 0xffffu;
}

// Bytes 2 i and 2 i + 1 of `word` as a pair of T, times a pair of scales. Exact.
template <class T>
__device__ __forceinline__ uint32_t expand_fp8(uint32_t word, int i, uint32_t scales) {
  const uint32_t spread = spread_bytes(word, i);
  return multiply_pairs<T>((spread & 0x80008000u) | (spread & 0x7f007f00u) >> (T::kIsBf16 ? 4 : 1), scales);
}

// One warp writes a head of keys or values to its slot of the cache.
__device__ __forceinline__ void append_fp8(const KvLayout& layout, uint8_t* cache, int64_t slot, int kv_head,
                                           bool is_value, const float* row) {
  const int lane = lane_id();
  float largest = 0, zero = 0;
  for (int d = lane; d < layout.head_dim; d += kWarpSize) {
    largest = fmaxf(largest, fabsf(row[d]));
    zero = fmaf(row[d], 0.0f, zero);
  }
  largest = warp_max(largest);
  const bool is_non_finite = !(warp_sum(zero) == 0.0f);
  const int exponent = is_non_finite ? kNonFiniteExponent : fp8_exponent(largest);
  const float scale = is_non_finite ? 0.0f : power_of_two(-exponent);
  for (int d = lane; d < (is_value ? layout.head_dim : layout.k_dim); d += kWarpSize)
    cache[is_value ? layout.value(slot, kv_head, d) : layout.key(slot, kv_head, d)] =
        d < layout.head_dim && !is_non_finite ? to_fp8(row[d] * scale) : 0;
  if (lane == 0) cache[layout.exponent(slot, kv_head, is_value)] = static_cast<uint8_t>(exponent);
}

}  // namespace capstan::cuda
