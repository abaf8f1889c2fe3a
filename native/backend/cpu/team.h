#pragma once
// A fixed team of threads that runs one function at a time, fork and join. Thread 0 is the caller. Each thread's part
// is claimed exactly once. When the caller finishes its own part, it claims and runs the parts that have not started,
// so a preempted thread does not delay the team.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <thread>
#include <type_traits>
#include <vector>

#include "native/base/step_profile.h"

namespace capstan {

// Up to this many rows the calling thread runs a small op alone, because waking the team costs more.
constexpr int64_t kSerialRows = 2;

class Team {
 public:
  // Starts one thread per entry, pinned to that cpu, or unpinned for -1. Without `may_spin`, waiting threads sleep
  // immediately. `profile` gets the time that the caller's regions wait for their threads; null = none does.
  Team(const std::vector<int>& cpus, bool may_spin, StepProfile* profile = nullptr);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return static_cast<int>(cpus_.size()); }

  // Pins the calling thread as thread 0, if thread 0 has a cpu. Called once by the thread that steps, because another
  // thread may have loaded the model.
  void pin_caller();

  // Calls function(thread) once for every thread, on that thread or, when it is late, on the caller. Returns when all
  // calls are done. Rethrows the exception of the lowest thread that threw. Flushes denormals to zero while it runs:
  // `vdpbf16ps` always does, and all instruction sets must give the same bits.
  template <class F>
  void run(F&& function) {
    run_call(Call::of(function), size());
  }

  // Calls function(begin, end) over [0, count) in equal ranges, one per thread. When count <= `serial_up_to`, the
  // caller runs it alone.
  template <class F>
  void for_ranges(int64_t count, int64_t serial_up_to, F&& function) {
    const int threads = count <= serial_up_to ? 1 : size();
    auto part = [&](int thread) {
      const int64_t begin = count * thread / threads, end = count * (thread + 1) / threads;
      if (begin < end) function(begin, end);
    };
    run_call(Call::of(part), threads);
  }

  // Calls function(thread, begin, end) over [0, count) in pieces of about `grain`. Each thread works on its own equal
  // range from the front. A thread that is done steals from the back of the other ranges, so a preempted thread does
  // not delay the team. Towards the end of a range the pieces shrink to `least`, so that all threads end together.
  // Calls with the same `thread` never run at the same time.
  template <class F>
  void for_pieces(int64_t count, int64_t grain, int64_t least, F&& function) {
    for (int thread = 0; thread < size(); ++thread)
      ranges_[thread].set(count * thread / size(), count * (thread + 1) / size());
    run([&](int thread) {
      for (int64_t begin, end; ranges_[thread].take_front(grain, least, begin, end);)
        function(thread, begin, end);
      for (int other = 1; other < size(); ++other) {
        Range& range = ranges_[(thread + other) % size()];
        for (int64_t begin, end; range.take_back(grain, least, begin, end);)
          function(thread, begin, end);
      }
    });
  }
  template <class F>
  void for_pieces(int64_t count, int64_t grain, F&& function) {
    for_pieces(count, grain, grain, function);
  }

 private:
  // The generation of the last call whose part of this thread has been claimed. One cache line per thread.
  struct alignas(64) Claim {
    std::atomic<uint32_t> generation{0};
  };
  // The time that a thread spent in its part of a call, with a profile.
  struct alignas(64) Busy {
    int64_t ns = 0;
  };
  // The rest of a thread's range, in one atomic word.
  struct alignas(64) Range {
    std::atomic<uint64_t> word{0};  // begin in the high 32 bits, end in the low 32 bits

    void set(int64_t begin, int64_t end) { word.store(pack(begin, end), std::memory_order_relaxed); }
    bool take_front(int64_t grain, int64_t least, int64_t& begin, int64_t& end) {
      uint64_t seen = word.load(std::memory_order_relaxed);
      int64_t last;
      do {
        begin = static_cast<int64_t>(seen >> 32);
        last = static_cast<int64_t>(seen & 0xffffffffu);
        if (begin >= last) return false;
        end = begin + piece(last - begin, grain, least);
      } while (!word.compare_exchange_weak(seen, pack(end, last), std::memory_order_relaxed));
      return true;
    }
    bool take_back(int64_t grain, int64_t least, int64_t& begin, int64_t& end) {
      uint64_t seen = word.load(std::memory_order_relaxed);
      int64_t first;
      do {
        first = static_cast<int64_t>(seen >> 32);
        end = static_cast<int64_t>(seen & 0xffffffffu);
        if (first >= end) return false;
        begin = end - piece(end - first, grain, least);
      } while (!word.compare_exchange_weak(seen, pack(first, begin), std::memory_order_relaxed));
      return true;
    }
    // How much of `left` is taken: half of it, within the bounds. No rest is smaller than half of `least`.
    static int64_t piece(int64_t left, int64_t grain, int64_t least) {
      return left <= least + least / 2 ? left : std::clamp((left + 1) / 2, least, grain);
    }
    static uint64_t pack(int64_t begin, int64_t end) {
      return static_cast<uint64_t>(begin) << 32 | static_cast<uint64_t>(end);
    }
  };

  // A reference to a callable, without an allocation.
  struct Call {
    void* object;
    void (*invoke)(void* object, int thread);
    template <class F>
    static Call of(F& function) {
      return {const_cast<void*>(static_cast<const void*>(&function)),
              [](void* object, int thread) { (*static_cast<std::remove_reference_t<F>*>(object))(thread); }};
    }
  };

  void run_call(Call call, int threads) {
    if (profile_ != nullptr && threads > 1) return run_profiled(call, threads);
    run_parts(call, threads);
  }
  void run_parts(Call call, int threads);
  void run_profiled(Call call, int threads);
  void run_thread(int thread);
  bool claim(int thread, uint32_t generation);
  void invoke(Call call, int thread) noexcept;
  void wait_while(std::atomic<uint32_t>& word, uint32_t value);
  void wake(std::atomic<uint32_t>& word);
  void stop() noexcept;

  std::vector<int> cpus_;
  bool may_spin_;
  StepProfile* profile_;
  std::thread::id pinned_caller_;
  std::atomic<bool> is_stopping_{false};
  Call call_{};
  alignas(64) std::atomic<uint32_t> generation_{0};   // number of calls so far
  alignas(64) std::atomic<uint32_t> num_running_{0};  // parts that are not done, without the caller's own
  // Threads that may be in futex_wait. When it is 0, wake needs no system call.
  alignas(64) std::atomic<uint32_t> num_sleeping_{0};
  std::vector<Claim> claims_;               // by thread
  std::vector<Busy> busy_;                  // by thread
  std::vector<Range> ranges_;               // by thread
  std::vector<std::exception_ptr> errors_;  // by thread
  std::vector<std::thread> threads_;
};

}  // namespace capstan
