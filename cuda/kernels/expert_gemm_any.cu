// launch_expert_gemm for codes with all scales, offsets and tables.
#include "cuda/kernels/expert_gemm_kernel.h"

namespace capstan::cuda::gemm {

void launch_any_experts(const ExpertGemmArgs& args, const DeviceResources& resources, cudaStream_t stream) {
  switch (args.product.weights.codes.kind) {
    case CodeKind::kAny6:
      return launch_experts_of_kind<CodeKind::kAny6>(args, resources, stream);
    case CodeKind::kAny8:
      return launch_experts_of_kind<CodeKind::kAny8>(args, resources, stream);
    default:
      return launch_experts_of_kind<CodeKind::kAny4>(args, resources, stream);
  }
}

}  // namespace capstan::cuda::gemm
