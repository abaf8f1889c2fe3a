#pragma once
// NCCL, if it is installed: all-reduce of large arrays between ranks on different devices. It is opened with dlopen and
// called through the entries declared here, which its public header has had since version 2.0.
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cuda/device.h"
#include "native/backend/cuda_api.h"

namespace capstan::cuda {

struct NcclApi {
  int (*get_version)(int* version) = nullptr;
  const char* (*get_error_string)(int result) = nullptr;
  int (*comm_init_all)(void** comms, int count, const int* devices) = nullptr;
  int (*comm_destroy)(void* comm) = nullptr;
  int (*all_reduce)(const void* from, void* to, size_t count, int type, int operation, void* comm,
                    cudaStream_t stream) = nullptr;
};

class Nccl final : public CudaLinks {
 public:
  // Connects the devices, listed by rank, through the library named by $CAPSTAN_NCCL_LIBRARY (a file, or `none`) or
  // else libnccl.so.2. Returns null when NCCL cannot be used. `note` receives the version, or the reason.
  static std::unique_ptr<Nccl> connect(std::span<const int> devices, std::string& note);
  ~Nccl() override;
  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;

  // data = sum over all ranks, in NCCL's order. Every rank calls it from its thread. An error loses the device.
  void all_reduce(int rank, float* data, int64_t count, cudaStream_t stream) const;

 private:
  Nccl(const NcclApi& api, std::vector<void*> comms) : api_(api), comms_(std::move(comms)) {}
  NcclApi api_;
  std::vector<void*> comms_;  // by rank
};

}  // namespace capstan::cuda
