// Host emulation of the CUDA runtime: devices, streams, events and graphs. Calls fail where the runtime's fail, for
// example on objects of another device, and when waiting for captured work.
#include <algorithm>
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
#include <thread>
#include <utility>
#include <vector>

#include "test/native/cuda_host/block.h"
#include "test/native/cuda_host/cuda_host.h"
#include "test/native/cuda_host/device_memory.h"

namespace capstan::cuda_host {

// An operation and its dependencies: the preceding operation of its stream, and the events that the stream waited for.
struct Node {
  std::function<void()> work;
  std::vector<size_t> after;
};
// What one stream captures, together with all streams that waited for one of its events.
struct Capture {
  Stream* origin = nullptr;
  std::vector<Node> nodes;
  std::vector<Stream*> streams;
  std::atomic<int> num_callers = 0;
  std::atomic<bool> is_invalid = false;
};
// Work runs lazily, when a thread waits for it. One lock covers all streams.
struct Stream {
  int device = 0;
  std::deque<std::function<void()>> work;
  std::shared_ptr<Capture> capture;
  std::vector<size_t> tips;  // dependencies of the next node

  void push(std::function<void()> item) {
    if (capture == nullptr) {
      refuse_to_block();
      return work.push_back(std::move(item));
    }
    capture->nodes.push_back({std::move(item), std::exchange(tips, {capture->nodes.size()})});
  }
  // The queue of a stream is bounded. A launch into a full queue blocks.
  void refuse_to_block() const;
  // Combines the operation with the preceding one, which it runs on demand.
  void push_pdl(std::function<void(const std::function<void()>& before)> item);
};
void Stream::push_pdl(std::function<void(const std::function<void()>& before)> item) {
  const auto joined = [&](std::function<void()> before) {
    return [item = std::move(item), before = std::move(before)] { item(before); };
  };
  if (capture == nullptr) {
    refuse_to_block();
    std::function<void()> before = [] {};
    if (!work.empty()) before = std::move(work.back()), work.pop_back();
    return work.push_back(joined(std::move(before)));
  }
  if (tips.size() != 1 || tips[0] + 1 != capture->nodes.size()) return push(joined([] {}));
  capture->nodes.back().work = joined(std::move(capture->nodes.back().work));
}
struct Graph {
  std::vector<Node> nodes;
};
struct GraphExec {
  std::vector<Node> nodes;
  void* memory = nullptr;  // device memory
};
struct Event {
  int device = 0;
  bool has_time = false;
  Stream* stream = nullptr;
  uint64_t recorded = 0, done = 0;
  std::chrono::steady_clock::time_point time;
  std::shared_ptr<Capture> capture;  // the capture in which it was recorded, after `tips`
  std::vector<size_t> tips;
};

namespace {

constexpr int device_count = 2;
// Counts all calls.
struct RuntimeMutex : std::recursive_mutex {
  void lock() {
    ++num_calls;
    std::recursive_mutex::lock();
  }
  std::atomic<size_t> num_calls = 0;
} runtime_mutex;
// After a device loss, memory is leaked on purpose. These containers are never destroyed, so that the leak checker,
// which runs last, finds that memory referenced.
DeviceMemory* const memories = new DeviceMemory[device_count];
auto& pinned = *new std::map<void*, size_t>;
auto& graph_execs = *new std::set<GraphExec*>;
auto& streams = *new std::vector<Stream*>;
auto& enabled_peers = *new std::set<std::pair<int, int>>;  // (device, accessible peer)
auto& devices_used = *new std::set<int>;
size_t memory_size = size_t{1} << 30;  // per device
size_t pinned_size = size_t{1} << 30;
int capability = 8, ptx_version = 90;
constexpr int kRuntimeVersion = 13000;
int driver_version = kRuntimeVersion;
int multiprocessors = 2;  // few, so that persistent blocks process several tiles
bool has_peers = true;
cudaError_t sticky = cudaSuccess;
bool is_hung = false;
cudaError_t graph_error = cudaSuccess;
size_t graph_count = 0, graph_memory = 0, wait_count = 0;

thread_local int current_device = 0;

// The calling thread's device. The call creates its context.
int use_device() {
  devices_used.insert(current_device);
  return current_device;
}

// A call that adds to a capture. The driver does not synchronize such calls, so two at once invalidate the capture. The
// sleep makes collisions likely.
class CaptureCall {
 public:
  explicit CaptureCall(const std::shared_ptr<Capture>& capture) : capture_(capture) {
    if (capture_ == nullptr) return;
    if (++capture_->num_callers > 1) capture_->is_invalid = true;
    if (capture_->streams.size() > 1) std::this_thread::sleep_for(std::chrono::microseconds(10));
  }
  ~CaptureCall() {
    if (capture_ != nullptr) --capture_->num_callers;
  }
  CaptureCall(const CaptureCall&) = delete;
  CaptureCall& operator=(const CaptureCall&) = delete;

 private:
  const std::shared_ptr<Capture> capture_;
};

template <class Recorded>
std::shared_ptr<Capture> capture_of(Recorded* recorded) {
  const std::lock_guard lock(runtime_mutex);
  return recorded->capture;
}

bool is_capture_over(const Capture& capture) {
  return capture.origin->capture.get() != &capture;
}

// Waiting for captured work invalidates the capture.
cudaError_t invalidate_capture(const std::shared_ptr<Capture>& capture, cudaError_t error) {
  capture->is_invalid = true;
  return error;
}

// Calls that would wait for a hung device abort the process.
void abort_on_wait(const char* call) {
  std::fprintf(stderr, "cuda_host: %s would wait for a hung kernel forever\n", call);
  std::abort();
}

}  // namespace

void Stream::refuse_to_block() const {
  if (is_hung && work.size() >= 1000) abort_on_wait("a launch");
}

namespace {

void run_one(Stream* stream) {
  const std::function<void()> work = std::move(stream->work.front());
  stream->work.pop_front();
  if (sticky == cudaSuccess) work();
}

void run_all(Stream* stream, const char* call) {
  if (stream->work.empty()) return;
  if (is_hung) abort_on_wait(call);
  ++wait_count;
  while (!stream->work.empty())
    run_one(stream);
}

// Any topological order is valid, so a random one is drawn.
void run_nodes(const std::vector<Node>& nodes) {
  static uint64_t random = 0;
  std::vector<bool> is_done(nodes.size());
  std::vector<size_t> left(nodes.size()), ready;
  std::vector<std::vector<size_t>> before(nodes.size());
  for (size_t n = 0; n < nodes.size(); ++n) {
    left[n] = nodes[n].after.size();
    if (left[n] == 0) ready.push_back(n);
    for (const size_t earlier : nodes[n].after)
      before[earlier].push_back(n);
  }
  while (!ready.empty()) {
    random = random * 6364136223846793005ull + seed();
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
    if (event->stream->work.empty())
      throw std::runtime_error("cuda_host: a stream waits for an event that is never recorded");
    run_one(event->stream);
  }
}

// Runs a kernel. The other device's memory is inaccessible unless peer access is enabled.
void run_kernel(int device, const std::function<void()>& kernel) {
  static_assert(device_count == 2);
  const int other = 1 - device;
  DeviceMemory& memory = memories[other];
  if (memory.is_empty() || enabled_peers.contains({device, other})) return kernel();
  memory.protect();
  try {
    kernel();
  } catch (...) {
    memory.unprotect();
    throw;
  }
  if (memory.unprotect()) sticky = cudaErrorIllegalAddress;
}

cudaError_t refuse_launch(const Stream* stream) {
  if (sticky != cudaSuccess) return sticky;
  return stream->device == use_device() ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

}  // namespace

cudaError_t enqueue(Stream* stream, std::function<void()> work) {
  const CaptureCall capture_call(capture_of(stream));
  const std::lock_guard lock(runtime_mutex);
  if (const cudaError_t error = refuse_launch(stream); error != cudaSuccess) return error;
  stream->push([device = stream->device, work = std::move(work)] { run_kernel(device, work); });
  return cudaSuccess;
}

cudaError_t enqueue_pdl(Stream* stream, std::function<void()> work) {
  const CaptureCall capture_call(capture_of(stream));
  const std::lock_guard lock(runtime_mutex);
  if (const cudaError_t error = refuse_launch(stream); error != cudaSuccess) return error;
  stream->push_pdl([device = stream->device, work = std::move(work)](const std::function<void()>& before) {
    run_kernel(device, [&] { run_pdl(before, work); });
  });
  return cudaSuccess;
}

void set_device_memory(size_t bytes) {
  memory_size = bytes;
}
size_t device_memory_in_use() {
  size_t sum = 0;
  for (int device = 0; device < device_count; ++device)
    sum += memories[device].bytes_in_use();
  return sum;
}
void set_pinned_memory(size_t bytes) {
  pinned_size = bytes;
}
size_t pinned_memory_in_use() {
  const std::lock_guard lock(runtime_mutex);
  size_t sum = 0;
  for (const auto& [memory, bytes] : pinned)
    sum += bytes;
  return sum;
}
void fail_graph_instantiation(int error) {
  graph_error = static_cast<cudaError_t>(error);
}
void set_peers(bool can_reach_each_other) {
  has_peers = can_reach_each_other;
  enabled_peers.clear();
}
void set_multiprocessors(int count) {
  multiprocessors = count;
}
void set_compute_capability(int major) {
  capability = major;
}
void set_ptx_version(int version) {
  ptx_version = version;
}
void set_driver_version(int version) {
  driver_version = version;
}
void break_device(int error) {
  sticky = static_cast<cudaError_t>(error);
}
void repair_device() {
  sticky = cudaSuccess;
  is_hung = false;
}
void hang_device() {
  is_hung = true;
}
size_t num_calls() {
  return runtime_mutex.num_calls;
}
size_t num_waits() {
  return wait_count;
}
size_t num_graphs() {
  return graph_count;
}
size_t num_graphs_left() {
  return graph_execs.size();
}
void set_graph_memory(size_t bytes) {
  graph_memory = bytes;
}
size_t num_streams() {
  const std::lock_guard lock(runtime_mutex);
  return streams.size();
}
std::set<int> take_devices_used() {
  return std::exchange(devices_used, {});
}

}  // namespace capstan::cuda_host

using namespace capstan::cuda_host;

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    case cudaErrorDevicesUnavailable:
      return "CUDA-capable device(s) is/are busy or unavailable";
    case cudaErrorNoKernelImageForDevice:
      return "no kernel image is available for execution on the device";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorStreamCaptureInvalidated:
      return "operation failed due to a previous error during capture";
    case cudaErrorCapturedEvent:
      return "operation not permitted on an event last recorded in a capturing stream";
    default:
      return "an error";
  }
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = driver_version;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = kRuntimeVersion;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  if (driver_version < kRuntimeVersion) return cudaErrorInsufficientDriver;
  *count = device_count;
  return device_count > 0 ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaSetDevice(int device) {
  const std::lock_guard lock(runtime_mutex);
  if (device < 0 || device >= device_count) return cudaErrorInvalidDevice;
  current_device = device;
  use_device();
  return sticky;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return sticky;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int device) {
  if (device < 0 || device >= device_count) return cudaErrorInvalidDevice;
  switch (which) {
    case cudaDevAttrMultiProcessorCount:
      *value = multiprocessors;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = capability;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = 0;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = kMaxSharedBytes;
      break;
  }
  return sticky;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  const std::lock_guard lock(runtime_mutex);
  use_device();
  attributes->ptxVersion = ptx_version;
  return sticky;
}
cudaError_t cudaDeviceCanAccessPeer(int* can_access, int device, int peer) {
  *can_access = has_peers && device != peer ? 1 : 0;
  return sticky;
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  const std::lock_guard lock(runtime_mutex);
  const int device = use_device();
  if (!has_peers || peer == device || peer < 0 || peer >= device_count) return cudaErrorInvalidDevice;
  // Enabling peer access affects all streams of the device. It is undocumented whether a capture survives it.
  for (const Stream* stream : streams)
    if (stream->capture != nullptr && stream->device == device)
      return invalidate_capture(stream->capture, cudaErrorStreamCaptureUnsupported);
  if (!enabled_peers.insert({device, peer}).second) return cudaErrorPeerAccessAlreadyEnabled;
  return sticky;
}
cudaError_t cudaGetLastError() {
  return sticky;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  const std::lock_guard lock(runtime_mutex);
  *total = memory_size;
  *free = memory_size - std::min(memory_size, memories[use_device()].bytes_in_use());
  return sticky;
}
cudaError_t cudaMalloc(void** out, size_t bytes) {
  const std::lock_guard lock(runtime_mutex);
  if (sticky != cudaSuccess) return sticky;
  DeviceMemory& memory = memories[use_device()];
  *out = memory.bytes_in_use() + bytes > memory_size ? nullptr : memory.allocate(bytes);
  return *out == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
// Waits for all work on the device, as the runtime does.
cudaError_t cudaFree(void* memory) {
  const std::lock_guard lock(runtime_mutex);
  use_device();
  if (memory == nullptr) return cudaSuccess;
  for (int device = 0; device < device_count; ++device) {
    if (!memories[device].has(memory)) continue;
    for (Stream* stream : streams)
      if (stream->device == device) run_all(stream, "cudaFree");
    memories[device].release(memory);
    return cudaSuccess;
  }
  return cudaErrorInvalidValue;
}
cudaError_t cudaMallocHost(void** out, size_t bytes) {
  const std::lock_guard lock(runtime_mutex);
  use_device();
  *out = pinned_memory_in_use() + bytes > pinned_size ? nullptr : std::malloc(bytes);
  if (*out == nullptr) return cudaErrorMemoryAllocation;
  pinned[*out] = bytes;
  return sticky;
}
// Waits for all work on all devices.
cudaError_t cudaFreeHost(void* memory) {
  const std::lock_guard lock(runtime_mutex);
  use_device();
  for (Stream* stream : streams)
    run_all(stream, "cudaFreeHost");
  pinned.erase(memory);
  std::free(memory);
  return cudaSuccess;
}
// Copies may use a stream of any device. Of no bytes, the addresses may be null.
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  const CaptureCall capture_call(capture_of(stream));
  const std::lock_guard lock(runtime_mutex);
  stream->push([=] {
    if (bytes > 0) std::memcpy(to, from, bytes);
  });
  return sticky;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  const CaptureCall capture_call(capture_of(stream));
  const std::lock_guard lock(runtime_mutex);
  stream->push([=] {
    if (bytes > 0) std::memset(to, value, bytes);
  });
  return sticky;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned) {
  const std::lock_guard lock(runtime_mutex);
  *out = streams.emplace_back(new Stream);
  (*out)->device = use_device();
  return sticky;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const std::lock_guard lock(runtime_mutex);
  // The driver accepts both, but then the work is never waited for.
  if (stream->capture != nullptr || !stream->work.empty()) return cudaErrorStreamCaptureUnsupported;
  std::erase(streams, stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const std::lock_guard lock(runtime_mutex);
  if (stream->capture != nullptr) return invalidate_capture(stream->capture, cudaErrorStreamCaptureUnsupported);
  run_all(stream, "cudaStreamSynchronize");
  return sticky;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  const std::lock_guard lock(runtime_mutex);
  if (stream->capture != nullptr) return invalidate_capture(stream->capture, cudaErrorStreamCaptureUnsupported);
  if (!stream->work.empty() && !is_hung) run_one(stream);
  if (sticky != cudaSuccess) return sticky;
  return stream->work.empty() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned flags) {
  static std::deque<Event> all;
  const std::lock_guard lock(runtime_mutex);
  *out = &all.emplace_back();
  (*out)->device = use_device();
  (*out)->has_time = (flags & cudaEventDisableTiming) == 0;
  return sticky;
}
// An event outlives its destruction while a stream waits for it. Here events live until the process ends.
cudaError_t cudaEventDestroy(cudaEvent_t) {
  const std::lock_guard lock(runtime_mutex);
  use_device();
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const CaptureCall capture_call(capture_of(stream));
  const std::lock_guard lock(runtime_mutex);
  if (event->device != stream->device) return cudaErrorInvalidResourceHandle;
  event->capture = stream->capture;
  event->tips = stream->tips;
  if (stream->capture != nullptr) return sticky;
  event->stream = stream;
  const uint64_t number = ++event->recorded;
  stream->push([=] {
    event->done = number;
    event->time = std::chrono::steady_clock::now();
  });
  return sticky;
}
// A stream that waits for a captured event joins its capture, unless the capture has ended.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const CaptureCall capture_call(capture_of(event));
  const std::lock_guard lock(runtime_mutex);
  const std::shared_ptr<Capture>& capture = event->capture;
  if (capture != nullptr) {
    if (is_capture_over(*capture)) return cudaErrorCapturedEvent;
    if (stream->capture != nullptr && stream->capture != capture) return cudaErrorStreamCaptureIsolation;
    if (stream->capture == nullptr) {
      stream->capture = capture;
      stream->tips.clear();
      capture->streams.push_back(stream);
    }
    stream->tips.insert(stream->tips.end(), event->tips.begin(), event->tips.end());
    return sticky;
  }
  if (stream->capture != nullptr) return cudaErrorStreamCaptureIsolation;
  const uint64_t number = event->recorded;
  stream->push([=] { run_until(event, number); });
  return sticky;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const std::lock_guard lock(runtime_mutex);
  if (event->capture != nullptr) return invalidate_capture(event->capture, cudaErrorCapturedEvent);
  if (is_hung && event->done < event->recorded) abort_on_wait("cudaEventSynchronize");
  if (sticky == cudaSuccess) run_until(event, event->recorded);
  return sticky;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const std::lock_guard lock(runtime_mutex);
  if (sticky != cudaSuccess) return sticky;
  if (event->capture != nullptr) return invalidate_capture(event->capture, cudaErrorCapturedEvent);
  if (event->done < event->recorded && !event->stream->work.empty() && !is_hung) run_one(event->stream);
  return event->done < event->recorded ? cudaErrorNotReady : cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  const std::lock_guard lock(runtime_mutex);
  if (!begin->has_time || !end->has_time || begin->device != end->device || begin->recorded == 0 || end->recorded == 0)
    return cudaErrorInvalidResourceHandle;
  if (begin->done < begin->recorded || end->done < end->recorded) return cudaErrorNotReady;
  *milliseconds = std::chrono::duration<float, std::milli>(end->time - begin->time).count();
  return sticky;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  const std::lock_guard lock(runtime_mutex);
  if (stream->capture != nullptr) return cudaErrorInvalidValue;
  stream->capture = std::make_shared<Capture>();
  stream->capture->origin = stream;
  stream->capture->streams = {stream};
  stream->tips.clear();
  return sticky;
}
// All captured work must precede the end of the origin stream.
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const CaptureCall capture_call(capture_of(stream));
  const std::lock_guard lock(runtime_mutex);
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture == nullptr || capture->origin != stream) return cudaErrorInvalidValue;
  std::vector<bool> is_joined(capture->nodes.size());
  for (const size_t tip : stream->tips)
    is_joined[tip] = true;
  for (size_t n = capture->nodes.size(); n-- > 0;)
    if (is_joined[n])
      for (const size_t earlier : capture->nodes[n].after)
        is_joined[earlier] = true;
  for (Stream* joined : capture->streams)
    joined->capture = nullptr, joined->tips.clear();
  if (capture->is_invalid) return cudaErrorStreamCaptureInvalidated;
  if (std::ranges::find(is_joined, false) != is_joined.end()) return cudaErrorStreamCaptureUnjoined;
  *graph = new Graph{std::move(capture->nodes)};
  return sticky;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  const std::lock_guard lock(runtime_mutex);
  if (graph_error != cudaSuccess) return graph_error;
  void* memory = nullptr;
  if (graph_memory > 0 && cudaMalloc(&memory, graph_memory) != cudaSuccess) return cudaErrorMemoryAllocation;
  graph_execs.insert(*exec = new GraphExec{graph->nodes, memory});
  ++graph_count;
  return sticky;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) {
  return sticky;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
// A launched graph still runs after its destruction, as with the runtime.
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  const std::lock_guard lock(runtime_mutex);
  graph_execs.erase(exec);
  for (int device = 0; device < device_count; ++device)
    memories[device].release(exec->memory);
  delete exec;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  const std::lock_guard lock(runtime_mutex);
  stream->push([nodes = exec->nodes] { run_nodes(nodes); });
  return sticky;
}
