#pragma once
// The products of a mixture of experts: those of launch_gemm, with weights that depend on the tile of rows.
#include "cuda/experts.h"
#include "cuda/kernels/gemm_kernel.h"

namespace capstan::cuda::gemm {

template <class T, CodeKind kKind, int N>
__global__ void __launch_bounds__(kMaxWarps* kWarpSize, 1) expert_gemm_kernel(ExpertGemmArgs args) {
  const int expert = args.tile_experts[blockIdx.y];
  if (expert < 0) return;
  GemmArgs product = args.product;
  product.weights = args.experts[expert];
  if (!args.adds_bias) product.weights.bias = nullptr;
  multiply_block<T, kKind, N>(product);
}

template <class T, CodeKind kKind>
void launch_experts_for(const ExpertGemmArgs& args, const DeviceResources& resources, cudaStream_t stream) {
  const bool is_small = args.tile_rows == kTileTokens;
  const Grid grid = is_small ? grid_of<1>(args.product, resources) : grid_of<4>(args.product, resources);
  launch(is_small ? expert_gemm_kernel<T, kKind, 1> : expert_gemm_kernel<T, kKind, 4>, grid.blocks, grid.threads,
         grid.shared_bytes, stream, args);
}

template <CodeKind kKind>
void launch_experts_of_kind(const ExpertGemmArgs& args, const DeviceResources& resources, cudaStream_t stream) {
  if (args.product.type == FloatType::kBf16)
    launch_experts_for<Bf16, kKind>(args, resources, stream);
  else
    launch_experts_for<F16, kKind>(args, resources, stream);
}

// For codes that are not plain.
void launch_any_experts(const ExpertGemmArgs& args, const DeviceResources& resources, cudaStream_t stream);

}  // namespace capstan::cuda::gemm
