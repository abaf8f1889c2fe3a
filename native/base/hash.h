#pragma once
// A fast 64-bit hash, for indexes that verify a hit by comparing the contents.
#include <cstdint>
#include <span>

namespace capstan {

// Multiplies to 128 bits and folds: one round mixes all bits of both operands.
inline uint64_t mix64(uint64_t a, uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

inline uint64_t hash_ids(uint64_t seed, std::span<const int32_t> ids) {
  constexpr uint64_t kOdd0 = 0x9E3779B97F4A7C15, kOdd1 = 0xD1B54A32D192ED03;
  uint64_t hash = mix64(seed ^ kOdd0, kOdd1 ^ ids.size());
  size_t i = 0;
  for (; i + 2 <= ids.size(); i += 2) {
    const uint64_t pair = static_cast<uint32_t>(ids[i]) | static_cast<uint64_t>(static_cast<uint32_t>(ids[i + 1]))
                                                              << 32;
    hash = mix64(hash ^ pair, kOdd0);
  }
  if (i < ids.size()) hash = mix64(hash ^ static_cast<uint32_t>(ids[i]), kOdd1);
  return hash;
}

}  // namespace capstan
