// Paged attention of a mixed batch. A warp processes 16 rows, (token, head) pairs of one KV head, and a tile of 64 keys
// at a time. It loads keys and values as operands directly into registers, with 16 loads of 16 bytes in flight per
// lane.
// Order of sums: tiles start at absolute multiples of 64 and have separate sums. The tiles of a chunk (absolute
// multiples of 256) are merged in order, then the chunks in order. So a row has the same bits whichever kernel computes
// it.
//   attention_kernel: few rows. A block has a chunk of a tile of 16 rows, and each warp a tile of its keys. When there
//     are too few blocks for the device, a block has a single chunk, and merge_kernel merges the chunks.
//   attention_per_warp_kernel: many rows. Each warp has a tile of 16 rows.
#include <type_traits>

#include "cuda/attention_layout.h"
#include "cuda/fp8.h"
#include "cuda/kernels.h"
#include "cuda/kernels/softmax_state.h"
#include "cuda/launch.h"
#include "native/base/check.h"

namespace capstan::cuda {
namespace {

constexpr int kWarps = kChunk / kTileKeys;
// D = head_dim / 32, rounded up as in key_dim. Heads of more than 256 dimensions have kParts = 2: blocks multiply all
// dimensions of the keys, in two parts, and one part of those of the values. D is that of a part. Warps per block of
// attention_per_warp_kernel, and sets of slots that attention_kernel alternates between: states of large heads take
// twice the shared memory.
template <int D>
constexpr int kTileWarps = D <= 4 ? kWarps : kWarps / 2;
template <int D>
constexpr int kSlotSets = D <= 4 ? 2 : 1;

// ---- a tile

template <class T, int D>
__device__ __forceinline__ void load_queries(const AttentionArgs& args, const Rows& rows, int part,
                                             uint32_t (&q)[D * 2][4]) {
  const int t = lane_id() % 4;
#pragma unroll
  for (int step = 0; step < D * 2; ++step)
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const uint16_t* from = args.q +
                             int64_t{rows.token[r % 2] * args.num_heads + rows.head[r % 2]} * args.layout.k_dim +
                             (part * D * 2 + step) * 16 + r / 2 * 8 + 2 * t;
      q[step][r] = *reinterpret_cast<const uint32_t*>(from);
    }
}

// Eight operands of a lane in the cache's format.
template <bool kIsFp8>
using Word = std::conditional_t<kIsFp8, uint2, uint4>;

// 8-bit operands are multiplied by their scales, one pair of scales per pair.
template <class T>
__device__ __forceinline__ uint4 operands_of(const uint4& word, const uint32_t (&)[4]) {
  return word;
}
template <class T>
__device__ __forceinline__ uint4 operands_of(const uint2& bytes, const uint32_t (&scales)[4]) {
  return {expand_fp8<T>(bytes.x, 0, scales[0]), expand_fp8<T>(bytes.x, 1, scales[1]),
          expand_fp8<T>(bytes.y, 0, scales[2]), expand_fp8<T>(bytes.y, 1, scales[3])};
}

// The block's KV head, and the part of the dimensions of its values.
template <int kParts>
struct HeadPart {
  int kv_head = static_cast<int>(blockIdx.y) / kParts, part = static_cast<int>(blockIdx.y) % kParts;
};

// Computes the state of keys [tile, tile + 64) of the sequence, stored in `block`. NOTE: a branch between the loads
// would serialize them.
template <class T, int D, bool kIsFp8, int kParts>
__device__ __forceinline__ void attend_tile(const AttentionArgs& args, const Rows& rows, int block, int context,
                                            const HeadPart<kParts>& head, int tile, SoftmaxState<D * 4>& sums) {
  using Element = std::conditional_t<kIsFp8, uint8_t, uint16_t>;
  constexpr int kKeysAtOnce = D <= 2 ? 8 : D <= 4 ? 4 : 2;  // tiles of 8 keys
  constexpr int kDimsAtOnce = D <= 4 ? D * 4 : D;           // tiles of 8 dimensions
  const KvLayout& layout = args.layout;
  const auto* cache = static_cast<const Element*>(args.cache);
  const int lane = lane_id(), t = lane % 4, offset = tile % layout.block_size, kv_head = head.kv_head;

  const auto* keys = reinterpret_cast<const Word<kIsFp8>*>(cache + layout.keys_of(block, kv_head)) +
                     offset / 8 * D * kParts * kWarpSize + lane;
  float scores[8][4] = {};
#pragma unroll 1
  for (int part = 0; part < kParts; ++part) {
    // Reloaded for every tile, because there are not enough registers to keep them.
    uint32_t q[D * 2][4];
    load_queries<T, D>(args, rows, part, q);
#pragma unroll
    for (int first = 0; first < 8; first += kKeysAtOnce) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
      if (first > 0) __syncwarp();  // otherwise ptxas schedules so many loads that registers spill
#endif
      Word<kIsFp8> words[kKeysAtOnce][D];
      uint8_t exponents[kKeysAtOnce] = {};
#pragma unroll
      for (int j = 0; j < kKeysAtOnce; ++j) {
#pragma unroll
        for (int d = 0; d < D; ++d)
          words[j][d] = keys[((first + j) * D * kParts + part * D + d) * kWarpSize];
        if constexpr (kIsFp8)
          exponents[j] = cache[layout.exponents_of(block, kv_head, false) + offset + (first + j) * 8 + lane / 4];
      }
#pragma unroll
      for (int j = 0; j < kKeysAtOnce; ++j) {
        uint32_t scales[4] = {};
        if constexpr (kIsFp8) scales[0] = scales[1] = scales[2] = scales[3] = fp8_scale<T>(exponents[j]) * 0x10001u;
#pragma unroll
        for (int d = 0; d < D; ++d) {
          const uint4 b = operands_of<T>(words[j][d], scales);
          const uint32_t low[2] = {b.x, b.y}, high[2] = {b.z, b.w};
          mma_m16n8k16<T>(scores[first + j], q[d * 2], low);
          mma_m16n8k16<T>(scores[first + j], q[d * 2 + 1], high);
        }
      }
    }
  }

  // Before the values are loaded, so that these need no registers meanwhile.
  if (args.soft_cap > 0) {
    const float factor = factor_of_tanh(args);
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        scores[j][i] = tanh_approx(scores[j][i] * factor);
  }

  // Larger heads have no registers for them.
  if constexpr (D * 32 <= kMaxBiasedHeadDim) {
    if (args.biases != nullptr) {
      const float factor = rcp_approx(args.scale);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float* const biases = args.biases + int64_t{rows.head[r]} * args.bias_stride - rows.position[r];
#pragma unroll
        for (int j = 0; j < 8; ++j)
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            const int key = tile + j * 8 + 2 * t + c;
            if (key < context) scores[j][r * 2 + c] = fmaf(biases[key], factor, scores[j][r * 2 + c]);
          }
      }
    }
  }

  // Tiles of dimensions after the last one repeat it. Their results are not stored.
  const auto* values =
      reinterpret_cast<const Word<kIsFp8>*>(cache + layout.values_of(block, kv_head)) + offset / 32 * kWarpSize + lane;
  const int first_dims = head.part * D * 4, last_dims = layout.v_dim / 8 - 1, next = layout.block_size / 32 * kWarpSize;
  Word<kIsFp8> words[kDimsAtOnce];
  const auto load_values = [&](int half, int first) {
#pragma unroll
    for (int i = 0; i < kDimsAtOnce; ++i)
      words[i] = values[half * kWarpSize + (first + i < last_dims ? first + i : last_dims) * next];
  };
  load_values(0, first_dims);

  const float scale = factor_of_scores(args);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int position = rows.position[r], lowest = args.window == 0 ? 0 : position - args.window + 1;
    const auto span = static_cast<unsigned>(last_key(args, position, context) - lowest);
    float top = kMinusInfinity;
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int key = tile + j * 8 + 2 * t + c;
        const bool is_seen = static_cast<unsigned>(key - lowest) <= span;
        float& score = scores[j][r * 2 + c];
        score = is_seen ? score * scale : kMinusInfinity;
        top = fmaxf(top, score);
      }
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    // The maximum of a row that sees none of the keys is -inf.
    const float base = top == kMinusInfinity ? 0.0f : top;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int c = 0; c < 2; ++c)
        sum += scores[j][r * 2 + c] = ex2_approx(scores[j][r * 2 + c] - base);
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    sums.max[r] = top;
    sums.sum[r] = sum;
  }

#pragma unroll
  for (int i = 0; i < D * 4; ++i)
#pragma unroll
    for (int r = 0; r < 4; ++r)
      sums.out[i][r] = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t weights[2][4], written[4], scales[4] = {};
#pragma unroll
    for (int step = 0; step < 2; ++step)
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const float* pair = &scores[half * 4 + step * 2 + r / 2][r % 2 * 2];
        weights[step][r] = to_bits_pair<T>(pair[0], pair[1]);
      }
    // Slots that were never written may hold NaN, so their values are masked.
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const int left = context - (tile + half * 32 + w * 8 + 2 * t);
      written[w] = left >= 2 ? 0xffffffffu : left == 1 ? 0xffffu : 0;
    }
    if constexpr (kIsFp8) {
      const uint8_t* exponents = cache + layout.exponents_of(block, kv_head, true) + offset + half * 32 + 2 * t;
#pragma unroll
      for (int w = 0; w < 4; ++w)
        scales[w] = fp8_scale<T>(exponents[w * 8]) | fp8_scale<T>(exponents[w * 8 + 1]) << 16;
    }
#pragma unroll
    for (int first = 0; first < D * 4; first += kDimsAtOnce) {
      if (half + first > 0) load_values(half, first_dims + first);
#pragma unroll
      for (int i = 0; i < kDimsAtOnce; ++i) {
        const uint4 b = operands_of<T>(words[i], scales);
        const uint32_t low[2] = {b.x & written[0], b.y & written[1]}, high[2] = {b.z & written[2], b.w & written[3]};
        mma_m16n8k16<T>(sums.out[first + i], weights[0], low);
        mma_m16n8k16<T>(sums.out[first + i], weights[1], high);
      }
    }
  }
}

// ---- the kernels

// The tiles of keys that 16 rows see.
struct KeyRange {
  Rows rows;
  int context, first, last;
  const int32_t* blocks;

  __device__ __forceinline__ KeyRange(const AttentionArgs& args, const AttentionTile& tile, int kv_head)
      : rows(find_rows<16>(args, tile, kv_head, 0)) {
    context = args.context_lens[tile.seq];
    first =
        args.window > 0 && rows.first_position >= args.window ? (rows.first_position - args.window + 1) / kTileKeys : 0;
    last = last_key(args, rows.last_position, context) / kTileKeys;
    blocks = args.block_tables + int64_t{tile.seq} * args.max_blocks_per_seq;
  }
  __device__ __forceinline__ bool has(int tile) const { return tile >= first && tile <= last; }
  // Also valid for tiles outside the range.
  __device__ __forceinline__ int block_of(const AttentionArgs& args, int tile) const {
    return has(tile) ? blocks[tile * kTileKeys / args.layout.block_size] : 0;
  }
};

// Floats per row of scratch: maximum, sum, two of padding, and the values.
CAPSTAN_BOTH constexpr int scratch_width(int v_dim) {
  return 4 + v_dim;
}
// For the block's tile of rows.
__device__ __forceinline__ float* scratch_of(const AttentionArgs& args, int kv_head, int chunk, int row) {
  return args.scratch +
         (((int64_t{blockIdx.x} * args.layout.num_kv_heads + kv_head) * args.num_chunks + chunk) * 16 + row) *
             scratch_width(args.layout.v_dim);
}

// Grid: (tiles of rows, parts of KV heads, chunks if split). Warp w computes tile w of each chunk, and then merges a
// quarter of the dimensions.
template <class T, int D, bool kIsFp8, int kParts>
__global__ void __launch_bounds__(kWarps* kWarpSize, 1) attention_kernel(AttentionArgs args) {
  griddepcontrol_launch_dependents();
  const AttentionTile row_tile = args.tiles[blockIdx.x];
  if (row_tile.seq < 0) return griddepcontrol_wait();
  const bool is_split = args.num_chunks > 1;
  const HeadPart<kParts> head;
  const int kv_head = head.kv_head, lane = lane_id(), t = lane % 4, warp = warp_id();
  const KeyRange range(args, row_tile, kv_head);
  const int first_chunk = range.first / kWarps + static_cast<int>(blockIdx.z),
            last_chunk = is_split ? first_chunk : range.last / kWarps;
  if (first_chunk * kWarps > range.last) return griddepcontrol_wait();
  int block = range.block_of(args, first_chunk * kWarps + warp);
  griddepcontrol_wait();

  SoftmaxState<D> total;
  float* all = reinterpret_cast<float*>(shared_memory()) + lane;
  for (int chunk = first_chunk; chunk <= last_chunk; ++chunk) {
    const int tile = chunk * kWarps + warp;
    const int next_block = range.block_of(args, tile + kWarps);
    if (range.has(tile)) {
      SoftmaxState<D * 4> sums;
      attend_tile<T, D, kIsFp8>(args, range.rows, block, range.context, head, tile * kTileKeys, sums);
      sums.put(all + warp * kSlot<D>);
    }
    block = next_block;
    __syncthreads();
    const int first = range.first > chunk * kWarps ? range.first % kWarps : 0,
              last = range.last < (chunk + 1) * kWarps ? range.last % kWarps : kWarps - 1;
    SoftmaxState<D> of_chunk, behind;
    of_chunk.get(all + first * kSlot<D>, warp * D);
    for (int w = first + 1; w <= last; ++w) {
      behind.get(all + w * kSlot<D>, warp * D);
      of_chunk.add(of_chunk, behind);
    }
    if (chunk == first_chunk)
      total = of_chunk;
    else
      total.add(total, of_chunk);
    // The previous set of slots may still be read.
    if constexpr (kSlotSets<D> == 1)
      __syncthreads();
    else
      all += (chunk - first_chunk) % 2 == 0 ? kWarps * kSlot<D> : -kWarps * kSlot<D>;
  }

  // Computed again, because there are not enough registers to keep them.
  const Rows rows = find_rows<16>(args, row_tile, kv_head, 0);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (!rows.is_real[r]) continue;
    const float scale = 1.0f / sum_with_sink(args, rows.head[r], total.max[r], total.sum[r]);
    float* const row = is_split ? scratch_of(args, kv_head, static_cast<int>(blockIdx.z), lane / 4 + r * 8) : nullptr;
    if (is_split && head.part == 0 && warp == 0 && t == 0)
      *reinterpret_cast<float2*>(row) = {total.max[r], total.sum[r]};
#pragma unroll
    for (int i = 0; i < D; ++i) {
      const int dim = ((head.part * kWarps + warp) * D + i) * 8 + 2 * t;
      const float low = total.out[i][r * 2], high = total.out[i][r * 2 + 1];
      if (!is_split)
        store_outputs<T>(args, rows.token[r], rows.head[r], dim, low * scale, high * scale);
      else if (dim < args.layout.v_dim)
        *reinterpret_cast<float2*>(row + 4 + dim) = {low, high};
    }
  }
}

// Grid: (tiles of rows, KV heads). One warp per row merges the chunks.
template <class T>
__global__ void __launch_bounds__(16 * kWarpSize) merge_kernel(AttentionArgs args) {
  constexpr int kAtOnce = 8;
  griddepcontrol_launch_dependents();
  const AttentionTile row_tile = args.tiles[blockIdx.x];
  if (row_tile.seq < 0) return griddepcontrol_wait();
  const int kv_head = static_cast<int>(blockIdx.y);
  const KeyRange range(args, row_tile, kv_head);
  const int group = args.num_heads / args.layout.num_kv_heads, begin = args.cu_seqlens_q[row_tile.seq],
            row = row_tile.first_row + warp_id();
  const bool is_real = row < (args.cu_seqlens_q[row_tile.seq + 1] - begin) * group;
  const int num_chunks = range.last / kWarps - range.first / kWarps + 1;
  griddepcontrol_wait();
  if (!is_real) return;

  for (int dim = lane_id() * 4; dim < args.layout.v_dim; dim += kWarpSize * 4) {
    float max = 0, sum = 0, out[4] = {};
    for (int first = 0; first < num_chunks; first += kAtOnce) {
      float2 heads[kAtOnce];
      float4 values[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const float* chunk = scratch_of(args, kv_head, first + i < num_chunks ? first + i : first, warp_id());
        heads[i] = *reinterpret_cast<const float2*>(chunk);
        values[i] = *reinterpret_cast<const float4*>(chunk + 4 + dim);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const float behind[4] = {values[i].x, values[i].y, values[i].z, values[i].w};
        const bool is_first = first + i == 0, is_there = first + i < num_chunks;
        const SoftmaxMerge merge(is_first ? heads[i].x : max, heads[i].x);
        max = is_there ? merge.max : max;
        sum = is_first ? heads[i].y : is_there ? merge(sum, heads[i].y) : sum;
#pragma unroll
        for (int d = 0; d < 4; ++d)
          out[d] = is_first ? behind[d] : is_there ? merge(out[d], behind[d]) : out[d];
      }
    }
    const int head = kv_head * group + row % group;
    const float scale = 1.0f / sum_with_sink(args, head, max, sum);
#pragma unroll
    for (int d = 0; d < 4; d += 2)
      store_outputs<T>(args, begin + row / group, head, dim + d, out[d] * scale, out[d + 1] * scale);
  }
}

// Grid: (tiles of rows / kTileWarps, parts of KV heads).
template <class T, int D, bool kIsFp8, int kParts>
__global__ void __launch_bounds__(kTileWarps<D>* kWarpSize, 1) attention_per_warp_kernel(AttentionArgs args) {
  const int item = static_cast<int>(blockIdx.x) * kTileWarps<D> + warp_id();
  if (item >= args.num_tiles) return;
  const AttentionTile row_tile = args.tiles[item];
  if (row_tile.seq < 0) return;
  const HeadPart<kParts> head;
  const int lane = lane_id();
  const KeyRange range(args, row_tile, head.kv_head);
  // Two earlier states wait in shared memory: that of the current chunk, and that of the previous chunks.
  SoftmaxState<D * 4> sums;
  float* const of_chunk = reinterpret_cast<float*>(shared_memory()) + warp_id() * 2 * kSlot<D> + lane;
  float* const of_chunks = of_chunk + kSlot<D>;
  int block = range.block_of(args, range.first);
  for (int tile = range.first; tile <= range.last; ++tile) {
    const int next_block = range.block_of(args, tile + 1);
    attend_tile<T, D, kIsFp8>(args, range.rows, block, range.context, head, tile * kTileKeys, sums);
    block = next_block;
    if (tile != range.first && tile % kWarps != 0) sums.add_behind(of_chunk);
    const bool is_end = tile == range.last || tile % kWarps == kWarps - 1;
    if (is_end && tile / kWarps != range.first / kWarps) sums.add_behind(of_chunks);
    if (tile < range.last) sums.put(is_end ? of_chunks : of_chunk);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (!range.rows.is_real[r]) continue;
    const float scale = 1.0f / sum_with_sink(args, range.rows.head[r], sums.max[r], sums.sum[r]);
#pragma unroll
    for (int i = 0; i < D * 4; ++i)
      store_outputs<T>(args, range.rows.token[r], range.rows.head[r], (head.part * D * 4 + i) * 8 + 2 * (lane % 4),
                       sums.out[i][r * 2] * scale, sums.out[i][r * 2 + 1] * scale);
  }
}

template <class T, int D, bool kIsFp8, int kParts = 1>
void launch_with(const AttentionArgs& args, cudaStream_t stream) {
  constexpr size_t kSlotBytes = sizeof(float) * kSlot<D>;
  static_assert(kSlotSets<D> * kWarps * kSlotBytes <= kMinSharedBytes &&
                2 * kTileWarps<D> * kSlotBytes <= kMinSharedBytes);
  const auto tiles = static_cast<unsigned>(args.num_tiles), heads = static_cast<unsigned>(args.layout.num_kv_heads),
             parts = kParts * heads;
  if (args.is_warp_per_tile)
    return launch(attention_per_warp_kernel<T, D, kIsFp8, kParts>,
                  dim3((tiles + kTileWarps<D> - 1) / kTileWarps<D>, parts), dim3(kTileWarps<D> * kWarpSize),
                  2 * kTileWarps<D> * kSlotBytes, stream, args);
  const bool is_split = args.num_chunks > 1;
  launch_pdl(args.uses_pdl, attention_kernel<T, D, kIsFp8, kParts>,
             dim3(tiles, parts, static_cast<unsigned>(args.num_chunks)), dim3(kWarps * kWarpSize),
             (is_split ? 1 : kSlotSets<D>)*kWarps * kSlotBytes, stream, args);
  if (is_split) launch_pdl(args.uses_pdl, merge_kernel<T>, dim3(tiles, heads), dim3(16 * kWarpSize), 0, stream, args);
}

template <class T, bool kIsFp8>
void launch_for(const AttentionArgs& args, cudaStream_t stream) {
  switch (args.layout.k_dim / 32) {
    case 1:
      return launch_with<T, 1, kIsFp8>(args, stream);
    case 2:
      return launch_with<T, 2, kIsFp8>(args, stream);
    case 3:
      return launch_with<T, 3, kIsFp8>(args, stream);
    case 4:
      return launch_with<T, 4, kIsFp8>(args, stream);
    case 6:
      return launch_with<T, 6, kIsFp8>(args, stream);
    case 8:
      return launch_with<T, 8, kIsFp8>(args, stream);
    default:
      return launch_with<T, 8, kIsFp8, 2>(args, stream);
  }
}

}  // namespace

int64_t attention_scratch_floats(int64_t num_splits, const KvLayout& layout) {
  return num_splits * 16 * scratch_width(layout.v_dim);
}

void launch_attention(const AttentionArgs& args, cudaStream_t stream) {
  CAPSTAN_CHECK(args.num_tiles > 0 && args.num_chunks >= 1 && args.num_heads % args.layout.num_kv_heads == 0 &&
                args.layout.block_size % kTileKeys == 0 && args.layout.head_dim <= kMaxHeadDim && args.soft_cap >= 0);
  CAPSTAN_CHECK(args.reach >= 0 && (args.biases == nullptr || (args.soft_cap == 0 && args.scale > 0 &&
                                                               args.layout.head_dim <= kMaxBiasedHeadDim)));
  CAPSTAN_CHECK(args.num_chunks == 1 || (args.scratch != nullptr && !args.is_warp_per_tile));
  if (args.type == FloatType::kBf16)
    args.layout.is_fp8 ? launch_for<Bf16, true>(args, stream) : launch_for<Bf16, false>(args, stream);
  else
    args.layout.is_fp8 ? launch_for<F16, true>(args, stream) : launch_for<F16, false>(args, stream);
}

}  // namespace capstan::cuda
