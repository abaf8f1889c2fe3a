// launch_gemm for 16-bit floats and plain codes.
#include "cuda/kernels/gemm_kernel.h"
#include "native/base/check.h"

namespace capstan::cuda {

void launch_gemm(const GemmArgs& args, const DeviceResources& resources, cudaStream_t stream) {
  const int parts = args.weights.split.parts;
  CAPSTAN_CHECK(args.num_tokens > 0 && args.weights.rows > 0 && parts >= 1 && parts <= kMaxParts &&
                (parts & (parts - 1)) == 0);
  CAPSTAN_CHECK(args.weights.split.padded_part % kTileDepth == 0 && resources.multiprocessors > 0 &&
                gemm::max_warps<4>(resources) > 0);
  CAPSTAN_CHECK(has_weights(args.weights));
  CAPSTAN_CHECK(has_acts(args.output) ? args.gated != nullptr : args.out != nullptr);
  switch (args.weights.codes.kind) {
    case CodeKind::kNone:
      return gemm::launch_kind<CodeKind::kNone>(args, resources, stream);
    case CodeKind::kPlain4:
      return gemm::launch_kind<CodeKind::kPlain4>(args, resources, stream);
    case CodeKind::kPlain8:
      return gemm::launch_kind<CodeKind::kPlain8>(args, resources, stream);
    default:
      return gemm::launch_any(args, resources, stream);
  }
}

}  // namespace capstan::cuda
