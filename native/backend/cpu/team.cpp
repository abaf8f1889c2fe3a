#include "native/backend/cpu/team.h"

#if defined(__linux__)
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <chrono>
#include <utility>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "native/base/thread.h"

namespace capstan {

namespace {

constexpr auto kSpin = std::chrono::microseconds(50);
constexpr int kSpinsPerClock = 32;

void pause_cpu() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void pin_this_thread([[maybe_unused]] int cpu) {
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);  // a failure (another control group) costs only speed
#endif
}

// Flushes denormal operands and results to zero until the end of the scope.
class FlushDenormals {
 public:
#if defined(__x86_64__)
  FlushDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040u); }
  ~FlushDenormals() { _mm_setcsr(saved_); }
#elif defined(__aarch64__)
  FlushDenormals() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" : : "r"(saved_ | (uint64_t{1} << 24)));
  }
  ~FlushDenormals() { asm volatile("msr fpcr, %0" : : "r"(saved_)); }
#endif
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
#if defined(__x86_64__)
  unsigned saved_;
#else
  uint64_t saved_ = 0;
#endif
};

// The library's own wait spins first, which Team has done already. Other systems have no futex.
#if defined(__linux__)
void futex_wait(std::atomic<uint32_t>& word, uint32_t value) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
}
#else
void futex_wait(std::atomic<uint32_t>& word, uint32_t value) {
  word.wait(value, std::memory_order_seq_cst);
}

void futex_wake(std::atomic<uint32_t>& word) {
  word.notify_all();
}
#endif

}  // namespace

Team::Team(const std::vector<int>& cpus, bool may_spin, StepProfile* profile)
    : cpus_(cpus), may_spin_(may_spin), profile_(profile) {
  if (cpus_.empty()) cpus_.push_back(-1);
  errors_.resize(cpus_.size());
  ranges_ = std::vector<Range>(cpus_.size());
  claims_ = std::vector<Claim>(cpus_.size());
  busy_ = std::vector<Busy>(cpus_.size());
  threads_.reserve(cpus_.size() - 1);
  try {
    for (int thread = 1; thread < size(); ++thread)
      threads_.push_back(start_thread([this, thread] { run_thread(thread); }));
  } catch (...) {
    stop();
    throw;
  }
}

Team::~Team() {
  stop();
}

void Team::stop() noexcept {
  is_stopping_.store(true, std::memory_order_release);
  generation_.fetch_add(1, std::memory_order_seq_cst);
  wake(generation_);
  for (std::thread& thread : threads_)
    thread.join();
}

// Returns when word != value. Spins up to kSpin if allowed, then sleeps.
void Team::wait_while(std::atomic<uint32_t>& word, uint32_t value) {
  if (may_spin_) {
    const auto end = std::chrono::steady_clock::now() + kSpin;
    do {
      for (int i = 0; i < kSpinsPerClock; ++i) {
        if (word.load(std::memory_order_acquire) != value) return;
        pause_cpu();
      }
    } while (std::chrono::steady_clock::now() < end);
  }
  // NOTE: this increments num_sleeping_ and then reads the word; `wake` runs after the word changed and then reads
  // num_sleeping_. Sequential consistency makes sure that at least one of the two sees the other.
  num_sleeping_.fetch_add(1, std::memory_order_seq_cst);
  while (word.load(std::memory_order_seq_cst) == value)
    futex_wait(word, value);
  num_sleeping_.fetch_sub(1, std::memory_order_relaxed);
}

// Wakes the sleepers on `word`. Call it after a sequentially consistent change of `word`.
void Team::wake(std::atomic<uint32_t>& word) {
  if (num_sleeping_.load(std::memory_order_seq_cst) != 0) futex_wake(word);
}

void Team::pin_caller() {
  if (cpus_[0] < 0 || pinned_caller_ == std::this_thread::get_id()) return;
  pinned_caller_ = std::this_thread::get_id();
  pin_this_thread(cpus_[0]);
}

void Team::invoke(Call call, int thread) noexcept {
  const FlushDenormals flush;
  try {
    call.invoke(call.object, thread);
  } catch (...) {
    errors_[thread] = std::current_exception();
  }
}

// NOTE: claims only grow, so a thread that wakes late with an old generation claims nothing.
bool Team::claim(int thread, uint32_t generation) {
  std::atomic<uint32_t>& claimed = claims_[thread].generation;
  uint32_t last = claimed.load(std::memory_order_relaxed);
  return static_cast<int32_t>(generation - last) > 0 &&
         claimed.compare_exchange_strong(last, generation, std::memory_order_acq_rel);
}

void Team::run_thread(int thread) {
  if (cpus_[thread] >= 0) pin_this_thread(cpus_[thread]);
  for (uint32_t seen = 0;;) {
    wait_while(generation_, seen);
    seen = generation_.load(std::memory_order_acquire);
    // NOTE: read after the generation. `stop` raises the generation too, and that one must not be claimed as a call.
    if (is_stopping_.load(std::memory_order_acquire)) return;
    // After a successful claim, the caller waits for this part, so call_ stays valid.
    if (!claim(thread, seen)) continue;
    invoke(call_, thread);
    if (num_running_.fetch_sub(1, std::memory_order_seq_cst) == 1) wake(num_running_);
  }
}

// A thread that is not in its part waits: for the call to begin, or for the other parts to end.
void Team::run_profiled(Call call, int threads) {
  for (Busy& busy : busy_)
    busy.ns = 0;
  auto timed = [&](int thread) {
    const int64_t begin = StepProfile::now_ns();
    call.invoke(call.object, thread);
    busy_[thread].ns = StepProfile::now_ns() - begin;
  };
  const int64_t begin = StepProfile::now_ns();
  run_parts(Call::of(timed), threads);
  int64_t wait = StepProfile::now_ns() - begin;
  for (const Busy& busy : busy_)
    wait -= busy.ns / size();
  profile_->add_wait(std::max<int64_t>(wait, 0));
}

void Team::run_parts(Call call, int threads) {
  const bool is_parallel = threads > 1;
  uint32_t generation = 0;
  if (is_parallel) {
    call_ = call;
    num_running_.store(static_cast<uint32_t>(size() - 1), std::memory_order_relaxed);
    generation = generation_.fetch_add(1, std::memory_order_seq_cst) + 1;
    wake(generation_);
  }
  invoke(call, 0);
  if (is_parallel) {
    for (int thread = 1; thread < size(); ++thread) {
      if (!claim(thread, generation)) continue;
      invoke(call, thread);
      num_running_.fetch_sub(1, std::memory_order_relaxed);
    }
    for (uint32_t left; (left = num_running_.load(std::memory_order_acquire)) != 0;)
      wait_while(num_running_, left);
  }
  for (std::exception_ptr& error : errors_) {
    if (error == nullptr) continue;
    const std::exception_ptr first = std::exchange(error, nullptr);
    for (std::exception_ptr& other : errors_)
      other = nullptr;
    std::rethrow_exception(first);
  }
}

}  // namespace capstan
