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

// One tensor-parallel rank: its share of the model and its device. NOTE: in this order, so that the backend goes first:
// it waits for what still reads the weights.
struct Rank {
  Weights weights;
  std::unique_ptr<Backend> backend;
};

// Runs a step on all ranks in lockstep: rank 0 on the caller's thread, the others on threads of their own. With depth 1
// rank 0 computes when the step is collected; with depth 2 all ranks enqueue at launch, and collecting waits for the
// device.
class ModelRunner final : public StepRunner {
 public:
  // `control` (one more end of the ranks' communicator) wakes them all when one fails. `max_rows`: rows per lm_head.
  ModelRunner(std::vector<Rank> ranks, std::unique_ptr<Comm> control, int max_rows);
  ~ModelRunner() override;

  const std::vector<Rank>& ranks() const { return ranks_; }
  // On a device that is asynchronous: the largest step of a kind, so that what it allocates, loads or records on first
  // use is there, or fails, before a request comes. One block of the KV cache is enough, and must not be in use yet.
  void warm_up_prefill(const DeviceLimits& limits, int max_model_len);
  void warm_up_decode(const DeviceLimits& limits);
  int depth() const override { return depth_; }
  void launch(Batch& batch) override;
  void collect(Batch& batch) override;

 private:
  void warm_up(int num_seqs, int tokens_per_seq, int block_size);
  void run_first_rank();
  void run_rank(size_t rank);
  void rank_main(size_t rank);
  void forward(Rank& rank, bool is_first);
  void fail(std::exception_ptr error);

  std::vector<Rank> ranks_;
  std::unique_ptr<Comm> control_;
  int depth_;
  int max_rows_;
  Batch* batch_ = nullptr;
  std::atomic<uint32_t> step_{0};    // grows by one per launch, and at the end
  std::atomic<int> num_running_{0};  // helper ranks that have not finished the step
  std::atomic<bool> is_closing_{false};
  std::mutex error_mutex_;
  std::exception_ptr error_;
  std::vector<std::thread> threads_;
};

}  // namespace capstan
