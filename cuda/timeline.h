#pragma once
// The time of each kernel of a step on the device, for measurements. With CAPSTAN_CUDA_TIMELINE=FILE a small kernel
// follows every kernel and adds the nanoseconds since the kernel before it (%globaltimer) to a slot. It
// waits for its kernel as a kernel with programmatic dependent launch does, so that launches stay early. Each boundary
// takes longer than without. The first kernel of a step includes the pause before it.
#include "cuda/device.h"

namespace capstan::cuda {

// Called after each launch, with the signature of the launching function and the number of blocks; null: no timeline.
using LaunchHook = void (*)(const void* kernel, const char* signature, unsigned blocks, bool uses_pdl,
                            cudaStream_t stream);
inline LaunchHook& launch_hook() {
  static LaunchHook hook = nullptr;
  return hook;
}

// Sets the hook if CAPSTAN_CUDA_TIMELINE is set. For one rank in a process.
void begin_timeline(cudaStream_t stream);
// Writes the file: one JSON line per kernel and number of blocks, with the number of its runs and their mean time.
void end_timeline(cudaStream_t stream);

}  // namespace capstan::cuda
