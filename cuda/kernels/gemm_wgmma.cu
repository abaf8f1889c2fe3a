// launch_gemm_wgmma, and its kernels for 16-bit floats.
#include "cuda/kernels/gemm_wgmma_kernel.h"
#include "native/base/check.h"

namespace capstan::cuda {

bool supports_gemm_wgmma() {
  return supports_tensor_maps() && has_sm90a_code(wgmma::gemm_wgmma_kernel<Bf16, CodeKind::kNone, 128>);
}

bool make_act_maps(ActMaps& maps, const uint16_t* acts, int64_t rows, int64_t padded_k) {
  for (int i = 0; i < kNumWidths; ++i)
    if (!make_tensor_map(maps.of_width[i], acts, rows, padded_k, kTokenWidths[i])) return false;
  return true;
}

void launch_gemm_wgmma(const GemmArgs& args, int multiprocessors, cudaStream_t stream, int width) {
  CAPSTAN_CHECK(args.act_maps != nullptr && has_weights(args.weights));
  CAPSTAN_CHECK(args.num_tokens > 0 && args.weights.rows > 0 && args.weights.split.padded_part % kTileDepth == 0 &&
                multiprocessors > 0);
  CAPSTAN_CHECK(has_acts(args.output) ? args.gated != nullptr
                                      : args.out != nullptr && args.output != GemmOutput::kParts);
  CAPSTAN_CHECK(args.output != GemmOutput::kGated || args.weights.rows % kTileRows == 0);
  check(connect_spin_report(), "the report of waits");
  const int k_splits = args.tile_flags == nullptr ? 1 : k_splits_of(args.weights.split.padded());
  CAPSTAN_CHECK(k_splits == 1 || !has_acts(args.output));
  const CodeKind kind = args.weights.codes.kind;
  if (width == 0)
    width = choose_width(args.weights.rows, args.num_tokens, multiprocessors, k_splits, kind != CodeKind::kNone);
  CAPSTAN_CHECK(kind == CodeKind::kNone || has_code_kernel(width));
  const wgmma::Job job{args, tile_order(args.weights.rows, args.num_tokens, width),
                       static_cast<int>(args.weights.split.padded() / 16), k_splits};
  switch (kind) {
    case CodeKind::kNone:
      return wgmma::launch_kind<CodeKind::kNone>(job, width, multiprocessors, stream);
    case CodeKind::kPlain4:
    case CodeKind::kPlain8:
      return wgmma::launch_plain(job, width, multiprocessors, stream);
    default:
      return wgmma::launch_any(job, width, multiprocessors, stream);
  }
}

}  // namespace capstan::cuda
