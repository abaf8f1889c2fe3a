// Paged attention of a mixed batch. A warp has 16 rows, (token, head) pairs of one KV head, and goes over the keys in tiles of 64 and chunks of 256, both at
// absolute positions; keys and values are read as operands, straight into registers. Where there are too few rows for the device, each chunk gets a warp of
// its own and a second kernel merges the chunks in order: the same arithmetic, so the same bits.
#include "cuda/attention_layout.h"
#include "cuda/fp8.h"
#include "cuda/kernels.h"
#include "cuda/kernels/attention.h"
#include "cuda/launch.h"
#include "native/base/check.h"

namespace capstan::cuda {
namespace {

constexpr int kWarps = 4;

// Softmax so far of the lane's two rows (g and g + 8), and sums of values. D = head_dim / 32, rounded up.
template <int D>
struct Partial {
  float max[2];
  float sum[2];
  float out[D * 4][4];  // (dimension tile of 8) of both rows

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int r = 0; r < 2; ++r) max[r] = kMinusInfinity, sum[r] = 0;
#pragma unroll
    for (int i = 0; i < D * 4; ++i)
#pragma unroll
      for (int r = 0; r < 4; ++r) out[i][r] = 0;
  }

  // What a sum must be multiplied with when its maximum rises.
  __device__ static __forceinline__ float rescale(float from, float to) { return from == kMinusInfinity ? 0.0f : exp2f(from - to); }

  static constexpr int kFloats = 4 + D * 16;

  // Leaves itself in shared memory; a lane's floats lie kWarpSize apart.
  __device__ __forceinline__ void put(float* to) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) to[r * kWarpSize] = max[r], to[(2 + r) * kWarpSize] = sum[r];
#pragma unroll
    for (int i = 0; i < D * 4; ++i)
#pragma unroll
      for (int r = 0; r < 4; ++r) to[(4 + i * 4 + r) * kWarpSize] = out[i][r];
  }

  // Adds itself to what stands before it, left by put().
  __device__ __forceinline__ void merge_behind(const float* before) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float max_before = before[r * kWarpSize];
      const float top = fmaxf(max_before, max[r]);
      const float theirs = rescale(max_before, top), mine = rescale(max[r], top);
      max[r] = top;
      sum[r] = before[(2 + r) * kWarpSize] * theirs + sum[r] * mine;
#pragma unroll
      for (int i = 0; i < D * 4; ++i)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int at = r * 2 + c;
          out[i][at] = before[(4 + i * 4 + at) * kWarpSize] * theirs + out[i][at] * mine;
        }
    }
  }
};

template <class T, int D>
__device__ __forceinline__ void load_queries(const AttentionArgs& args, const Rows& rows, uint32_t (&q)[D * 2][4]) {
  const int t = lane_id() % 4;
#pragma unroll
  for (int step = 0; step < D * 2; ++step)
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const uint16_t* from = args.q + (rows.token[r % 2] * args.num_heads + rows.head[r % 2]) * args.layout.k_dim + step * 16 + r / 2 * 8 + 2 * t;
      q[step][r] = *reinterpret_cast<const uint32_t*>(from);
    }
}

// 16 bytes of operands of the lane; those in 8 bits are multiplied with the scales, a pair for each word.
template <class T, bool kIsFp8>
__device__ __forceinline__ uint4 load_operands(const void* cache, int64_t first, int64_t index, const uint32_t (&scales)[4]) {
  if constexpr (!kIsFp8) return reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(cache) + first)[index];
  const uint2 bytes = reinterpret_cast<const uint2*>(static_cast<const uint8_t*>(cache) + first)[index];
  return {expand_fp8<T>(bytes.x, 0, scales[0]), expand_fp8<T>(bytes.x, 1, scales[1]), expand_fp8<T>(bytes.y, 0, scales[2]), expand_fp8<T>(bytes.y, 1, scales[3])};
}

// Keys [tile, tile + 64) of the sequence.
template <class T, int D, bool kIsFp8>
__device__ __forceinline__ void attend_tile(const AttentionArgs& args, const Rows& rows, const int32_t* blocks, int context, int kv_head, int tile,
                                            const uint32_t (&q)[D * 2][4], Partial<D>& partial) {
  const KvLayout& layout = args.layout;
  const int lane = lane_id(), t = lane % 4;

  float scores[8][4];
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int r = 0; r < 4; ++r) scores[j][r] = 0;
    const int key = tile + j * 8;
    if (key >= context) continue;  // nobody sees these; the block may not exist
    const int64_t block = blocks[key / layout.block_size];
    const int64_t keys = layout.keys_of(block, kv_head) + operand_index(key % layout.block_size, 0, layout.k_dim);
    uint32_t scales[4] = {};
    if constexpr (kIsFp8) {
      const uint32_t scale = fp8_scale<T>(static_cast<const uint8_t*>(args.cache)[layout.exponents_of(block, kv_head, false) + key % layout.block_size + lane / 4]);
#pragma unroll
      for (int w = 0; w < 4; ++w) scales[w] = scale | scale << 16;
    }
#pragma unroll
    for (int d = 0; d < D; ++d) {
      const uint4 b = load_operands<T, kIsFp8>(args.cache, keys, d * kWarpSize + lane, scales);
      const uint32_t low[2] = {b.x, b.y}, high[2] = {b.z, b.w};
      mma_m16n8k16<T>(scores[j], q[d * 2], low);
      mma_m16n8k16<T>(scores[j], q[d * 2 + 1], high);
    }
  }

  const float scale = args.scale * kLog2E;
  float top[2] = {partial.max[0], partial.max[1]};
#pragma unroll
  for (int j = 0; j < 8; ++j)
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int key = tile + j * 8 + 2 * t + r % 2, position = rows.position[r / 2];
      const bool is_seen = key <= position && (args.window == 0 || key > position - args.window);
      scores[j][r] = is_seen ? scores[j][r] * scale : kMinusInfinity;
      top[r / 2] = fmaxf(top[r / 2], scores[j][r]);
    }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    top[r] = fmaxf(top[r], __shfl_xor_sync(0xffffffffu, top[r], 1));
    top[r] = fmaxf(top[r], __shfl_xor_sync(0xffffffffu, top[r], 2));
    const float factor = Partial<D>::rescale(partial.max[r], top[r]);
    partial.max[r] = top[r];
    partial.sum[r] *= factor;
#pragma unroll
    for (int i = 0; i < D * 4; ++i)
#pragma unroll
      for (int c = 0; c < 2; ++c) partial.out[i][r * 2 + c] *= factor;
  }
#pragma unroll
  for (int j = 0; j < 8; ++j)
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      // A row that sees none of the keys so far has no maximum.
      scores[j][r] = scores[j][r] == kMinusInfinity ? 0.0f : exp2f(scores[j][r] - top[r / 2]);
      partial.sum[r / 2] += scores[j][r];
    }

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int key = tile + half * 32;
    if (key >= context) continue;
    uint32_t weights[2][4];
#pragma unroll
    for (int step = 0; step < 2; ++step)
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const float* pair = &scores[half * 4 + step * 2 + r / 2][r % 2 * 2];
        weights[step][r] = to_bits_pair<T>(pair[0], pair[1]);
      }
    const bool is_partly_written = key + 32 > context;
    const int64_t block = blocks[key / layout.block_size];
    const int64_t values = layout.values_of(block, kv_head) + operand_index(0, key % layout.block_size, layout.block_size);
    uint32_t scales[4] = {};
    if constexpr (kIsFp8) {
      const uint8_t* exponents = static_cast<const uint8_t*>(args.cache) + layout.exponents_of(block, kv_head, true) + key % layout.block_size + 2 * t;
#pragma unroll
      for (int w = 0; w < 4; ++w) scales[w] = fp8_scale<T>(exponents[w * 8]) | fp8_scale<T>(exponents[w * 8 + 1]) << 16;
    }
    const int64_t next = int64_t{layout.block_size} / 32 * kWarpSize;  // from one tile of dimensions to the next
#pragma unroll
    for (int i = 0; i < D * 4; ++i) {
      if (i * 8 >= layout.v_dim) break;
      const uint4 b = load_operands<T, kIsFp8>(args.cache, values, i * next + lane, scales);
      uint32_t words[4] = {b.x, b.y, b.z, b.w};
      if (is_partly_written) {
        // Slots that nothing was written to hold anything, NaN too.
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          const int first = key + w * 8 + 2 * t;
          if (first >= context) words[w] = 0;
          else if (first + 1 >= context) words[w] &= 0xffffu;
        }
      }
      const uint32_t low[2] = {words[0], words[1]}, high[2] = {words[2], words[3]};
      mma_m16n8k16<T>(partial.out[i], weights[0], low);
      mma_m16n8k16<T>(partial.out[i], weights[1], high);
    }
  }
}

// Keys [begin, end) of one chunk, as far as any row sees them.
template <class T, int D, bool kIsFp8>
__device__ __forceinline__ void attend_chunk(const AttentionArgs& args, const Rows& rows, const int32_t* blocks, int context, int kv_head, int chunk,
                                             const uint32_t (&q)[D * 2][4], Partial<D>& partial) {
  partial.clear();
  for (int tile = chunk * kChunk; tile < (chunk + 1) * kChunk; tile += kTileKeys) {
    if (tile > rows.last_position) break;
    if (args.window > 0 && tile + kTileKeys <= rows.first_position - args.window + 1) continue;
    attend_tile<T, D, kIsFp8>(args, rows, blocks, context, kv_head, tile, q, partial);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    partial.sum[r] += __shfl_xor_sync(0xffffffffu, partial.sum[r], 1);
    partial.sum[r] += __shfl_xor_sync(0xffffffffu, partial.sum[r], 2);
  }
}

// Left to itself (0) ptxas spills where it would have more blocks than these.
template <int D, bool kIsCut, bool kIsFp8>
constexpr int kMinBlocks = (D == 3 || (D == 1 && kIsFp8)) && !kIsCut ? 1 : 0;

// (tiles / kWarps, KV heads, chunks). kIsCut: every warp has one chunk and leaves (max, sum, values) of its 16 rows in the scratch.
template <class T, int D, bool kIsCut, bool kIsFp8>
__global__ void __launch_bounds__(kWarps* kWarpSize, (kMinBlocks<D, kIsCut, kIsFp8>)) attention_kernel(AttentionArgs args) {
  let_next_begin();
  const int item = static_cast<int>(blockIdx.x) * kWarps + warp_id();
  if (item >= args.num_tiles) return;
  const int kv_head = static_cast<int>(blockIdx.y);
  const AttentionTile tile = args.tiles[item];
  if (tile.seq < 0) return;
  const Rows rows = find_rows<16>(args, tile, kv_head, 0);
  const int context = args.context_lens[tile.seq];
  const int32_t* blocks = args.block_tables + int64_t{tile.seq} * args.max_blocks_per_seq;
  const int lane = lane_id(), t = lane % 4;
  const int last_chunk = rows.last_position / kChunk;
  const int first_chunk = args.window > 0 && rows.first_position >= args.window ? (rows.first_position - args.window + 1) / kChunk : 0;

  uint32_t q[D * 2][4];
  load_queries<T, D>(args, rows, q);
  Partial<D> total;
  if constexpr (!kIsCut) {
    attend_chunk<T, D, kIsFp8>(args, rows, blocks, context, kv_head, first_chunk, q, total);
    // The sums so far wait in shared memory: beside the next chunk's they would not fit into registers.
    float* before = reinterpret_cast<float*>(shared_memory()) + warp_id() * Partial<D>::kFloats * kWarpSize + lane;
    for (int chunk = first_chunk + 1; chunk <= last_chunk; ++chunk) {
      total.put(before);
      attend_chunk<T, D, kIsFp8>(args, rows, blocks, context, kv_head, chunk, q, total);
      total.merge_behind(before);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float scale = 1.0f / total.sum[r];
      if (!rows.is_real[r]) continue;
#pragma unroll
      for (int i = 0; i < D * 4; ++i)
#pragma unroll
        for (int c = 0; c < 2; ++c) store_output<T>(args, rows.token[r], rows.head[r], i * 8 + 2 * t + c, total.out[i][r * 2 + c] * scale);
    }
  } else {
    const int chunk = first_chunk + static_cast<int>(blockIdx.z);
    if (chunk > last_chunk) return;
    attend_chunk<T, D, kIsFp8>(args, rows, blocks, context, kv_head, chunk, q, total);
    const int width = args.layout.v_dim + 2;
    float* to = args.scratch + ((int64_t{item} * args.layout.num_kv_heads + kv_head) * args.num_chunks + blockIdx.z) * 16 * width;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float* row = to + (lane / 4 + r * 8) * width;
      if (t == 0) row[0] = total.max[r], row[1] = total.sum[r];
#pragma unroll
      for (int i = 0; i < D * 4; ++i)
#pragma unroll
        for (int c = 0; c < 2; ++c)
          if (i * 8 < args.layout.v_dim) row[2 + i * 8 + 2 * t + c] = total.out[i][r * 2 + c];
    }
  }
}

// (tiles, KV heads): a warp per row, the chunks in order.
template <class T>
__global__ void __launch_bounds__(16 * kWarpSize) merge_kernel(AttentionArgs args) {
  let_next_begin();
  const int item = static_cast<int>(blockIdx.x), kv_head = static_cast<int>(blockIdx.y);
  const AttentionTile tile = args.tiles[item];
  if (tile.seq < 0) return;
  const int group = args.num_heads / args.layout.num_kv_heads;
  const int begin = args.cu_seqlens_q[tile.seq], count = args.cu_seqlens_q[tile.seq + 1] - begin;
  const int context = args.context_lens[tile.seq];
  const int row = tile.first_row + warp_id();
  if (row >= count * group) return;
  const int first_position = context - count + tile.first_row / group;
  const int last = tile.first_row + 15 < count * group ? tile.first_row + 15 : count * group - 1;
  const int last_chunk = (context - count + last / group) / kChunk;
  const int first_chunk = args.window > 0 && first_position >= args.window ? (first_position - args.window + 1) / kChunk : 0;
  const int width = args.layout.v_dim + 2;
  const float* from = args.scratch + ((int64_t{item} * args.layout.num_kv_heads + kv_head) * args.num_chunks) * 16 * width + warp_id() * width;

  for (int dim = lane_id(); dim < args.layout.v_dim; dim += kWarpSize) {
    float max = from[0], sum = from[1], value = from[2 + dim];
    for (int chunk = 1; chunk <= last_chunk - first_chunk; ++chunk) {
      const float* next = from + int64_t{chunk} * 16 * width;
      const float top = fmaxf(max, next[0]);
      const float mine = Partial<1>::rescale(max, top), theirs = Partial<1>::rescale(next[0], top);
      max = top;
      sum = sum * mine + next[1] * theirs;
      value = value * mine + next[2 + dim] * theirs;
    }
    store_output<T>(args, begin + row / group, kv_head * group + row % group, dim, value * (1.0f / sum));
  }
}

template <class T, int D, bool kIsFp8>
void launch_with(const AttentionArgs& args, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((args.num_tiles + kWarps - 1) / kWarps), static_cast<unsigned>(args.layout.num_kv_heads), static_cast<unsigned>(args.num_chunks));
  constexpr size_t kSumsBytes = sizeof(float) * kWarps * Partial<D>::kFloats * kWarpSize;
  if (args.num_chunks == 1) return launch(attention_kernel<T, D, false, kIsFp8>, grid, dim3(kWarps * kWarpSize), kSumsBytes, stream, args);
  launch(attention_kernel<T, D, true, kIsFp8>, grid, dim3(kWarps * kWarpSize), 0, stream, args);
  launch(merge_kernel<T>, dim3(static_cast<unsigned>(args.num_tiles), static_cast<unsigned>(args.layout.num_kv_heads)), dim3(16 * kWarpSize), 0, stream, args);
}

template <class T, bool kIsFp8>
void launch_for(const AttentionArgs& args, cudaStream_t stream) {
  switch (args.layout.k_dim / 32) {
    case 1: return launch_with<T, 1, kIsFp8>(args, stream);
    case 2: return launch_with<T, 2, kIsFp8>(args, stream);
    case 3: return launch_with<T, 3, kIsFp8>(args, stream);
    case 4: return launch_with<T, 4, kIsFp8>(args, stream);
    default: throw Error(ErrorCode::kUnsupportedModel, "CUDA: head size: expected at most 128, got " + std::to_string(args.layout.head_dim));
  }
}

}  // namespace

int64_t attention_scratch_floats(const AttentionArgs& args) {
  return int64_t{args.num_tiles} * args.layout.num_kv_heads * args.num_chunks * 16 * (args.layout.v_dim + 2);
}

void launch_attention(const AttentionArgs& args, cudaStream_t stream) {
  CAPSTAN_CHECK(args.num_tiles > 0 && args.num_chunks >= 1 && args.num_heads % args.layout.num_kv_heads == 0 && args.layout.block_size % kTileKeys == 0);
  CAPSTAN_CHECK(args.num_chunks == 1 || args.scratch != nullptr);
  if (args.type == FloatType::kBf16)
    args.layout.is_fp8 ? launch_for<Bf16, true>(args, stream) : launch_for<Bf16, false>(args, stream);
  else
    args.layout.is_fp8 ? launch_for<F16, true>(args, stream) : launch_for<F16, false>(args, stream);
}

}  // namespace capstan::cuda
