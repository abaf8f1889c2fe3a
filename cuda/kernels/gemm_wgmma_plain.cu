// launch_gemm_wgmma for plain codes.
#include "cuda/kernels/gemm_wgmma_kernel.h"

namespace capstan::cuda::wgmma {

void launch_plain(const Job& job, int width, int multiprocessors, cudaStream_t stream) {
  if (job.args.weights.codes.kind == CodeKind::kPlain4)
    launch_kind<CodeKind::kPlain4>(job, width, multiprocessors, stream);
  else
    launch_kind<CodeKind::kPlain8>(job, width, multiprocessors, stream);
}

}  // namespace capstan::cuda::wgmma
