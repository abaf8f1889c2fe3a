// launch_expert_gemm for 16-bit floats and plain codes.
#include "cuda/kernels/expert_gemm_kernel.h"
#include "native/base/check.h"

namespace capstan::cuda {

void launch_expert_gemm(const ExpertGemmArgs& args, const DeviceResources& resources, cudaStream_t stream) {
  const GemmArgs& product = args.product;
  const int parts = product.weights.split.parts;
  CAPSTAN_CHECK(args.experts != nullptr && args.tile_experts != nullptr && product.acts != nullptr);
  CAPSTAN_CHECK(args.tile_rows == kTileTokens || args.tile_rows == 4 * kTileTokens);
  CAPSTAN_CHECK(product.num_tokens > 0 && product.num_tokens % args.tile_rows == 0 &&
                product.num_tokens / args.tile_rows < 65536);
  CAPSTAN_CHECK(product.weights.rows > 0 && parts >= 1 && parts <= kMaxParts && (parts & (parts - 1)) == 0);
  CAPSTAN_CHECK(product.weights.split.padded_part % kTileDepth == 0 && resources.multiprocessors > 0 &&
                gemm::max_warps<4>(resources) > 0);
  CAPSTAN_CHECK(product.output == GemmOutput::kGated ? product.gated != nullptr
                                                     : product.out != nullptr && product.output == GemmOutput::kStore);
  switch (product.weights.codes.kind) {
    case CodeKind::kNone:
      return gemm::launch_experts_of_kind<CodeKind::kNone>(args, resources, stream);
    case CodeKind::kPlain4:
      return gemm::launch_experts_of_kind<CodeKind::kPlain4>(args, resources, stream);
    case CodeKind::kPlain8:
      return gemm::launch_experts_of_kind<CodeKind::kPlain8>(args, resources, stream);
    default:
      return gemm::launch_any_experts(args, resources, stream);
  }
}

}  // namespace capstan::cuda
