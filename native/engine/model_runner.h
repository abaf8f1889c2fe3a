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

// One tensor-parallel rank: its device and its share of the model.
struct Rank {
  std::unique_ptr<Backend> backend;
  Weights weights;
};

// Runs a step on all ranks in lockstep: rank 0 on the thread that collects, the others on threads of their own.
class ModelRunner final : public StepRunner {
 public:
  // `control` (one more end of the ranks' communicator) wakes them all when one fails. `max_rows`: rows per lm_head.
  ModelRunner(std::vector<Rank> ranks, std::unique_ptr<Comm> control, int max_rows);
  ~ModelRunner() override;

  int depth() const override { return 1; }
  void launch(Batch& batch) override;
  void collect(Batch& batch) override;

 private:
  void run_rank(size_t rank);
  void rank_main(size_t rank);
  void forward(Rank& rank, bool is_first);
  void fail(std::exception_ptr error);

  std::vector<Rank> ranks_;
  std::unique_ptr<Comm> control_;
  int max_rows_;
  Batch* batch_ = nullptr;
  std::atomic<uint32_t> step_{0};      // grows by one per launch, and at the end
  std::atomic<int> num_running_{0};    // helper ranks that have not finished the step
  std::atomic<bool> is_closing_{false};
  std::mutex error_mutex_;
  std::exception_ptr error_;
  std::vector<std::thread> threads_;
};

}  // namespace capstan
