#pragma once
// Signals between blocks of one kernel, through global memory.
#include "cuda/spin_limit.h"

namespace capstan::cuda {

// The blocks of a kernel take numbers in the order in which they start. A block may wait for the block with the number
// before its own, because that block runs or has ended. The order in which a device starts blocks is not specified, so
// blockIdx does not allow this. One thread of each block calls this. `next` is zero before and after the kernel.
__device__ __forceinline__ int32_t take_number(int32_t* next, int32_t num_blocks) {
  const int32_t number = atomicAdd(next, 1);
  if (number == num_blocks - 1) *next = 0;
  return number;
}

// A flag by which one warp signals a warp of a later block that its data is written. All lanes of a warp call these
// functions together.
__device__ __forceinline__ void signal_flag(int32_t* flag) {
  __syncwarp();
  if (lane_id() != 0) return;
  __threadfence();
#if defined(__CUDACC__)
  asm volatile("st.release.gpu.global.s32 [%0], 1;" ::"l"(flag) : "memory");
#else
  *flag = 1;
#endif
}
// Waits for the signal, then resets the flag.
__device__ __forceinline__ void wait_and_clear_flag(int32_t* flag, [[maybe_unused]] CallSite at = CAPSTAN_CALL_SITE) {
  if (lane_id() == 0) {
#if defined(__CUDACC__)
    int32_t is_raised;
    const SpinLimit limit;
    do {
      asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(is_raised) : "l"(flag) : "memory");
      if (is_raised == 0) limit.check(at, static_cast<uint32_t>(reinterpret_cast<uintptr_t>(flag)), -1);
    } while (is_raised == 0);
#else
    cuda_host::wait_and_clear_flag(*flag, at.file, at.line);
#endif
    *flag = 0;
  }
  __syncwarp();
}

}  // namespace capstan::cuda
