#pragma once
// What a caller submits and what the engine reports about it. Plain records, which `native/binding` converts.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "native/base/error.h"
#include "native/engine/thinking.h"

namespace capstan {

namespace grammar {
class CompiledGrammar;
}

using RequestId = uint64_t;

struct SamplingParams {
  float temperature = 1.0f;  // 0 = greedy
  int top_k = 0;             // 0 = off
  float top_p = 1.0f;
  float min_p = 0.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  float repetition_penalty = 1.0f;
  std::optional<uint64_t> seed;  // absent: drawn at submit
  int max_tokens = 16;           // 0: only score the prompt
  int min_tokens = 0;            // ignored where a grammar leaves no other choice than to end
  bool is_eos_ignored = false;
  std::vector<int32_t> stop_token_ids;
  std::vector<std::string> stop_strings;  // UTF-8, not empty
  bool includes_stop_in_output = false;
  bool skips_special_tokens = true;
  std::vector<std::pair<int32_t, float>> logit_bias;      // (token id, bias)
  std::optional<std::vector<int32_t>> allowed_token_ids;  // absent: all
  std::vector<std::vector<int32_t>> bad_words;            // token sequences that a completion never contains
  std::optional<ThinkingParams> thinking;
  int num_logprobs = -1;         // -1: none; k: the drawn token and the k most likely ones
  int num_prompt_logprobs = -1;  // the same for each prompt token
};

struct Request {
  std::vector<int32_t> prompt_token_ids;
  int num_choices = 1;
  SamplingParams sampling;
  std::string cache_salt;
  uint64_t adapter_id = 0;  // from Engine::load_adapter; 0 = none
  int priority = 0;         // lower = more urgent; above 0 = background work (scheduler.h)
  bool strips_leading_space = false;
  // The prompt's hidden states are wanted, and no text. sampling.max_tokens is 0.
  bool is_pooled = false;
  std::vector<int32_t> token_types;  // of the prompt's tokens; empty = all 0
  // The grammar that the text must match, compiled for the engine's token_table(), or null.
  std::shared_ptr<const grammar::CompiledGrammar> grammar;
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
  std::string stop_string;                      // the stop string that ended the text, or empty
  int32_t stop_token_id = -1;                   // the stop token id (not EOS) that ended the text, or -1
  ErrorCode error_code = ErrorCode::kInternal;  // only with kError, like error_message
  std::string error_message;
  int num_prompt_tokens = 0;
  int num_completion_tokens = 0;
  int num_cached_tokens = 0;
  double queue_ms = 0, prefill_ms = 0, decode_ms = 0;
  int num_preemptions = 0;
};

// The progress of one choice in one step.
struct Event {
  RequestId request_id = 0;
  int choice_idx = 0;
  std::string text_delta;  // complete UTF-8 characters
  std::vector<int32_t> token_ids;
  std::vector<TokenLogprobs> logprobs;  // one per token when requested
  // (num_prompt_tokens) when requested, in the first event of choice 0 only. The first token has none.
  std::vector<std::optional<TokenLogprobs>> prompt_logprobs;
  std::vector<float> pooled;  // the result of a pooled request, in its last event
  std::optional<Finish> finish;
};

}  // namespace capstan
