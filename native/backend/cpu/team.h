#pragma once
// A fixed team of threads that runs one function at a time, fork and join. Thread 0 is the caller.
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

  // Pins the calling thread as thread 0, where that is wanted. Once per thread that steps; loading may come from another one.
  void pin_caller();

  // function(thread) on every thread; returns when all are done. Rethrows the exception of the lowest thread that threw.
  // Denormals are flushed to zero on all threads while it runs, as `vdpbf16ps` does in any case: so all instruction sets agree.
  template <class F>
  void run(F&& function) {
    run_call(Call::of(function), size());
  }

  // function(begin, end) over [0, count) in equal ranges, one per thread; on the caller alone when count <= `serial_up_to`.
  template <class F>
  void for_ranges(int64_t count, int64_t serial_up_to, F&& function) {
    const int threads = count <= serial_up_to ? 1 : size();
    auto part = [&](int thread) {
      const int64_t begin = count * thread / threads, end = count * (thread + 1) / threads;
      if (begin < end) function(begin, end);
    };
    run_call(Call::of(part), threads);
  }

 private:
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
  void invoke(Call call, int thread) noexcept;
  void wait_while(std::atomic<uint32_t>& word, uint32_t value);
  void wake(std::atomic<uint32_t>& word);
  void stop() noexcept;

  std::vector<int> cpus_;
  bool may_spin_;
  std::thread::id pinned_caller_;
  bool is_stopping_ = false;
  Call call_{};
  alignas(64) std::atomic<uint32_t> generation_{0};  // goes up by one per call
  alignas(64) std::atomic<uint32_t> num_running_{0};
  alignas(64) std::atomic<uint32_t> num_sleeping_{0};  // threads that may be in futex_wait; spares the call when all spin
  std::vector<std::exception_ptr> errors_;  // by thread
  std::vector<std::thread> threads_;
};

}  // namespace capstan
