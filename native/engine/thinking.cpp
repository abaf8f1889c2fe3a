#include "native/engine/thinking.h"

namespace capstan {

bool ThinkingBudget::MarkerSearch::accept(int32_t token_id) {
  num_matched_ = matcher_.advance(num_matched_, token_id);
  if (num_matched_ == 0 || num_matched_ < matcher_.size()) return false;
  num_matched_ = 0;
  return true;
}

ThinkingBudget::ThinkingBudget(const ThinkingParams& params)
    : budget_(params.budget), open_(params.open_ids), close_(params.close_ids), is_inside_(params.is_inside) {}

void ThinkingBudget::accept(int32_t token_id) {
  if (!is_inside_) {
    is_inside_ = open_.accept(token_id);
    return;
  }
  ++num_inside_;
  if (!close_.accept(token_id)) return;
  is_inside_ = false;
  num_inside_ -= static_cast<int>(close_.size());
}

// Tokens of an unfinished closing marker count as inside, so a marker that never completes cannot exceed the budget.
std::optional<int32_t> ThinkingBudget::forced_id() const {
  if (!is_inside_ || num_inside_ < budget_) return std::nullopt;
  return close_.next_id();
}

}  // namespace capstan
