#pragma once
// Memory of the device and of the host beside it, freed by whoever holds it. Once the device is lost nothing is freed: no call to CUDA follows.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "cuda/launch.h"

namespace capstan::cuda {

class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(size_t bytes, const char* purpose) : bytes_(bytes) {
    if (bytes > 0) check(cudaMalloc(&data_, bytes), purpose);
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~DeviceBuffer() {
    if (data_ != nullptr && !is_device_lost()) cudaFree(data_);
  }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// Waits for what was recorded, but no longer than a hung kernel deserves.
inline void wait_for(cudaEvent_t event, std::chrono::milliseconds deadline) {
  const auto begun = std::chrono::steady_clock::now();
  for (int round = 0;; ++round) {
    const cudaError_t state = cudaEventQuery(event);
    if (state == cudaSuccess) return;
    if (state != cudaErrorNotReady) check(state, "waiting for a step");
    if (round < 2000) continue;
    if (std::chrono::steady_clock::now() - begun <= deadline) {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
      continue;
    }
    is_device_lost() = true;
    throw Error(ErrorCode::kDeviceLost, "CUDA: the device has not finished a step within " + std::to_string(deadline.count() / 1000) + " s");
  }
}

constexpr std::chrono::milliseconds kStepDeadline{60'000};

class Event {
 public:
  Event() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "event"); }
  ~Event() {
    if (!is_device_lost()) cudaEventDestroy(event_);
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(cudaStream_t stream) { check(cudaEventRecord(event_, stream), "event"); }
  void wait() const { wait_for(event_, kStepDeadline); }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// Host memory whose contents travel to a buffer of the device; it is not written again before they have arrived. Grows when a step needs more.
class Staging {
 public:
  explicit Staging(const char* purpose) : purpose_(purpose) {}
  ~Staging() {
    if (!is_device_lost()) cudaFreeHost(host_);
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Room for `bytes` in arrays that begin at multiples of 16; waits until the last contents have been sent.
  void begin(size_t bytes) {
    if (is_sent_) sent_.wait();
    used_ = 0;
    if (bytes <= bytes_) return;
    bytes_ = std::max(bytes, bytes_ * 2);
    if (host_ != nullptr) cudaFreeHost(std::exchange(host_, nullptr));
    check(cudaMallocHost(&host_, bytes_), purpose_);
    device_ = DeviceBuffer(bytes_, purpose_);
  }
  // Copies an array behind what is there; returns where the device will have it.
  template <class T>
  const T* add(const T* from, size_t count) {
    used_ = (used_ + 15) / 16 * 16;
    const size_t begin = used_;
    if (begin + count * sizeof(T) > bytes_) throw Error(ErrorCode::kInternal, "CUDA: the data of a step are larger than announced");
    if (count > 0) std::memcpy(static_cast<char*>(host_) + begin, from, count * sizeof(T));
    used_ += count * sizeof(T);
    return reinterpret_cast<const T*>(device_.as<char>() + begin);
  }
  void send(cudaStream_t stream) {
    check(cudaMemcpyAsync(device_.as<void>(), host_, used_, cudaMemcpyHostToDevice, stream), "copying to the device");
    sent_.record(stream);
    is_sent_ = true;
  }

 private:
  const char* purpose_;
  DeviceBuffer device_;
  size_t bytes_ = 0;
  void* host_ = nullptr;
  size_t used_ = 0;
  Event sent_;
  bool is_sent_ = false;
};

}  // namespace capstan::cuda
