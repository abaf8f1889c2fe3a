#pragma once
#include <cstdint>
#include <span>

#include "native/engine/sequence.h"

namespace capstan {

// Returns the ids that must not come next because of bad words or min_tokens, ascending. All earlier tokens must be
// known to the host. Valid until the next call for `seq`.
std::span<const int32_t> banned_ids(Sequence& seq);

}  // namespace capstan
