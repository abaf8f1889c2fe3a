#pragma once
// Opens `capstan_cuda.so`, once per process.
#include <string>

#include "native/backend/cuda_api.h"

namespace capstan {

struct CudaLibrary {
  const CudaApi* api = nullptr;
  int num_devices = 0;
  std::string reason;  // with no devices: why
};

// $CAPSTAN_CUDA_LIBRARY, else the file beside this binary or in build/cuda next to its folder.
CudaLibrary open_cuda_library();

// The same of a given file; for tests.
CudaLibrary open_cuda_library(const std::string& file);

}  // namespace capstan
