#pragma once
// NCCL, where it is found: sums of large arrays over ranks that have a device each. Opened by name and called through
// the few entries declared here, as its public header has had them since version 2.0; nothing is linked to it.
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
  // Of these devices by rank, from $CAPSTAN_NCCL_LIBRARY (a file, or `none`), else libnccl.so.2; null where there is
  // none to use. `note` says which, or why not.
  static std::unique_ptr<Nccl> connect(std::span<const int> devices, std::string& note);
  ~Nccl() override;
  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;

  // data = the sum of all ranks', in an order of its own. Every rank from its thread; an error loses the device.
  void add_up(int rank, float* data, int64_t count, cudaStream_t stream) const;

 private:
  Nccl(const NcclApi& api, std::vector<void*> comms) : api_(api), comms_(std::move(comms)) {}
  NcclApi api_;
  std::vector<void*> comms_;  // by rank
};

}  // namespace capstan::cuda
