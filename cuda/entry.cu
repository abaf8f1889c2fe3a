// The one door of `capstan_cuda.so` (native/backend/cuda_api.h).
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>

#include "cuda/backend.h"
#include "cuda/launch.h"
#include "cuda/nccl.h"
#include "native/backend/cuda_api.h"

namespace capstan::cuda {
namespace {

void copy_text(const char* text, char* to, size_t size) { std::snprintf(to, size, "%s", text); }

int num_devices(char* reason, size_t size) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return count;
  copy_text(error == cudaSuccess ? "there is no CUDA device" : cudaGetErrorString(error), reason, size);
  return 0;
}

CudaLinks* link(const int* devices, int count, char* note, size_t size) {
  std::string text;
  CudaLinks* links = nullptr;
  try {
    links = Nccl::connect({devices, static_cast<size_t>(count)}, text).release();
  } catch (const std::exception& error) {
    text = error.what();
  }
  copy_text(text.c_str(), note, size);
  return links;
}

Backend* make_backend(const CudaBackendOptions* options, Comm* comm, int* code, char* message, size_t size) {
  std::unique_ptr<Comm> owned(comm);
  try {
    return make_cuda_backend(*options, std::move(owned)).release();
  } catch (const Error& error) {
    *code = static_cast<int>(error.code());
    copy_text(error.what(), message, size);
  } catch (const std::exception& error) {
    *code = static_cast<int>(ErrorCode::kInternal);
    copy_text(error.what(), message, size);
  }
  return nullptr;
}

}  // namespace
}  // namespace capstan::cuda

extern "C" __attribute__((visibility("default"))) const capstan::CudaApi* capstan_cuda_api() {
  static const std::string build_id = capstan::cuda_build_id();
  static const capstan::CudaApi api{capstan::kCudaApiVersion, build_id.c_str(), capstan::cuda::num_devices, capstan::cuda::link, capstan::cuda::make_backend};
  return &api;
}
