#pragma once
// Launches, and errors of the runtime.
#include <atomic>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>

#include "cuda/device.h"
#include "native/base/error.h"

namespace capstan::cuda {

// The first error after which a device is not as it was; CUDA is then refused in this process, and nothing of it is
// called again.
struct DeviceLoss {
  std::atomic<bool> has_happened{false};
  std::mutex mutex;
  std::string reason;
};
inline DeviceLoss& device_loss() {
  static DeviceLoss& loss = *new DeviceLoss;  // for threads that outlive what is static
  return loss;
}

inline std::atomic<bool>& is_device_lost() {
  return device_loss().has_happened;
}

[[noreturn]] inline void lose_device(const std::string& reason) {
  {
    DeviceLoss& loss = device_loss();
    const std::lock_guard lock(loss.mutex);
    if (!loss.has_happened) loss.reason = reason;
    loss.has_happened = true;
  }
  throw Error(ErrorCode::kDeviceLost, reason);
}

// Whoever learns of the loss before its cause is told names the cause all the same.
inline void refuse_lost_device() {
  if (!is_device_lost()) return;
  DeviceLoss& loss = device_loss();
  const std::lock_guard lock(loss.mutex);
  throw Error(
      ErrorCode::kDeviceLost,
      "CUDA: the device was lost earlier and cannot be used again in this process; it was lost by: " + loss.reason);
}

// An error that leaves the device as it was: its memory is full, or it is not for us. While a backend serves it is a
// loss all the same.
struct RuntimeError : Error {
  using Error::Error;
};

// Too old for the code or the driver, or another's.
inline bool is_refusal(cudaError_t error) {
  switch (error) {
    case cudaErrorInitializationError:
    case cudaErrorInsufficientDriver:
    case cudaErrorDevicesUnavailable:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorInvalidDevice:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorSystemNotReady:
    case cudaErrorSystemDriverMismatch:
      return true;
    default:
      return false;
  }
}

inline void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  const std::string reason = std::string("CUDA: ") + what + ": " + cudaGetErrorString(error);
  if (error == cudaErrorMemoryAllocation) throw RuntimeError(ErrorCode::kOutOfMemory, reason);
  if (is_refusal(error)) throw RuntimeError(ErrorCode::kInvalidArgument, "device: " + reason);
  lose_device(reason);
}

// Set while this thread's stream and those of others record one graph, which the driver lets only one thread touch at a
// time.
inline thread_local bool shares_recording = false;
// To be held by whatever may add to a recording.
inline std::unique_lock<std::mutex> turn_to_record() {
  static std::mutex mutex;
  return shares_recording ? std::unique_lock(mutex) : std::unique_lock<std::mutex>();
}

inline int current_device() {
  int device = 0;
  check(cudaGetDevice(&device), "asking for the device");
  return device;
}

inline int attribute_of(int device, cudaDeviceAttr which) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device), "asking what the device is");
  return value;
}

// What the kernel's code for the current device was written for: 80 where the driver translates PTX of 8.0, whatever
// the device is.
template <class... Parameters>
int code_version(void (*kernel)(Parameters...)) {
  cudaFuncAttributes attributes;
  check(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)), "asking what a kernel is");
  return attributes.ptxVersion;
}

// Whether the current device has compute capability 9.0 and the kernel's code for it is of that, so that its
// instructions (hopper.h) are there. NOTE: of sm_90a, as nothing is built for sm_90 (CMakeLists.txt).
template <class... Parameters>
bool has_hopper_code(void (*kernel)(Parameters...)) {
  return attribute_of(current_device(), cudaDevAttrComputeCapabilityMajor) == 9 && code_version(kernel) >= 90;
}

// `is_early`: of a kernel that calls wait_for_previous, where its code for the device has that.
template <class... Parameters, class... Arguments>
void launch_early(bool is_early, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                  cudaStream_t stream, Arguments&&... arguments) {
  const auto turn = turn_to_record();
#if defined(__CUDACC__)
  constexpr size_t kWithoutAsking = 48 << 10;
  // NOTE: always the most that there is, so that no thread takes back what another's launch has asked for.
  if (shared_bytes > kWithoutAsking)
    check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                               attribute_of(current_device(), cudaDevAttrMaxSharedMemoryPerBlockOptin)),
          "shared memory");
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = is_early ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), "launch");
#else
  const auto enqueue = is_early ? cuda_host::enqueue_early : cuda_host::enqueue;
  check(enqueue(stream,
                [=, body = cuda_host::kernel_of(kernel, static_cast<Parameters>(arguments)...)] {
                  cuda_host::run_grid(grid, block, shared_bytes, body);
                }),
        "launch");
#endif
}

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
            Arguments&&... arguments) {
  launch_early(false, kernel, grid, block, shared_bytes, stream, std::forward<Arguments>(arguments)...);
}

}  // namespace capstan::cuda
