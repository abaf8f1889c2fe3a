#pragma once
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "native/backend/backend.h"
#include "native/comm/comm.h"
#include "native/engine/step_runner.h"
#include "native/model/weights.h"

namespace capstan {

// One tensor-parallel rank: its shard of the model and its device. NOTE: the backend must be destroyed before the
// weights, because it waits for steps that still read them.
struct Rank {
  Weights weights;
  std::unique_ptr<Backend> backend;
  std::vector<const AdapterWeights*> adapters = {};  // of the current step
};

// Runs a step on all ranks in lockstep: rank 0 on the caller's thread, each other rank on its own thread. With depth 1,
// rank 0 computes in collect(). With depth 2, all ranks enqueue in launch() and collect() waits for the device. A model
// that pools has depth 1, because a step adds to the sums of the step before it.
class ModelRunner final : public StepRunner {
 public:
  // `control` (null with one rank) is an extra end of the ranks' communicator that wakes them all when one fails.
  // `max_rows`: most rows per lm_head call.
  ModelRunner(std::vector<Rank> ranks, std::unique_ptr<Comm> control, int max_rows, const PooledModel& pooled = {});
  ~ModelRunner() override;

  const std::vector<Rank>& ranks() const { return ranks_; }
  // On an asynchronous device, run the largest step of a kind, so that first-use allocations, module loads and graph
  // captures happen, or fail, before the first request. They need one KV block, which no sequence may use yet. On
  // another device they do nothing.
  void warm_up_prefill(const DeviceLimits& limits, int max_model_len);
  void warm_up_decode(const DeviceLimits& limits);
  int depth() const override { return depth_; }
  void launch(Batch& batch) override;
  void collect(Batch& batch) override;
  void abandon() override;

 private:
  void warm_up(int num_seqs, int tokens_per_seq, const DeviceLimits& limits);
  void run_first_rank();
  void wait_for_other_ranks();
  void stop();
  void run_rank(size_t rank);
  void rank_main(size_t rank);
  void forward(Rank& rank, bool is_first);
  void fail(std::exception_ptr error);

  std::vector<Rank> ranks_;
  std::unique_ptr<Comm> control_;
  PooledModel pooled_;
  int depth_;
  int max_rows_;
  Batch* batch_ = nullptr;
  std::atomic<uint32_t> step_{0};    // increases with each launch and at shutdown
  std::atomic<int> num_running_{0};  // ranks other than 0 that have not finished the step
  std::atomic<bool> is_closing_{false};
  std::mutex error_mutex_;
  std::exception_ptr error_;
  std::vector<std::thread> threads_;
};

}  // namespace capstan
