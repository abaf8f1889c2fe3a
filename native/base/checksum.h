#pragma once
// A fast checksum of large data. It detects damage, not intent: two messages with one checksum can be constructed with
// the key.
#include <cstddef>
#include <span>

#include "native/base/sip_hash.h"

namespace capstan {

Hash128 checksum_128(const Hash128& key, std::span<const std::byte> message);

}  // namespace capstan
