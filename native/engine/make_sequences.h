#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "native/engine/request.h"
#include "native/engine/sequence.h"

namespace capstan {

// Creates the sequences of a checked request, one per choice in the order of their indices. Their request ids are not
// set yet. Throws kInvalidArgument when bad words or min_tokens exclude all of allowed_token_ids.
std::vector<std::unique_ptr<Sequence>> make_sequences(Request request, const std::vector<int32_t>& eos_token_ids,
                                                      int64_t vocab_size);

}  // namespace capstan
