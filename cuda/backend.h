#pragma once
#include <memory>

#include "native/backend/backend.h"
#include "native/backend/cuda_api.h"
#include "native/comm/comm.h"

namespace capstan::cuda {

// Creates the backend of one rank. Several ranks may share a device (virtual ranks); each has a separate stream. `comm`
// null means one rank. CAPSTAN_CUDA_WITHOUT disables a comma-separated list of features
// (struct Features). This changes speed and, for `wgmma`, `wgmma_attention` and `k_splits`, rounding. Throws
// kInvalidArgument for other names.
std::unique_ptr<Backend> make_cuda_backend(const CudaBackendOptions& options, std::unique_ptr<Comm> comm);

}  // namespace capstan::cuda
