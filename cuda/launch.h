#pragma once
// Kernel launches and runtime errors.
#include <atomic>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>

#include "cuda/spin_limit.h"
#include "cuda/timeline.h"
#include "native/base/error.h"

namespace capstan::cuda {

// The first error after which the device state is undefined. From then on this process makes no CUDA call.
struct DeviceLoss {
  std::atomic<bool> has_happened{false};
  std::mutex mutex;
  std::string reason;
};
inline DeviceLoss& device_loss() {
  static DeviceLoss& loss = *new DeviceLoss;  // never destroyed: other threads may outlive static objects
  return loss;
}

inline std::atomic<bool>& is_device_lost() {
  return device_loss().has_happened;
}

[[noreturn]] inline void lose_device(std::string reason) {
  if (const std::string spin = describe_spin(); !spin.empty()) reason += "; " + spin;
  {
    DeviceLoss& loss = device_loss();
    const std::lock_guard lock(loss.mutex);
    if (!loss.has_happened) loss.reason = reason;
    loss.has_happened = true;
  }
  throw Error(ErrorCode::kDeviceLost, reason);
}

// Every caller gets the cause of the loss, also one that notices the loss before the cause is reported.
inline void throw_if_device_lost() {
  if (!is_device_lost()) return;
  DeviceLoss& loss = device_loss();
  const std::lock_guard lock(loss.mutex);
  throw Error(ErrorCode::kDeviceLost,
              "CUDA: the device was lost and cannot be used again in this process. Cause: " + loss.reason);
}

// An error that leaves the device usable: out of memory, or an unsupported device. While a backend is serving, it
// counts as a device loss.
struct RuntimeError : Error {
  using Error::Error;
};

// The device or driver is too old for the code, or another process owns the device.
inline bool is_unsupported_device(cudaError_t error) {
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
  if (is_unsupported_device(error)) throw RuntimeError(ErrorCode::kInvalidArgument, "device: " + reason);
  lose_device(reason);
}

// Set while the streams of several threads are captured into one graph. The driver allows only one thread at a time to
// add to it.
inline thread_local bool is_shared_capture = false;
// Held by every call that may add to a capture.
inline std::unique_lock<std::mutex> lock_capture() {
  static std::mutex mutex;
  return is_shared_capture ? std::unique_lock(mutex) : std::unique_lock<std::mutex>();
}

inline int current_device() {
  int device = 0;
  check(cudaGetDevice(&device), "querying the current device");
  return device;
}

inline int attribute_of(int device, cudaDeviceAttr which) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device), "querying a device attribute");
  return value;
}

// The architecture of the kernel's code for the current device: 80 where the driver translates PTX 8.0, on any device.
template <class... Parameters>
int kernel_ptx_version(void (*kernel)(Parameters...)) {
  cudaFuncAttributes attributes;
  check(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)), "querying a kernel");
  return attributes.ptxVersion;
}

// Whether the current device has compute capability 9.0 and code for sm_90a, so that the instructions of hopper.h are
// available. NOTE: code for 9.0 is always sm_90a code (CMakeLists.txt).
template <class... Parameters>
bool has_sm90a_code(void (*kernel)(Parameters...)) {
  return attribute_of(current_device(), cudaDevAttrComputeCapabilityMajor) == 9 && kernel_ptx_version(kernel) >= 90;
}

template <class... Parameters, class... Arguments>
void enqueue_kernel(bool uses_pdl, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                    cudaStream_t stream, Arguments&&... arguments) {
  const auto capture_lock = lock_capture();
#if defined(__CUDACC__)
  constexpr size_t kWithoutAsking = 48 << 10;
  // NOTE: always requests the maximum, so that concurrent launches do not lower each other's limit.
  if (shared_bytes > kWithoutAsking)
    check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                               attribute_of(current_device(), cudaDevAttrMaxSharedMemoryPerBlockOptin)),
          "requesting shared memory");
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = uses_pdl ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), "launching a kernel");
#else
  const auto enqueue = uses_pdl ? cuda_host::enqueue_pdl : cuda_host::enqueue;
  check(enqueue(stream,
                [=, body = cuda_host::kernel_of(kernel, static_cast<Parameters>(arguments)...)] {
                  cuda_host::run_grid(grid, block, shared_bytes, body);
                }),
        "launching a kernel");
#endif
}

// `uses_pdl` requires a kernel that calls griddepcontrol_wait, and code for the device that supports it.
template <class... Parameters, class... Arguments>
void launch_pdl(bool uses_pdl, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                cudaStream_t stream, Arguments&&... arguments) {
  enqueue_kernel(uses_pdl, kernel, grid, block, shared_bytes, stream, std::forward<Arguments>(arguments)...);
  if (const LaunchHook hook = launch_hook(); hook != nullptr)
    hook(reinterpret_cast<const void*>(kernel), __PRETTY_FUNCTION__, grid.x * grid.y * grid.z, uses_pdl, stream);
}

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
            Arguments&&... arguments) {
  launch_pdl(false, kernel, grid, block, shared_bytes, stream, std::forward<Arguments>(arguments)...);
}

}  // namespace capstan::cuda
