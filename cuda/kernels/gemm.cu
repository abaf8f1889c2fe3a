// Products with weights as the side of 16 rows. A warp streams one part of K of 16 features; the parts of a feature meet in shared memory, where a tree
// adds them. The number of tokens changes no bit: each token is a column of its own.
#include "cuda/kernels/epilogue.h"
#include "cuda/launch.h"
#include "native/base/check.h"

namespace capstan::cuda {
namespace {

constexpr int kWarps = 8;
// Floats between tokens in shared memory: 16 features, and no two lanes of a warp in one bank.
constexpr int kTokenStride = 20;

// Left to itself (0) ptxas spills where it would have more blocks than these.
template <int N>
constexpr int kMinBlocks = N == 4 ? 2 : 0;

// Block (x, y): 8 / parts tiles of features from x on, and the tokens of N tiles from y on.
template <class T, int N>
__global__ void __launch_bounds__(kWarps* kWarpSize, kMinBlocks<N>) gemm_kernel(GemmArgs args) {
  const DepthSplit split = args.weights.split;
  const int tiles_per_block = kWarps / split.parts;
  const int part = warp_id() % split.parts;
  const int64_t num_tiles = (args.weights.rows + kTileRows - 1) / kTileRows;
  const int64_t first_tile = static_cast<int64_t>(blockIdx.x) * tiles_per_block;
  const int64_t tile = first_tile + warp_id() / split.parts;
  const int first_token = static_cast<int>(blockIdx.y) * N * kTileTokens;
  const int lane = lane_id();

  float sums[N][4] = {};
  if (tile < num_tiles) {
    const int64_t padded = split.padded();
    const auto* weights = reinterpret_cast<const uint4*>(args.weights.data + weight_index(tile * kTileRows, part * split.padded_part, padded)) + lane;
    const auto* acts = reinterpret_cast<const uint4*>(args.acts + operand_index(first_token, part * split.padded_part, padded)) + lane;
    const int64_t token_tile = padded / kTileDepth * kWarpSize;  // 16-byte words from one tile of tokens to the next
    const int steps = static_cast<int>(split.padded_part / kTileDepth);
#pragma unroll 4
    for (int step = 0; step < steps; ++step) {
      const uint4 low = load_streaming(weights + step * 2 * kWarpSize);
      const uint4 high = load_streaming(weights + (step * 2 + 1) * kWarpSize);
      const uint32_t a_low[4] = {low.x, low.y, low.z, low.w};
      const uint32_t a_high[4] = {high.x, high.y, high.z, high.w};
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const uint4 b = acts[n * token_tile + step * kWarpSize];
        const uint32_t b_low[2] = {b.x, b.y};
        const uint32_t b_high[2] = {b.z, b.w};
        mma_m16n8k16<T>(sums[n], a_low, b_low);
        mma_m16n8k16<T>(sums[n], a_high, b_high);
      }
    }
  }

  auto* shared = reinterpret_cast<float*>(shared_memory());  // (warp, token, kTokenStride)
  constexpr int kWarpFloats = N * kTileTokens * kTokenStride;
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int r = 0; r < 4; ++r)
      shared[warp_id() * kWarpFloats + (n * kTileTokens + 2 * t + r % 2) * kTokenStride + g + r / 2 * 8] = sums[n][r];
  __syncthreads();

  const int rows_out = outputs_of_tile(args);
  const int count = tiles_per_block * N * kTileTokens * rows_out;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kWarps * kWarpSize) {
    const int row_in_tile = i % rows_out;
    const int token_in_block = i / rows_out % (N * kTileTokens);
    const int tile_in_block = i / rows_out / (N * kTileTokens);
    const float* at = shared + tile_in_block * split.parts * kWarpFloats + token_in_block * kTokenStride + row_in_tile;
    finish_output<T>(args, first_tile + tile_in_block, row_in_tile, first_token + token_in_block, at, kWarpFloats, kTileRows / 2);
  }
}

template <class T, int N>
void launch_with(const GemmArgs& args, cudaStream_t stream) {
  const int64_t num_tiles = (args.weights.rows + kTileRows - 1) / kTileRows;
  const int tiles_per_block = kWarps / args.weights.split.parts;
  const dim3 grid(static_cast<unsigned>((num_tiles + tiles_per_block - 1) / tiles_per_block), static_cast<unsigned>((args.num_tokens + N * kTileTokens - 1) / (N * kTileTokens)));
  launch(gemm_kernel<T, N>, grid, dim3(kWarps * kWarpSize), sizeof(float) * kWarps * N * kTileTokens * kTokenStride, stream, args);
}

template <class T>
void launch_for(const GemmArgs& args, cudaStream_t stream) {
  if (args.num_tokens <= 8) return launch_with<T, 1>(args, stream);
  if (args.num_tokens <= 16) return launch_with<T, 2>(args, stream);
  if (args.num_tokens <= 32) return launch_with<T, 4>(args, stream);
  launch_with<T, 8>(args, stream);
}

}  // namespace

void launch_gemm(const GemmArgs& args, cudaStream_t stream) {
  const int parts = args.weights.split.parts;
  CAPSTAN_CHECK(args.num_tokens > 0 && args.weights.rows > 0 && parts >= 1 && parts <= kMaxParts && (parts & (parts - 1)) == 0);
  CAPSTAN_CHECK(args.weights.split.padded_part % kTileDepth == 0);
  CAPSTAN_CHECK(args.output == GemmOutput::kGated ? args.gated != nullptr : args.out != nullptr);
  if (args.type == FloatType::kBf16)
    launch_for<Bf16>(args, stream);
  else
    launch_for<F16>(args, stream);
}

}  // namespace capstan::cuda
