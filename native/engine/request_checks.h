#pragma once
// What a request must satisfy before it becomes sequences.
#include <cstdint>

#include "native/engine/request.h"

namespace capstan {

namespace grammar {
class TokenTable;
}

struct RequestLimits {
  int max_model_len = 0;
  int64_t vocab_size = 0;                       // token ids are below this
  const grammar::TokenTable* tokens = nullptr;  // the table that the request's grammar must be compiled for
  bool is_pooled = false;                       // the engine pools, and does not generate text
  int num_token_types = 0;                      // 0 = the model has none
};

// Throws kInvalidArgument with the name of the field, or kContextLengthExceeded.
void check_request(const Request& request, const RequestLimits& limits);

// Throws kInvalidArgument with `name`, what was expected and what was received, unless `is_met`.
void require_argument(bool is_met, const char* name, const std::string& expected, const std::string& received);

}  // namespace capstan
