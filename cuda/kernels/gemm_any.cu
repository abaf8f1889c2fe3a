// launch_gemm for codes with all scales, offsets and tables.
#include "cuda/kernels/gemm_kernel.h"

namespace capstan::cuda::gemm {

void launch_any(const GemmArgs& args, const DeviceResources& resources, cudaStream_t stream) {
  switch (args.weights.codes.kind) {
    case CodeKind::kAny6:
      return launch_kind<CodeKind::kAny6>(args, resources, stream);
    case CodeKind::kAny8:
      return launch_kind<CodeKind::kAny8>(args, resources, stream);
    default:
      return launch_kind<CodeKind::kAny4>(args, resources, stream);
  }
}

}  // namespace capstan::cuda::gemm
