#include "native/base/checksum.h"

#include <array>
#include <cstdint>
#include <cstring>

#include "native/base/hash.h"

namespace capstan {
namespace {

constexpr size_t kLanes = 4, kStripe = kLanes * 16;
constexpr std::array<uint64_t, kLanes> kSalts{0x9E3779B97F4A7C15, 0xD1B54A32D192ED03, 0x8CB92BA72F3D8DD7,
                                              0xAEF17502108EF2D9};

}  // namespace

// Each lane folds 16 bytes at a time into its word. The lanes do not wait for each other.
Hash128 checksum_128(const Hash128& key, std::span<const std::byte> message) {
  std::array<uint64_t, kLanes> lanes;
  for (size_t lane = 0; lane < kLanes; ++lane)
    lanes[lane] = key[lane % 2] ^ kSalts[lane];
  const auto add_stripe = [&](const std::byte* stripe) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      uint64_t words[2];
      std::memcpy(words, stripe + lane * 16, sizeof(words));
      // The sum keeps what came before even if the product is 0.
      lanes[lane] = lanes[lane] * kSalts[0] + mix64(words[0] ^ kSalts[lane] ^ key[0], words[1] ^ lanes[lane] ^ key[1]);
    }
  };
  size_t at = 0;
  for (; at + kStripe <= message.size(); at += kStripe)
    add_stripe(message.data() + at);
  std::byte last[kStripe] = {};
  if (at < message.size()) std::memcpy(last, message.data() + at, message.size() - at);
  add_stripe(last);
  const uint64_t even = mix64(lanes[0] ^ kSalts[1], lanes[2] ^ message.size() ^ kSalts[2]);
  const uint64_t odd = mix64(lanes[1] ^ kSalts[3], lanes[3] ^ message.size() ^ kSalts[0]);
  return {mix64(even ^ kSalts[2], odd ^ kSalts[1]), even + (odd ^ kSalts[3])};
}

}  // namespace capstan
