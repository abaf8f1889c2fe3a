#pragma once
// Threads that compute grammar masks, so that the engine's thread never waits for one.
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

#include "native/grammar/matcher.h"

namespace capstan {

struct MaskJob {
  std::shared_ptr<grammar::GrammarMatcher> matcher;  // used by the job alone until is_done
  int32_t token_id = -1;                             // consumed before the mask is computed; -1: none
  bool is_refused = false;                           // the matcher did not accept `token_id`
  std::vector<uint32_t> mask;                        // (num_mask_words)
  std::exception_ptr error;
  std::stop_source stop;             // requests the job to give up
  std::atomic<bool> is_done{false};  // once true, the other fields may be read
};

class MaskPool {
 public:
  static constexpr int kNumThreads = 2;

  // Both functions are called on the pool's threads; `on_start` may be empty. The threads start here and not with the
  // first job, because a thread that cannot be started must fail the load and not a request.
  MaskPool(std::function<void()> on_start, std::function<void()> on_done);
  ~MaskPool() { close(); }

  // Grammars take turns, so that one with many slow masks does not delay the others. The jobs of one grammar begin in
  // the order of the calls.
  std::shared_ptr<MaskJob> start(std::shared_ptr<grammar::GrammarMatcher> matcher, int32_t token_id,
                                 size_t num_mask_words);
  // Drops the jobs that have not begun, stops the others and joins the threads. No job may be started afterwards.
  // Idempotent.
  void close();

 private:
  struct Queue {
    const grammar::CompiledGrammar* grammar;
    std::deque<std::shared_ptr<MaskJob>> jobs;
  };

  void main();
  std::shared_ptr<MaskJob> next_job();

  const std::function<void()> on_start_, on_done_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::list<Queue> waiting_;  // never empty queues; the grammar in front is next
  std::vector<std::shared_ptr<MaskJob>> running_;
  bool is_closing_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace capstan
