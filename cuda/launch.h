#pragma once
// Launches, and errors of the runtime.
#include <atomic>
#include <string>
#include <type_traits>
#include <utility>

#include "cuda/device.h"
#include "native/base/error.h"

namespace capstan::cuda {

// Set by the first error that is not about memory; CUDA is then refused in this process, and nothing of it is called again.
inline std::atomic<bool>& is_device_lost() {
  static std::atomic<bool> is_lost{false};
  return is_lost;
}

inline void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  const bool is_memory = error == cudaErrorMemoryAllocation;
  if (!is_memory) is_device_lost() = true;
  throw Error(is_memory ? ErrorCode::kOutOfMemory : ErrorCode::kDeviceLost, std::string("CUDA: ") + what + ": " + cudaGetErrorString(error));
}

// `is_early`: of a kernel that calls wait_for_previous, where its code for the device has that.
template <class... Parameters, class... Arguments>
void launch_early(bool is_early, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream, Arguments&&... arguments) {
#if defined(__CUDACC__)
  constexpr size_t kWithoutAsking = 48 << 10;
  if (shared_bytes > kWithoutAsking)
    check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)), "shared memory");
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
  enqueue(stream, [=] { cuda_host::run_grid(grid, block, shared_bytes, [&] { kernel(static_cast<Parameters>(arguments)...); }); });
#endif
}

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream, Arguments&&... arguments) {
  launch_early(false, kernel, grid, block, shared_bytes, stream, std::forward<Arguments>(arguments)...);
}

}  // namespace capstan::cuda
