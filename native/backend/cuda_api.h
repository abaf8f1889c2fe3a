#pragma once
// What `capstan_cuda.so` offers: one C function that returns this table. Nothing but plain data crosses before version
// and build agree; then the two sides may share the contract's classes. No exception leaves these functions.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "native/backend/backend.h"
#include "native/comm/comm.h"

namespace capstan {

constexpr uint32_t kCudaApiVersion = 5;
constexpr const char* kCudaEntryName = "capstan_cuda_api";

// What ranks on several devices share beyond their own means, alive as long as any of them.
class CudaLinks {
 public:
  virtual ~CudaLinks() = default;
};

struct CudaBackendOptions {
  int device = 0;  // as CUDA counts them
  DType weight_dtype = DType::kBf16;
  int num_sharing = 1;               // ranks on the device, this one included
  bool is_deterministic = false;     // a token's bits depend on nothing that runs beside it
  std::shared_ptr<CudaLinks> links;  // of all ranks' devices, or null
};

struct CudaApi {
  uint32_t version;
  const char* build_id;
  // The number of devices that can be used; 0 with the reason in `reason`.
  int (*num_devices)(char* reason, size_t size);
  // Links between different devices, by rank, owned by the caller; null where there is nothing to make them with.
  // `note` gets what the log should say, either way.
  CudaLinks* (*link)(const int* devices, int count, char* note, size_t size);
  // A backend, owned by the caller, which takes `comm` (null = one rank); or null with the error's code and message.
  Backend* (*make_backend)(const CudaBackendOptions* options, Comm* comm, int* code, char* message, size_t size);
};

using CudaEntry = const CudaApi* (*)();

// Two sides with another id must not exchange classes: they differ in compiler or contract.
inline std::string cuda_build_id() {
  std::string id = __VERSION__;
  for (const size_t size : {sizeof(DeviceModel), sizeof(DeviceLimits), sizeof(LayerWeights), sizeof(StepInput),
                            sizeof(SampleRow), sizeof(SampleResult), sizeof(BackendInfo), sizeof(MatrixSource),
                            sizeof(FileTensor), sizeof(CudaBackendOptions)})
    id += " " + std::to_string(size);
  return id;
}

}  // namespace capstan
