#pragma once
// What a caller submits, and what the engine tells of it. Plain records; `native/binding` converts them.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "native/base/error.h"
#include "native/engine/thinking.h"
#include "native/grammar/matcher.h"

namespace capstan {

using RequestId = uint64_t;

struct SamplingParams {
  float temperature = 1.0f;  // 0 = greedy
  int top_k = 0;             // 0 = off
  float top_p = 1.0f;
  float min_p = 0.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  float repetition_penalty = 1.0f;
  std::optional<uint64_t> seed;  // drawn at submit when absent
  int max_tokens = 16;           // 0: the prompt is only scored
  int min_tokens = 0;            // a grammar whose text can only end goes before it
  bool is_eos_ignored = false;
  std::vector<int32_t> stop_token_ids;
  std::vector<std::string> stop_strings;  // UTF-8, not empty
  bool includes_stop_in_output = false;
  bool skips_special_tokens = true;
  std::vector<std::pair<int32_t, float>> logit_bias;      // (token id, bias)
  std::optional<std::vector<int32_t>> allowed_token_ids;  // all when absent
  std::vector<std::vector<int32_t>> bad_words;            // token sequences that a completion never holds
  std::optional<ThinkingParams> thinking;
  int num_logprobs = -1;  // -1: none; k: the drawn token's and the k best
  int num_prompt_logprobs = -1;
};

struct Request {
  std::vector<int32_t> prompt_token_ids;
  int num_choices = 1;
  SamplingParams sampling;
  std::string cache_salt;
  bool strips_leading_space = false;
  std::shared_ptr<const grammar::CompiledGrammar>
      grammar;  // that the text is held to, made for the engine's token_table(); or null
};

enum class FinishReason : uint8_t { kStop, kLength, kAbort, kError };

struct TokenLogprobs {
  int32_t token_id = -1;
  float logprob = 0;
  int32_t rank = 0;
  std::vector<std::pair<int32_t, float>> top;  // (token id, log-probability), most likely first
};

struct Finish {
  FinishReason reason = FinishReason::kStop;
  std::string stop_string;                      // the one that ended it, or empty
  int32_t stop_token_id = -1;                   // the stop token id that ended it (not EOS), or -1
  ErrorCode error_code = ErrorCode::kInternal;  // with kError
  std::string error_message;
  int num_prompt_tokens = 0;
  int num_completion_tokens = 0;
  int num_cached_tokens = 0;
  double queue_ms = 0, prefill_ms = 0, decode_ms = 0;
  int num_preemptions = 0;
};

// What one choice gained in one step.
struct Event {
  RequestId request_id = 0;
  int choice_idx = 0;
  std::string text_delta;  // whole UTF-8 characters
  std::vector<int32_t> token_ids;
  std::vector<TokenLogprobs> logprobs;  // one per token when asked for
  std::vector<std::optional<TokenLogprobs>>
      prompt_logprobs;  // once, with the request's first event; the first entry is empty
  std::optional<Finish> finish;
};

}  // namespace capstan
