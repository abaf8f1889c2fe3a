#pragma once
// Which tokens of which sequences run in the next step, and which blocks they get. Integers only: no tensor, device or
// model header.
//
// A sequence whose grammar mask is still being made draws no token: it waits out steps with its blocks, and the others
// go on. Where that takes long and somebody else could use its slot or blocks it gives them up, as if preempted, and
// comes back first once it has its mask.
//
// Decodes first, in order of admission; then prefill chunks of running sequences; then admissions in order of arrival,
// as far as the token budget and the blocks go. When blocks run out the youngest running sequence is preempted: its
// blocks are freed and it is computed again later.
#include <deque>
#include <vector>

#include "native/engine/batch.h"
#include "native/engine/block_manager.h"

namespace capstan {

struct SchedulerLimits {
  int max_num_seqs = 64;
  int max_num_batched_tokens = 512;
  int max_model_len = 2048;
};

class Scheduler {
 public:
  Scheduler(const SchedulerLimits& limits, BlockManager blocks) : limits_(limits), blocks_(std::move(blocks)) {}

  const BlockManager& blocks() const { return blocks_; }
  int num_waiting() const { return static_cast<int>(waiting_.size()); }
  int64_t num_waiting_prompt_tokens() const { return num_waiting_prompt_tokens_; }
  int num_running() const { return static_cast<int>(running_.size()); }
  int64_t num_preemptions() const { return num_preemptions_; }
  bool has_work() const { return !waiting_.empty() || !running_.empty(); }

  void add(Sequence& seq);
  // Plans a step into `batch`. False when there is nothing that can run now.
  bool plan(Batch& batch);
  // The planned step is enqueued: its tokens count as computed and full blocks with known ids become visible to the
  // prefix cache.
  void launched(Batch& batch);
  // A sample of `seq` came back as `token_id`.
  void append(Sequence& seq, int32_t token_id);
  // Ends `seq`, waiting or running: the only place that frees the blocks of a finished sequence. `is_poisoned`: its K
  // and V are not to be trusted.
  void finish(Sequence& seq, bool is_poisoned = false);

  void check_integrity() const {
    blocks_.check_integrity(std::vector<const Sequence*>(running_.begin(), running_.end()));
  }

 private:
  static bool is_decode(const Sequence& seq) { return seq.num_tokens_ahead() - seq.num_computed_tokens == 1; }
  bool can_step(const Sequence& seq) const;
  bool is_leader_ready(const Sequence& seq) const;
  void plan_decodes(Batch& batch);
  void plan_prefills(Batch& batch);
  void plan_admissions(Batch& batch);
  bool admit(Sequence& seq);
  bool make_room(Sequence& seq);
  bool set_late_one_aside(const Sequence& for_whom);
  void preempt(Sequence& seq);
  void schedule(Batch& batch, Sequence& seq);

  SchedulerLimits limits_;
  BlockManager blocks_;
  std::deque<Sequence*> waiting_;   // preempted ones in front
  std::vector<Sequence*> running_;  // in order of admission
  int64_t num_waiting_prompt_tokens_ = 0;
  int64_t num_preemptions_ = 0;
};

}  // namespace capstan
