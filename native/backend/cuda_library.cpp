#include "native/backend/cuda_library.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>
#include <vector>

namespace capstan {
namespace {

constexpr const char* kFileName = "capstan_cuda.so";

// Returns the folder of the binary that this code is linked into.
std::string binary_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&binary_folder), &info) == 0 || info.dli_fname == nullptr) return ".";
  const std::string file = info.dli_fname;
  const size_t slash = file.rfind('/');
  return slash == std::string::npos ? "." : file.substr(0, slash);
}

CudaLibrary unavailable(std::string reason) {
  return {nullptr, 0, std::move(reason)};
}

CudaLibrary open_entry(CudaEntry entry, const std::string& file) {
  const CudaApi* api = entry();
  if (api->version != kCudaApiVersion)
    return unavailable(file + ": expected interface version " + std::to_string(kCudaApiVersion) + ", got " +
                       std::to_string(api->version) + "; rebuild it");
  if (cuda_build_id() != api->build_id)
    return unavailable(file + " was built with another compiler or from other sources; rebuild it");
  char reason[512] = "";
  const int count = api->num_devices(reason, sizeof reason);
  return {api, count, reason};
}

}  // namespace

CudaLibrary open_cuda_library(const std::string& file) {
  void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* error = dlerror();
    return unavailable(file + " cannot be opened: " + (error == nullptr ? "unknown error" : error));
  }
  const auto entry = reinterpret_cast<CudaEntry>(dlsym(handle, kCudaEntryName));
  if (entry == nullptr) return unavailable(file + " is not a CUDA backend: it does not export " + kCudaEntryName);
  return open_entry(entry, file);
}

CudaLibrary open_cuda_library() {
  static const CudaLibrary library = [] {
    if (const char* file = std::getenv("CAPSTAN_CUDA_LIBRARY"); file != nullptr && *file != '\0')
      return open_cuda_library(file);
    // A test program has the backend linked in.
    if (const auto entry = reinterpret_cast<CudaEntry>(dlsym(RTLD_DEFAULT, kCudaEntryName)); entry != nullptr)
      return open_entry(entry, "the linked CUDA backend");
    const std::string folder = binary_folder();
    for (const std::string& candidate : {folder + "/" + kFileName, folder + "/../cuda/" + kFileName})
      if (access(candidate.c_str(), R_OK) == 0) return open_cuda_library(candidate);
    return unavailable(std::string(kFileName) + " is missing. It is built from a clone: npm run build:cuda");
  }();
  return library;
}

}  // namespace capstan
