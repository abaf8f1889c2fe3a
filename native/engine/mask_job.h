#pragma once
// A grammar mask that the mask pool computes.
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <stop_token>
#include <vector>

#include "native/grammar/matcher.h"

namespace capstan {

struct MaskJob {
  std::shared_ptr<grammar::GrammarMatcher> matcher;  // used by the job alone until is_done
  int32_t token_id = -1;                             // consumed before the mask is computed; -1: none
  bool is_refused = false;                           // the matcher did not accept `token_id`
  std::vector<uint32_t> mask;                        // (num_mask_words)
  std::exception_ptr error;
  std::stop_source stop;             // requests the job to give up
  std::atomic<bool> is_done{false};  // once true, the other fields may be read
};

}  // namespace capstan
