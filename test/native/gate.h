#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "test/native/testing.h"

namespace capstan::testing {

// Holds up the threads that pass through it while it is closed, so that a test decides what happens first.
class Gate {
 public:
  void close() {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
  }
  void open() {
    {
      const std::lock_guard lock(mutex_);
      is_closed_ = false;
    }
    release_waiting();
  }
  // Lets the threads through that wait now. The gate stays closed for others.
  void release_waiting() {
    const std::lock_guard lock(mutex_);
    ++round_;
    num_waiting_ = 0;
    changed_.notify_all();
  }
  // Called by the threads to hold up.
  void pass() {
    std::unique_lock lock(mutex_);
    if (!is_closed_) return;
    ++num_waiting_;
    changed_.notify_all();
    changed_.wait(lock, [&, round = round_] { return round_ != round; });
  }
  void wait_for_threads(int count) {
    std::unique_lock lock(mutex_);
    EXPECT(changed_.wait_for(lock, std::chrono::seconds(300), [&] { return num_waiting_ >= count; }));
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_closed_ = false;
  int num_waiting_ = 0;
  uint64_t round_ = 0;
};

}  // namespace capstan::testing
