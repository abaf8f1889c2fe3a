// launch_gemm_wgmma for codes with all scales, offsets and tables.
#include "cuda/kernels/gemm_wgmma_kernel.h"

namespace capstan::cuda::wgmma {

void launch_any(const Job& job, int width, int multiprocessors, cudaStream_t stream) {
  switch (job.args.weights.codes.kind) {
    case CodeKind::kAny6:
      return launch_kind<CodeKind::kAny6>(job, width, multiprocessors, stream);
    case CodeKind::kAny8:
      return launch_kind<CodeKind::kAny8>(job, width, multiprocessors, stream);
    default:
      return launch_kind<CodeKind::kAny4>(job, width, multiprocessors, stream);
  }
}

}  // namespace capstan::cuda::wgmma
