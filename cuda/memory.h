#pragma once
// Memory of the device and of the host beside it, freed by whoever holds it. Once the device is lost nothing is freed:
// no call to CUDA follows.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/launch.h"

namespace capstan::cuda {

// Bytes of a kind of memory, made for the current device.
template <class Memory>
class Buffer {
 public:
  Buffer() = default;
  Buffer(size_t bytes, const char* purpose) : bytes_(bytes) {
    if (bytes == 0) return;
    device_ = current_device();
    const cudaError_t error = Memory::allocate(&data_, bytes);
    if (error != cudaSuccess)
      check(error, (purpose + (", " + std::to_string((bytes + (1 << 20) - 1) >> 20)) + " MiB").c_str());
  }
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)), device_(other.device_) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(device_, other.device_);
    return *this;
  }
  ~Buffer() {
    if (data_ == nullptr || is_device_lost()) return;
    cudaSetDevice(device_);  // whatever thread this is: its own device may be one that nobody uses
    Memory::release(data_);
  }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
  int device_ = 0;
};

struct DeviceMemory {
  static cudaError_t allocate(void** data, size_t bytes) { return cudaMalloc(data, bytes); }
  static void release(void* data) { cudaFree(data); }
};
// Of the host, for what travels without the host waiting for it.
struct PinnedMemory {
  static cudaError_t allocate(void** data, size_t bytes) { return cudaMallocHost(data, bytes); }
  static void release(void* data) { cudaFreeHost(data); }
};
using DeviceBuffer = Buffer<DeviceMemory>;
using PinnedBuffer = Buffer<PinnedMemory>;

// How long the host waits for a step before it takes the device for hung. Tests wait less, where they have no other way
// by CAPSTAN_CUDA_DEADLINE_MS.
inline std::chrono::milliseconds& step_deadline() {
  static std::chrono::milliseconds deadline = [] {
    const char* given = std::getenv("CAPSTAN_CUDA_DEADLINE_MS");
    return std::chrono::milliseconds(given == nullptr ? 60'000 : std::max(std::atoi(given), 1));
  }();
  return deadline;
}

// Asks until what was enqueued has ended, but no longer than a hung kernel deserves.
template <class Query>
void wait_until_done(const Query& query) {
  const auto begun = std::chrono::steady_clock::now();
  for (int round = 0;; ++round) {
    refuse_lost_device();  // which another rank may have noticed first
    const cudaError_t state = query();
    if (state == cudaSuccess) return;
    if (state != cudaErrorNotReady) check(state, "waiting for a step");
    if (round < 2000) continue;
    if (std::chrono::steady_clock::now() - begun <= step_deadline()) {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
      continue;
    }
    lose_device("CUDA: the device has not finished a step within " + std::to_string(step_deadline().count() / 1000) +
                " s");
  }
}

// NOTE: the only way to wait for a stream. What waits by itself, as cudaStreamSynchronize and the freeing of memory do,
// would wait for a hung kernel for ever.
inline void wait_for(cudaStream_t stream) {
  wait_until_done([&] { return cudaStreamQuery(stream); });
}

class Event {
 public:
  Event() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "event"); }
  ~Event() {
    if (!is_device_lost()) cudaEventDestroy(event_);
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(cudaStream_t stream) {
    const auto turn = turn_to_record();
    check(cudaEventRecord(event_, stream), "event");
  }
  void wait() const {
    wait_until_done([&] { return cudaEventQuery(event_); });
  }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// Host memory whose contents travel to one buffer of the device, as many contents at a time as steps may be in flight;
// none is written again before it has arrived. Grows when a step needs more, which moves the buffer.
class Staging {
 public:
  explicit Staging(const char* purpose) : purpose_(purpose) {}
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // For as much as `bytes`, so that no step has to.
  void make_room(size_t bytes) {
    for (int slot = 0; slot < 2; ++slot)
      begin(bytes);
  }
  // Room for `bytes` in arrays that begin at multiples of 16; waits until the last contents but one have been sent.
  void begin(size_t bytes) {
    turn_ ^= 1;
    Slot& slot = slots_[turn_];
    if (slot.is_sent) slot.sent.wait();
    used_ = 0;
    if (bytes > device_.bytes()) grow(device_, std::max(bytes, device_.bytes() * 2), outgrown_);
    if (bytes > slot.host.bytes()) grow(slot.host, device_.bytes(), outgrown_host_);
  }
  // Room for an array behind what is there, to be written before `send`; `place` gets where the device will have it.
  template <class T>
  T* reserve(size_t count, const T*& place) {
    used_ = (used_ + 15) / 16 * 16;
    const size_t begin = used_;
    if (begin + count * sizeof(T) > slots_[turn_].host.bytes())
      throw Error(ErrorCode::kInternal, "CUDA: the data of a step are larger than announced");
    used_ += count * sizeof(T);
    place = reinterpret_cast<const T*>(device_.as<char>() + begin);
    return reinterpret_cast<T*>(slots_[turn_].host.as<char>() + begin);
  }
  // Copies an array there; returns where the device will have it.
  template <class T>
  const T* add(const T* from, size_t count) {
    const T* place = nullptr;
    T* to = reserve(count, place);
    if (count > 0) std::memcpy(to, from, count * sizeof(T));
    return place;
  }
  void send(cudaStream_t stream) {
    Slot& slot = slots_[turn_];
    check(cudaMemcpyAsync(device_.as<void>(), slot.host.as<void>(), used_, cudaMemcpyHostToDevice, stream),
          "copying to the device");
    slot.sent.record(stream);
    slot.is_sent = true;
  }

 private:
  struct Slot {
    PinnedBuffer host;
    Event sent;
    bool is_sent = false;
  };
  // What has become too small is kept, as freeing it waits for the device; in all it is no larger than what has taken
  // its place.
  template <class Memory>
  void grow(Buffer<Memory>& buffer, size_t bytes, std::vector<Buffer<Memory>>& outgrown) {
    Buffer<Memory> larger(bytes, purpose_);
    outgrown.push_back(std::exchange(buffer, std::move(larger)));
  }

  const char* purpose_;
  DeviceBuffer device_;
  Slot slots_[2];
  std::vector<DeviceBuffer> outgrown_;
  std::vector<PinnedBuffer> outgrown_host_;
  int turn_ = 0;
  size_t used_ = 0;
};

}  // namespace capstan::cuda
