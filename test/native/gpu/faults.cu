// Loses a device on purpose. A separate library, because the test that uses it (loss.cpp) is built without nvcc.
#include "cuda/launch.h"

namespace capstan::cuda {

#if defined(__CUDACC__)
// Launched with more blocks than any device can run at a time, so that no other kernel starts.
__global__ void spin_kernel(const volatile int* flag) {
  while (*flag == 0) {
  }
}
__global__ void write_kernel(volatile int* to) {
  *to = 1;
}

cudaStream_t new_stream() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
  return stream;
}
#endif

}  // namespace capstan::cuda

extern "C" {

// Launches a kernel that never ends.
__attribute__((visibility("default"))) void gpu_fault_hang() {
#if defined(__CUDACC__)
  using namespace capstan::cuda;
  int* flag = nullptr;
  check(cudaMalloc(&flag, sizeof(int)), "a flag");
  check(cudaMemset(flag, 0, sizeof(int)), "a flag");
  check(cudaDeviceSynchronize(), "a flag");
  launch(spin_kernel, dim3(1 << 16), dim3(1024), 0, new_stream(), flag);
#else
  capstan::cuda_host::hang_device();
#endif
}

// Launches a kernel that writes to an invalid address.
__attribute__((visibility("default"))) void gpu_fault_break() {
#if defined(__CUDACC__)
  using namespace capstan::cuda;
  launch(write_kernel, dim3(1), dim3(1), 0, new_stream(), reinterpret_cast<int*>(16));
#else
  capstan::cuda_host::break_device(cudaErrorIllegalAddress);
#endif
}
}
