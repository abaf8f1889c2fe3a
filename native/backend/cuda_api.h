#pragma once
// The interface of `capstan_cuda.so`: one C function that returns a table of functions. Only plain data crosses until
// the version and the build id are known to agree. After that, both sides may share the contract's classes.
// These functions throw no exception.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "native/backend/adapter.h"
#include "native/backend/backend.h"
#include "native/comm/comm.h"

namespace capstan {

constexpr uint32_t kCudaApiVersion = 20;
constexpr const char* kCudaEntryName = "capstan_cuda_api";

// NCCL communicators of ranks on different devices. The ranks share ownership.
class CudaLinks {
 public:
  virtual ~CudaLinks() = default;
};

// Quantizes `count` values, at most 128, to codes in 4 or 8 bits: value = (code - 2^(bits - 1)) * scale. `codes` holds
// at least `count` bytes rounded up to 16. Returns the scale as f16 bits; Inf when a value is too large.
using GroupQuantizer = uint16_t (*)(const float* values, int count, int bits, uint8_t* codes);

struct CudaBackendOptions {
  int device = 0;  // CUDA device index
  DType weight_dtype = DType::kBf16;
  int num_sharing = 1;               // ranks on this device, this one included
  bool is_deterministic = false;     // the bits of a token do not depend on the rest of the batch
  std::shared_ptr<CudaLinks> links;  // of all ranks; null = no NCCL
  GroupQuantizer quantize_group = nullptr;
};

struct CudaApi {
  uint32_t version;
  const char* build_id;
  // Returns the number of usable devices. When it is 0, `reason` says why.
  int (*num_devices)(char* reason, size_t size);
  // Links different devices, listed by rank, with NCCL. The caller owns the result; null = NCCL is not available.
  // Sets `note` to a line for the log in both cases.
  CudaLinks* (*link)(const int* devices, int count, char* note, size_t size);
  // Creates a backend that the caller owns. It takes ownership of `comm` (null = one rank). Returns null on error and
  // sets `code` and `message`.
  Backend* (*make_backend)(const CudaBackendOptions* options, Comm* comm, int* code, char* message, size_t size);
};

using CudaEntry = const CudaApi* (*)();

// Returns an id made of the compiler version and the sizes of the contract's records. Two sides with different ids must
// not exchange classes.
inline std::string cuda_build_id() {
  std::string id = __VERSION__;
  for (const size_t size :
       {sizeof(DeviceModel), sizeof(DeviceLimits), sizeof(LayerWeights), sizeof(StepInput), sizeof(SampleRow),
        sizeof(SampleResult), sizeof(BackendInfo), sizeof(MatrixSource), sizeof(FileTensor), sizeof(AdapterWeights),
        sizeof(LayerAdapter), sizeof(LoraSource), sizeof(CudaBackendOptions)})
    id += " " + std::to_string(size);
  return id;
}

}  // namespace capstan
