// Products of up to kGemvTokens tokens, fused with the norm before them and, for q, k and v, with the epilogue of their
// heads. The order of sums is that of gemm.cu, so a row has the same bits in any batch.
// The kernel is bound by the bandwidth of the weights. Each lane has 16 loads of 16 bytes in flight. With PDL the first
// loads start before the preceding kernel has ended. Blocks process several tiles, so that neither the norm nor the end
// of a tile interrupts the stream.
#include "cuda/kernels/epilogue.h"
#include "cuda/kernels/rows.h"
#include "cuda/kernels/weight_tiles.h"
#include "cuda/launch.h"
#include "native/base/check.h"

namespace capstan::cuda {
namespace {

constexpr int kThreads = kNormThreads;
constexpr int kWarps = kNormWarps;
constexpr int kPrefetchDepth = 8;  // K tiles that a warp prefetches, with two loads per lane each
// Floats between tokens in shared memory: 16 features, padded so that no two lanes access the same bank.
constexpr int kTokenStride = 20;
constexpr int kWarpFloats = kGemvTokens * kTokenStride;
constexpr int kMaxHeads = kWarps * kTileRows + 1;  // most heads that the rows of one block can touch

// Byte offsets in the block's shared memory. The activations start at 0.
struct SharedLayout {
  size_t sums, squares, heads, is_last, bytes;
};
CAPSTAN_BOTH SharedLayout shared_layout(const GemvArgs& args) {
  SharedLayout offsets;
  offsets.sums = static_cast<size_t>(args.product.num_tokens * args.product.weights.split.padded()) * 2;
  offsets.squares = offsets.sums + sizeof(float) * 2 * kWarps * kWarpFloats;
  offsets.heads = offsets.squares + sizeof(float) * kGemvTokens * kWarps;
  offsets.is_last =
      offsets.heads + (args.has_heads ? sizeof(float) * kWarps * static_cast<size_t>(args.heads.layout.head_dim) : 0);
  offsets.bytes = offsets.is_last + (args.has_heads ? sizeof(int) * kMaxHeads : 0);
  return offsets;
}

// Writes normed activations to shared memory, as operands of num_tokens columns: (K tile, token, 4 lanes) of 16 bytes.
template <class T>
__device__ __forceinline__ void norm_to_shared(const NormArgs& args, uint16_t* acts, float* squares) {
  constexpr unsigned kAtOnce = 4;
  const int tokens = args.num_rows;
  const auto row_of = [&](int token) {
    return args.hidden + (args.rows == nullptr ? token : args.rows[token]) * args.hidden_size;
  };
  for (int token = 0; token < tokens; ++token) {
    const float square = warp_sum(partial_sum_of_squares(row_of(token), args.hidden_size));
    if (lane_id() == 0) squares[token * kWarps + warp_id()] = square;
  }
  __syncthreads();
  const auto padded = static_cast<unsigned>(args.split.padded()),
             padded_part = static_cast<unsigned>(args.split.padded_part),
             part_cols = static_cast<unsigned>(args.split.part_cols);
  for (int token = 0; token < tokens; ++token) {
    const float* row = row_of(token);
    const float scale = norm_scale(squares + token * kWarps, args.hidden_size, args.eps);
    for (unsigned first = threadIdx.x; first < padded; first += kAtOnce * kThreads) {
      float values[kAtOnce], weights[kAtOnce];
#pragma unroll
      for (unsigned i = 0; i < kAtOnce; ++i) {
        const unsigned wanted = first + i * kThreads, place = wanted < padded ? wanted : first,
                       col = place % padded_part;
        const unsigned k = place / padded_part * part_cols + (col < part_cols ? col : 0);
        values[i] = row[k];
        weights[i] = col < part_cols ? args.weight[k] : 0.0f;
      }
#pragma unroll
      for (unsigned i = 0; i < kAtOnce; ++i) {
        const unsigned place = first + i * kThreads;
        const unsigned at =
            static_cast<unsigned>(operand_index(0, place % kTileDepth, kTileDepth)) +
            (place / kTileDepth * static_cast<unsigned>(tokens) + static_cast<unsigned>(token)) * kTileDepth;
        if (place < padded) acts[at] = to_bits<T>(values[i] * scale * weights[i]);
      }
    }
  }
}

__device__ __forceinline__ void copy_to_shared(const GemmArgs& args, uint4* acts) {
  const auto* from = reinterpret_cast<const uint4*>(args.acts);
  const int words = args.num_tokens * 4;  // per K tile
  const int count = static_cast<int>(args.weights.split.padded() / kTileDepth) * words;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads)
    acts[i] = from[i / words * kWarpSize + i % words];
}

// The block that stores the last rows of a head finishes the head.
template <class T>
__device__ __forceinline__ void finish_heads(const GemvArgs& args, int64_t first_row, int64_t end_row, float* rows,
                                             int* is_last) {
  const int head_dim = args.heads.layout.head_dim;
  const int first_head = static_cast<int>(first_row / head_dim),
            num_heads = static_cast<int>((end_row - 1) / head_dim) - first_head + 1;
  __threadfence();
  __syncthreads();
  if (static_cast<int>(threadIdx.x) < num_heads) {
    const int64_t head = first_head + static_cast<int>(threadIdx.x);
    const int64_t begin = head * head_dim > first_row ? head * head_dim : first_row,
                  end = (head + 1) * head_dim < end_row ? (head + 1) * head_dim : end_row;
    const int count = static_cast<int>(end - begin);
    const bool is_complete = atomicAdd(args.rows_done + head, count) + count == head_dim;
    if (is_complete) args.rows_done[head] = 0;  // reset for the next product
    is_last[threadIdx.x] = is_complete;
    __threadfence();
  }
  __syncthreads();
  float* row = rows + warp_id() * head_dim;
  for (int item = warp_id(); item < num_heads * args.heads.num_tokens; item += kWarps) {
    const int head = item / args.heads.num_tokens;
    const int64_t token = item % args.heads.num_tokens;
    if (is_last[head] == 0) continue;
    const float* from = args.heads.qkv + token * args.heads.qkv_stride + int64_t{first_head + head} * head_dim;
    for (int d = lane_id(); d < head_dim; d += kWarpSize)
      row[d] = ld_relaxed_gpu(from + d);
    __syncwarp();
    finish_head<T, false>(args.heads, token, first_head + head, row);
    __syncwarp();
  }
}

// Block b has groups b, b + gridDim.x, … of 8 / parts tiles. Warp w computes part w % parts.
template <class T, CodeKind kKind, bool kIsNormed, bool kHasHeads>
__global__ void __launch_bounds__(kThreads, 2) gemv_kernel(GemvArgs args) {
  using Tile = typename TileOf<T, kKind>::Type;
  using Source = typename Tile::Source;
  const GemmArgs& product = args.product;
  const DepthSplit split = product.weights.split;
  const int tiles_per_block = kWarps / split.parts, part = warp_id() % split.parts, slot = warp_id() / split.parts;
  const int64_t num_tiles = (product.weights.rows + kTileRows - 1) / kTileRows;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * tiles_per_block;
  const int steps = static_cast<int>(split.padded_part / kTileDepth);
  const int lane = lane_id(), g = lane / 4, t = lane % 4;
  const SharedLayout offsets = shared_layout(args);
  auto* acts = reinterpret_cast<uint4*>(shared_memory());
  auto* all_sums = reinterpret_cast<float*>(shared_memory() + offsets.sums);

  int64_t first = static_cast<int64_t>(blockIdx.x) * tiles_per_block;
  // No source after the last tile.
  const auto source_of = [&](int64_t tile) {
    return tile < num_tiles ? Tile::source(product.weights, tile, part) : Source{};
  };
  Source weights = source_of(first + slot);
  Tile prefetched[kPrefetchDepth];
#pragma unroll
  for (int i = 0; i < kPrefetchDepth; ++i)
    if (weights && i < steps) prefetched[i].load(product.weights, weights, i);
  griddepcontrol_launch_dependents();
  griddepcontrol_wait();
  if constexpr (kIsNormed)
    norm_to_shared<T>(args.norm, reinterpret_cast<uint16_t*>(acts),
                      reinterpret_cast<float*>(shared_memory() + offsets.squares));
  else
    copy_to_shared(product, acts);
  __syncthreads();

  const uint4* my_acts = acts + int64_t{part} * steps * product.num_tokens * 4 + lane;
  for (int buffer = 0; first < num_tiles; first += stride, buffer ^= 1) {
    const Source next_weights = source_of(first + stride + slot);
    float sums[4] = {};
    for (int step = 0; weights && step < steps; step += kPrefetchDepth) {
#pragma unroll
      for (int i = 0; i < kPrefetchDepth; ++i) {
        if (step + i >= steps) break;
        const uint4 b = g < product.num_tokens ? my_acts[(step + i) * product.num_tokens * 4] : uint4{0, 0, 0, 0};
        const TileOperands a = prefetched[i].operands(product.weights);
        const uint32_t b_low[2] = {b.x, b.y}, b_high[2] = {b.z, b.w};
        mma_m16n8k16<T>(sums, a.low, b_low);
        mma_m16n8k16<T>(sums, a.high, b_high);
        // Reuses the registers for a later K tile of this tile, or for the start of the next tile.
        if (step + kPrefetchDepth + i < steps)
          prefetched[i].load(product.weights, weights, step + kPrefetchDepth + i);
        else if (next_weights)
          prefetched[i].load(product.weights, next_weights, i);
      }
    }
    weights = next_weights;
    // Alternates between two buffers: the previous one may still be read.
    float* block_sums = all_sums + buffer * kWarps * kWarpFloats;
    if (t * 2 < kGemvTokens) {
#pragma unroll
      for (int r = 0; r < 4; ++r)
        block_sums[warp_id() * kWarpFloats + (2 * t + r % 2) * kTokenStride + g + r / 2 * 8] = sums[r];
    }
    __syncthreads();
    const int rows_out = outputs_of_tile(product);
    for (int i = static_cast<int>(threadIdx.x); i < tiles_per_block * product.num_tokens * rows_out; i += kThreads) {
      const int row_in_tile = i % rows_out, token = i / rows_out % product.num_tokens,
                tile_in_block = i / rows_out / product.num_tokens;
      const float* at = block_sums + tile_in_block * split.parts * kWarpFloats + token * kTokenStride + row_in_tile;
      finish_output<T>(product, first + tile_in_block, row_in_tile, token, at, kWarpFloats, kTileRows / 2);
    }
    if constexpr (kHasHeads) {
      const int64_t end_row = (first + tiles_per_block) * kTileRows;
      finish_heads<T>(args, first * kTileRows, end_row < product.weights.rows ? end_row : product.weights.rows,
                      reinterpret_cast<float*>(shared_memory() + offsets.heads),
                      reinterpret_cast<int*>(shared_memory() + offsets.is_last));
    }
  }
}

template <class T, CodeKind kKind>
void launch_for(const GemvArgs& args, cudaStream_t stream) {
  const int tiles_per_block = kWarps / args.product.weights.split.parts;
  const int64_t num_groups =
      ((args.product.weights.rows + kTileRows - 1) / kTileRows + tiles_per_block - 1) / tiles_per_block;
  const dim3 grid(static_cast<unsigned>(num_groups < args.max_blocks ? num_groups : args.max_blocks));
  auto kernel = gemv_kernel<T, kKind, false, false>;
  if (args.has_heads)
    kernel = gemv_kernel<T, kKind, true, true>;
  else if (args.is_normed)
    kernel = gemv_kernel<T, kKind, true, false>;
  launch_pdl(args.product.uses_pdl, kernel, grid, dim3(kThreads), shared_layout(args).bytes, stream, args);
}

template <class T>
void launch_of_kind(const GemvArgs& args, cudaStream_t stream) {
  switch (args.product.weights.codes.kind) {
    case CodeKind::kPlain4:
      return launch_for<T, CodeKind::kPlain4>(args, stream);
    case CodeKind::kPlain8:
      return launch_for<T, CodeKind::kPlain8>(args, stream);
    default:
      return launch_for<T, CodeKind::kNone>(args, stream);
  }
}

}  // namespace

bool supports_gemv(const DeviceMatrix& weights) {
  return weights.codes.kind == CodeKind::kNone || is_plain(weights.codes.kind);
}

bool supports_pdl() {
  return kernel_ptx_version(gemv_kernel<Bf16, CodeKind::kNone, true, true>) >= 90;
}

size_t gemv_shared_bytes(const GemvArgs& args) {
  return shared_layout(args).bytes;
}

void launch_gemv(const GemvArgs& args, cudaStream_t stream) {
  const GemmArgs& product = args.product;
  const int parts = product.weights.split.parts;
  CAPSTAN_CHECK(product.num_tokens > 0 && product.num_tokens <= kGemvTokens && product.weights.rows > 0 && parts >= 1 &&
                parts <= kMaxParts && (parts & (parts - 1)) == 0);
  CAPSTAN_CHECK(product.weights.split.padded_part % kTileDepth == 0 && args.max_blocks > 0);
  CAPSTAN_CHECK(has_acts(product.output) ? product.gated != nullptr
                                         : product.out != nullptr && product.output != GemmOutput::kParts);
  if (args.is_normed) {
    const DepthSplit &of_norm = args.norm.split, &of_weights = product.weights.split;
    CAPSTAN_CHECK(args.norm.num_rows == product.num_tokens && args.norm.weight != nullptr &&
                  args.norm.bias == nullptr && args.norm.hidden_size == of_norm.parts * of_norm.part_cols);
    CAPSTAN_CHECK(of_norm.parts == of_weights.parts && of_norm.part_cols == of_weights.part_cols);
  } else {
    CAPSTAN_CHECK(product.acts != nullptr && !args.has_heads);
  }
  if (args.has_heads) {
    const QkvArgs& heads = args.heads;
    CAPSTAN_CHECK(args.is_normed && product.output == GemmOutput::kStore && heads.qkv == product.out &&
                  heads.parts == 1 && heads.bias == nullptr && heads.squares[0] == nullptr &&
                  !heads.rotates_before_norm && !heads.has_v_norm && heads.query_scales == nullptr &&
                  heads.qkv_stride == product.out_stride && heads.num_tokens == product.num_tokens);
    CAPSTAN_CHECK(product.weights.rows == int64_t{heads.num_product_heads()} * heads.layout.head_dim &&
                  args.rows_done != nullptr);
    CAPSTAN_CHECK(heads.layout.block_size % 32 == 0 && heads.rotary_dim % 2 == 0 &&
                  heads.rotary_dim <= heads.layout.head_dim);
  }
  CAPSTAN_CHECK(has_weights(product.weights));
  CAPSTAN_CHECK(supports_gemv(product.weights));
  if (product.type == FloatType::kBf16)
    launch_of_kind<Bf16>(args, stream);
  else
    launch_of_kind<F16>(args, stream);
}

}  // namespace capstan::cuda
