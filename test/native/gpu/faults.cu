// How a device is lost on purpose, as a library of its own: what tests it (loss.cpp) is built without nvcc.
#include "cuda/launch.h"

namespace capstan::cuda {

#if defined(__CUDACC__)
// As many blocks as no device runs at a time: nobody else's kernel ever begins.
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

// A kernel that never ends.
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

// A kernel that writes where no memory is.
__attribute__((visibility("default"))) void gpu_fault_break() {
#if defined(__CUDACC__)
  using namespace capstan::cuda;
  launch(write_kernel, dim3(1), dim3(1), 0, new_stream(), reinterpret_cast<int*>(16));
#else
  capstan::cuda_host::break_device(cudaErrorIllegalAddress);
#endif
}
}
