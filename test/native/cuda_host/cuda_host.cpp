#include "test/native/cuda_host/cuda_host.h"

#include "test/native/cuda_host/block.h"

#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define CAPSTAN_ASAN 1
#else
#define CAPSTAN_ASAN 0
#endif

namespace capstan::cuda_host {

constinit thread_local ThreadPlace place;

namespace {

std::atomic<uint64_t> current_seed{1};
std::atomic<int> skipped_barrier{-1};
std::atomic<size_t> threads_that_skip{0};

// ---- fibers

constexpr unsigned kMaxThreads = 1024;  // of a block
// Not a power of two, so that the tops of the stacks do not compete for a few sets of the cache. AddressSanitizer needs
// room between the variables.
constexpr size_t kStackBytes = (CAPSTAN_ASAN ? 256 << 10 : 32 << 10) + 512;

// A wait that never ends. With CAPSTAN_HOST_HANGS the emulation hangs as a device does, so that tests of scripts can
// meet it.
[[noreturn]] void fail_wait(const std::string& message) {
  while (std::getenv("CAPSTAN_HOST_HANGS") != nullptr)
    pause();
  throw std::runtime_error(message);
}

std::string place_in_source(const char* file, int line) {
  return line == 0 ? file : std::string(file) + ":" + std::to_string(line);
}

enum class State : uint8_t { kReady, kAtBarrier, kAtWarp, kWaiting, kAtGridDependency, kDone };

struct Fiber {
  void* stack_pointer = nullptr;
  char* stack = nullptr;
  State state = State::kReady;
  const char* where = "the beginning";
  int line = 0;                                    // 0: contained in `where`
  const std::function<bool()>* is_over = nullptr;  // the condition of a waiting fiber
  int num_barriers = 0;
  bool has_waited = false;  // has called griddepcontrol_wait
  dim3 thread;
  void* fake_stack = nullptr;
#if !defined(__x86_64__)
  ucontext_t context;
#endif
};

struct Warp {
  unsigned num_arrived = 0;
  void* payloads[32] = {};
  const char* where = nullptr;
};

// The stacks of fibers. Host threads reuse them. Those of a block lie side by side in large pages, because it visits
// all of them in turn: on separate pages, most of the time would go into the translation of addresses. Blocks
// that wait for the preceding kernel take few pages, because many of them can wait.
class Stacks {
 public:
  ~Stacks() {
    for (size_t i = 0; i < of_blocks_.size(); ++i) {
#if CAPSTAN_ASAN
      // The addresses may be reused, and frames that never returned have left poisoned guards.
      ASAN_UNPOISON_MEMORY_REGION(of_blocks_[i], kBytes);
#endif
      if (i > 0) {
        munmap(of_blocks_[i], kBytes);
        continue;
      }
      const std::lock_guard lock(mutex);
      unused.push_back(of_blocks_[i]);
    }
  }

  char* get(size_t i) {
    while (of_blocks_.size() <= i / kMaxThreads)
      of_blocks_.push_back(of_blocks_.empty() ? take() : allocate(false));
    return of_blocks_[i / kMaxThreads] + i % kMaxThreads * kStackBytes;
  }

 private:
  static constexpr size_t kBytes = kStackBytes * kMaxThreads;

  static char* take() {
    const std::lock_guard lock(mutex);
    if (!unused.empty()) {
      char* const stacks = unused.back();
      unused.pop_back();
      return stacks;
    }
    return allocate(true);
  }

  static char* allocate(bool in_large_pages) {
    void* const stacks =
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) throw std::runtime_error("cuda_host: cannot allocate the stacks of a block");
    if (in_large_pages) madvise(stacks, kBytes, MADV_HUGEPAGE);
    return static_cast<char*>(stacks);
  }

  static inline std::mutex mutex;
  static inline std::vector<char*> unused;  // of host threads that have ended
  std::vector<char*> of_blocks_;
};
thread_local Stacks stacks;
thread_local size_t num_stacks_used = 0;  // by blocks that wait for the preceding kernel

// Sets a variable for its lifetime.
template <class T>
class ScopedValue {
 public:
  ScopedValue(T& variable, T value) : variable_(variable), before_(std::exchange(variable, value)) {}
  ~ScopedValue() { variable_ = before_; }

 private:
  T& variable_;
  T before_;
};

// The work that the first block of a PDL kernel runs when it waits for it, and whether a PDL kernel runs.
thread_local const std::function<void()>* previous_kernel = nullptr;
thread_local bool is_pdl_kernel = false;

struct Block;
thread_local Block* current_block = nullptr;

#if defined(__x86_64__)
// Saves the callee-saved registers, switches stacks, and restores them.
extern "C" void capstan_fiber_switch(void** save, void* load);
asm(R"(
.text
.type capstan_fiber_switch, @function
capstan_fiber_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size capstan_fiber_switch, .-capstan_fiber_switch
)");
#endif

struct Block {
  const std::function<void()>& kernel;
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  unsigned num_at_barrier = 0, num_alive = 0;
  unsigned running = 0;
  unsigned warp = 0, first_lane = 0, num_lanes_seen = 32;  // of the current round
  std::exception_ptr error;
  uint64_t random;
  std::shared_ptr<Async> async;
  void* main_stack_pointer = nullptr;
  const void* main_stack_bottom = nullptr;
  size_t main_stack_size = 0;
  void* main_fake_stack = nullptr;
#if !defined(__x86_64__)
  ucontext_t main_context;
#endif

  Block(const std::function<void()>& kernel_, dim3 block, uint64_t random_) : kernel(kernel_), random(random_) {
    const unsigned size = block.x * block.y * block.z;
    if (size == 0 || size > kMaxThreads || size % 32 != 0)
      throw std::runtime_error("cuda_host: expected a block of 32 to 1,024 threads, in multiples of 32");
    fibers.resize(size);
    warps.resize(size / 32);
    num_alive = size;
    for (unsigned i = 0; i < size; ++i) {
      fibers[i].thread = {i % block.x, i / block.x % block.y, i / block.x / block.y};
      start(fibers[i], i);
    }
  }

#if CAPSTAN_ASAN
  // After an error, fibers in the middle of a kernel leave poisoned guards on stacks that are reused.
  ~Block() {
    for (const Fiber& fiber : fibers)
      if (fiber.state != State::kDone) ASAN_UNPOISON_MEMORY_REGION(fiber.stack, kStackBytes);
  }
#endif

  unsigned draw(unsigned count) {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    return static_cast<unsigned>((random >> 11) % count);
  }

  static void entry();

  void start(Fiber& fiber, unsigned i) {
    fiber.stack = stacks.get(num_stacks_used + i);
#if defined(__x86_64__)
    auto* top = reinterpret_cast<void**>(fiber.stack + kStackBytes);
    *--top = nullptr;  // keeps the stack aligned as after a call
    *--top = reinterpret_cast<void*>(&Block::entry);
    for (int r = 0; r < 6; ++r)
      *--top = nullptr;
    fiber.stack_pointer = top;
#else
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack;
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, &Block::entry, 0);
#endif
  }

  void resume(Fiber& fiber) {
#if CAPSTAN_ASAN
    __sanitizer_start_switch_fiber(&main_fake_stack, fiber.stack, kStackBytes);
#endif
#if defined(__x86_64__)
    capstan_fiber_switch(&main_stack_pointer, fiber.stack_pointer);
#else
    swapcontext(&main_context, &fiber.context);
#endif
#if CAPSTAN_ASAN
    __sanitizer_finish_switch_fiber(main_fake_stack, nullptr, nullptr);
#endif
  }

  // Whether a wait is over. A fiber calls it at its end too, where nothing catches an exception.
  bool is_over(const Fiber& fiber) noexcept {
    try {
      return (*fiber.is_over)();
    } catch (...) {
      error = std::current_exception();
      return false;
    }
  }

  // Returns the next lane of the warp that can run in this round, or null at the end of the round and after an error.
  Fiber* next_lane() {
    while (!error && num_lanes_seen < 32) {
      const unsigned i = warp * 32 + (first_lane + num_lanes_seen++) % 32;
      Fiber& fiber = fibers[i];
      if (fiber.state == State::kWaiting && is_over(fiber)) fiber.state = State::kReady;
      if (fiber.state != State::kReady) continue;
      running = i;
      place.thread = fiber.thread;
      return &fiber;
    }
    return nullptr;
  }

  void leave(Fiber& fiber) {
#if CAPSTAN_ASAN
    __sanitizer_start_switch_fiber(fiber.state == State::kDone ? nullptr : &fiber.fake_stack, main_stack_bottom,
                                   main_stack_size);
#endif
#if defined(__x86_64__)
    // Going to the next lane directly saves half of the switches. AddressSanitizer would need both stacks.
    const Fiber* const next = CAPSTAN_ASAN ? nullptr : next_lane();
    capstan_fiber_switch(&fiber.stack_pointer, next != nullptr ? next->stack_pointer : main_stack_pointer);
#else
    swapcontext(&fiber.context, &main_context);
#endif
#if CAPSTAN_ASAN
    __sanitizer_finish_switch_fiber(fiber.fake_stack, &main_stack_bottom, &main_stack_size);
#endif
  }

  void release_barrier_if_full() {
    if (num_at_barrier == 0 || num_at_barrier < num_alive) return;
    num_at_barrier = 0;
    for (Fiber& fiber : fibers)
      if (fiber.state == State::kAtBarrier) fiber.state = State::kReady;
  }

  std::string fiber_locations() const {
    std::map<std::string, int> counts;
    for (const Fiber& fiber : fibers)
      ++counts[fiber.state == State::kDone ? "the end" : place_in_source(fiber.where, fiber.line)];
    std::string text;
    for (const auto& [where, count] : counts)
      text += "\n  " + std::to_string(count) + " threads at " + where;
    return text;
  }

  bool run_previous_kernel() {
    if (previous_kernel == nullptr ||
        std::ranges::any_of(fibers, [](const Fiber& fiber) { return fiber.state != State::kAtGridDependency; }))
      return false;
    const ScopedValue<size_t> stacks_used(num_stacks_used, num_stacks_used + fibers.size());
    const ScopedValue<bool> is_not_pdl_kernel(is_pdl_kernel, false);
    (*std::exchange(previous_kernel, nullptr))();
    for (Fiber& fiber : fibers)
      fiber.state = State::kReady;
    return true;
  }

  // Runs rounds over the warps in random order. Each warp sits out some rounds.
  void run() {
    std::vector<unsigned> order(warps.size());
    for (unsigned w = 0; w < order.size(); ++w)
      order[w] = w;
    while (num_alive > 0) {
      for (unsigned w = static_cast<unsigned>(order.size()); w > 1; --w)
        std::swap(order[w - 1], order[draw(w)]);
      bool has_run = false, has_skipped = false;
      for (const unsigned w : order) {
        if (order.size() > 1 && draw(4) == 0) {
          has_skipped = true;
          continue;
        }
        warp = w;
        first_lane = draw(32);
        num_lanes_seen = 0;
        while (Fiber* const fiber = next_lane()) {
          has_run = true;
          resume(*fiber);
        }
        if (error) std::rethrow_exception(error);
      }
      if (!has_run && !has_skipped && !run_previous_kernel()) fail_wait("cuda_host: deadlock:" + fiber_locations());
    }
  }
};

void Block::entry() {
  Block& block = *current_block;
  Fiber& fiber = block.fibers[block.running];
#if CAPSTAN_ASAN
  __sanitizer_finish_switch_fiber(nullptr, &block.main_stack_bottom, &block.main_stack_size);
#endif
  try {
    block.kernel();
  } catch (...) {
    block.error = std::current_exception();
  }
  // The stacks start as zeros, and the next one lies below.
  uint64_t lowest;
  std::memcpy(&lowest, fiber.stack, sizeof lowest);
  if (lowest != 0) {
    std::fputs("cuda_host: a thread needs more than its stack\n", stderr);
    std::abort();
  }
  if (is_pdl_kernel && !fiber.has_waited && !block.error)
    block.error = std::make_exception_ptr(
        std::runtime_error("cuda_host: a thread of a PDL kernel ended without griddepcontrol_wait"));
  fiber.state = State::kDone;
  --block.num_alive;
  block.release_barrier_if_full();
  block.leave(fiber);
}

}  // namespace

void set_seed(uint64_t value) {
  current_seed = value * 2 + 1;
}
uint64_t seed() {
  return current_seed;
}
void skip_barrier(int n, size_t num_threads) {
  skipped_barrier = n, threads_that_skip = num_threads;
}

void sync_threads(const char* where) {
  Block& block = *current_block;
  Fiber& fiber = block.fibers[block.running];
  if (fiber.num_barriers++ == skipped_barrier && block.fibers.size() == threads_that_skip) return;
  fiber.where = where;
  fiber.line = 0;
  fiber.state = State::kAtBarrier;
  ++block.num_at_barrier;
  block.release_barrier_if_full();
  block.leave(fiber);
}

void wait_and_clear_flag(int32_t flag, const char* file, int line) {
  if (flag == 0) fail_wait("cuda_host: no earlier block has set the flag at " + place_in_source(file, line));
}

void griddepcontrol_wait() {
  Block& block = *current_block;
  Fiber& fiber = block.fibers[block.running];
  fiber.has_waited = true;
  if (previous_kernel == nullptr) return;
  fiber.where = "griddepcontrol_wait";
  fiber.line = 0;
  fiber.state = State::kAtGridDependency;
  block.leave(fiber);
}

void warp_collective(const char* where, void* payload, const std::function<void(void* const* lanes)>& compute) {
  Block& block = *current_block;
  const unsigned i = block.running;
  Fiber& fiber = block.fibers[i];
  Warp& warp = block.warps[i / 32];
  if (warp.num_arrived > 0 && warp.where != where)
    throw std::runtime_error(std::string("cuda_host: lanes of a warp are at ") + warp.where + " and at " + where);
  warp.where = fiber.where = where;
  fiber.line = 0;
  warp.payloads[i % 32] = payload;
  fiber.state = State::kAtWarp;
  if (++warp.num_arrived == 32) {
    warp.num_arrived = 0;
    compute(warp.payloads);
    for (unsigned lane = 0; lane < 32; ++lane)
      block.fibers[i / 32 * 32 + lane].state = State::kReady;
  }
  block.leave(fiber);
}

void wait_until(const char* where, int line, const std::function<bool()>& is_over) {
  Block& block = *current_block;
  Fiber& fiber = block.fibers[block.running];
  fiber.where = where;
  fiber.line = line;
  fiber.is_over = &is_over;
  fiber.state = State::kWaiting;
  block.leave(fiber);
}

std::shared_ptr<Async>& block_async() {
  return current_block->async;
}
unsigned running_thread() {
  return current_block->running;
}

void run_grid(dim3 grid, dim3 block_size, size_t shared_bytes, const std::function<void()>& kernel) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535)
    throw std::runtime_error("cuda_host: expected a grid with 1 to 65,535 blocks in y and z");
  if (shared_bytes > kMaxSharedBytes) throw std::runtime_error("cuda_host: more shared memory than a block can have");
  const ThreadPlace before = place;
  uint64_t random = seed();
  // The exact size, so that AddressSanitizer detects the first byte out of bounds.
  const std::unique_ptr<unsigned char, void (*)(void*)> shared(
      static_cast<unsigned char*>(std::aligned_alloc(128, (std::max<size_t>(shared_bytes, 1) + 127) / 128 * 128)),
      std::free);
#if CAPSTAN_ASAN
  const size_t allocated = (std::max<size_t>(shared_bytes, 1) + 127) / 128 * 128;
  ASAN_POISON_MEMORY_REGION(shared.get() + shared_bytes, allocated - shared_bytes);
#endif
  // A device may start blocks in any order.
  std::vector<unsigned> order(size_t{grid.x} * grid.y * grid.z);
  std::iota(order.begin(), order.end(), 0u);
  std::shuffle(order.begin(), order.end(), std::mt19937_64(random));
  for (const unsigned i : order) {
    std::memset(shared.get(), 0xff, shared_bytes);
    const dim3 index(i % grid.x, i / grid.x % grid.y, i / grid.x / grid.y);
    place = {{0, 0, 0}, index, block_size, grid, shared.get(), shared_bytes};
    random = random * 6364136223846793005ull + 1442695040888963407ull;
    Block block(kernel, block_size, random | 1);
    Block* const outer = current_block;
    current_block = &block;
    try {
      block.run();
      if (block.async) check_end(*block.async);
    } catch (...) {
      current_block = outer;
      place = before;
      throw;
    }
    current_block = outer;
  }
#if CAPSTAN_ASAN
  ASAN_UNPOISON_MEMORY_REGION(shared.get(), allocated);
#endif
  place = before;
}

void run_pdl(const std::function<void()>& before, const std::function<void()>& kernel) {
  const ScopedValue<const std::function<void()>*> in_front(previous_kernel, &before);
  const ScopedValue<bool> as_pdl_kernel(is_pdl_kernel, true);
  kernel();
}

}  // namespace capstan::cuda_host
