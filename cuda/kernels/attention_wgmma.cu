// Paged attention of many rows of a sequence on compute capability 9.0. A block has 128 rows, (token, head) pairs of
// one KV head. Four warps gather tiles of 64 keys and their values from the cache into a ring of stages; two groups of
// four warps multiply, 64 rows each. The scores of a tile are computed while those of the one before weigh its values,
// and become weights meanwhile.
//
// Order of sums: tiles at absolute multiples of 64, one after the other, whatever the chunk of the prompt and the rows
// beside; in a tile those of the instruction. launch_attention adds up by chunks of keys instead, so that its bits are
// others: a deterministic backend uses that one alone.
#include "cuda/attention_layout.h"
#include "cuda/hopper.h"
#include "cuda/kernels.h"
#include "cuda/kernels/attention.h"
#include "cuda/launch.h"
#include "native/base/check.h"

namespace capstan::cuda {
namespace {

constexpr int kGroups = kWideRows / kGroupRows;
constexpr int kThreads = (kCopyWarps + kGroups * 4) * kWarpSize;
// Together no more than the 65,536 of a multiprocessor.
constexpr int kCopyRegisters = 56, kGroupRegisters = 224;
static_assert((kCopyRegisters + kGroups * kGroupRegisters) * 4 * kWarpSize <= 65536);

#if CAPSTAN_HAS_WGMMA
// Stages whose copies are under way. NOTE: a stage is given back when the next two are there, for which as many more as
// these must have been begun.
constexpr int kCopiesAhead = 2;
static_assert(kCopiesAhead + 3 <= kAttentionStages);

template <int D>
struct Ring {
  unsigned char* stages;

  __device__ __forceinline__ Ring() {
    unsigned char* const shared = shared_memory();
    stages = shared + (kSwizzleAtom - shared_address(shared) % kSwizzleAtom) % kSwizzleAtom;
  }
  __device__ __forceinline__ unsigned char* keys(int slot) const { return stages + slot * attention_stage_bytes(D); }
  __device__ __forceinline__ unsigned char* values(int slot) const { return keys(slot) + key_tile_bytes(D); }
  __device__ __forceinline__ uint64_t* full(int slot) const {
    return reinterpret_cast<uint64_t*>(stages + kAttentionStages * attention_stage_bytes(D)) + slot;
  }
  __device__ __forceinline__ uint64_t* empty(int slot) const { return full(kAttentionStages + slot); }
};

// What a block goes over: tiles of keys [first, last] that any of its rows sees.
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
  for (int turn = 0; turn < key_turns(D); ++turn) {
    if (D % 2 != 0 && key_half(thread, turn, D) >= D) continue;
    const Copy16 at = key_turn(turn, D);
    copy_later(to + mine.to + at.to, from + mine.from + at.from);
  }
}

// `num_written`: keys of the tile whose values are there; beyond them the cache may hold anything, NaN too, and no
// weight of 0 makes up for that.
template <int D>
__device__ __forceinline__ void copy_values(const KvLayout& layout, const char* from, unsigned char* to,
                                            int num_written, int thread) {
  const Copy16 mine = value_copy(thread, layout.block_size);
  const bool is_written = num_written >= kTileKeys;
#pragma unroll
  for (int turn = 0; turn < value_turns(D); ++turn) {
    const Copy16 at = mine + value_turn(turn, layout.block_size);
    if (is_written && value_dim(thread, turn) < layout.v_dim) copy_later(to + at.to, from + at.from);
  }
  if (is_written) return;
#pragma unroll 1
  for (int turn = 0; turn < value_turns(D) && value_dim(thread, turn) < layout.v_dim; ++turn) {
    const Copy16 at = mine + value_turn(turn, layout.block_size);
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

// Where the keys of a tile and their values begin in the cache, tile by tile.
struct CachePlace {
  const KvLayout& layout;
  const char* head;  // of block 0
  const int32_t* block;
  int within;  // the first key, in its block

  __device__ __forceinline__ CachePlace(const AttentionArgs& args, const Work& work)
      : layout(args.layout),
        head(static_cast<const char*>(args.cache) + args.layout.keys_of(0, work.kv_head) * 2),
        block(work.blocks + work.first * kTileKeys / args.layout.block_size),
        within(work.first * kTileKeys % args.layout.block_size) {}
  __device__ __forceinline__ void advance() {
    within += kTileKeys;
    if (within == layout.block_size) within = 0, ++block;
  }
  // As operand_index has them for whole tiles.
  __device__ __forceinline__ int keys() const { return within * layout.k_dim * 2; }
  __device__ __forceinline__ int values() const { return (layout.block_size * layout.k_dim + within * 8) * 2; }
};

template <int D>
__device__ __forceinline__ void produce(const Ring<D>& ring, const AttentionArgs& args, const Work& work) {
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t block_bytes = args.layout.block_bytes();
  RingPlace place, arrived;
  const auto arrive = [&] {
    show_to_products();
    mbarrier_arrive(ring.full(arrived.slot));
    arrived.advance(kAttentionStages);
  };
  CachePlace from(args, work);
  for (int tile = work.first; tile <= work.last; ++tile, from.advance()) {
    const char* const block = from.head + *from.block * block_bytes;
    mbarrier_wait(ring.empty(place.slot), place.parity ^ 1);
    copy_keys<D>(block + from.keys(), ring.keys(place.slot), thread);
    copy_values<D>(args.layout, block + from.values(), ring.values(place.slot), work.context - tile * kTileKeys,
                   thread);
    commit_copies();
    place.advance(kAttentionStages);
    if (tile < work.first + kCopiesAhead) continue;
    wait_for_copies<kCopiesAhead>();
    arrive();
  }
  wait_for_copies<0>();
  while (arrived.slot != place.slot)
    arrive();
}

// The queries as operands, their dimensions mixed as those of keys.
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

// Softmax so far of the lane's two rows, but for the sums of values.
struct Softmax {
  float max[2] = {kMinusInfinity, kMinusInfinity};  // of scores without their scale
  float sum[2] = {0, 0};                            // of the lane's columns
  float factor[2];                                  // of what was summed before the last tile

  // Scores become weights; scale contains log2(e).
  __device__ __forceinline__ void add(float (&scores)[kTileKeys / 2], const Rows& rows, int first_key, int window,
                                      float scale) {
    const bool is_seen_by_all =
        first_key + kTileKeys - 1 <= rows.first_position && (window == 0 || first_key > rows.last_position - window);
    if (!is_seen_by_all) {
#pragma unroll
      for (int i = 0; i < kTileKeys / 2; ++i) {
        const int key = first_key + key_of_column(i / 4 * 8 + i % 2) + lane_id() % 4 * 8,
                  position = rows.position[i % 4 / 2];
        if (key > position || (window > 0 && key <= position - window)) scores[i] = kMinusInfinity;
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
      // A row that has seen no key so far has no maximum.
      factor[r] = max[r] == kMinusInfinity ? 0.0f : exp2_near((max[r] - top) * scale);
      const float base = top == kMinusInfinity ? 0.0f : top * scale;
      max[r] = top;
      sum[r] *= factor[r];
#pragma unroll
      for (int i = 2 * r; i < kTileKeys / 2; i += 4)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          scores[i + c] = exp2_near(fmaf(scores[i + c], scale, -base));
          sum[r] += scores[i + c];
        }
    }
  }
};

// Dimensions 8 i + 2 t + {0, 1} of a row, t = lane % 4.
template <class T, int D>
__device__ __forceinline__ void store_row(const AttentionArgs& args, int64_t token, int head, int r,
                                          const float (&out)[D * 16], float factor) {
  const int head_dim = args.layout.head_dim, part_cols = static_cast<int>(args.split.part_cols),
            padded_part = static_cast<int>(args.split.padded_part);
  int dim = lane_id() % 4 * 2;
  int left = part_cols - (head * head_dim + dim) % part_cols;  // of the part
  uint16_t* to = args.acts + token * args.split.padded() + args.split.place(head * head_dim + dim);
  if (head_dim % 8 == 0 &&
      (part_cols == padded_part || (part_cols % 8 == 0 && left >= head_dim - dim))) {  // without a gap
#pragma unroll
    for (int i = 2 * r; i < D * 16; i += 4)
      if (i / 4 * 8 < head_dim)
        *reinterpret_cast<uint32_t*>(to + i / 4 * 8) = to_bits_pair<T>(out[i] * factor, out[i + 1] * factor);
    return;
  }
#pragma unroll
  for (int i = 2 * r; i < D * 16; i += 4, dim += 8, to += 8, left -= 8) {
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

// One of the groups that multiply.
template <class T, int D>
__device__ __forceinline__ void consume(const Ring<D>& ring, const AttentionArgs& args, const Work& work, int group) {
  const int lane = lane_id();
  const Rows rows = find_rows<kGroupRows>(args, {work.tile.seq, work.tile.first_row + group * kGroupRows}, work.kv_head,
                                          warp_id() % 4);
  const float scale = args.scale * kLog2E;
  uint32_t q[D * 2][4], weights[4][4];
  float scores[kTileKeys / 2], out[D * 16];
  Softmax softmax;
  load_queries<D>(args, rows, q);

  const auto multiply_keys = [&](int slot) {
#pragma unroll
    for (int step = 0; step < D * 2; ++step)
      wgmma_m64k16<T, kTileKeys>(
          scores, q[step],
          next_depth(swizzled_operand(shared_address(ring.keys(slot) + step / 4 * kPanelBytes)), step % 4));
    wgmma_commit();
  };
  const auto multiply_values = [&](int slot) {
    const uint64_t values = swizzled_operand(shared_address(ring.values(slot)));
#pragma unroll
    for (int step = 0; step < 4; ++step)
      wgmma_m64k16<T, D * 32>(out, weights[step], next_depth(values, step));
    wgmma_commit();
  };
  const auto clear_scores = [&] {
#pragma unroll
    for (int i = 0; i < kTileKeys / 2; ++i)
      scores[i] = 0;
    settle(scores);
  };
  const auto pack_weights = [&] {
#pragma unroll
    for (int i = 0; i < kTileKeys / 4; ++i)
      weights[i / 4][i % 4] = to_bits_pair<T>(scores[i * 2], scores[i * 2 + 1]);
  };

  RingPlace place, awaited;
  const auto await_stage = [&] {
    mbarrier_wait(ring.full(awaited.slot), awaited.parity);
    awaited.advance(kAttentionStages);
  };
  await_stage();
  clear_scores();
  wgmma_fence();
  multiply_keys(place.slot);
#pragma unroll
  for (int i = 0; i < D * 16; ++i)
    out[i] = 0;
  wgmma_wait<0>();
  settle(scores);
  softmax.add(scores, rows, work.first * kTileKeys, args.window, scale);
  pack_weights();
  // Of the group's own rows. Another group may go one tile further, whose stage nobody waits for.
  const int last = rows.last_position / kTileKeys;
  if (work.first < last) await_stage();
  for (int tile = work.first + 1; tile <= last; ++tile) {
    RingPlace next = place;
    next.advance(kAttentionStages);
    clear_scores();
    wgmma_fence();
    multiply_keys(next.slot);
    multiply_values(place.slot);
    wgmma_wait<1>();
    settle(scores);
    softmax.add(scores, rows, tile * kTileKeys, args.window, scale);
    // NOTE: without a loop in between the compiler waits for the products first, and computes the weights behind them
    // instead of beside them.
    settle(scores);
    if (tile < last) await_stage();
    wgmma_wait<0>();
    settle(out);
    if (lane == 0) mbarrier_arrive(ring.empty(place.slot));
    pack_weights();
#pragma unroll
    for (int i = 0; i < D * 16; ++i)
      out[i] *= softmax.factor[i % 4 / 2];
    place = next;
  }
  wgmma_fence();
  multiply_values(place.slot);
  wgmma_wait<0>();
  settle(out);
  if (lane == 0) mbarrier_arrive(ring.empty(place.slot));

#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = softmax.sum[r];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    if (rows.is_real[r]) store_row<T, D>(args, rows.token[r], rows.head[r], r, out, 1.0f / sum);
  }
}
#endif

// (KV heads, tiles of kWideRows)
template <class T, int D>
__global__ void __launch_bounds__(kThreads, 1) attention_wgmma_kernel(const __grid_constant__ AttentionArgs args) {
#if CAPSTAN_HAS_WGMMA
  const AttentionTile tile = args.tiles[blockIdx.y];
  const int kv_head = static_cast<int>(blockIdx.x);
  const Rows rows = find_rows<kWideRows>(args, tile, kv_head, 0);
  const int first_key =
      args.window > 0 && rows.first_position >= args.window ? rows.first_position - args.window + 1 : 0;
  const Work work{tile,
                  kv_head,
                  args.context_lens[tile.seq],
                  args.block_tables + int64_t{tile.seq} * args.max_blocks_per_seq,
                  first_key / kTileKeys,
                  rows.last_position / kTileKeys};
  const int rows_left =
      (args.cu_seqlens_q[tile.seq + 1] - args.cu_seqlens_q[tile.seq]) * (args.num_heads / args.layout.num_kv_heads) -
      tile.first_row;
  const int num_groups = rows_left > kGroupRows ? kGroups : 1;
  const Ring<D> ring;
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < kAttentionStages; ++slot)
      mbarrier_init(ring.full(slot), kCopyWarps * kWarpSize), mbarrier_init(ring.empty(slot), num_groups * 4);
    mbarrier_init_done();
  }
  __syncthreads();
  const int group = warp_id() / 4 - 1;
  if (group < 0) {
    keep_registers<kCopyRegisters>();
    produce<D>(ring, args, work);
  } else {
    take_registers<kGroupRegisters>();
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
    default:
      throw Error(ErrorCode::kUnsupportedModel,
                  "CUDA: head size: expected at most 128, got " + std::to_string(args.layout.head_dim));
  }
}

}  // namespace

bool can_attend_by_wgmma() {
  return has_hopper_code(attention_wgmma_kernel<Bf16, 4>);
}

void launch_attention_wgmma(const AttentionArgs& args, cudaStream_t stream) {
  CAPSTAN_CHECK(args.num_tiles > 0 && args.num_tiles < 65536 && args.num_heads % args.layout.num_kv_heads == 0 &&
                args.layout.block_size % kTileKeys == 0);
  CAPSTAN_CHECK(!args.layout.is_fp8 && args.scale > 0 && args.in_rows);
  args.type == FloatType::kBf16 ? launch_for<Bf16>(args, stream) : launch_for<F16>(args, stream);
}

}  // namespace capstan::cuda
