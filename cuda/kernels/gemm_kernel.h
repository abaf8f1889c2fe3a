#pragma once
// Products with up to a few dozen tokens. Weights are the operand of 16 rows. A warp streams tiles of 16 features
// through registers, prefetching several K tiles, and processes the parts of K in sequence, adding them as a binary
// tree. With GemmOutput::kParts a block computes one part, so that matrices with few rows still use the whole device; a
// later kernel adds the parts.
// The warps of a block share the activations, which pass through shared memory in chunks. Each token is a separate
// column, so the number of tokens changes no bit. With PDL the first weights are loaded before the preceding kernel has
// ended.
// Quantized weights become 16-bit floats in registers (weight_tiles.h).
#include "cuda/gemm_layout.h"
#include "cuda/kernels/epilogue.h"
#include "cuda/kernels/weight_tiles.h"
#include "cuda/launch.h"

namespace capstan::cuda::gemm {

constexpr int kMaxWarps = 12;  // three per quarter of a multiprocessor, with 168 registers
constexpr int kStages = 3;     // of activations in flight
constexpr int kLevels = 3;     // of the binary tree over kMaxParts parts

// K tiles of weights that a warp prefetches (two loads per lane each), and K tiles per chunk of activations.
template <int N>
constexpr int kPrefetchDepth = N == 8 ? 6 : 8;

// Copies the activations of a block's parts to shared memory in chunks, once per tile of the block.
template <int N>
struct ActChunks {
  // In units of 16 bytes.
  static constexpr int kTokenWords = kPrefetchDepth<N> * kWarpSize, kStageWords = N * kTokenWords;
  const uint4* from;
  int64_t token_tile;    // 16-byte words between tiles of tokens
  int num_parts, steps;  // `steps` per part
  int64_t num_left;
  int part = 0, step = 0, slot = 0;

  __device__ __forceinline__ void copy_next() {
    if (num_left > 0) {
      --num_left;
      auto* const to = reinterpret_cast<uint4*>(shared_memory()) + slot * kStageWords;
      const uint4* const at = from + (part * steps + step) * kWarpSize;
      const int words = (steps - step < kPrefetchDepth<N> ? steps - step : kPrefetchDepth<N>)*kWarpSize;
      for (int i = static_cast<int>(threadIdx.x); i < words; i += static_cast<int>(blockDim.x))
#pragma unroll
        for (int n = 0; n < N; ++n)
          cp_async(to + n * kTokenWords + i, at + n * token_tile + i);
      step += kPrefetchDepth<N>;
      if (step >= steps) step = 0, part = part + 1 == num_parts ? 0 : part + 1;
      slot = slot + 1 == kStages ? 0 : slot + 1;
    }
    cp_async_commit_group();
  }
};

template <class T, int N>
__device__ __forceinline__ void multiply(float (&sums)[N][4], const TileOperands& a, const uint4* acts) {
  uint4 b[N];
#pragma unroll
  for (int n = 0; n < N; ++n)
    b[n] = acts[n * ActChunks<N>::kTokenWords];
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const uint32_t b_low[2] = {b[n].x, b[n].y}, b_high[2] = {b[n].z, b[n].w};
    mma_m16n8k16<T>(sums[n], a.low, b_low);
    mma_m16n8k16<T>(sums[n], a.high, b_high);
  }
}
// A thread's partial sums in shared memory: N tiles on each of kLevels levels.
template <int N>
struct PartSums {
  float4* mine;
  __device__ __forceinline__ PartSums()
      : mine(reinterpret_cast<float4*>(shared_memory()) + kStages * ActChunks<N>::kStageWords + threadIdx.x) {}
  __device__ __forceinline__ float4& at(int level, int n) const {
    return mine[(level * N + n) * static_cast<int>(blockDim.x)];
  }
  __device__ __forceinline__ void store(int level, const float (&sums)[N][4]) const {
#pragma unroll
    for (int n = 0; n < N; ++n)
      at(level, n) = float4{sums[n][0], sums[n][1], sums[n][2], sums[n][3]};
  }
  // Adds the next part. Level l holds a sum of 2^l parts that waits for the sum of the next 2^l. After the last part
  // `sums` is the total.
  __device__ __forceinline__ void add_part(float (&sums)[N][4], int part) const {
    int level = 0;
    for (; (part >> level & 1) != 0; ++level)
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const float4 left = at(level, n);
        sums[n][0] = left.x + sums[n][0], sums[n][1] = left.y + sums[n][1], sums[n][2] = left.z + sums[n][2],
        sums[n][3] = left.w + sums[n][3];
      }
    if (level < kLevels) store(level, sums);
  }
};

// The lane's outputs: rows g and g + 8 of the tile, tokens first_token + 8 n + {0, 1}.
template <class T, int N>
__device__ __forceinline__ void store_gated(const GemmArgs& args, int64_t tile, int first_token,
                                            const PartSums<N>& part_sums) {
  const int g = lane_id() / 4;
  const int64_t row = tile * kTileRows + g, feature = tile * (kTileRows / 2) + g;
  if (row >= args.weights.rows || feature >= args.gated_split.parts * args.gated_split.part_cols) return;
  const float* bias = args.weights.bias;
  const float gate_bias = bias == nullptr ? 0.0f : bias[row],
              up_bias = bias == nullptr ? 0.0f : bias[row + kTileRows / 2];
  const int64_t place = args.gated_split.place(feature), padded = args.gated_split.padded();
#pragma unroll 2
  for (int n = 0; n < N; ++n) {
    const float4 sums = part_sums.at(0, n);
    float gates[2] = {sums.x, sums.y}, ups[2] = {sums.z, sums.w};
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int token = first_token + n * kTileTokens + c;
      if (bias != nullptr) gates[c] += gate_bias, ups[c] += up_bias;
      const uint16_t bits = to_bits<T>(gated_value(args.activation, gates[c], ups[c]));
      if (token < args.num_tokens) args.gated[operand_index(token, place, padded)] = bits;
    }
  }
}

// Without gates, both rows are features.
template <class T, int N>
__device__ __forceinline__ void store_activated(const GemmArgs& args, int64_t tile, int first_token,
                                                const PartSums<N>& part_sums) {
  const float* bias = args.weights.bias;
  const int64_t padded = args.gated_split.padded();
#pragma unroll 1
  for (int half = 0; half < 2; ++half) {
    const int64_t row = tile * kTileRows + half * 8 + lane_id() / 4;
    if (row >= args.weights.rows) return;
    const int64_t place = args.gated_split.place(row);
    const float added = bias == nullptr ? 0.0f : bias[row];
#pragma unroll 2
    for (int n = 0; n < N; ++n) {
      const float4 sums = part_sums.at(0, n);
      float values[2] = {half == 0 ? sums.x : sums.z, half == 0 ? sums.y : sums.w};
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int token = first_token + n * kTileTokens + c;
        if (token >= args.num_tokens) continue;
        if (bias != nullptr) values[c] += added;
        args.gated[operand_index(token, place, padded)] = to_bits<T>(activated_value(args, token, row, values[c]));
      }
    }
  }
}

template <int N>
__device__ __forceinline__ void store_rows(const GemmArgs& args, int64_t tile, int first_token,
                                           const PartSums<N>& part_sums) {
  const int64_t row = tile * kTileRows + lane_id() / 4, stride = args.out_stride;
  const float* bias = args.output == GemmOutput::kParts ? nullptr : args.weights.bias;
  const bool is_residual = args.output == GemmOutput::kResidual;
  const bool has[2] = {row < args.weights.rows, row + 8 < args.weights.rows};
  const float added[2] = {bias != nullptr && has[0] ? bias[row] : 0.0f,
                          bias != nullptr && has[1] ? bias[row + 8] : 0.0f};
  float* const out = args.out + (blockIdx.z * int64_t{args.num_tokens} + first_token) * stride + row;
#pragma unroll 4
  for (int n = 0; n < N; ++n) {
    const float4 sums = part_sums.at(0, n);
    const float values[2][2] = {{sums.x, sums.y}, {sums.z, sums.w}};
    float before[2][2];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int half = i / 2, c = i % 2, token = n * kTileTokens + c;
      before[half][c] =
          is_residual && has[half] && first_token + token < args.num_tokens ? out[token * stride + half * 8] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int half = i / 2, c = i % 2, token = n * kTileTokens + c;
      float value = values[half][c];
      if (bias != nullptr) value += added[half];
      if (is_residual) value = fmaf(value, args.residual_scale, before[half][c]);
      if (has[half] && first_token + token < args.num_tokens) out[token * stride + half * 8] = value;
    }
  }
}

// Block (x, y, z): groups of tiles x, x + gridDim.x, … with one tile per warp; the tokens of N tiles from y on; part z,
// or all parts.
template <class T, CodeKind kKind, int N>
__device__ __forceinline__ void multiply_block(const GemmArgs& args) {
  using Tile = typename TileOf<T, kKind>::Type;
  using Source = typename Tile::Source;
  const DepthSplit split = args.weights.split;
  const int steps = static_cast<int>(split.padded_part / kTileDepth),
            num_parts = args.output == GemmOutput::kParts ? 1 : split.parts;
  const int64_t first_k = blockIdx.z * split.padded_part, padded = split.padded();
  const TileGroups groups{static_cast<int>(blockDim.x) / kWarpSize, gridDim.x,
                          (args.weights.rows + kTileRows - 1) / kTileRows};
  const int64_t num_tiles = groups.num_tiles, stride = groups.stride();
  const int first_token = static_cast<int>(blockIdx.y) * N * kTileTokens;
  int64_t tile = groups.first(blockIdx.x) + warp_id();
  // No source after the last tile.
  const auto source_of = [&](int64_t of_tile) {
    return of_tile < num_tiles ? Tile::source(args.weights, of_tile, static_cast<int>(blockIdx.z)) : Source{};
  };

  Source weights = source_of(tile);
  Tile prefetched[kPrefetchDepth<N>];
#pragma unroll
  for (int i = 0; i < kPrefetchDepth<N>; ++i)
    if (weights && i < steps) prefetched[i].load(args.weights, weights, i);
  griddepcontrol_launch_dependents();
  griddepcontrol_wait();

  const int64_t num_iterations = groups.iterations(blockIdx.x);
  ActChunks<N> chunks;
  chunks.from = reinterpret_cast<const uint4*>(args.acts + operand_index(first_token, first_k, padded));
  chunks.token_tile = padded / kTileDepth * kWarpSize;
  chunks.num_parts = num_parts;
  chunks.steps = steps;
  chunks.num_left = num_iterations * num_parts * ((steps + kPrefetchDepth<N> - 1) / kPrefetchDepth<N>);
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i)
    chunks.copy_next();

  const PartSums<N> part_sums;
  int slot = 0;
  for (int64_t iteration = 0; iteration < num_iterations; ++iteration, tile += stride) {
    float sums[N][4];
    for (int part = 0; part < num_parts; ++part) {
      const Source next_weights = part + 1 == num_parts ? source_of(tile + stride)
                                  : weights             ? weights.next_part(args.weights, steps)
                                                        : Source{};
#pragma unroll
      for (int n = 0; n < N; ++n)
        sums[n][0] = sums[n][1] = sums[n][2] = sums[n][3] = 0;
      for (int step = 0; step < steps; step += kPrefetchDepth<N>) {
        cp_async_wait_group<kStages - 2>();
        __syncthreads();
        chunks.copy_next();  // overwrites the chunk that all warps have read
        const uint4* acts =
            reinterpret_cast<const uint4*>(shared_memory()) + slot * ActChunks<N>::kStageWords + lane_id();
        slot = slot + 1 == kStages ? 0 : slot + 1;
        if (!weights) continue;
#pragma unroll
        for (int i = 0; i < kPrefetchDepth<N>; ++i) {
          if (step + i >= steps) break;
          multiply<T, N>(sums, prefetched[i].operands(args.weights), acts + i * kWarpSize);
          // Reuses the registers for a later K tile of this part, or for the start of the next part.
          if (step + kPrefetchDepth<N> + i < steps)
            prefetched[i].load(args.weights, weights, step + kPrefetchDepth<N> + i);
          else if (next_weights)
            prefetched[i].load(args.weights, next_weights, i);
        }
      }
      part_sums.add_part(sums, part);
      weights = next_weights;
    }
    if (tile >= num_tiles) continue;
    part_sums.store(0, sums);
    if (args.output == GemmOutput::kGated)
      store_gated<T>(args, tile, first_token + 2 * (lane_id() % 4), part_sums);
    else if (args.output == GemmOutput::kActivated)
      store_activated<T>(args, tile, first_token + 2 * (lane_id() % 4), part_sums);
    else
      store_rows(args, tile, first_token + 2 * (lane_id() % 4), part_sums);
  }
  cp_async_wait_group<0>();
}

template <class T, CodeKind kKind, int N>
__global__ void __launch_bounds__(kMaxWarps* kWarpSize, 1) gemm_kernel(GemmArgs args) {
  multiply_block<T, kKind, N>(args);
}

template <int N>
constexpr size_t stage_bytes() {
  return sizeof(uint4) * kStages * ActChunks<N>::kStageWords;
}
template <int N>
constexpr size_t warp_bytes() {
  return sizeof(float4) * kLevels * N * kWarpSize;
}
template <int N>
int max_warps(const DeviceResources& resources) {
  if (resources.shared_bytes < stage_bytes<N>() + warp_bytes<N>()) return 0;
  const size_t warps = (resources.shared_bytes - stage_bytes<N>()) / warp_bytes<N>();
  return warps < kMaxWarps ? static_cast<int>(warps) : kMaxWarps;
}

struct Grid {
  dim3 blocks, threads;
  size_t shared_bytes;
};
template <int N>
Grid grid_of(const GemmArgs& args, const DeviceResources& resources) {
  const int token_blocks = (args.num_tokens + N * kTileTokens - 1) / (N * kTileTokens),
            parts = args.output == GemmOutput::kParts ? args.weights.split.parts : 1;
  const int64_t num_tiles = (args.weights.rows + kTileRows - 1) / kTileRows,
                share = resources.multiprocessors / (token_blocks * parts), num_blocks = share > 0 ? share : 1;
  const TileGroups groups = group_tiles(num_tiles, num_blocks, max_warps<N>(resources));
  return {
      dim3(static_cast<unsigned>(groups.num_blocks), static_cast<unsigned>(token_blocks), static_cast<unsigned>(parts)),
      dim3(static_cast<unsigned>(groups.warps * kWarpSize)),
      stage_bytes<N>() + static_cast<size_t>(groups.warps) * warp_bytes<N>()};
}

template <class T, CodeKind kKind, int N>
void launch_with(const GemmArgs& args, const DeviceResources& resources, cudaStream_t stream) {
  const Grid grid = grid_of<N>(args, resources);
  launch_pdl(args.uses_pdl, gemm_kernel<T, kKind, N>, grid.blocks, grid.threads, grid.shared_bytes, stream, args);
}

template <class T, CodeKind kKind>
void launch_for(const GemmArgs& args, const DeviceResources& resources, cudaStream_t stream) {
  static_assert(stage_bytes<4>() + warp_bytes<4>() <= kMinSharedBytes);
  constexpr int kFewWarps = 4;  // with fewer warps than this, fewer tokens per block are faster
  if (args.num_tokens <= 8) return launch_with<T, kKind, 1>(args, resources, stream);
  if constexpr (kKind == CodeKind::kNone)  // kernels for codes take long to compile
    if (args.num_tokens <= 16) return launch_with<T, kKind, 2>(args, resources, stream);
  // The kernels for other codes have no registers for more tokens.
  if constexpr (kKind == CodeKind::kNone || is_plain(kKind))
    if (args.num_tokens > 32 && max_warps<8>(resources) >= kFewWarps)
      return launch_with<T, kKind, 8>(args, resources, stream);
  launch_with<T, kKind, 4>(args, resources, stream);
}

template <CodeKind kKind>
void launch_kind(const GemmArgs& args, const DeviceResources& resources, cudaStream_t stream) {
  if (args.type == FloatType::kBf16)
    launch_for<Bf16, kKind>(args, resources, stream);
  else
    launch_for<F16, kKind>(args, resources, stream);
}

// For codes that are not plain.
void launch_any(const GemmArgs& args, const DeviceResources& resources, cudaStream_t stream);

}  // namespace capstan::cuda::gemm
