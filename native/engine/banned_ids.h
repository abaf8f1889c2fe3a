#pragma once
#include <cstdint>
#include <span>

#include "native/engine/sequence.h"

namespace capstan {

// Returns the ids that must not follow the first `num_drafts` drafts because of bad words or min_tokens, ascending. All
// earlier tokens must be known to the host. Valid until the next call for `seq` and `num_drafts`.
std::span<const int32_t> banned_ids(Sequence& seq, size_t num_drafts = 0);

}  // namespace capstan
