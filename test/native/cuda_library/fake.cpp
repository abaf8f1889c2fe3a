// A fake capstan_cuda.so. The test that opens it fills in its API table.
#include "native/backend/cuda_api.h"

extern "C" {

capstan::CudaApi fake_cuda_api{};

const capstan::CudaApi* capstan_cuda_api() {
  return &fake_cuda_api;
}
}
