#pragma once
// Threads that compute grammar masks, so that the engine's thread never waits for one.
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "native/engine/mask_queue.h"

namespace capstan {

class MaskPool {
 public:
  static constexpr int kNumThreads = 2;

  // Both functions are called on the pool's threads; `on_start` may be empty. The threads start here and not with the
  // first job, because a thread that cannot be started must fail the load and not a request.
  MaskPool(std::function<void()> on_start, std::function<void()> on_done);
  ~MaskPool() { close(); }

  // The mask queue decides the order.
  std::shared_ptr<MaskJob> start(std::shared_ptr<grammar::GrammarMatcher> matcher, int32_t token_id,
                                 size_t num_mask_words);
  // Drops the jobs that have not begun, stops the others and joins the threads. No job may be started afterwards.
  // Idempotent.
  void close();

 private:
  void main();

  const std::function<void()> on_start_, on_done_;
  std::mutex mutex_;
  std::condition_variable wake_;
  MaskQueue queue_;
  std::vector<std::shared_ptr<MaskJob>> running_;
  bool is_closing_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace capstan
