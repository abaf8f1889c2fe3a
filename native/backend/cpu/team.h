#pragma once
// A fixed team of threads that runs one function at a time, fork and join. Thread 0 is the caller. Each thread's part
// is claimed once: what a thread has not begun when the caller is done, the caller does in its place, so that a thread
// whose core is wanted elsewhere holds up nobody.
#include <atomic>
#include <cstdint>
#include <exception>
#include <thread>
#include <type_traits>
#include <vector>

namespace capstan {

class Team {
 public:
  // One thread per entry: the cpu to pin to, or -1. Without `may_spin` a waiting thread sleeps at once.
  Team(const std::vector<int>& cpus, bool may_spin);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return static_cast<int>(cpus_.size()); }

  // Pins the calling thread as thread 0, where that is wanted. Once per thread that steps; loading may come from
  // another one.
  void pin_caller();

  // function(thread) once for every thread, on that thread or, when it is late, on the caller; returns when all are
  // done. Rethrows the exception of the lowest thread that threw. Denormals are flushed to zero on all threads while it
  // runs, as `vdpbf16ps` does in any case: so all instruction sets agree.
  template <class F>
  void run(F&& function) {
    run_call(Call::of(function), size());
  }

  // function(begin, end) over [0, count) in equal ranges, one per thread; on the caller alone when count <=
  // `serial_up_to`.
  template <class F>
  void for_ranges(int64_t count, int64_t serial_up_to, F&& function) {
    const int threads = count <= serial_up_to ? 1 : size();
    auto part = [&](int thread) {
      const int64_t begin = count * thread / threads, end = count * (thread + 1) / threads;
      if (begin < end) function(begin, end);
    };
    run_call(Call::of(part), threads);
  }

  // function(begin, end) over [0, count) in pieces of about `grain`. Each thread walks its own equal range from the
  // front; one that is done takes from the back of another's, so that a thread whose core is wanted elsewhere does not
  // hold up the rest.
  template <class F>
  void for_pieces(int64_t count, int64_t grain, F&& function) {
    for (int thread = 0; thread < size(); ++thread)
      ranges_[thread].set(count * thread / size(), count * (thread + 1) / size());
    run([&](int thread) {
      for (int64_t begin, end; ranges_[thread].take_front(grain, begin, end);)
        function(begin, end);
      for (int other = 1; other < size(); ++other) {
        Range& range = ranges_[(thread + other) % size()];
        for (int64_t begin, end; range.take_back(grain, begin, end);)
          function(begin, end);
      }
    });
  }

 private:
  // The last call whose part of this thread has been claimed.
  struct alignas(64) Claim {
    std::atomic<uint32_t> generation{0};
  };
  // What is left of a thread's range, in one word.
  struct alignas(64) Range {
    std::atomic<uint64_t> word{0};  // begin, end of 32 bits each

    void set(int64_t begin, int64_t end) { word.store(pack(begin, end), std::memory_order_relaxed); }
    bool take_front(int64_t grain, int64_t& begin, int64_t& end) {
      uint64_t seen = word.load(std::memory_order_relaxed);
      int64_t last;
      do {
        begin = static_cast<int64_t>(seen >> 32);
        last = static_cast<int64_t>(seen & 0xffffffffu);
        if (begin >= last) return false;
        end = last - begin <= grain + grain / 2 ? last : begin + grain;  // no small rest
      } while (!word.compare_exchange_weak(seen, pack(end, last), std::memory_order_relaxed));
      return true;
    }
    bool take_back(int64_t grain, int64_t& begin, int64_t& end) {
      uint64_t seen = word.load(std::memory_order_relaxed);
      int64_t first;
      do {
        first = static_cast<int64_t>(seen >> 32);
        end = static_cast<int64_t>(seen & 0xffffffffu);
        if (first >= end) return false;
        begin = end - first <= grain ? first : end - grain;
      } while (!word.compare_exchange_weak(seen, pack(first, begin), std::memory_order_relaxed));
      return true;
    }
    static uint64_t pack(int64_t begin, int64_t end) {
      return static_cast<uint64_t>(begin) << 32 | static_cast<uint64_t>(end);
    }
  };

  // A borrowed callable: no allocation.
  struct Call {
    void* object;
    void (*invoke)(void* object, int thread);
    template <class F>
    static Call of(F& function) {
      return {const_cast<void*>(static_cast<const void*>(&function)),
              [](void* object, int thread) { (*static_cast<std::remove_reference_t<F>*>(object))(thread); }};
    }
  };

  void run_call(Call call, int threads);
  void work(int thread);
  bool claim(int thread, uint32_t generation);
  void invoke(Call call, int thread) noexcept;
  void wait_while(std::atomic<uint32_t>& word, uint32_t value);
  void wake(std::atomic<uint32_t>& word);
  void stop() noexcept;

  std::vector<int> cpus_;
  bool may_spin_;
  std::thread::id pinned_caller_;
  std::atomic<bool> is_stopping_{false};
  Call call_{};
  alignas(64) std::atomic<uint32_t> generation_{0};   // goes up by one per call
  alignas(64) std::atomic<uint32_t> num_running_{0};  // parts of other threads that are not done
  alignas(64) std::atomic<uint32_t> num_sleeping_{
      0};                                   // threads that may be in futex_wait; spares the call when all spin
  std::vector<Claim> claims_;               // by thread
  std::vector<Range> ranges_;               // by thread
  std::vector<std::exception_ptr> errors_;  // by thread
  std::vector<std::thread> threads_;
};

}  // namespace capstan
