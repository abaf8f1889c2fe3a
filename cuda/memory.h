#pragma once
// Device memory and pinned host memory, released by their owners. After a device loss nothing is released, because no
// CUDA call may follow.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/launch.h"

namespace capstan::cuda {

// A buffer on the device that is current when it is created.
template <class Memory>
class Buffer {
 public:
  Buffer() = default;
  Buffer(size_t bytes, const char* purpose) : bytes_(bytes) {
    if (bytes == 0) return;
    device_ = current_device();
    const cudaError_t error = Memory::allocate(&data_, bytes);
    if (error != cudaSuccess)
      check(error, ("allocating " + std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB for " + purpose).c_str());
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
    cudaSetDevice(device_);  // this thread's current device may be another one
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
// Page-locked host memory, for asynchronous copies.
struct PinnedMemory {
  static cudaError_t allocate(void** data, size_t bytes) { return cudaMallocHost(data, bytes); }
  static void release(void* data) { cudaFreeHost(data); }
};
using DeviceBuffer = Buffer<DeviceMemory>;
using PinnedBuffer = Buffer<PinnedMemory>;

// How long the host waits for a step before it declares the device lost. Tests lower it, where necessary through
// CAPSTAN_CUDA_DEADLINE_MS.
inline std::chrono::milliseconds& step_deadline() {
  static std::chrono::milliseconds deadline = [] {
    const char* value = std::getenv("CAPSTAN_CUDA_DEADLINE_MS");
    return std::chrono::milliseconds(value == nullptr ? 60'000 : std::max(std::atoi(value), 1));
  }();
  return deadline;
}

// Polls `query` until the work has ended. Loses the device after step_deadline().
template <class Query>
void wait_until_done(const Query& query) {
  const auto start = std::chrono::steady_clock::now();
  for (int round = 0;; ++round) {
    throw_if_device_lost();  // another rank may have lost the device
    const cudaError_t state = query();
    if (state == cudaSuccess) return;
    if (state != cudaErrorNotReady) check(state, "waiting for a step");
    if (round < 2000) continue;
    if (std::chrono::steady_clock::now() - start <= step_deadline()) {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
      continue;
    }
    lose_device("CUDA: the device has not finished a step within " + std::to_string(step_deadline().count() / 1000) +
                " s");
  }
}

// NOTE: the only way to wait for a stream. cudaStreamSynchronize and freeing memory would wait for a hung kernel
// forever.
inline void wait_for(cudaStream_t stream) {
  wait_until_done([&] { return cudaStreamQuery(stream); });
}

inline DeviceBuffer device_floats(int64_t count, const char* purpose) {
  return DeviceBuffer(static_cast<size_t>(count) * sizeof(float), purpose);
}

class Event {
 public:
  Event() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "creating an event"); }
  ~Event() {
    if (!is_device_lost()) cudaEventDestroy(event_);
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(cudaStream_t stream) {
    const auto capture_lock = lock_capture();
    check(cudaEventRecord(event_, stream), "recording an event");
  }
  void wait() const {
    wait_until_done([&] { return cudaEventQuery(event_); });
  }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// Copies a step's host arrays to one device buffer. It has as many pinned host buffers as steps can be in flight, and
// reuses one only after its copy has finished. It grows when a step needs more, which moves the device buffer.
class Staging {
 public:
  explicit Staging(const char* purpose) : purpose_(purpose) {}
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Allocates `bytes` up front, so that no step has to grow the buffers.
  void ensure_capacity(size_t bytes) {
    for (int slot = 0; slot < 2; ++slot)
      begin(bytes);
  }
  // Starts new contents of up to `bytes`, in arrays aligned to 16 bytes. Waits until the contents before the last have
  // been copied.
  void begin(size_t bytes) {
    slot_idx_ ^= 1;
    Slot& slot = slots_[slot_idx_];
    if (slot.is_sent) slot.sent.wait();
    used_ = 0;
    if (bytes > device_.bytes()) grow(device_, std::max(bytes, device_.bytes() * 2), outgrown_);
    if (bytes > slot.host.bytes()) grow(slot.host, device_.bytes(), outgrown_host_);
  }
  // Appends an array that the caller fills before `send`. `place` receives its address on the device.
  template <class T>
  T* reserve(size_t count, const T*& place) {
    used_ = (used_ + 15) / 16 * 16;
    const size_t begin = used_;
    if (begin + count * sizeof(T) > slots_[slot_idx_].host.bytes())
      throw Error(ErrorCode::kInternal, "CUDA: the arrays of a step exceed the size passed to begin");
    used_ += count * sizeof(T);
    place = reinterpret_cast<const T*>(device_.as<char>() + begin);
    return reinterpret_cast<T*>(slots_[slot_idx_].host.as<char>() + begin);
  }
  // Appends a copy of an array and returns its address on the device.
  template <class T>
  const T* add(const T* from, size_t count) {
    const T* place = nullptr;
    T* to = reserve(count, place);
    if (count > 0) std::memcpy(to, from, count * sizeof(T));
    return place;
  }
  void send(cudaStream_t stream) {
    Slot& slot = slots_[slot_idx_];
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
  // Keeps outgrown buffers, because freeing them would wait for the device. Together they are at most as large as their
  // replacement.
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
  int slot_idx_ = 0;
  size_t used_ = 0;
};

}  // namespace capstan::cuda
