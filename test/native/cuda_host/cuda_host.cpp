#include "test/native/cuda_host/cuda_host.h"

#include "test/native/cuda_host/block.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
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

std::atomic<uint64_t> seed{1};
std::atomic<int> skipped_barrier{-1};

// ---- fibers ----------------------------------------------------------------------------------------------------------------------------

constexpr size_t kStackBytes = 256 << 10;
constexpr int kMaxSharedBytes = 232448;

enum class State : uint8_t { kReady, kAtBarrier, kAtWarp, kWaiting, kAtPrevious, kDone };

struct Fiber {
  void* stack_pointer = nullptr;
  char* stack = nullptr;
  State state = State::kReady;
  const char* where = "the beginning";
  const std::function<bool()>* is_over = nullptr;  // what it waits for
  int num_barriers = 0;
  bool has_waited = false;  // for the kernel in front
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

// Stacks are kept per thread of the host; blocks have at most 1,024 threads.
struct Stacks {
  std::vector<char*> all;
  ~Stacks() {
    for (char* stack : all) {
#if CAPSTAN_ASAN
      // Whoever is given these addresses next must not meet the guards of frames that never returned.
      ASAN_UNPOISON_MEMORY_REGION(stack, kStackBytes);
#endif
      munmap(stack, kStackBytes);
    }
  }
  char* get(size_t i) {
    while (all.size() <= i) {
      void* memory = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (memory == MAP_FAILED) throw std::runtime_error("cuda_host: no memory for the stacks of a block");
      all.push_back(static_cast<char*>(memory));
    }
    return all[i];
  }
};
thread_local Stacks stacks;
thread_local size_t num_stacks_used = 0;  // by blocks that wait for the kernel in front of them

// Sets a variable for as long as it lives.
template <class T>
class Within {
 public:
  Within(T& variable, T value) : variable_(variable), before_(std::exchange(variable, value)) {}
  ~Within() { variable_ = before_; }

 private:
  T& variable_;
  T before_;
};

// What an early kernel's first block runs when it waits for it, and whether the kernel is one.
thread_local const std::function<void()>* previous = nullptr;
thread_local bool is_early = false;

struct Block;
thread_local Block* current_block = nullptr;

#if defined(__x86_64__)
// Saves what a callee keeps, changes stacks, and restores.
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
    if (size == 0 || size > 1024 || size % 32 != 0) throw std::runtime_error("cuda_host: a block has 32 to 1,024 threads, a multiple of 32");
    fibers.resize(size);
    warps.resize(size / 32);
    num_alive = size;
    for (unsigned i = 0; i < size; ++i) {
      fibers[i].thread = {i % block.x, i / block.x % block.y, i / block.x / block.y};
      start(fibers[i], i);
    }
  }

#if CAPSTAN_ASAN
  // Threads that an error left in the middle of a kernel leave the guards of their frames behind, on stacks that are used again.
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
    for (int r = 0; r < 6; ++r) *--top = nullptr;
    fiber.stack_pointer = top;
#else
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack;
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, &Block::entry, 0);
#endif
  }

  void resume(unsigned i) {
    Fiber& fiber = fibers[i];
    running = i;
    place.thread = fiber.thread;
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

  void leave(Fiber& fiber) {
#if CAPSTAN_ASAN
    __sanitizer_start_switch_fiber(fiber.state == State::kDone ? nullptr : &fiber.fake_stack, main_stack_bottom, main_stack_size);
#endif
#if defined(__x86_64__)
    capstan_fiber_switch(&fiber.stack_pointer, main_stack_pointer);
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

  std::string places() const {
    std::map<std::string, int> counts;
    for (const Fiber& fiber : fibers) ++counts[fiber.state == State::kDone ? "the end" : fiber.where];
    std::string text;
    for (const auto& [where, count] : counts) text += "\n  " + std::to_string(count) + " threads at " + where;
    return text;
  }

  bool run_previous() {
    if (previous == nullptr || std::ranges::any_of(fibers, [](const Fiber& fiber) { return fiber.state != State::kAtPrevious; })) return false;
    const Within<size_t> stacks_used(num_stacks_used, num_stacks_used + fibers.size());
    const Within<bool> is_not_early(is_early, false);
    (*std::exchange(previous, nullptr))();
    for (Fiber& fiber : fibers) fiber.state = State::kReady;
    return true;
  }

  // Rounds over the warps in random order; each is left out now and then.
  void run() {
    std::vector<unsigned> order(warps.size());
    for (unsigned w = 0; w < order.size(); ++w) order[w] = w;
    while (num_alive > 0) {
      for (unsigned w = static_cast<unsigned>(order.size()); w > 1; --w) std::swap(order[w - 1], order[draw(w)]);
      bool has_run = false, has_skipped = false;
      for (const unsigned w : order) {
        if (order.size() > 1 && draw(4) == 0) {
          has_skipped = true;
          continue;
        }
        const unsigned first = draw(32);
        for (unsigned lane = 0; lane < 32; ++lane) {
          const unsigned i = w * 32 + (first + lane) % 32;
          if (fibers[i].state == State::kWaiting && (*fibers[i].is_over)()) fibers[i].state = State::kReady;
          if (fibers[i].state != State::kReady) continue;
          has_run = true;
          resume(i);
          if (error) std::rethrow_exception(error);
        }
      }
      if (!has_run && !has_skipped && !run_previous()) throw std::runtime_error("cuda_host: deadlock:" + places());
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
  if (is_early && !fiber.has_waited && !block.error)
    block.error = std::make_exception_ptr(std::runtime_error("cuda_host: a thread of an early kernel ended without waiting for the kernel in front"));
  fiber.state = State::kDone;
  --block.num_alive;
  block.release_barrier_if_full();
  block.leave(fiber);
}

}  // namespace

void set_seed(uint64_t value) { seed = value * 2 + 1; }
void skip_barrier(int n) { skipped_barrier = n; }

void sync_threads(const char* where) {
  Block& block = *current_block;
  Fiber& fiber = block.fibers[block.running];
  if (fiber.num_barriers++ == skipped_barrier) return;
  fiber.where = where;
  fiber.state = State::kAtBarrier;
  ++block.num_at_barrier;
  block.release_barrier_if_full();
  block.leave(fiber);
}

void await_flag(int32_t flag) {
  if (flag == 0) throw std::runtime_error("cuda_host: await_flag: no block before this one has raised it");
}

void wait_for_previous() {
  Block& block = *current_block;
  Fiber& fiber = block.fibers[block.running];
  fiber.has_waited = true;
  if (previous == nullptr) return;
  fiber.where = "the wait for the kernel in front";
  fiber.state = State::kAtPrevious;
  block.leave(fiber);
}

void meet_warp(const char* where, void* payload, const std::function<void(void* const* lanes)>& compute) {
  Block& block = *current_block;
  const unsigned i = block.running;
  Fiber& fiber = block.fibers[i];
  Warp& warp = block.warps[i / 32];
  if (warp.num_arrived > 0 && warp.where != where)
    throw std::runtime_error(std::string("cuda_host: lanes of a warp meet at ") + warp.where + " and at " + where);
  warp.where = fiber.where = where;
  warp.payloads[i % 32] = payload;
  fiber.state = State::kAtWarp;
  if (++warp.num_arrived == 32) {
    warp.num_arrived = 0;
    compute(warp.payloads);
    for (unsigned lane = 0; lane < 32; ++lane) block.fibers[i / 32 * 32 + lane].state = State::kReady;
  }
  block.leave(fiber);
}

void wait_until(const char* where, const std::function<bool()>& is_over) {
  Block& block = *current_block;
  Fiber& fiber = block.fibers[block.running];
  fiber.where = where;
  fiber.is_over = &is_over;
  fiber.state = State::kWaiting;
  block.leave(fiber);
}

std::shared_ptr<Async>& async_of_block() { return current_block->async; }
unsigned running_thread() { return current_block->running; }

void run_grid(dim3 grid, dim3 block_size, size_t shared_bytes, const std::function<void()>& kernel) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535) throw std::runtime_error("cuda_host: a grid has no blocks, or too many");
  if (shared_bytes > kMaxSharedBytes) throw std::runtime_error("cuda_host: more shared memory than a block may have");
  const ThreadPlace before = place;
  uint64_t random = seed;
  // The exact size, so that the address sanitizer sees the first byte beyond it.
  const std::unique_ptr<unsigned char, void (*)(void*)> shared(static_cast<unsigned char*>(std::aligned_alloc(128, (std::max<size_t>(shared_bytes, 1) + 127) / 128 * 128)), std::free);
#if CAPSTAN_ASAN
  const size_t allocated = (std::max<size_t>(shared_bytes, 1) + 127) / 128 * 128;
  ASAN_POISON_MEMORY_REGION(shared.get() + shared_bytes, allocated - shared_bytes);
#endif
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        std::memset(shared.get(), 0xff, shared_bytes);
        place = {{0, 0, 0}, {x, y, z}, block_size, grid, shared.get(), shared_bytes};
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

// ---- the runtime ------------------------------------------------------------------------------------------------------------------------

// Work that waits for no more than it must: for what was before it on its stream, and for the events that its stream waited for.
struct Node {
  std::function<void()> work;
  std::vector<size_t> after;
};
// What is recorded by a stream, and by those that waited for one of its events.
struct Recording {
  Stream* origin = nullptr;
  std::vector<Node> nodes;
  std::vector<Stream*> streams;
};
// All streams of all threads run under one lock, when somebody waits.
struct Stream {
  std::deque<std::function<void()>> work;
  std::shared_ptr<Recording> recording;
  std::vector<size_t> tips;  // what the next node is after

  void push(std::function<void()> item) {
    if (recording == nullptr) return work.push_back(std::move(item));
    recording->nodes.push_back({std::move(item), std::exchange(tips, {recording->nodes.size()})});
  }
  // Becomes one with what is in front of it, which it is given to run when it has to.
  void push_early(std::function<void(const std::function<void()>& before)> item);
};
void Stream::push_early(std::function<void(const std::function<void()>& before)> item) {
  const auto joined = [&](std::function<void()> before) { return [item = std::move(item), before = std::move(before)] { item(before); }; };
  if (recording == nullptr) {
    std::function<void()> before = [] {};
    if (!work.empty()) before = std::move(work.back()), work.pop_back();
    return work.push_back(joined(std::move(before)));
  }
  if (tips.size() != 1 || tips[0] + 1 != recording->nodes.size()) return push(joined([] {}));
  recording->nodes.back().work = joined(std::move(recording->nodes.back().work));
}
struct Graph {
  std::vector<Node> nodes;
};
struct GraphExec {
  std::vector<Node> nodes;
};
struct Event {
  Stream* stream = nullptr;
  uint64_t recorded = 0, done = 0;
  std::chrono::steady_clock::time_point time;
  std::shared_ptr<Recording> recording;  // that it was recorded into, after `tips`
  std::vector<size_t> tips;
};

namespace {

std::recursive_mutex runtime_mutex;
// What a lost device leaves behind on purpose is no leak: it is known here, in what is never destroyed, as leaks are looked for last of all.
auto& allocations = *new std::map<void*, size_t>;
auto& pinned = *new std::set<void*>;
auto& graph_execs = *new std::set<GraphExec*>;
auto& streams = *new std::vector<Stream*>;
size_t memory_in_use = 0, memory_size = size_t{1} << 30;
constexpr int device_count = 2;
int capability = 8;
int multiprocessors = 2;  // few, so that blocks that stay have more than one turn
bool has_peers = true;
cudaError_t sticky = cudaSuccess;
bool is_hung = false;
size_t graph_count = 0;

void run_one(Stream* stream) {
  const std::function<void()> work = std::move(stream->work.front());
  stream->work.pop_front();
  if (sticky == cudaSuccess) work();
}

// Every order that the nodes allow is as good as another: one is drawn.
void run_nodes(const std::vector<Node>& nodes) {
  static uint64_t random = 0;
  std::vector<bool> is_done(nodes.size());
  std::vector<size_t> left(nodes.size()), ready;
  std::vector<std::vector<size_t>> before(nodes.size());
  for (size_t n = 0; n < nodes.size(); ++n) {
    left[n] = nodes[n].after.size();
    if (left[n] == 0) ready.push_back(n);
    for (const size_t earlier : nodes[n].after) before[earlier].push_back(n);
  }
  while (!ready.empty()) {
    random = random * 6364136223846793005ull + seed;
    std::swap(ready[(random >> 33) % ready.size()], ready.back());
    const size_t n = ready.back();
    ready.pop_back();
    if (sticky == cudaSuccess) nodes[n].work();
    for (const size_t later : before[n])
      if (--left[later] == 0) ready.push_back(later);
  }
}

void run_until(Event* event, uint64_t number) {
  while (event->done < number) {
    if (event->stream->work.empty()) throw std::runtime_error("cuda_host: waits for an event that nobody records");
    run_one(event->stream);
  }
}

}  // namespace

void enqueue(Stream* stream, std::function<void()> work) {
  const std::lock_guard lock(runtime_mutex);
  stream->push(std::move(work));
}

void enqueue_early(Stream* stream, std::function<void()> work) {
  const std::lock_guard lock(runtime_mutex);
  stream->push_early([work = std::move(work)](const std::function<void()>& before) {
    const Within<const std::function<void()>*> in_front(previous, &before);
    const Within<bool> as_early(is_early, true);
    work();
  });
}

void set_device_memory(size_t bytes) { memory_size = bytes; }
size_t device_memory_in_use() { return memory_in_use; }
void set_peers(bool can_reach_each_other) { has_peers = can_reach_each_other; }
void set_multiprocessors(int count) { multiprocessors = count; }
void set_compute_capability(int major) { capability = major; }
void break_device(int error) { sticky = static_cast<cudaError_t>(error); }
void repair_device() {
  sticky = cudaSuccess;
  is_hung = false;
}
void hang_device() { is_hung = true; }
size_t num_graphs() { return graph_count; }

}  // namespace capstan::cuda_host

using namespace capstan::cuda_host;

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    default: return "an error";
  }
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = device_count;
  return device_count > 0 ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaSetDevice(int device) { return device >= 0 && device < device_count ? sticky : cudaErrorInvalidValue; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int) {
  *value = which == cudaDevAttrMultiProcessorCount ? multiprocessors : which == cudaDevAttrComputeCapabilityMajor ? capability : kMaxSharedBytes;
  return sticky;
}
cudaError_t cudaDeviceCanAccessPeer(int* can_access, int, int) {
  *can_access = has_peers ? 1 : 0;
  return sticky;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return has_peers ? sticky : cudaErrorInvalidValue; }
cudaError_t cudaGetLastError() { return sticky; }
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *total = memory_size;
  *free = memory_size - std::min(memory_size, memory_in_use);
  return sticky;
}
cudaError_t cudaMalloc(void** out, size_t bytes) {
  const std::lock_guard lock(runtime_mutex);
  if (sticky != cudaSuccess) return sticky;
  if (memory_in_use + bytes > memory_size) return cudaErrorMemoryAllocation;
  void* memory = nullptr;
  if (posix_memalign(&memory, 256, std::max<size_t>(bytes, 1)) != 0) return cudaErrorMemoryAllocation;
  std::memset(memory, 0xff, bytes);
  allocations[memory] = bytes;
  memory_in_use += bytes;
  *out = memory;
  return cudaSuccess;
}
// As the runtime does, waits for all that runs on the device.
cudaError_t cudaFree(void* memory) {
  const std::lock_guard lock(runtime_mutex);
  for (Stream* stream : streams)
    while (!stream->work.empty()) run_one(stream);
  if (memory == nullptr) return cudaSuccess;
  const auto found = allocations.find(memory);
  if (found == allocations.end()) return cudaErrorInvalidValue;
  memory_in_use -= found->second;
  allocations.erase(found);
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** out, size_t bytes) {
  const std::lock_guard lock(runtime_mutex);
  pinned.insert(*out = std::malloc(bytes));
  return *out == nullptr ? cudaErrorMemoryAllocation : sticky;
}
cudaError_t cudaFreeHost(void* memory) {
  const std::lock_guard lock(runtime_mutex);
  pinned.erase(memory);
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  enqueue(stream, [=] { std::memcpy(to, from, bytes); });
  return sticky;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  enqueue(stream, [=] { std::memset(to, value, bytes); });
  return sticky;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned) {
  const std::lock_guard lock(runtime_mutex);
  *out = streams.emplace_back(new Stream);
  return sticky;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const std::lock_guard lock(runtime_mutex);
  std::erase(streams, stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const std::lock_guard lock(runtime_mutex);
  if (stream->recording != nullptr) return cudaErrorStreamCaptureUnsupported;
  while (!stream->work.empty()) run_one(stream);
  return sticky;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  const std::lock_guard lock(runtime_mutex);
  if (stream->recording != nullptr) return cudaErrorStreamCaptureUnsupported;
  if (!stream->work.empty()) run_one(stream);
  return sticky != cudaSuccess ? sticky : stream->work.empty() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned) {
  static std::deque<Event> all;
  const std::lock_guard lock(runtime_mutex);
  *out = &all.emplace_back();
  return sticky;
}
// As the runtime does: an event that a stream waits for lives on. Here all do, until the process ends.
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const std::lock_guard lock(runtime_mutex);
  event->recording = stream->recording;
  event->tips = stream->tips;
  if (stream->recording != nullptr) return sticky;
  event->stream = stream;
  const uint64_t number = ++event->recorded;
  stream->push([=] {
    event->done = number;
    event->time = std::chrono::steady_clock::now();
  });
  return sticky;
}
// A stream that waits for an event of a recording joins it.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const std::lock_guard lock(runtime_mutex);
  if (event->recording != nullptr) {
    if (stream->recording == nullptr) {
      stream->recording = event->recording;
      stream->tips.clear();
      stream->recording->streams.push_back(stream);
    }
    if (stream->recording != event->recording || event->recording->origin->recording != event->recording) return cudaErrorStreamCaptureIsolation;
    stream->tips.insert(stream->tips.end(), event->tips.begin(), event->tips.end());
    return sticky;
  }
  if (stream->recording != nullptr) return cudaErrorStreamCaptureIsolation;
  const uint64_t number = event->recorded;
  stream->push([=] { run_until(event, number); });
  return sticky;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const std::lock_guard lock(runtime_mutex);
  if (event->recording != nullptr) return cudaErrorCapturedEvent;
  if (sticky == cudaSuccess) run_until(event, event->recorded);
  return sticky;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const std::lock_guard lock(runtime_mutex);
  if (sticky != cudaSuccess) return sticky;
  if (event->recording != nullptr) return cudaErrorCapturedEvent;
  if (is_hung) return cudaErrorNotReady;
  if (event->done < event->recorded && !event->stream->work.empty()) run_one(event->stream);
  return event->done < event->recorded ? cudaErrorNotReady : cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  const std::lock_guard lock(runtime_mutex);
  *milliseconds = std::chrono::duration<float, std::milli>(end->time - begin->time).count();
  return sticky;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  const std::lock_guard lock(runtime_mutex);
  if (stream->recording != nullptr) return cudaErrorInvalidValue;
  stream->recording = std::make_shared<Recording>(Recording{stream, {}, {stream}});
  stream->tips.clear();
  return sticky;
}
// All that was recorded must lie before the end of the stream that began.
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const std::lock_guard lock(runtime_mutex);
  const std::shared_ptr<Recording> recording = stream->recording;
  if (recording == nullptr || recording->origin != stream) return cudaErrorInvalidValue;
  std::vector<bool> is_joined(recording->nodes.size());
  for (const size_t tip : stream->tips) is_joined[tip] = true;
  for (size_t n = recording->nodes.size(); n-- > 0;)
    if (is_joined[n])
      for (const size_t earlier : recording->nodes[n].after) is_joined[earlier] = true;
  for (Stream* joined : recording->streams) joined->recording = nullptr, joined->tips.clear();
  if (std::ranges::find(is_joined, false) != is_joined.end()) return cudaErrorStreamCaptureUnjoined;
  *graph = new Graph{std::move(recording->nodes)};
  return sticky;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  const std::lock_guard lock(runtime_mutex);
  graph_execs.insert(*exec = new GraphExec{graph->nodes});
  ++graph_count;
  return sticky;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
// As the runtime does: what was launched still runs.
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  const std::lock_guard lock(runtime_mutex);
  graph_execs.erase(exec);
  delete exec;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  const std::lock_guard lock(runtime_mutex);
  stream->push([nodes = exec->nodes] { run_nodes(nodes); });
  return sticky;
}
