// Paged attention of sequences with many rows on compute capability 9.0. A block has 128 rows, (token, head) pairs of
// one KV head. Four producer warps copy tiles of 64 keys and values from the cache into a ring of stages; two
// warpgroups multiply, 64 rows each, or half of the dimensions of the same 64 rows (splits_dims). While the tensor
// cores compute the scores of a tile and weight the values of the previous one, the softmax of the scores runs. Order
// of sums: tiles start at absolute multiples of 64 and are added in order, independent of prefill chunks and of other
// rows. Within a tile the instruction defines the order. launch_attention merges chunks of keys and has other bits; a
// deterministic backend uses only launch_attention.
#include "cuda/attention_layout.h"
#include "cuda/hopper.h"
#include "cuda/kernels.h"
#include "cuda/kernels/attention.h"
#include "cuda/launch.h"
#include "native/base/check.h"

namespace capstan::cuda {
namespace {

constexpr int kGroups = 2;
constexpr int kThreads = (kCopyWarps + kGroups * 4) * kWarpSize;
// Together at most the 65,536 registers of a multiprocessor.
constexpr int kCopyRegisters = 56, kGroupRegisters = 224;
static_assert((kCopyRegisters + kGroups * kGroupRegisters) * 4 * kWarpSize <= 65536);

#if CAPSTAN_HAS_WGMMA
// Stages whose copies are in flight. NOTE: consumers release a stage once the next two are full; the producers must
// then have started this many more.
template <int D>
constexpr int kCopiesInFlight = attention_stages(D) - 3;

template <int D>
struct Ring {
  static constexpr int kStages = attention_stages(D);
  static_assert(kStages >= 3);
  unsigned char* stages;

  __device__ __forceinline__ Ring() {
    unsigned char* const shared = shared_memory();
    stages = shared + (kSwizzleAtom - shared_address(shared) % kSwizzleAtom) % kSwizzleAtom;
  }
  __device__ __forceinline__ unsigned char* keys(int slot) const { return stages + slot * attention_stage_bytes(D); }
  __device__ __forceinline__ unsigned char* values(int slot) const { return keys(slot) + key_tile_bytes(D); }
  __device__ __forceinline__ uint64_t* full(int slot) const {
    return reinterpret_cast<uint64_t*>(stages + kStages * attention_stage_bytes(D)) + slot;
  }
  __device__ __forceinline__ uint64_t* empty(int slot) const { return full(kStages + slot); }
};

// The tiles of keys [first, last] that any row of the block sees.
struct Work {
  AttentionTile tile;
  int kv_head, context;
  const int32_t* blocks;
  int first, last;
};

template <int D>
__device__ __forceinline__ void copy_keys(const char* from, unsigned char* to, int thread) {
  const Copy16 mine = key_copy(thread, D);
#pragma unroll
  for (int iteration = 0; iteration < key_iterations(D); ++iteration) {
    if (D % 2 != 0 && key_half(thread, iteration, D) >= D) continue;
    const Copy16 at = key_iteration_offset(iteration, D);
    cp_async(to + mine.to + at.to, from + mine.from + at.from);
  }
}

// `num_written` keys of the tile have values. Later slots may hold NaN, which a weight of 0 would not cancel, so they
// are zeroed.
template <int D>
__device__ __forceinline__ void copy_values(const KvLayout& layout, const char* from, unsigned char* to,
                                            int num_written, int thread) {
  const Copy16 mine = value_copy(thread, layout.block_size);
  const bool is_written = num_written >= kTileKeys;
#pragma unroll
  for (int iteration = 0; iteration < value_iterations(D); ++iteration) {
    const Copy16 at = mine + value_iteration_offset(iteration, layout.block_size);
    if (is_written && value_dim(thread, iteration) < layout.v_dim) cp_async(to + at.to, from + at.from);
  }
  if (is_written) return;
#pragma unroll 1
  for (int iteration = 0; iteration < value_iterations(D) && value_dim(thread, iteration) < layout.v_dim; ++iteration) {
    const Copy16 at = mine + value_iteration_offset(iteration, layout.block_size);
    const uint4 given = *reinterpret_cast<const uint4*>(from + at.from);
    uint32_t words[4] = {given.x, given.y, given.z, given.w};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const int key = value_key(thread, w);
      if (key >= num_written)
        words[w] = 0;
      else if (key + 1 >= num_written)
        words[w] &= 0xffffu;
    }
    *reinterpret_cast<uint4*>(to + at.to) = {words[0], words[1], words[2], words[3]};
  }
}

// Offsets of keys and values in the cache, advanced tile by tile.
struct CachePlace {
  const KvLayout& layout;
  const char* head;  // of the KV head in block 0
  const int32_t* block;
  int within;  // first key of the tile, within its block

  __device__ __forceinline__ CachePlace(const AttentionArgs& args, const Work& work)
      : layout(args.layout),
        head(static_cast<const char*>(args.cache) + args.layout.keys_of(0, work.kv_head) * 2),
        block(work.blocks + work.first * kTileKeys / args.layout.block_size),
        within(work.first * kTileKeys % args.layout.block_size) {}
  __device__ __forceinline__ void advance() {
    within += kTileKeys;
    if (within == layout.block_size) within = 0, ++block;
  }
  // Byte offsets of whole tiles in operand layout.
  __device__ __forceinline__ int keys() const { return within * layout.k_dim * 2; }
  __device__ __forceinline__ int values() const { return (layout.block_size * layout.k_dim + within * 8) * 2; }
};

template <int D>
__device__ __forceinline__ void produce(const Ring<D>& ring, const AttentionArgs& args, const Work& work) {
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t block_bytes = args.layout.block_bytes();
  RingPlace place, arrived;
  const auto arrive = [&] {
    fence_proxy_async();
    mbarrier_arrive(ring.full(arrived.slot));
    arrived.advance(Ring<D>::kStages);
  };
  CachePlace from(args, work);
  for (int tile = work.first; tile <= work.last; ++tile, from.advance()) {
    const char* const block = from.head + *from.block * block_bytes;
    mbarrier_wait(ring.empty(place.slot), place.parity ^ 1);
    copy_keys<D>(block + from.keys(), ring.keys(place.slot), thread);
    copy_values<D>(args.layout, block + from.values(), ring.values(place.slot), work.context - tile * kTileKeys,
                   thread);
    cp_async_commit_group();
    place.advance(Ring<D>::kStages);
    if (tile < work.first + kCopiesInFlight<D>) continue;
    cp_async_wait_group<kCopiesInFlight<D>>();
    arrive();
  }
  cp_async_wait_group<0>();
  while (arrived.slot != place.slot)
    arrive();
}

// Loads the queries as operands, in the dimension order of the keys.
template <int D>
__device__ __forceinline__ void load_queries(const AttentionArgs& args, const Rows& rows, uint32_t (&q)[D * 2][4]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const auto* from = reinterpret_cast<const uint4*>(args.q + int64_t{rows.token[r] * args.num_heads + rows.head[r]} *
                                                                   args.layout.k_dim) +
                       lane_id() % 4;
#pragma unroll
    for (int d = 0; d < D; ++d) {
      const uint4 word = from[d * 4];
      q[d * 2][r] = word.x, q[d * 2][r + 2] = word.y, q[d * 2 + 1][r] = word.z, q[d * 2 + 1][r + 2] = word.w;
    }
  }
}

// Running softmax of the lane's two rows, without the weighted values.
struct Softmax {
  float max[2] = {kMinusInfinity, kMinusInfinity};  // of unscaled scores, or of their tanh
  float sum[2] = {0, 0};                            // of the lane's columns only
  float factor[2];                                  // rescales the sums of earlier tiles

  // Replaces the scores by weights. `scale` includes log2(e). With a soft cap `factor_of_tanh` is not 0.
  __device__ __forceinline__ void add(float (&scores)[kTileKeys / 2], const AttentionArgs& args, const Rows& rows,
                                      int context, int first_key, float scale, float factor_of_tanh) {
    const int window = args.window;
    if (factor_of_tanh != 0) {
#pragma unroll
      for (int i = 0; i < kTileKeys / 2; ++i)
        scores[i] = tanh_approx(scores[i] * factor_of_tanh);
    }
    const bool is_seen_by_all = first_key + kTileKeys - 1 <= last_key(args, rows.first_position, context) &&
                                (window == 0 || first_key > rows.last_position - window);
    if (!is_seen_by_all) {
#pragma unroll
      for (int i = 0; i < kTileKeys / 2; ++i) {
        const int key = first_key + key_of_column(i / 4 * 8 + i % 2) + lane_id() % 4 * 8,
                  position = rows.position[i % 4 / 2];
        if (key > last_key(args, position, context) || (window > 0 && key <= position - window))
          scores[i] = kMinusInfinity;
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = max[r];
#pragma unroll
      for (int i = 2 * r; i < kTileKeys / 2; i += 4)
        top = fmaxf(top, fmaxf(scores[i], scores[i + 1]));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
      // The maximum of a row that has seen no key is -inf.
      factor[r] = max[r] == kMinusInfinity ? 0.0f : ex2_approx((max[r] - top) * scale);
      const float base = top == kMinusInfinity ? 0.0f : top * scale;
      max[r] = top;
      sum[r] *= factor[r];
#pragma unroll
      for (int i = 2 * r; i < kTileKeys / 2; i += 4)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          scores[i + c] = ex2_approx(fmaf(scores[i + c], scale, -base));
          sum[r] += scores[i + c];
        }
    }
  }
};

// Stores dimensions first_dim + 8 i + 2 t + {0, 1} of a row, t = lane % 4.
template <class T, int kDims>
__device__ __forceinline__ void store_row(const AttentionArgs& args, int64_t token, int head, int first_dim, int r,
                                          const float (&out)[kDims / 2], float factor) {
  const int head_dim = args.layout.head_dim, part_cols = static_cast<int>(args.split.part_cols),
            padded_part = static_cast<int>(args.split.padded_part);
  int dim = first_dim + lane_id() % 4 * 2;
  int left = part_cols - (head * head_dim + dim) % part_cols;  // columns left in this part of K
  uint16_t* to = args.acts + token * args.split.padded() + args.split.place(head * head_dim + dim);
  if (head_dim % 8 == 0 &&
      (part_cols == padded_part || (part_cols % 8 == 0 && left >= head_dim - dim))) {  // the head has no padding inside
#pragma unroll
    for (int i = 2 * r; i < kDims / 2; i += 4)
      if (first_dim + i / 4 * 8 < head_dim)
        *reinterpret_cast<uint32_t*>(to + i / 4 * 8) = to_bits_pair<T>(out[i] * factor, out[i + 1] * factor);
    return;
  }
#pragma unroll
  for (int i = 2 * r; i < kDims / 2; i += 4, dim += 8, to += 8, left -= 8) {
    for (; left <= 0; left += part_cols)
      to += padded_part - part_cols;
    const uint32_t pair = to_bits_pair<T>(out[i] * factor, out[i + 1] * factor);
    if (dim + 1 < head_dim && left > 1 && reinterpret_cast<uintptr_t>(to) % 4 == 0) {
      *reinterpret_cast<uint32_t*>(to) = pair;
      continue;
    }
    if (dim < head_dim) *to = static_cast<uint16_t>(pair);
    if (dim + 1 < head_dim) to[left > 1 ? 1 : 1 + padded_part - part_cols] = static_cast<uint16_t>(pair >> 16);
  }
}

// A consumer warpgroup.
template <class T, int D>
__device__ __forceinline__ void consume(const Ring<D>& ring, const AttentionArgs& args, const Work& work, int group) {
  constexpr int kDims = splits_dims(D) ? D * 16 : D * 32;
  const int lane = lane_id(), first_dim = splits_dims(D) ? group * kDims : 0,
            first_row = splits_dims(D) ? 0 : group * kGroupRows;
  const Rows rows =
      find_rows<kGroupRows>(args, {work.tile.seq, work.tile.first_row + first_row}, work.kv_head, warp_id() % 4);
  const float scale = factor_of_scores(args), to_tanh = args.soft_cap > 0 ? factor_of_tanh(args) : 0.0f;
  uint32_t q[D * 2][4], weights[4][4];
  float scores[kTileKeys / 2], out[kDims / 2];
  Softmax softmax;
  load_queries<D>(args, rows, q);

  const auto multiply_keys = [&](int slot) {
#pragma unroll
    for (int step = 0; step < D * 2; ++step)
      wgmma_m64nNk16<T, kTileKeys>(
          scores, q[step],
          next_depth(swizzled_operand(shared_address(ring.keys(slot) + step / 4 * kPanelBytes)), step % 4));
    wgmma_commit_group();
  };
  const auto multiply_values = [&](int slot) {
    const uint64_t values = swizzled_operand(shared_address(ring.values(slot)) + first_dim * kSwizzledRow);
#pragma unroll
    for (int step = 0; step < 4; ++step)
      wgmma_m64nNk16<T, kDims>(out, weights[step], next_depth(values, step));
    wgmma_commit_group();
  };
  const auto clear_scores = [&] {
#pragma unroll
    for (int i = 0; i < kTileKeys / 2; ++i)
      scores[i] = 0;
    warpgroup_fence_operand(scores);
  };
  const auto pack_weights = [&] {
#pragma unroll
    for (int i = 0; i < kTileKeys / 4; ++i)
      weights[i / 4][i % 4] = to_bits_pair<T>(scores[i * 2], scores[i * 2 + 1]);
  };

  RingPlace place, awaited;
  const auto await_stage = [&] {
    mbarrier_wait(ring.full(awaited.slot), awaited.parity);
    awaited.advance(Ring<D>::kStages);
  };
  await_stage();
  clear_scores();
  wgmma_fence();
  multiply_keys(place.slot);
#pragma unroll
  for (int i = 0; i < kDims / 2; ++i)
    out[i] = 0;
  wgmma_wait_group<0>();
  warpgroup_fence_operand(scores);
  softmax.add(scores, args, rows, work.context, work.first * kTileKeys, scale, to_tanh);
  pack_weights();
  // The last tile of this warpgroup's rows. The other warpgroup may have one more tile, whose stage this one does not
  // wait for.
  const int last = last_key(args, rows.last_position, work.context) / kTileKeys;
  if (work.first < last) await_stage();
  for (int tile = work.first + 1; tile <= last; ++tile) {
    RingPlace next = place;
    next.advance(Ring<D>::kStages);
    clear_scores();
    wgmma_fence();
    multiply_keys(next.slot);
    multiply_values(place.slot);
    wgmma_wait_group<1>();
    warpgroup_fence_operand(scores);
    softmax.add(scores, args, rows, work.context, tile * kTileKeys, scale, to_tanh);
    // NOTE: without this fence the compiler waits for the products first and computes the weights after them, instead
    // of overlapping both.
    warpgroup_fence_operand(scores);
    if (tile < last) await_stage();
    wgmma_wait_group<0>();
    warpgroup_fence_operand(out);
    if (lane == 0) mbarrier_arrive(ring.empty(place.slot));
    pack_weights();
#pragma unroll
    for (int i = 0; i < kDims / 2; ++i)
      out[i] *= softmax.factor[i % 4 / 2];
    place = next;
  }
  wgmma_fence();
  multiply_values(place.slot);
  wgmma_wait_group<0>();
  warpgroup_fence_operand(out);
  if (lane == 0) mbarrier_arrive(ring.empty(place.slot));

#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = softmax.sum[r];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    sum = sum_with_sink(args, rows.head[r], softmax.max[r] * scale, sum);
    if (rows.is_real[r]) store_row<T, kDims>(args, rows.token[r], rows.head[r], first_dim, r, out, 1.0f / sum);
  }
}
#endif

// Grid: (KV heads, tiles of wide_rows).
template <class T, int D>
__global__ void __launch_bounds__(kThreads, 1) attention_wgmma_kernel(const __grid_constant__ AttentionArgs args) {
#if CAPSTAN_HAS_WGMMA
  const AttentionTile tile = args.tiles[blockIdx.y];
  const int kv_head = static_cast<int>(blockIdx.x), context = args.context_lens[tile.seq];
  const Rows rows = find_rows<wide_rows(D)>(args, tile, kv_head, 0);
  const int first_key =
      args.window > 0 && rows.first_position >= args.window ? rows.first_position - args.window + 1 : 0;
  const Work work{tile,
                  kv_head,
                  context,
                  args.block_tables + int64_t{tile.seq} * args.max_blocks_per_seq,
                  first_key / kTileKeys,
                  last_key(args, rows.last_position, context) / kTileKeys};
  const int rows_left =
      (args.cu_seqlens_q[tile.seq + 1] - args.cu_seqlens_q[tile.seq]) * (args.num_heads / args.layout.num_kv_heads) -
      tile.first_row;
  const int num_groups = splits_dims(D) || rows_left > kGroupRows ? kGroups : 1;
  const Ring<D> ring;
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < Ring<D>::kStages; ++slot)
      mbarrier_init(ring.full(slot), kCopyWarps * kWarpSize), mbarrier_init(ring.empty(slot), num_groups * 4);
    fence_mbarrier_init();
  }
  __syncthreads();
  const int group = warp_id() / 4 - 1;
  if (group < 0) {
    setmaxnreg_dec<kCopyRegisters>();
    produce<D>(ring, args, work);
  } else {
    setmaxnreg_inc<kGroupRegisters>();
    if (group < num_groups) consume<T, D>(ring, args, work, group);
  }
#else
  __trap();
#endif
}

template <class T, int D>
void launch_with(const AttentionArgs& args, cudaStream_t stream) {
  launch(attention_wgmma_kernel<T, D>,
         dim3(static_cast<unsigned>(args.layout.num_kv_heads), static_cast<unsigned>(args.num_tiles)), dim3(kThreads),
         attention_shared_bytes(D), stream, args);
}

template <class T>
void launch_for(const AttentionArgs& args, cudaStream_t stream) {
  switch (args.layout.k_dim / 32) {
    case 1:
      return launch_with<T, 1>(args, stream);
    case 2:
      return launch_with<T, 2>(args, stream);
    case 3:
      return launch_with<T, 3>(args, stream);
    case 4:
      return launch_with<T, 4>(args, stream);
    case 6:
      return launch_with<T, 6>(args, stream);
    default:
      return launch_with<T, 8>(args, stream);
  }
}

}  // namespace

bool supports_attention_wgmma() {
  return has_sm90a_code(attention_wgmma_kernel<Bf16, 4>);
}

void launch_attention_wgmma(const AttentionArgs& args, cudaStream_t stream) {
  CAPSTAN_CHECK(args.num_tiles > 0 && args.num_tiles < 65536 && args.num_heads % args.layout.num_kv_heads == 0 &&
                args.layout.block_size % kTileKeys == 0);
  CAPSTAN_CHECK(!args.layout.is_fp8 && args.scale > 0 && args.soft_cap >= 0 && args.is_row_major &&
                args.layout.head_dim <= kMaxWideHeadDim);
  CAPSTAN_CHECK(args.reach >= 0 && args.biases == nullptr);
  check(connect_spin_report(), "the report of waits");
  args.type == FloatType::kBf16 ? launch_for<Bf16>(args, stream) : launch_for<F16>(args, stream);
}

}  // namespace capstan::cuda
