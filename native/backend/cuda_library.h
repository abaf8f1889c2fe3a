#pragma once
// Opens `capstan_cuda.so`, once per process.
#include <string>

#include "native/backend/cuda_api.h"

namespace capstan {

struct CudaLibrary {
  const CudaApi* api = nullptr;
  int num_devices = 0;
  std::string reason;  // why num_devices is 0
};

// Opens $CAPSTAN_CUDA_LIBRARY. Without that variable: the backend linked into the program, else capstan_cuda.so in the
// folder of this binary, else in ../cuda beside that folder.
CudaLibrary open_cuda_library();

// Opens the given file. For tests; not limited to once.
CudaLibrary open_cuda_library(const std::string& file);

}  // namespace capstan
