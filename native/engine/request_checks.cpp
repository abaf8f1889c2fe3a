#include "native/engine/request_checks.h"

#include <cmath>
#include <span>
#include <string>

#include "native/grammar/matcher.h"

namespace capstan {
namespace {

constexpr int kMaxChoices = 128;
constexpr int kMaxLogprobs = 1 << 20;  // prevents overflow; the vocabulary is the real bound

void check_range(const char* name, float value, float low, float high, const std::string& expected) {
  require_argument(std::isfinite(value) && value >= low && value <= high, name, expected, std::to_string(value));
}

void check_ids(const char* name, std::span<const int32_t> ids, int64_t vocab_size) {
  for (const int32_t id : ids)
    require_argument(id >= 0 && id < vocab_size, name, "token ids from 0 to " + std::to_string(vocab_size - 1),
                     std::to_string(id));
}

void check_sampling(const SamplingParams& sampling, int64_t vocab_size) {
  constexpr float kMax = 1e30f;
  check_range("temperature", sampling.temperature, 0, kMax, "a finite number, 0 or more");
  check_range("topP", sampling.top_p, 1e-30f, 1, "a number in (0, 1]");
  check_range("minP", sampling.min_p, 0, 1, "a number from 0 to 1");
  check_range("presencePenalty", sampling.presence_penalty, -kMax, kMax, "a finite number");
  check_range("frequencyPenalty", sampling.frequency_penalty, -kMax, kMax, "a finite number");
  check_range("repetitionPenalty", sampling.repetition_penalty, 1e-30f, kMax, "a number above 0");
  require_argument(sampling.top_k >= 0, "topK", "0 (off) or more", std::to_string(sampling.top_k));
  require_argument(sampling.max_tokens >= 0, "maxTokens", "0 or more", std::to_string(sampling.max_tokens));
  require_argument(sampling.min_tokens >= 0, "minTokens", "0 or more", std::to_string(sampling.min_tokens));
  require_argument(sampling.num_logprobs >= -1 && sampling.num_logprobs <= kMaxLogprobs, "logprobs", "-1 or more",
                   std::to_string(sampling.num_logprobs));
  require_argument(sampling.num_prompt_logprobs >= -1 && sampling.num_prompt_logprobs <= kMaxLogprobs, "promptLogprobs",
                   "-1 or more", std::to_string(sampling.num_prompt_logprobs));
  check_ids("stopTokenIds", sampling.stop_token_ids, vocab_size);
  for (const std::string& stop : sampling.stop_strings)
    require_argument(!stop.empty(), "stop", "strings of one character or more", "an empty one");
  for (const auto& [id, bias] : sampling.logit_bias) {
    check_ids("logitBias", {&id, 1}, vocab_size);
    check_range("logitBias", bias, -kMax, kMax, "finite numbers");
  }
  for (const std::vector<int32_t>& word : sampling.bad_words) {
    require_argument(!word.empty(), "badWords", "sequences of one token or more", "an empty one");
    check_ids("badWords", word, vocab_size);
  }
  if (sampling.thinking) {
    require_argument(sampling.thinking->budget >= 0, "thinkingBudget", "0 or more",
                     std::to_string(sampling.thinking->budget));
    require_argument(!sampling.thinking->close_ids.empty(), "thinkingBudget", "a closing marker of one token or more",
                     "none");
    check_ids("thinkingBudget", sampling.thinking->open_ids, vocab_size);
    check_ids("thinkingBudget", sampling.thinking->close_ids, vocab_size);
  }
  if (sampling.allowed_token_ids) {
    require_argument(!sampling.allowed_token_ids->empty(), "allowedTokenIds", "at least one id", "none");
    check_ids("allowedTokenIds", *sampling.allowed_token_ids, vocab_size);
  }
}

void check_pooled(const Request& request, const RequestLimits& limits) {
  require_argument(request.is_pooled == limits.is_pooled, "request",
                   limits.is_pooled ? "one that is pooled" : "one that generates text", "the other kind");
  require_argument(!request.is_pooled || (request.sampling.max_tokens == 0 && request.num_choices == 1 &&
                                          request.sampling.num_prompt_logprobs < 0 && !request.grammar),
                   "request", "a pooled one without completion", "another");
  const std::vector<int32_t>& types = request.token_types;
  require_argument(types.empty() || types.size() == request.prompt_token_ids.size(), "tokenTypes", "one type per token",
                   std::to_string(types.size()));
  for (const int32_t type : types)
    require_argument(type >= 0 && type < limits.num_token_types, "tokenTypes",
                     "types from 0 to " + std::to_string(limits.num_token_types - 1), std::to_string(type));
}

}  // namespace

void require_argument(bool is_met, const char* name, const std::string& expected, const std::string& received) {
  if (is_met) return;
  throw Error(ErrorCode::kInvalidArgument, std::string(name) + ": expected " + expected + ", got " + received);
}

void check_request(const Request& request, const RequestLimits& limits) {
  const auto num_prompt = static_cast<int64_t>(request.prompt_token_ids.size());
  require_argument(num_prompt > 0, "prompt", "at least one token", "none");
  require_argument(request.num_choices >= 1 && request.num_choices <= kMaxChoices, "n",
                   "1 to " + std::to_string(kMaxChoices), std::to_string(request.num_choices));
  check_ids("prompt", request.prompt_token_ids, limits.vocab_size);
  check_sampling(request.sampling, limits.vocab_size);
  check_pooled(request, limits);
  if (request.grammar)
    require_argument(request.grammar->tokens() != nullptr && request.grammar->tokens() == limits.tokens, "grammar",
                     "a grammar that this engine compiled", "another");
  if (num_prompt + request.sampling.max_tokens > limits.max_model_len)
    throw Error(ErrorCode::kContextLengthExceeded,
                "the context length is " + std::to_string(limits.max_model_len) + " tokens; the prompt has " +
                    std::to_string(num_prompt) + " and maxTokens is " + std::to_string(request.sampling.max_tokens));
}

}  // namespace capstan
