#pragma once
// SipHash-2-4 with 128 bits of output (Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012). Two
// messages with the same hash cannot be constructed without the key.
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace capstan {

using Hash128 = std::array<uint64_t, 2>;

// The words of key and result are little-endian.
Hash128 sip_hash_128(const Hash128& key, std::span<const std::byte> message);

}  // namespace capstan
