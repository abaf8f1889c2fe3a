#include "native/engine/banned_ids.h"

#include <algorithm>

namespace capstan {
namespace {

bool ends_with(std::span<const int32_t> ids, std::span<const int32_t> end) {
  return ids.size() >= end.size() && std::ranges::equal(ids.subspan(ids.size() - end.size()), end);
}

}  // namespace

std::span<const int32_t> banned_ids(Sequence& seq) {
  const SamplingParams& sampling = seq.sampling;
  const bool is_early = seq.num_completion_ahead() < sampling.min_tokens && !seq.is_min_waived;
  const std::vector<int32_t>& always = is_early ? seq.early_bad_ids : seq.bad_ids;
  if (sampling.bad_words.empty()) return always;
  seq.banned_ids = always;
  const auto completion = std::span<const int32_t>(seq.token_ids).subspan(static_cast<size_t>(seq.num_prompt_tokens));
  for (const std::vector<int32_t>& word : sampling.bad_words)
    if (ends_with(completion, std::span(word).first(word.size() - 1))) seq.banned_ids.push_back(word.back());
  std::ranges::sort(seq.banned_ids);
  return seq.banned_ids;
}

}  // namespace capstan
