#pragma once
// The engine's state of one choice of a request. Fields are grouped by the component that writes them.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "native/engine/draft_pacer.h"
#include "native/engine/ngram_index.h"
#include "native/engine/output.h"
#include "native/engine/prefix_key.h"
#include "native/engine/request.h"

namespace capstan {

namespace grammar {
class GrammarMatcher;
}
struct MaskJob;
struct Adapter;

using Clock = std::chrono::steady_clock;

inline double ms_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double, std::milli>(end - begin).count();
}

// A token that is proposed to follow the known tokens of a sequence and the drafts before it, and what may be drawn
// after it. The fields have the meaning of those of Sequence with the same names.
struct Draft {
  int32_t token_id = -1;
  // ---- sampler ----
  std::vector<std::pair<int32_t, int32_t>> completion_counts;
  std::vector<int32_t> banned_ids;
  // ---- mask gate ----
  std::vector<uint32_t> mask;  // grammar_mask, or forced_mask if `is_forced`
  bool is_forced = false;
  bool is_min_waived = false;
};

// The blocks of a sequence in one KV group.
struct BlockTable {
  std::vector<int32_t> block_ids;  // by position / block size; -1 = freed, because no later query sees it
  int num_freed = 0;               // leading blocks that are freed
  int num_published = 0;           // leading blocks that have been offered to the prefix cache
};

// A slot that holds the recurrent state of a sequence after its first `position` tokens.
struct Snapshot {
  int position = 0;
  int32_t slot = -1;
};

// The slots of recurrent state that a sequence uses.
struct StateSlots {
  int32_t own = -1;               // the slot that only this sequence writes
  int32_t newest = -1;            // holds the state after the newest planned token: own, or a snapshot; -1 = zeros
  std::vector<int32_t> drafts;    // hold the states after the drafts in flight, or after those that held
  std::vector<Snapshot> pending;  // planned, and not in the prefix cache yet
  int branch = 0;                 // the number of leading tokens whose blocks were cached at admission
  Snapshot rolling;               // the newest one in the prefix cache that the next one replaces
};

enum class SequenceStatus : uint8_t { kWaiting, kRunning, kFinished };

// Whether a sequence waits for the prefix cache on disk: to be looked up, for memory that other loads take, or for its
// blocks.
enum class DiskState : uint8_t { kNone, kUnchecked, kQueued, kLoading };

struct Sequence {
  // ---- set at submit ----
  RequestId request_id = 0;
  int choice_idx = 0;
  SamplingParams sampling;  // bad_words: only those of several tokens
  uint64_t seed = 0;
  std::string cache_salt;
  std::shared_ptr<const Adapter> adapter;  // null = none
  AdapterKey adapter_key{};                // of the adapter; zeros = none
  int priority = 0;                        // as in Request
  int num_prompt_tokens = 0;
  Sequence* leader = nullptr;          // choice 0 while it is open: other choices wait for its prompt and share it
  std::vector<uint32_t> allowed_mask;  // (ceil(vocab_size / 32)) bit per id of allowed_token_ids; empty: all
  std::vector<int32_t> ending_ids;     // EOS (unless ignored) and stop token ids
  std::vector<int32_t> bad_ids;        // bad words of one token, distinct and ascending
  std::vector<int32_t> early_bad_ids;  // bad_ids and ending_ids, distinct and ascending: banned before min_tokens
  bool is_pooled = false;
  bool needs_all_rows = false;       // hidden states of tokens in the prefix cache are wanted too
  std::vector<int32_t> token_types;  // (num_prompt_tokens) or empty: all 0
  Clock::time_point submit_time;

  // ---- scheduler ----
  SequenceStatus status = SequenceStatus::kWaiting;
  std::vector<int32_t> token_ids;  // prompt and completion known to the host
  int num_in_flight = 0;           // samples launched and not collected
  int in_flight_row = 0;           // row of the newest such sample in its step
  int num_computed_tokens = 0;     // tokens whose K and V are stored, including launched steps
  int num_cached_tokens = 0;       // prompt tokens found in the prefix cache at first admission
  uint32_t epoch = 0;              // number of preemptions; results of an older epoch are dropped
  int num_preemptions = 0;
  bool is_admitted_once = false;
  // ---- block manager ----
  std::vector<BlockTable> block_tables;  // by KV group; empty while the sequence holds no blocks
  StateSlots states;                     // only with recurrent layers
  std::vector<PrefixKey> prefix_keys;    // entry i: of the first i blocks, which are full and known to the host
  // ---- disk cache ----
  DiskState disk_state = DiskState::kNone;
  int num_offered_blocks = 0;  // leading blocks that have been offered to the disk
  // ---- speculation ----
  std::optional<NgramIndex> ngrams;  // of prompt look-up
  std::optional<DraftPacer> pacer;   // of drafts by an MTP head or a draft model
  std::vector<Draft> drafts;         // of the step that is planned or in flight
  int num_followed_tokens = 0;       // tokens whose K and V a draft model has stored; only with a draft model
  // ---- sampler: tables for penalties ----
  std::vector<int32_t> prompt_ids;                             // distinct, ascending; only with a repetition penalty
  std::vector<std::pair<int32_t, int32_t>> completion_counts;  // ascending by id; only with penalties
  std::vector<int32_t> banned_ids;                             // scratch of banned_ids()
  // ---- mask gate: grammar ----
  std::shared_ptr<grammar::GrammarMatcher> grammar;  // null without a grammar
  std::vector<uint32_t> grammar_mask;  // (ceil(vocab_size / 32)) bit per id that grammar and request allow next
  int32_t unaccepted_id = -1;          // the newest token, while the grammar has not consumed it, or -1
  bool is_min_waived = false;          // the grammar allows only the end, so min_tokens is ignored
  std::shared_ptr<MaskJob> mask_job;   // computes the mask. While it runs it owns `grammar`, and no token can be drawn
  Clock::time_point mask_job_start;
  bool is_mask_late = false;  // the job took longer than mask_patience
  // ---- mask gate: thinking budget ----
  std::optional<ThinkingBudget> thinking;
  int32_t forced_id = -1;             // the only id that may come next, or -1
  std::vector<uint32_t> forced_mask;  // (ceil(vocab_size / 32)) the bit of forced_id
  // ---- pooling ----
  std::vector<float> pooled_sum;  // (hidden_size) of the rows so far
  std::vector<float> pooled;      // (size of the result)
  // ---- engine: output ----
  TextOutput text;
  // (num_prompt_tokens) collected so far; empty when not requested or already emitted.
  std::vector<std::optional<TokenLogprobs>> prompt_logprobs;
  Clock::time_point first_schedule_time, first_token_time;
  uint64_t event_round = 0;  // the emission that event_idx refers to
  size_t event_idx = 0;      // index of its event in that emission

  int num_tokens() const { return static_cast<int>(token_ids.size()); }
  int num_completion_tokens() const { return num_tokens() - num_prompt_tokens; }
  // Tokens including those whose ids are still on the device.
  int num_tokens_ahead() const { return num_tokens() + num_in_flight; }
  bool has_penalties() const {
    return sampling.repetition_penalty != 1.0f || sampling.presence_penalty != 0.0f ||
           sampling.frequency_penalty != 0.0f;
  }
  // Completion tokens including those in flight.
  int num_completion_ahead() const { return num_tokens_ahead() - num_prompt_tokens; }
  // Whether the next step needs sampled ids on the host, so that it is planned only after the last one is collected
  // (architecture, contract 1).
  bool needs_host() const {
    return has_penalties() || grammar != nullptr || thinking.has_value() || !sampling.bad_words.empty() ||
           !prompt_logprobs.empty();
  }
  bool uses_prefix_cache() const { return prompt_logprobs.empty() && !needs_all_rows; }
  bool waits_for_mask() const { return mask_job != nullptr; }
  bool waits_for_disk() const { return disk_state != DiskState::kNone; }
  bool is_background() const { return priority > 0; }
  // The tokens that this sequence would verify in its next step, if its newest id were known to the host.
  int num_wanted_drafts() const {
    if (!ngrams && !pacer) return 0;
    const int num_proposed = pacer ? pacer->num_proposed() : ngrams->num_proposed();
    // The last token that it may draw needs no draft.
    return std::min(num_proposed, sampling.max_tokens - num_completion_ahead() - 1);
  }
};

}  // namespace capstan
