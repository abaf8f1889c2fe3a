#pragma once
// Decides which tokens a constrained sequence may draw next: those that its grammar accepts, or the closing marker that
// its thinking budget forces. A grammar mask that takes long is computed on the mask pool; until it is ready the
// sequence draws nothing (Sequence::waits_for_mask). The grammars of all sequences share a budget of work per step.
// What exceeds it goes to the pool too, so that a step takes no longer with many sequences.
//
// Threads: all functions run on the engine's thread.
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "native/base/error.h"
#include "native/base/step_profile.h"
#include "native/engine/mask_pool.h"
#include "native/engine/sequence.h"

namespace capstan {

// The grammar and the thinking budget of a sequence, stepped over its drafts. The grammar is as before at its end.
struct DraftTrial {
  explicit DraftTrial(Sequence& sequence);
  Sequence& seq;
  std::optional<grammar::GrammarMatcher::Trial> grammar;
  std::optional<ThinkingBudget> thinking;
};

class MaskGate {
 public:
  struct Options {
    std::chrono::milliseconds patience;  // how long a waiting sequence keeps what other sequences need
    size_t work_per_step;                // visited configurations, about 50 ns each
    // Called on the pool's threads, before and after each mask. `on_start` may be empty.
    std::function<void()> on_start, on_ready;
    // End a sequence that cannot continue, or whose text is complete.
    std::function<void(Sequence& seq, ErrorCode code, const std::string& message)> fail;
    std::function<void(Sequence& seq, FinishReason reason)> end;
    StepProfile* profile = nullptr;  // null = none
  };
  explicit MaskGate(Options options) : options_(std::move(options)), pool_(options_.on_start, options_.on_ready) {}

  // Renews the budget of work.
  void begin_step() { work_left_ = options_.work_per_step; }
  // Sets what `seq` may draw next: its forced id, or its grammar mask, or a mask job that computes it.
  void prepare_next_token(Sequence& seq);
  // Advances the grammar of `seq`, or leaves the token as its `unaccepted_id` to the next mask job. Returns false, with
  // the sequence ended, when the grammar rejects the token.
  bool accept(Sequence& seq, int32_t token_id);
  // Sets what may follow the newest draft of the sequence. Returns false for a draft that the grammar refuses or whose
  // check takes long: no draft may have its place. The next token must be prepared.
  bool accept_draft(DraftTrial& trial);
  // Takes over the masks that are ready and marks the sequences whose masks are late.
  void take_ready_masks();
  // Cancels the mask job of a sequence that has ended.
  void cancel(Sequence& seq);

  bool has_waiting() const { return !waiting_.empty(); }
  // Whether a sequence waits whose mask is not late yet.
  bool has_waiting_in_time() const;
  std::chrono::milliseconds patience() const { return options_.patience; }
  // Stops the pool's threads. Idempotent.
  void close() { pool_.close(); }

 private:
  // Of the work on the grammar of a sequence.
  StepProfile* profile_of(const Sequence& seq) const { return seq.grammar ? options_.profile : nullptr; }
  bool set_forced_id(Sequence& seq);
  void start_job(Sequence& seq);
  void take_job(Sequence& seq, MaskJob& job);
  bool prepare_draft(Sequence& seq, std::optional<int32_t> forced_id);
  void finish_mask(Sequence& seq);

  const Options options_;
  size_t work_left_ = 0;
  std::vector<Sequence*> waiting_;  // with a mask job
  MaskPool pool_;
};

}  // namespace capstan
