#include "native/engine/make_sequences.h"

#include <algorithm>

#include "native/base/random.h"
#include "native/engine/request_checks.h"
#include "native/grammar/matcher.h"

namespace capstan {
namespace {

// Below this, logits over temperature leave the range of floats. Such a draw is as good as greedy anyway.
constexpr float kMinTemperature = 0.01f;

std::vector<int32_t> sorted_distinct(std::vector<int32_t> ids) {
  std::ranges::sort(ids);
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

void append(std::vector<int32_t>& ids, const std::vector<int32_t>& more) {
  ids.insert(ids.end(), more.begin(), more.end());
}

// `banned` is ascending.
void check_some_left(const std::vector<int32_t>& allowed, const std::vector<int32_t>& banned,
                     const std::string& expected) {
  const bool is_some_left =
      std::ranges::any_of(allowed, [&](int32_t id) { return !std::ranges::binary_search(banned, id); });
  require_argument(is_some_left, "allowedTokenIds", expected, "none");
}

// The ids that end a completion and those that it must not contain. They are the same for all choices.
struct IdLists {
  std::vector<int32_t> ending_ids, bad_ids, early_bad_ids;  // as in Sequence
};

IdLists make_id_lists(const Request& request, const std::vector<int32_t>& eos_token_ids, int64_t vocab_size) {
  const SamplingParams& sampling = request.sampling;
  IdLists lists;
  lists.ending_ids = sampling.stop_token_ids;
  if (!sampling.is_eos_ignored) append(lists.ending_ids, eos_token_ids);
  for (const std::vector<int32_t>& word : sampling.bad_words)
    if (word.size() == 1) lists.bad_ids.push_back(word[0]);
  lists.early_bad_ids = lists.bad_ids;
  append(lists.early_bad_ids, lists.ending_ids);
  // EOS ends the text of a grammar even when the request ignores EOS.
  if (request.grammar) append(lists.early_bad_ids, eos_token_ids);
  lists.bad_ids = sorted_distinct(std::move(lists.bad_ids));
  lists.early_bad_ids = sorted_distinct(std::move(lists.early_bad_ids));
  std::erase_if(lists.early_bad_ids, [&](int32_t id) { return id < 0 || id >= vocab_size; });
  return lists;
}

std::vector<uint32_t> make_mask(const std::vector<int32_t>& ids, size_t num_mask_words) {
  std::vector<uint32_t> mask(num_mask_words);
  for (const int32_t id : ids)
    mask[static_cast<size_t>(id / 32)] |= 1u << (id % 32);
  return mask;
}

}  // namespace

std::vector<std::unique_ptr<Sequence>> make_sequences(Request request, const std::vector<int32_t>& eos_token_ids,
                                                      int64_t vocab_size) {
  SamplingParams& sampling = request.sampling;
  if (sampling.temperature > 0) sampling.temperature = std::max(sampling.temperature, kMinTemperature);
  const IdLists lists = make_id_lists(request, eos_token_ids, vocab_size);
  std::erase_if(sampling.bad_words, [](const std::vector<int32_t>& word) { return word.size() == 1; });
  // A prompt that is only scored draws no token.
  if (sampling.max_tokens == 0) {
    request.grammar = nullptr;
    sampling.thinking.reset();
  }
  const auto num_mask_words = static_cast<size_t>((vocab_size + 31) / 32);
  std::vector<uint32_t> allowed_mask;
  if (sampling.allowed_token_ids) {
    check_some_left(*sampling.allowed_token_ids, lists.bad_ids, "an id that is not a bad word");
    if (sampling.min_tokens > 0 && !request.grammar)
      check_some_left(*sampling.allowed_token_ids, lists.early_bad_ids, "an id that may come before minTokens");
    allowed_mask = make_mask(*sampling.allowed_token_ids, num_mask_words);
  }

  const uint64_t seed = sampling.seed ? *sampling.seed : draw_seed();
  const auto now = Clock::now();
  std::vector<std::unique_ptr<Sequence>> sequences;
  for (int choice = 0; choice < request.num_choices; ++choice) {
    auto seq = std::make_unique<Sequence>();
    seq->choice_idx = choice;
    seq->sampling = sampling;
    if (choice > 0) {
      seq->leader = sequences[0].get();
      seq->sampling.num_prompt_logprobs = -1;
    }
    seq->seed = seed;
    seq->cache_salt = request.cache_salt;
    seq->priority = request.priority;
    seq->num_prompt_tokens = static_cast<int>(request.prompt_token_ids.size());
    seq->token_ids = request.prompt_token_ids;
    seq->is_pooled = request.is_pooled;
    seq->token_types = request.token_types;
    seq->allowed_mask = allowed_mask;
    seq->ending_ids = lists.ending_ids;
    seq->bad_ids = lists.bad_ids;
    seq->early_bad_ids = lists.early_bad_ids;
    if (sampling.thinking) {
      seq->thinking.emplace(*sampling.thinking);
      seq->forced_mask.resize(num_mask_words);
    }
    if (request.grammar) {
      seq->grammar = std::make_shared<grammar::GrammarMatcher>(request.grammar);
      seq->grammar_mask.resize(num_mask_words);
    }
    seq->submit_time = now;
    if (sampling.repetition_penalty != 1.0f) seq->prompt_ids = sorted_distinct(request.prompt_token_ids);
    if (seq->sampling.num_prompt_logprobs >= 0) seq->prompt_logprobs.resize(request.prompt_token_ids.size());
    seq->text = TextOutput(sampling.stop_strings, sampling.includes_stop_in_output, request.strips_leading_space);
    sequences.push_back(std::move(seq));
  }
  return sequences;
}

}  // namespace capstan
