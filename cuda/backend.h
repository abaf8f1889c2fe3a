#pragma once
#include <memory>

#include "native/backend/backend.h"
#include "native/backend/cuda_api.h"
#include "native/comm/comm.h"

namespace capstan::cuda {

// One rank on a device. Several ranks may share one (virtual ranks): each has a stream of its own. `comm` null = one
// rank. CAPSTAN_CUDA_WITHOUT, a list of `graphs`, `early` (kernels that begin before the one in front has ended),
// `wgmma` and `one_shot` (sums of more than two ranks, where two shots can do them), does without these, which changes
// speed and, of wgmma, rounding. Throws kInvalidArgument for other names.
std::unique_ptr<Backend> make_cuda_backend(const CudaBackendOptions& options, std::unique_ptr<Comm> comm);

}  // namespace capstan::cuda
