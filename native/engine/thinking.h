#pragma once
// Limits the number of tokens between an opening and a closing marker of a completion (the model's reasoning).
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "native/base/pattern_matcher.h"

namespace capstan {

struct ThinkingParams {
  int budget = 0;                  // most tokens between the markers, over the whole completion
  std::vector<int32_t> open_ids;   // opening marker, one or more tokens; empty: only the prompt can open
  std::vector<int32_t> close_ids;  // closing marker, one or more tokens
  bool is_inside = false;          // the prompt ends after an opening marker
};

class ThinkingBudget {
 public:
  explicit ThinkingBudget(const ThinkingParams& params);
  void accept(int32_t token_id);
  // Returns the only token that may come next, or nothing when any may.
  std::optional<int32_t> forced_id() const;

 private:
  // Finds a marker in the completion. After a match the search starts again from nothing.
  class MarkerSearch {
   public:
    explicit MarkerSearch(std::span<const int32_t> ids) : matcher_(ids) {}
    // Returns whether `token_id` completes the marker.
    bool accept(int32_t token_id);
    size_t size() const { return matcher_.size(); }
    int32_t next_id() const { return matcher_.pattern()[num_matched_]; }

   private:
    PatternMatcher<int32_t> matcher_;
    size_t num_matched_ = 0;
  };

  int budget_;
  MarkerSearch open_, close_;
  bool is_inside_;
  int num_inside_ = 0;
};

}  // namespace capstan
