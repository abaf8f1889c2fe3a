#pragma once
#include <memory>

#include "native/backend/backend.h"
#include "native/backend/cuda_api.h"
#include "native/comm/comm.h"

namespace capstan::cuda {

// One rank on a device. Several ranks may share one (virtual ranks): each has a stream of its own. `comm` null = one rank.
std::unique_ptr<Backend> make_cuda_backend(const CudaBackendOptions& options, std::unique_ptr<Comm> comm);

}  // namespace capstan::cuda
