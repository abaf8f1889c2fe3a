#pragma once
// Decides which tokens a constrained sequence may draw next: those that its grammar accepts, or the closing marker that
// its thinking budget forces. A grammar mask that takes long is computed on the mask pool; until it is ready the
// sequence draws nothing (Sequence::waits_for_mask).
//
// Threads: all functions run on the engine's thread.
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "native/base/error.h"
#include "native/engine/mask_pool.h"
#include "native/engine/sequence.h"

namespace capstan {

class MaskGate {
 public:
  // Ends a sequence that cannot continue.
  using FailSequence = std::function<void(Sequence& seq, ErrorCode code, const std::string& message)>;

  // `patience`: how long a waiting sequence keeps its slot and its blocks while other sequences need them.
  // `on_start` (may be empty) and `on_ready` are called on the pool's threads, before and after each mask.
  MaskGate(std::chrono::milliseconds patience, std::function<void()> on_start, std::function<void()> on_ready,
           FailSequence fail)
      : patience_(patience), fail_(std::move(fail)), pool_(std::move(on_start), std::move(on_ready)) {}

  // Sets what `seq` may draw next: its forced id, or its grammar mask, or a mask job that computes it.
  void prepare_next_token(Sequence& seq);
  // Advances the grammar of `seq`. Returns false, with the sequence ended, when the grammar rejects the token.
  bool accept(Sequence& seq, int32_t token_id);
  // Takes over the masks that are ready and marks the sequences whose masks are late.
  void take_ready_masks();
  // Cancels the mask job of a sequence that has ended.
  void cancel(Sequence& seq);

  bool has_waiting() const { return !waiting_.empty(); }
  // Whether a sequence waits whose mask is not late yet.
  bool has_waiting_in_time() const;
  std::chrono::milliseconds patience() const { return patience_; }
  // Stops the pool's threads. Idempotent.
  void close() { pool_.close(); }

 private:
  bool set_forced_id(Sequence& seq);
  void finish_mask(Sequence& seq);

  const std::chrono::milliseconds patience_;
  const FailSequence fail_;
  std::vector<Sequence*> waiting_;  // with a mask job
  MaskPool pool_;
};

}  // namespace capstan
