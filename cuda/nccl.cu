#include "cuda/nccl.h"

#include <dlfcn.h>

#include <cstdlib>

#include "cuda/launch.h"
#include "cuda/ranks.h"

namespace capstan::cuda {
namespace {

// Values from NCCL's public header.
constexpr int kSuccess = 0, kFloat32 = 7, kSum = 0;
constexpr int kOldestVersion = 21800;  // from 2023, with support for compute capability 9.0 and CUDA 12

// 21805 is 2.18.5; older versions had fewer digits: 2708 is 2.7.8.
std::string version_name(int version) {
  const int major = version < 10000 ? 1000 : 10000;
  return std::to_string(version / major) + "." + std::to_string(version % major / 100) + "." +
         std::to_string(version % 100);
}

// Returns false and sets `reason` when an entry is missing.
bool find_entries(void* library, const std::string& file, NcclApi& api, std::string& reason) {
  const auto find = [&](const char* name, auto& entry) {
    entry = reinterpret_cast<std::decay_t<decltype(entry)>>(dlsym(library, name));
    if (entry == nullptr && reason.empty()) reason = file + " has no " + name;
  };
  find("ncclGetVersion", api.get_version);
  find("ncclGetErrorString", api.get_error_string);
  find("ncclCommInitAll", api.comm_init_all);
  find("ncclCommDestroy", api.comm_destroy);
  find("ncclAllReduce", api.all_reduce);
  return reason.empty();
}

// Returns false and sets `reason` on failure. NOTE: the library is never closed, because its threads keep running.
bool open_nccl(NcclApi& api, int& version, std::string& reason) {
  const char* given = std::getenv("CAPSTAN_NCCL_LIBRARY");
  const std::string file = given == nullptr || *given == '\0' ? "libnccl.so.2" : given;
  if (file == "none") {
    reason = "CAPSTAN_NCCL_LIBRARY is none";
    return false;
  }
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* error = dlerror();
    reason = file + " cannot be opened: " + (error == nullptr ? "unknown error" : error);
    return false;
  }
  if (!find_entries(library, file, api, reason)) return false;
  if (const int result = api.get_version(&version); result != kSuccess)
    reason = file + " cannot report its version: " + api.get_error_string(result);
  else if (version < kOldestVersion)
    reason = file + ": expected version " + version_name(kOldestVersion) + " or newer, got " + version_name(version);
  return reason.empty();
}

}  // namespace

std::unique_ptr<Nccl> Nccl::connect(std::span<const int> devices, std::string& note) {
  NcclApi api;
  int version = 0;
  std::string reason;
  std::vector<void*> comms(devices.size());
  if (open_nccl(api, version, reason))
    if (const int result = api.comm_init_all(comms.data(), static_cast<int>(devices.size()), devices.data());
        result != kSuccess)
      reason = std::string("it cannot connect the devices: ") + api.get_error_string(result);
  if (!reason.empty()) {
    note = "NCCL is not used: " + reason + ". Capstan's own kernels add the sums between devices";
    return nullptr;
  }
  note = "NCCL " + version_name(version) + " adds sums of " + std::to_string(nccl_bytes() >> 20) +
         " MiB or more between devices";
  return std::unique_ptr<Nccl>(new Nccl(api, std::move(comms)));
}

Nccl::~Nccl() {
  if (is_device_lost()) return;
  for (void* comm : comms_)
    api_.comm_destroy(comm);
}

void Nccl::all_reduce(int rank, float* data, int64_t count, cudaStream_t stream) const {
  const int result = api_.all_reduce(data, data, static_cast<size_t>(count), kFloat32, kSum,
                                     comms_[static_cast<size_t>(rank)], stream);
  if (result == kSuccess) return;
  lose_device(std::string("NCCL: all-reduce: ") + api_.get_error_string(result));
}

}  // namespace capstan::cuda
