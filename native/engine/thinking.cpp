#include "native/engine/thinking.h"

namespace capstan {

TokenSearch::TokenSearch(std::vector<int32_t> ids) : ids_(std::move(ids)), fallback_(ids_.size(), 0) {
  for (size_t i = 1, border = 0; i < ids_.size(); ++i) {
    while (border > 0 && ids_[i] != ids_[border])
      border = fallback_[border - 1];
    if (ids_[i] == ids_[border]) ++border;
    fallback_[i] = border;
  }
}

bool TokenSearch::advance(int32_t token_id) {
  if (ids_.empty()) return false;
  while (num_matched_ > 0 && ids_[num_matched_] != token_id)
    num_matched_ = fallback_[num_matched_ - 1];
  if (ids_[num_matched_] == token_id) ++num_matched_;
  if (num_matched_ < ids_.size()) return false;
  num_matched_ = 0;
  return true;
}

ThinkingBudget::ThinkingBudget(const ThinkingParams& params)
    : budget_(params.budget), open_(params.open_ids), close_(params.close_ids), is_inside_(params.is_inside) {}

void ThinkingBudget::take(int32_t token_id) {
  if (!is_inside_) {
    is_inside_ = open_.advance(token_id);
    return;
  }
  ++num_inside_;
  if (!close_.advance(token_id)) return;
  is_inside_ = false;
  num_inside_ -= static_cast<int>(close_.ids().size());
}

// A marker that has begun counts until it is complete, so that going on otherwise does not pass the budget.
std::optional<int32_t> ThinkingBudget::forced() const {
  if (!is_inside_ || num_inside_ < budget_) return std::nullopt;
  return close_.ids()[close_.num_matched()];
}

}  // namespace capstan
