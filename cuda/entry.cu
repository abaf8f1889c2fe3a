// The C entry point of `capstan_cuda.so` (native/backend/cuda_api.h).
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string>

#include "cuda/backend.h"
#include "cuda/launch.h"
#include "cuda/nccl.h"
#include "native/backend/cuda_api.h"

namespace capstan::cuda {
namespace {

void copy_text(const char* text, char* to, size_t size) {
  std::snprintf(to, size, "%s", text);
}

std::string version_name(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// Explains why there is no device. The runtime reports the same error for an old driver and for a missing one.
std::string reason_of(cudaError_t error) {
  if (error == cudaSuccess) return "there is no CUDA device";
  int driver = 0, runtime = 0;
  if (error != cudaErrorInsufficientDriver || cudaDriverGetVersion(&driver) != cudaSuccess ||
      cudaRuntimeGetVersion(&runtime) != cudaSuccess)
    return cudaGetErrorString(error);
  if (driver == 0) return "no NVIDIA driver is installed";
  return "the NVIDIA driver is for CUDA " + version_name(driver) + ", expected " + version_name(runtime) + " or newer";
}

int num_devices(char* reason, size_t size) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return count;
  copy_text(reason_of(error).c_str(), reason, size);
  return 0;
}

CudaLinks* link(const int* devices, int count, char* note, size_t size) {
  std::string text;
  CudaLinks* links = nullptr;
  try {
    throw_if_device_lost();
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
  // Must precede the first CUDA call. Eager loading takes its time and memory at startup, and not when a step or a
  // capture first needs a kernel.
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  static const std::string build_id = capstan::cuda_build_id();
  static const capstan::CudaApi api{capstan::kCudaApiVersion, build_id.c_str(), capstan::cuda::num_devices,
                                    capstan::cuda::link, capstan::cuda::make_backend};
  return &api;
}
