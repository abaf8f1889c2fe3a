// The runtime's twin: devices, streams, events and graphs. A call fails where the runtime's does: what belongs to a
// device is used on that device, and what is recorded is not waited for.
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

// Work that waits for no more than it must: for what was before it on its stream, and for the events that its stream
// waited for.
struct Node {
  std::function<void()> work;
  std::vector<size_t> after;
};
// What is recorded by a stream, and by those that waited for one of its events.
struct Recording {
  Stream* origin = nullptr;
  std::vector<Node> nodes;
  std::vector<Stream*> streams;
  std::atomic<int> num_callers = 0;
  std::atomic<bool> is_invalid = false;
};
// All streams of all threads run under one lock, when somebody waits.
struct Stream {
  int device = 0;
  std::deque<std::function<void()>> work;
  std::shared_ptr<Recording> recording;
  std::vector<size_t> tips;  // what the next node is after

  void push(std::function<void()> item) {
    if (recording == nullptr) {
      refuse_to_block();
      return work.push_back(std::move(item));
    }
    recording->nodes.push_back({std::move(item), std::exchange(tips, {recording->nodes.size()})});
  }
  // A stream takes so much that has not run; whoever has more waits for it.
  void refuse_to_block() const;
  // Becomes one with what is in front of it, which it is given to run when it has to.
  void push_early(std::function<void(const std::function<void()>& before)> item);
};
void Stream::push_early(std::function<void(const std::function<void()>& before)> item) {
  const auto joined = [&](std::function<void()> before) {
    return [item = std::move(item), before = std::move(before)] { item(before); };
  };
  if (recording == nullptr) {
    refuse_to_block();
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
  void* memory = nullptr;  // of the device
};
struct Event {
  int device = 0;
  bool has_time = false;
  Stream* stream = nullptr;
  uint64_t recorded = 0, done = 0;
  std::chrono::steady_clock::time_point time;
  std::shared_ptr<Recording> recording;  // that it was recorded into, after `tips`
  std::vector<size_t> tips;
};

namespace {

constexpr int device_count = 2;
// Whoever calls takes it.
struct RuntimeMutex : std::recursive_mutex {
  void lock() {
    ++num_calls;
    std::recursive_mutex::lock();
  }
  std::atomic<size_t> num_calls = 0;
} runtime_mutex;
// What a lost device leaves behind on purpose is no leak: it is known here, in what is never destroyed, as leaks are
// looked for last of all.
DeviceMemory* const memories = new DeviceMemory[device_count];
auto& pinned = *new std::map<void*, size_t>;
auto& graph_execs = *new std::set<GraphExec*>;
auto& streams = *new std::vector<Stream*>;
auto& enabled_peers = *new std::set<std::pair<int, int>>;  // (device, peer that it reaches)
auto& devices_used = *new std::set<int>;
size_t memory_size = size_t{1} << 30;  // of each device
size_t pinned_size = size_t{1} << 30;
int capability = 8, code_version = 90;
constexpr int kRuntimeVersion = 13000;
int driver_version = kRuntimeVersion;
int multiprocessors = 2;  // few, so that blocks that stay have more than one turn
bool has_peers = true;
cudaError_t sticky = cudaSuccess;
bool is_hung = false;
cudaError_t graph_error = cudaSuccess;
size_t graph_count = 0, graph_memory = 0, wait_count = 0;

thread_local int current_device = 0;

// The device of the calling thread, of which the call makes a context.
int use_device() {
  devices_used.insert(current_device);
  return current_device;
}

// A call that adds to a recording. The driver synchronises none of them: two threads at once spoil it. It takes its
// time, so that they meet.
class Recorder {
 public:
  explicit Recorder(const std::shared_ptr<Recording>& recording) : recording_(recording) {
    if (recording_ == nullptr) return;
    if (++recording_->num_callers > 1) recording_->is_invalid = true;
    if (recording_->streams.size() > 1) std::this_thread::sleep_for(std::chrono::microseconds(10));
  }
  ~Recorder() {
    if (recording_ != nullptr) --recording_->num_callers;
  }
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

 private:
  const std::shared_ptr<Recording> recording_;
};

template <class Recorded>
std::shared_ptr<Recording> recording_of(Recorded* recorded) {
  const std::lock_guard lock(runtime_mutex);
  return recorded->recording;
}

bool is_over(const Recording& recording) {
  return recording.origin->recording.get() != &recording;
}

// Whoever waits for what is recorded spoils the recording.
cudaError_t refuse_to_wait(const std::shared_ptr<Recording>& recording, cudaError_t error) {
  recording->is_invalid = true;
  return error;
}

// No call that waits is made of a device that hangs.
void would_wait(const char* call) {
  std::fprintf(stderr, "cuda_host: %s would wait for a hung kernel for ever\n", call);
  std::abort();
}

}  // namespace

void Stream::refuse_to_block() const {
  if (is_hung && work.size() >= 1000) would_wait("a launch");
}

namespace {

void run_one(Stream* stream) {
  const std::function<void()> work = std::move(stream->work.front());
  stream->work.pop_front();
  if (sticky == cudaSuccess) work();
}

void run_all(Stream* stream, const char* call) {
  if (stream->work.empty()) return;
  if (is_hung) would_wait(call);
  ++wait_count;
  while (!stream->work.empty())
    run_one(stream);
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
    if (event->stream->work.empty()) throw std::runtime_error("cuda_host: waits for an event that nobody records");
    run_one(event->stream);
  }
}

// Runs a kernel, to which the other device's memory is not there unless its own reaches that.
void run_kernel(int device, const std::function<void()>& kernel) {
  static_assert(device_count == 2);
  const int other = 1 - device;
  DeviceMemory& memory = memories[other];
  if (memory.is_empty() || enabled_peers.contains({device, other})) return kernel();
  memory.hide();
  try {
    kernel();
  } catch (...) {
    memory.show();
    throw;
  }
  if (memory.show()) sticky = cudaErrorIllegalAddress;
}

cudaError_t refuse_launch(const Stream* stream) {
  if (sticky != cudaSuccess) return sticky;
  return stream->device == use_device() ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

}  // namespace

cudaError_t enqueue(Stream* stream, std::function<void()> work) {
  const Recorder recorder(recording_of(stream));
  const std::lock_guard lock(runtime_mutex);
  if (const cudaError_t error = refuse_launch(stream); error != cudaSuccess) return error;
  stream->push([device = stream->device, work = std::move(work)] { run_kernel(device, work); });
  return cudaSuccess;
}

cudaError_t enqueue_early(Stream* stream, std::function<void()> work) {
  const Recorder recorder(recording_of(stream));
  const std::lock_guard lock(runtime_mutex);
  if (const cudaError_t error = refuse_launch(stream); error != cudaSuccess) return error;
  stream->push_early([device = stream->device, work = std::move(work)](const std::function<void()>& before) {
    run_kernel(device, [&] { run_early(before, work); });
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
void break_graphs(int error) {
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
void set_code_version(int version) {
  code_version = version;
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
std::set<int> forget_devices_used() {
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
  *value = which == cudaDevAttrMultiProcessorCount      ? multiprocessors
           : which == cudaDevAttrComputeCapabilityMajor ? capability
           : which == cudaDevAttrComputeCapabilityMinor ? 0
                                                        : kMaxSharedBytes;
  return sticky;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  const std::lock_guard lock(runtime_mutex);
  use_device();
  attributes->ptxVersion = code_version;
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
  // It changes what all streams of the device see: nobody says that a recording outlives it.
  for (const Stream* stream : streams)
    if (stream->recording != nullptr && stream->device == device)
      return refuse_to_wait(stream->recording, cudaErrorStreamCaptureUnsupported);
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
// As the runtime does, waits for all that runs on the device.
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
// Waits, too.
cudaError_t cudaFreeHost(void* memory) {
  const std::lock_guard lock(runtime_mutex);
  use_device();
  for (Stream* stream : streams)
    run_all(stream, "cudaFreeHost");
  pinned.erase(memory);
  std::free(memory);
  return cudaSuccess;
}
// Copies may be given to a stream of any device.
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  const Recorder recorder(recording_of(stream));
  const std::lock_guard lock(runtime_mutex);
  stream->push([=] { std::memcpy(to, from, bytes); });
  return sticky;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  const Recorder recorder(recording_of(stream));
  const std::lock_guard lock(runtime_mutex);
  stream->push([=] { std::memset(to, value, bytes); });
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
  // The driver takes both; but then nobody waits for the work.
  if (stream->recording != nullptr || !stream->work.empty()) return cudaErrorStreamCaptureUnsupported;
  std::erase(streams, stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const std::lock_guard lock(runtime_mutex);
  if (stream->recording != nullptr) return refuse_to_wait(stream->recording, cudaErrorStreamCaptureUnsupported);
  run_all(stream, "cudaStreamSynchronize");
  return sticky;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  const std::lock_guard lock(runtime_mutex);
  if (stream->recording != nullptr) return refuse_to_wait(stream->recording, cudaErrorStreamCaptureUnsupported);
  if (!stream->work.empty() && !is_hung) run_one(stream);
  return sticky != cudaSuccess ? sticky : stream->work.empty() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned flags) {
  static std::deque<Event> all;
  const std::lock_guard lock(runtime_mutex);
  *out = &all.emplace_back();
  (*out)->device = use_device();
  (*out)->has_time = (flags & cudaEventDisableTiming) == 0;
  return sticky;
}
// As the runtime does: an event that a stream waits for lives on. Here all do, until the process ends.
cudaError_t cudaEventDestroy(cudaEvent_t) {
  const std::lock_guard lock(runtime_mutex);
  use_device();
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Recorder recorder(recording_of(stream));
  const std::lock_guard lock(runtime_mutex);
  if (event->device != stream->device) return cudaErrorInvalidResourceHandle;
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
// A stream that waits for an event of a recording joins it, as long as that goes on.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const Recorder recorder(recording_of(event));
  const std::lock_guard lock(runtime_mutex);
  const std::shared_ptr<Recording>& recording = event->recording;
  if (recording != nullptr) {
    if (is_over(*recording)) return cudaErrorCapturedEvent;
    if (stream->recording != nullptr && stream->recording != recording) return cudaErrorStreamCaptureIsolation;
    if (stream->recording == nullptr) {
      stream->recording = recording;
      stream->tips.clear();
      recording->streams.push_back(stream);
    }
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
  if (event->recording != nullptr) return refuse_to_wait(event->recording, cudaErrorCapturedEvent);
  if (is_hung && event->done < event->recorded) would_wait("cudaEventSynchronize");
  if (sticky == cudaSuccess) run_until(event, event->recorded);
  return sticky;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const std::lock_guard lock(runtime_mutex);
  if (sticky != cudaSuccess) return sticky;
  if (event->recording != nullptr) return refuse_to_wait(event->recording, cudaErrorCapturedEvent);
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
  if (stream->recording != nullptr) return cudaErrorInvalidValue;
  stream->recording = std::make_shared<Recording>();
  stream->recording->origin = stream;
  stream->recording->streams = {stream};
  stream->tips.clear();
  return sticky;
}
// All that was recorded must lie before the end of the stream that began.
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const Recorder recorder(recording_of(stream));
  const std::lock_guard lock(runtime_mutex);
  const std::shared_ptr<Recording> recording = stream->recording;
  if (recording == nullptr || recording->origin != stream) return cudaErrorInvalidValue;
  std::vector<bool> is_joined(recording->nodes.size());
  for (const size_t tip : stream->tips)
    is_joined[tip] = true;
  for (size_t n = recording->nodes.size(); n-- > 0;)
    if (is_joined[n])
      for (const size_t earlier : recording->nodes[n].after)
        is_joined[earlier] = true;
  for (Stream* joined : recording->streams)
    joined->recording = nullptr, joined->tips.clear();
  if (recording->is_invalid) return cudaErrorStreamCaptureInvalidated;
  if (std::ranges::find(is_joined, false) != is_joined.end()) return cudaErrorStreamCaptureUnjoined;
  *graph = new Graph{std::move(recording->nodes)};
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
// As the runtime does: what was launched still runs.
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
