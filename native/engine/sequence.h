#pragma once
// The engine's running state of one choice of one request.
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "native/engine/mask_pool.h"
#include "native/engine/output.h"
#include "native/engine/request.h"

namespace capstan {

using Clock = std::chrono::steady_clock;

enum class SequenceStatus : uint8_t { kWaiting, kRunning, kFinished };

struct Sequence {
  // ---- set at submit ----
  RequestId request_id = 0;
  int choice_idx = 0;
  SamplingParams sampling;  // its bad words are those of several tokens
  uint64_t seed = 0;
  std::string cache_salt;
  int num_prompt_tokens = 0;
  Sequence* leader = nullptr;          // choice 0 of the same request while it is open; choices wait for its prompt
  std::vector<uint32_t> allowed_mask;  // bit per id, from allowed_token_ids
  std::vector<int32_t> ending_ids;     // EOS (unless ignored) and stop token ids
  std::vector<int32_t> bad_ids;        // distinct: bad words of one token, which are never drawn
  std::vector<int32_t> early_bad_ids;  // those, and the ids that end the text, before it has min_tokens
  Clock::time_point submit_time;

  // ---- scheduler ----
  SequenceStatus status = SequenceStatus::kWaiting;
  std::vector<int32_t> token_ids;  // prompt and completion known to the host
  int num_in_flight = 0;           // samples launched and not collected
  int in_flight_row = 0;           // the newest such sample's row in its step
  int num_computed_tokens = 0;     // whose K and V are stored, counting launched steps
  int num_cached_tokens = 0;       // prompt tokens found in the prefix cache at first admission
  uint32_t epoch = 0;              // grows with each preemption; results of an older epoch are dropped
  int num_preemptions = 0;
  bool is_admitted_once = false;
  // ---- block manager ----
  std::vector<int32_t> block_table;
  int num_published_blocks = 0;  // leading blocks that have been offered to the prefix cache
  uint64_t content_id = 0;       // prefix cache identity of the last published block
  // ---- sampler: tables for penalties ----
  std::vector<int32_t> prompt_ids;                             // distinct, ascending; only with a repetition penalty
  std::vector<std::pair<int32_t, int32_t>> completion_counts;  // ascending by id; only with penalties
  std::vector<int32_t> banned_ids;                             // of the next row; only with bad words of several tokens
  // ---- structured output, only with a grammar: advanced by the engine between steps ----
  std::shared_ptr<grammar::GrammarMatcher> grammar;
  std::vector<uint32_t>
      grammar_mask;  // (ceil(vocab_size / 32)) bit per id that may come next, the request's own ids considered
  bool is_min_waived = false;  // the grammar's text can only end, whatever min_tokens says
  std::shared_ptr<MaskJob>
      mask_job;  // the mask is being made elsewhere: `grammar` is not to be touched, and no token can be drawn
  Clock::time_point mask_job_start;
  bool is_mask_late = false;  // it takes so long that others may have the slot and the blocks
  // ---- bounded thoughts ----
  std::optional<ThinkingBudget> thinking;
  int32_t forced_id = -1;             // the only id that may come next, or -1
  std::vector<uint32_t> forced_mask;  // (ceil(vocab_size / 32)), of forced_id
  // ---- output ----
  TextOutput text;
  std::vector<std::optional<TokenLogprobs>>
      prompt_logprobs;  // by prompt token, while they are owed; empty when not asked for or handed out
  Clock::time_point first_schedule_time, first_token_time;
  uint64_t event_round = 0;  // the emission that event_idx belongs to
  size_t event_idx = 0;      // of its event among those gathered for it

  int num_tokens() const { return static_cast<int>(token_ids.size()); }
  int num_completion_tokens() const { return num_tokens() - num_prompt_tokens; }
  // Tokens including those whose ids are still on the device.
  int num_tokens_ahead() const { return num_tokens() + num_in_flight; }
  bool has_penalties() const {
    return sampling.repetition_penalty != 1.0f || sampling.presence_penalty != 0.0f ||
           sampling.frequency_penalty != 0.0f;
  }
  // How many tokens the completion has once all samples in flight are back.
  int num_completion_ahead() const { return num_tokens_ahead() - num_prompt_tokens; }
  // The next step of such a sequence is planned only after the last one is collected (architecture, contract 1).
  bool needs_host() const {
    return has_penalties() || grammar != nullptr || thinking.has_value() || !sampling.bad_words.empty() ||
           !prompt_logprobs.empty();
  }
  bool waits_for_mask() const { return mask_job != nullptr; }
};

}  // namespace capstan
