#include "native/engine/banned_ids.h"

#include <algorithm>

namespace capstan {
namespace {

// Whether the completion with its first `num_drafts` drafts ends with `end`.
bool ends_with(const Sequence& seq, size_t num_drafts, std::span<const int32_t> end) {
  const auto num_completion = static_cast<size_t>(seq.num_completion_tokens());
  if (num_completion + num_drafts < end.size()) return false;
  const size_t first = seq.token_ids.size() + num_drafts - end.size();
  for (size_t i = 0; i < end.size(); ++i) {
    const size_t at = first + i;
    const bool is_known = at < seq.token_ids.size();
    if ((is_known ? seq.token_ids[at] : seq.drafts[at - seq.token_ids.size()].token_id) != end[i]) return false;
  }
  return true;
}

}  // namespace

std::span<const int32_t> banned_ids(Sequence& seq, size_t num_drafts) {
  const SamplingParams& sampling = seq.sampling;
  const bool is_waived = num_drafts > 0 ? seq.drafts[num_drafts - 1].is_min_waived : seq.is_min_waived;
  const bool is_early = seq.num_completion_ahead() + static_cast<int>(num_drafts) < sampling.min_tokens && !is_waived;
  const std::vector<int32_t>& always = is_early ? seq.early_bad_ids : seq.bad_ids;
  if (sampling.bad_words.empty()) return always;
  std::vector<int32_t>& banned = num_drafts > 0 ? seq.drafts[num_drafts - 1].banned_ids : seq.banned_ids;
  banned = always;
  for (const std::vector<int32_t>& word : sampling.bad_words)
    if (ends_with(seq, num_drafts, std::span(word).first(word.size() - 1))) banned.push_back(word.back());
  std::ranges::sort(banned);
  return banned;
}

}  // namespace capstan
