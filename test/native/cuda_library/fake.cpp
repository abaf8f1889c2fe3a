// A capstan_cuda.so of ours, which is what the test that opened it says.
#include "native/backend/cuda_api.h"

extern "C" {

capstan::CudaApi fake_cuda_api{};

const capstan::CudaApi* capstan_cuda_api() {
  return &fake_cuda_api;
}
}
