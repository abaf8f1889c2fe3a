#include "native/backend/cuda_library.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

namespace capstan {
namespace {

constexpr const char* kFile = "capstan_cuda.so";

// The folder of the binary that this is linked into.
std::string own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&own_folder), &info) == 0 || info.dli_fname == nullptr) return ".";
  const std::string file = info.dli_fname;
  const size_t slash = file.rfind('/');
  return slash == std::string::npos ? "." : file.substr(0, slash);
}

}  // namespace

namespace {

CudaLibrary open_entry(CudaEntry entry, const std::string& file) {
  const CudaApi* api = entry();
  if (api->version != kCudaApiVersion)
    return {nullptr, 0,
            file + ": expected interface version " + std::to_string(kCudaApiVersion) + ", got " +
                std::to_string(api->version) + "; build it again"};
  if (cuda_build_id() != api->build_id)
    return {nullptr, 0, file + " was built with another compiler or from other sources; build it again"};
  char reason[512] = "";
  const int count = api->num_devices(reason, sizeof reason);
  return {api, count, reason};
}

}  // namespace

CudaLibrary open_cuda_library(const std::string& file) {
  void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* error = dlerror();
    return {nullptr, 0, file + " cannot be opened: " + (error == nullptr ? "unknown error" : error)};
  }
  const auto entry = reinterpret_cast<CudaEntry>(dlsym(handle, kCudaEntryName));
  if (entry == nullptr) return {nullptr, 0, file + " is no CUDA backend: it has no " + kCudaEntryName};
  return open_entry(entry, file);
}

CudaLibrary open_cuda_library() {
  static const CudaLibrary library = [] {
    if (const char* file = std::getenv("CAPSTAN_CUDA_LIBRARY"); file != nullptr && *file != '\0')
      return open_cuda_library(file);
    // A program may have the backend linked in, as tests do.
    if (const auto entry = reinterpret_cast<CudaEntry>(dlsym(RTLD_DEFAULT, kCudaEntryName)); entry != nullptr)
      return open_entry(entry, "the CUDA backend of this program");
    const std::string folder = own_folder();
    for (const std::string& candidate : {folder + "/" + kFile, folder + "/../cuda/" + kFile})
      if (access(candidate.c_str(), R_OK) == 0) return open_cuda_library(candidate);
    return CudaLibrary{nullptr, 0, std::string("there is no ") + kFile + " (npm run build:cuda makes it)"};
  }();
  return library;
}

}  // namespace capstan
