#pragma once
// Bounds the tokens between two markers of a completion, which may be several tokens each.
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace capstan {

struct ThinkingParams {
  int budget = 0;                 // most tokens inside, over the whole completion; markers not counted
  std::vector<int32_t> open_ids;  // may be empty: only what the prompt has opened
  std::vector<int32_t> close_ids;
  bool is_inside = false;  // after the prompt
};

// Finds a sequence of tokens in a stream of them (Knuth-Morris-Pratt).
class TokenSearch {
 public:
  explicit TokenSearch(std::vector<int32_t> ids);
  // True when it ends with this token; begins anew then. An empty sequence is never found.
  bool advance(int32_t token_id);
  // Of its tokens, how many the stream ends with.
  size_t num_matched() const { return num_matched_; }
  const std::vector<int32_t>& ids() const { return ids_; }

 private:
  std::vector<int32_t> ids_;
  std::vector<size_t> fallback_;  // (length) longest proper border of each prefix
  size_t num_matched_ = 0;
};

class ThinkingBudget {
 public:
  explicit ThinkingBudget(const ThinkingParams& params);
  void take(int32_t token_id);
  // The token that must come next.
  std::optional<int32_t> forced() const;

 private:
  int budget_;
  TokenSearch open_, close_;
  bool is_inside_;
  int num_inside_ = 0;
};

}  // namespace capstan
