#include "native/base/sip_hash.h"

#include <bit>

namespace capstan {
namespace {

struct State {
  uint64_t v0, v1, v2, v3;

  void rounds(int count) {
    for (int i = 0; i < count; ++i) {
      v0 += v1;
      v2 += v3;
      v1 = std::rotl(v1, 13) ^ v0;
      v3 = std::rotl(v3, 16) ^ v2;
      v0 = std::rotl(v0, 32) + v3;
      v2 += v1;
      v3 = std::rotl(v3, 21) ^ v0;
      v1 = std::rotl(v1, 17) ^ v2;
      v2 = std::rotl(v2, 32);
    }
  }
  void add(uint64_t word) {
    v3 ^= word;
    rounds(2);
    v0 ^= word;
  }
  uint64_t result() const { return v0 ^ v1 ^ v2 ^ v3; }
};

uint64_t little_endian(std::span<const std::byte> bytes) {
  uint64_t word = 0;
  for (size_t i = 0; i < bytes.size(); ++i)
    word |= static_cast<uint64_t>(bytes[i]) << (8 * i);
  return word;
}

}  // namespace

Hash128 sip_hash_128(const Hash128& key, std::span<const std::byte> message) {
  State state{key[0] ^ 0x736f6d6570736575, key[1] ^ 0x646f72616e646f6d ^ 0xee, key[0] ^ 0x6c7967656e657261,
              key[1] ^ 0x7465646279746573};
  const size_t num_words = message.size() / 8;
  for (size_t i = 0; i < num_words; ++i)
    state.add(little_endian(message.subspan(i * 8, 8)));
  state.add(little_endian(message.subspan(num_words * 8)) | static_cast<uint64_t>(message.size()) << 56);
  state.v2 ^= 0xee;
  state.rounds(4);
  Hash128 hash{state.result(), 0};
  state.v1 ^= 0xdd;
  state.rounds(4);
  hash[1] = state.result();
  return hash;
}

}  // namespace capstan
