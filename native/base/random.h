#pragma once
// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). Its words are a pure function
// of key and counter, so a draw depends only on the seed and the position in its sequence.
#include <array>
#include <cstdint>

namespace capstan {

inline std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, uint64_t key) {
  uint32_t key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key0, static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key1, static_cast<uint32_t>(p0)};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return counter;
}

// Returns the noise of one token id (architecture, contract 5). One call of Philox serves four ids.
inline uint32_t noise_word(uint64_t seed, uint32_t position, uint32_t choice, uint32_t id) {
  return philox4x32({position, choice, id / 4, 0}, seed)[id % 4];
}

// Returns a random seed from the system's entropy source.
uint64_t draw_seed();

}  // namespace capstan
