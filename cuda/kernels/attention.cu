// Paged attention of a mixed batch. A warp has 16 rows, (token, head) pairs of one KV head, and 64 keys at a time, a
// tile, whose keys and values it reads as operands straight into registers, 16 loads of 16 bytes a lane under way at a
// time.
//
// Order of sums: each tile, at absolute multiples of 64, for itself; the tiles of a chunk, at absolute multiples of
// 256, one after the other; the chunks likewise. So a row's bits are the same whichever kernel has it. There are two:
// one for few rows, whose blocks have a chunk of 16 rows, a tile a warp, and where these are too few for the device one
// chunk alone, which a third kernel adds up with the others; and one for many, whose warps have 16 rows each.
#include <type_traits>

#include "cuda/attention_layout.h"
#include "cuda/fp8.h"
#include "cuda/kernels.h"
#include "cuda/kernels/attention.h"
#include "cuda/launch.h"
#include "native/base/check.h"

namespace capstan::cuda {
namespace {

constexpr int kWarps = kChunk / kTileKeys;

// ---- sums
// -------------------------------------------------------------------------------------------------------------------------------------

// How sums of other keys are added behind those before: both are first brought to the larger maximum. Written out, so
// that no compiler adds otherwise elsewhere.
struct Join {
  float max, before, behind;

  __device__ __forceinline__ Join(float max_before, float max_behind)
      : max(fmaxf(max_before, max_behind)), before(factor(max_before, max)), behind(factor(max_behind, max)) {}
  __device__ __forceinline__ float operator()(float sum_before, float sum_behind) const {
    return fmaf(sum_before, before, sum_behind * behind);
  }

  // A row that has seen none of the keys has no maximum.
  __device__ static __forceinline__ float factor(float from, float to) {
    return from == kMinusInfinity ? 0.0f : exp2_near(from - to);
  }
};

// Softmax of the lane's two rows (g and g + 8) over some keys, and sums of the values: of kDims tiles of 8 dimensions.
template <int kDims>
struct Sums {
  float max[2], sum[2];
  float out[kDims][4];

  // In shared memory a lane's floats lie kWarpSize apart.
  __device__ __forceinline__ void put(float* to) const {
#pragma unroll
    for (int r = 0; r < 2; ++r)
      to[r * kWarpSize] = max[r], to[(2 + r) * kWarpSize] = sum[r];
#pragma unroll
    for (int i = 0; i < kDims; ++i)
#pragma unroll
      for (int r = 0; r < 4; ++r)
        to[(4 + i * 4 + r) * kWarpSize] = out[i][r];
  }
  // Of what was put there, `kDims` tiles of dimensions from `first` on.
  __device__ __forceinline__ void get(const float* from, int first) {
#pragma unroll
    for (int r = 0; r < 2; ++r)
      max[r] = from[r * kWarpSize], sum[r] = from[(2 + r) * kWarpSize];
#pragma unroll
    for (int i = 0; i < kDims; ++i)
#pragma unroll
      for (int r = 0; r < 4; ++r)
        out[i][r] = from[(4 + (first + i) * 4 + r) * kWarpSize];
  }
  // *this = before + what is behind it.
  __device__ __forceinline__ void add(const Sums& before, const Sums& behind) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const Join join(before.max[r], behind.max[r]);
      max[r] = join.max;
      sum[r] = join(before.sum[r], behind.sum[r]);
#pragma unroll
      for (int i = 0; i < kDims; ++i)
#pragma unroll
        for (int c = 0; c < 2; ++c)
          out[i][r * 2 + c] = join(before.out[i][r * 2 + c], behind.out[i][r * 2 + c]);
    }
  }
  // The same where those before were put: there is no room for both in registers.
  __device__ __forceinline__ void add_behind(const float* before) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const Join join(before[r * kWarpSize], max[r]);
      max[r] = join.max;
      sum[r] = join(before[(2 + r) * kWarpSize], sum[r]);
#pragma unroll
      for (int i = 0; i < kDims; ++i)
#pragma unroll
        for (int c = 0; c < 2; ++c)
          out[i][r * 2 + c] = join(before[(4 + i * 4 + r * 2 + c) * kWarpSize], out[i][r * 2 + c]);
    }
  }
};

// Floats that a warp's sums of all dimensions take in shared memory.
template <int D>
constexpr int kSlot = (4 + D * 16) * kWarpSize;

// ---- a tile
// -----------------------------------------------------------------------------------------------------------------------------------

// D = head_dim / 32, rounded up.
template <class T, int D>
__device__ __forceinline__ void load_queries(const AttentionArgs& args, const Rows& rows, uint32_t (&q)[D * 2][4]) {
  const int t = lane_id() % 4;
#pragma unroll
  for (int step = 0; step < D * 2; ++step)
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const uint16_t* from = args.q +
                             int64_t{rows.token[r % 2] * args.num_heads + rows.head[r % 2]} * args.layout.k_dim +
                             step * 16 + r / 2 * 8 + 2 * t;
      q[step][r] = *reinterpret_cast<const uint32_t*>(from);
    }
}

// Eight operands of a lane as the cache has them.
template <bool kIsFp8>
using Word = std::conditional_t<kIsFp8, uint2, uint4>;

// Those in 8 bits are multiplied with the scales, a pair for each two.
template <class T>
__device__ __forceinline__ uint4 operands_of(const uint4& word, const uint32_t (&)[4]) {
  return word;
}
template <class T>
__device__ __forceinline__ uint4 operands_of(const uint2& bytes, const uint32_t (&scales)[4]) {
  return {expand_fp8<T>(bytes.x, 0, scales[0]), expand_fp8<T>(bytes.x, 1, scales[1]),
          expand_fp8<T>(bytes.y, 0, scales[2]), expand_fp8<T>(bytes.y, 1, scales[3])};
}

// Keys [tile, tile + 64) of the sequence, which lie in `block`. NOTE: nothing may branch between loads, or each is
// waited for by itself.
template <class T, int D, bool kIsFp8>
__device__ __forceinline__ void attend_tile(const AttentionArgs& args, const Rows& rows, int block, int context,
                                            int kv_head, int tile, Sums<D * 4>& sums) {
  using Element = std::conditional_t<kIsFp8, uint8_t, uint16_t>;
  constexpr int kKeysAtOnce = D <= 2 ? 8 : 4;  // tiles of 8
  const KvLayout& layout = args.layout;
  const auto* cache = static_cast<const Element*>(args.cache);
  const int lane = lane_id(), t = lane % 4, offset = tile % layout.block_size;

  const auto* keys =
      reinterpret_cast<const Word<kIsFp8>*>(cache + layout.keys_of(block, kv_head)) + offset / 8 * D * kWarpSize + lane;
  // Loaded anew each time: there is no room to keep them.
  uint32_t q[D * 2][4];
  load_queries<T, D>(args, rows, q);
  float scores[8][4] = {};
#pragma unroll
  for (int first = 0; first < 8; first += kKeysAtOnce) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
    if (first > 0) __syncwarp();  // or ptxas has so many loads under way that it spills
#endif
    Word<kIsFp8> words[kKeysAtOnce][D];
    uint8_t exponents[kKeysAtOnce] = {};
#pragma unroll
    for (int j = 0; j < kKeysAtOnce; ++j) {
#pragma unroll
      for (int d = 0; d < D; ++d)
        words[j][d] = keys[((first + j) * D + d) * kWarpSize];
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

  // Tiles of dimensions behind the last are that one again, and nobody stores them.
  const auto* values =
      reinterpret_cast<const Word<kIsFp8>*>(cache + layout.values_of(block, kv_head)) + offset / 32 * kWarpSize + lane;
  const int last_dims = layout.v_dim / 8 - 1, next = layout.block_size / 32 * kWarpSize;
  Word<kIsFp8> words[D * 4];
  const auto load_values = [&](int half) {
#pragma unroll
    for (int i = 0; i < D * 4; ++i)
      words[i] = values[half * kWarpSize + (i < last_dims ? i : last_dims) * next];
  };
  load_values(0);

  const float scale = args.scale * kLog2E;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float top = kMinusInfinity;
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int key = tile + j * 8 + 2 * t + c, position = rows.position[r];
        const bool is_seen = key <= position && (args.window == 0 || key > position - args.window);
        float& score = scores[j][r * 2 + c];
        score = is_seen ? score * scale : kMinusInfinity;
        top = fmaxf(top, score);
      }
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    // A row that sees none of the keys has no maximum.
    const float base = top == kMinusInfinity ? 0.0f : top;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int c = 0; c < 2; ++c)
        sum += scores[j][r * 2 + c] = exp2_near(scores[j][r * 2 + c] - base);
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
    // Slots that nothing was written to hold anything, NaN too.
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
    if (half == 1) load_values(1);
#pragma unroll
    for (int i = 0; i < D * 4; ++i) {
      const uint4 b = operands_of<T>(words[i], scales);
      const uint32_t low[2] = {b.x & written[0], b.y & written[1]}, high[2] = {b.z & written[2], b.w & written[3]};
      mma_m16n8k16<T>(sums.out[i], weights[0], low);
      mma_m16n8k16<T>(sums.out[i], weights[1], high);
    }
  }
}

// ---- the kernels
// ------------------------------------------------------------------------------------------------------------------------------

// What 16 rows see, as tiles of keys.
struct Seen {
  Rows rows;
  int context, first, last;
  const int32_t* blocks;

  __device__ __forceinline__ Seen(const AttentionArgs& args, const AttentionTile& tile, int kv_head)
      : rows(find_rows<16>(args, tile, kv_head, 0)) {
    context = args.context_lens[tile.seq];
    first =
        args.window > 0 && rows.first_position >= args.window ? (rows.first_position - args.window + 1) / kTileKeys : 0;
    last = rows.last_position / kTileKeys;
    blocks = args.block_tables + int64_t{tile.seq} * args.max_blocks_per_seq;
  }
  __device__ __forceinline__ bool has(int tile) const { return tile >= first && tile <= last; }
  // Of a tile that may not be seen.
  __device__ __forceinline__ int block_of(const AttentionArgs& args, int tile) const {
    return has(tile) ? blocks[tile * kTileKeys / args.layout.block_size] : 0;
  }
};

// Floats of a row in the scratch: maximum, sum, two that are nothing, and its values.
CAPSTAN_BOTH constexpr int scratch_width(int v_dim) {
  return 4 + v_dim;
}
// Of the block's rows.
__device__ __forceinline__ float* scratch_of(const AttentionArgs& args, int kv_head, int chunk, int row) {
  return args.scratch +
         (((int64_t{blockIdx.x} * args.layout.num_kv_heads + kv_head) * args.num_chunks + chunk) * 16 + row) *
             scratch_width(args.layout.v_dim);
}

// (tiles of rows, KV heads, chunks where they are cut). Warp w has tile w of each chunk, and a quarter of the
// dimensions of their sums.
template <class T, int D, bool kIsFp8>
__global__ void __launch_bounds__(kWarps* kWarpSize, 1) attention_kernel(AttentionArgs args) {
  let_next_begin();
  const AttentionTile row_tile = args.tiles[blockIdx.x];
  if (row_tile.seq < 0) return wait_for_previous();
  const bool is_cut = args.num_chunks > 1;
  const int kv_head = static_cast<int>(blockIdx.y), lane = lane_id(), t = lane % 4, warp = warp_id();
  const Seen seen(args, row_tile, kv_head);
  const int first_chunk = seen.first / kWarps + static_cast<int>(blockIdx.z),
            last_chunk = is_cut ? first_chunk : seen.last / kWarps;
  if (first_chunk * kWarps > seen.last) return wait_for_previous();
  int block = seen.block_of(args, first_chunk * kWarps + warp);
  wait_for_previous();

  Sums<D> total;
  float* all = reinterpret_cast<float*>(shared_memory()) + lane;
  for (int chunk = first_chunk; chunk <= last_chunk; ++chunk) {
    const int tile = chunk * kWarps + warp;
    const int next_block = seen.block_of(args, tile + kWarps);
    if (seen.has(tile)) {
      Sums<D * 4> sums;
      attend_tile<T, D, kIsFp8>(args, seen.rows, block, seen.context, kv_head, tile * kTileKeys, sums);
      sums.put(all + warp * kSlot<D>);
    }
    block = next_block;
    __syncthreads();
    const int first = seen.first > chunk * kWarps ? seen.first % kWarps : 0,
              last = seen.last < (chunk + 1) * kWarps ? seen.last % kWarps : kWarps - 1;
    Sums<D> of_chunk, behind;
    of_chunk.get(all + first * kSlot<D>, warp * D);
    for (int w = first + 1; w <= last; ++w) {
      behind.get(all + w * kSlot<D>, warp * D);
      of_chunk.add(of_chunk, behind);
    }
    if (chunk == first_chunk)
      total = of_chunk;
    else
      total.add(total, of_chunk);
    // Two turns of slots: nobody writes where the turn before is still read.
    all += (chunk - first_chunk) % 2 == 0 ? kWarps * kSlot<D> : -kWarps * kSlot<D>;
  }

  // Found again: there was no room to keep them.
  const Rows rows = find_rows<16>(args, row_tile, kv_head, 0);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (!rows.is_real[r]) continue;
    const float scale = 1.0f / total.sum[r];
    float* const row = is_cut ? scratch_of(args, kv_head, static_cast<int>(blockIdx.z), lane / 4 + r * 8) : nullptr;
    if (is_cut && warp == 0 && t == 0) *reinterpret_cast<float2*>(row) = {total.max[r], total.sum[r]};
#pragma unroll
    for (int i = 0; i < D; ++i) {
      const int dim = (warp * D + i) * 8 + 2 * t;
      const float low = total.out[i][r * 2], high = total.out[i][r * 2 + 1];
      if (!is_cut)
        store_outputs<T>(args, rows.token[r], rows.head[r], dim, low * scale, high * scale);
      else if (dim < args.layout.v_dim)
        *reinterpret_cast<float2*>(row + 4 + dim) = {low, high};
    }
  }
}

// (tiles of rows, KV heads): a warp per row adds the chunks up.
template <class T>
__global__ void __launch_bounds__(16 * kWarpSize) merge_kernel(AttentionArgs args) {
  constexpr int kAtOnce = 8;
  let_next_begin();
  const AttentionTile row_tile = args.tiles[blockIdx.x];
  if (row_tile.seq < 0) return wait_for_previous();
  const int kv_head = static_cast<int>(blockIdx.y), dim = lane_id() * 4;
  const Seen seen(args, row_tile, kv_head);
  const int group = args.num_heads / args.layout.num_kv_heads, begin = args.cu_seqlens_q[row_tile.seq],
            row = row_tile.first_row + warp_id();
  const bool is_real = row < (args.cu_seqlens_q[row_tile.seq + 1] - begin) * group;
  const int num_chunks = seen.last / kWarps - seen.first / kWarps + 1;
  wait_for_previous();
  if (!is_real || dim >= args.layout.v_dim) return;

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
      const Join join(is_first ? heads[i].x : max, heads[i].x);
      max = is_there ? join.max : max;
      sum = is_first ? heads[i].y : is_there ? join(sum, heads[i].y) : sum;
#pragma unroll
      for (int d = 0; d < 4; ++d)
        out[d] = is_first ? behind[d] : is_there ? join(out[d], behind[d]) : out[d];
    }
  }
  const float scale = 1.0f / sum;
#pragma unroll
  for (int d = 0; d < 4; d += 2)
    store_outputs<T>(args, begin + row / group, kv_head * group + row % group, dim + d, out[d] * scale,
                     out[d + 1] * scale);
}

// (tiles of rows / kWarps, KV heads)
template <class T, int D, bool kIsFp8>
__global__ void __launch_bounds__(kWarps* kWarpSize, 1) attention_of_many_kernel(AttentionArgs args) {
  const int item = static_cast<int>(blockIdx.x) * kWarps + warp_id();
  if (item >= args.num_tiles) return;
  const AttentionTile row_tile = args.tiles[item];
  if (row_tile.seq < 0) return;
  const int kv_head = static_cast<int>(blockIdx.y), lane = lane_id();
  const Seen seen(args, row_tile, kv_head);
  // The sums before a tile wait in shared memory: those of its chunk, and those of the chunks before.
  Sums<D * 4> sums;
  float* const of_chunk = reinterpret_cast<float*>(shared_memory()) + warp_id() * 2 * kSlot<D> + lane;
  float* const of_chunks = of_chunk + kSlot<D>;
  int block = seen.block_of(args, seen.first);
  for (int tile = seen.first; tile <= seen.last; ++tile) {
    const int next_block = seen.block_of(args, tile + 1);
    attend_tile<T, D, kIsFp8>(args, seen.rows, block, seen.context, kv_head, tile * kTileKeys, sums);
    block = next_block;
    if (tile != seen.first && tile % kWarps != 0) sums.add_behind(of_chunk);
    const bool is_end = tile == seen.last || tile % kWarps == kWarps - 1;
    if (is_end && tile / kWarps != seen.first / kWarps) sums.add_behind(of_chunks);
    if (tile < seen.last) sums.put(is_end ? of_chunks : of_chunk);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (!seen.rows.is_real[r]) continue;
    const float scale = 1.0f / sums.sum[r];
#pragma unroll
    for (int i = 0; i < D * 4; ++i)
      store_outputs<T>(args, seen.rows.token[r], seen.rows.head[r], i * 8 + 2 * (lane % 4), sums.out[i][r * 2] * scale,
                       sums.out[i][r * 2 + 1] * scale);
  }
}

template <class T, int D, bool kIsFp8>
void launch_with(const AttentionArgs& args, cudaStream_t stream) {
  constexpr size_t kSlotBytes = sizeof(float) * kSlot<D>;
  static_assert(2 * kWarps * kSlotBytes <= kLeastSharedBytes);
  const auto tiles = static_cast<unsigned>(args.num_tiles), heads = static_cast<unsigned>(args.layout.num_kv_heads);
  if (args.is_many)
    return launch(attention_of_many_kernel<T, D, kIsFp8>, dim3((tiles + kWarps - 1) / kWarps, heads),
                  dim3(kWarps * kWarpSize), 2 * kWarps * kSlotBytes, stream, args);
  const bool is_cut = args.num_chunks > 1;
  launch_early(args.begins_early, attention_kernel<T, D, kIsFp8>,
               dim3(tiles, heads, static_cast<unsigned>(args.num_chunks)), dim3(kWarps * kWarpSize),
               (is_cut ? 1 : 2) * kWarps * kSlotBytes, stream, args);
  if (is_cut)
    launch_early(args.begins_early, merge_kernel<T>, dim3(tiles, heads), dim3(16 * kWarpSize), 0, stream, args);
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
    default:
      throw Error(ErrorCode::kUnsupportedModel,
                  "CUDA: head size: expected at most 128, got " + std::to_string(args.layout.head_dim));
  }
}

}  // namespace

int64_t attention_scratch_floats(int64_t num_cuts, const KvLayout& layout) {
  return num_cuts * 16 * scratch_width(layout.v_dim);
}

void launch_attention(const AttentionArgs& args, cudaStream_t stream) {
  CAPSTAN_CHECK(args.num_tiles > 0 && args.num_chunks >= 1 && args.num_heads % args.layout.num_kv_heads == 0 &&
                args.layout.block_size % kTileKeys == 0);
  CAPSTAN_CHECK(args.num_chunks == 1 || (args.scratch != nullptr && !args.is_many));
  if (args.type == FloatType::kBf16)
    args.layout.is_fp8 ? launch_for<Bf16, true>(args, stream) : launch_for<Bf16, false>(args, stream);
  else
    args.layout.is_fp8 ? launch_for<F16, true>(args, stream) : launch_for<F16, false>(args, stream);
}

}  // namespace capstan::cuda
