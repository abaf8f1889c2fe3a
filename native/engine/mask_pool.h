#pragma once
// Threads that make grammar masks, so that the engine's thread never waits for one.
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

#include "native/grammar/matcher.h"

namespace capstan {

// While it is under way, `matcher` belongs to it.
struct MaskJob {
  std::shared_ptr<grammar::GrammarMatcher> matcher;
  std::vector<uint32_t> mask;
  std::exception_ptr error;
  std::stop_source stop;             // nobody waits any more
  std::atomic<bool> is_done{false};  // the others may be read
};

class MaskPool {
 public:
  static constexpr int kNumThreads = 2;

  // `on_done` is called on the pool's threads.
  explicit MaskPool(std::function<void()> on_done) : on_done_(std::move(on_done)) {}
  ~MaskPool() { close(); }

  // Grammars take turns, so that one with many slow masks does not hold up the others; each one's jobs begin in the
  // order in which they are started.
  std::shared_ptr<MaskJob> start(std::shared_ptr<grammar::GrammarMatcher> matcher, size_t num_mask_words);
  // Drops jobs that have not begun, stops the others and joins. Nothing may be started afterwards. Idempotent.
  void close();

 private:
  struct Queue {
    const grammar::CompiledGrammar* grammar;
    std::deque<std::shared_ptr<MaskJob>> jobs;
  };

  void main();
  std::shared_ptr<MaskJob> next_job();

  const std::function<void()> on_done_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Queue> waiting_;  // whose turn is next in front; none is empty
  std::vector<std::shared_ptr<MaskJob>> running_;
  bool is_closing_ = false;
  std::vector<std::thread> threads_;  // made when the first job starts
};

}  // namespace capstan
