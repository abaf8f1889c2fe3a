#pragma once
// Products of many tokens on compute capability 9.0. Weights are the operand of 64 rows, from registers. Row-major
// activations are the other operand, directly from shared memory. One producer warp copies activations and 16-bit
// weights into a ring of stages; two consumer warpgroups multiply, 64 features each. Codes come directly from device
// memory, and become 16-bit floats in registers (weight_tiles.h). Blocks are persistent: the copies of the next tile
// start during the epilogue of the current one.
// Order of sums: one chain over the padded K in steps of 16, independent of the number and position of tokens. With
// tile flags a long K is two chains, added to the output in order. Unlike launch_gemm, the parts of K (contract 3) are
// not separate, so the bits differ; a deterministic backend does not use this kernel.
#include "cuda/flags.h"
#include "cuda/hopper.h"
#include "cuda/kernels/tile_epilogue.h"
#include "cuda/kernels/weight_tiles.h"
#include "cuda/launch.h"

namespace capstan::cuda::wgmma {

constexpr int kConsumerGroups = 2;
constexpr int kThreads = (1 + kConsumerGroups) * kGroupWarps * kWarpSize;
// Together at most the 65,536 registers of a multiprocessor.
constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
static_assert((kProducerRegisters + kConsumerGroups * kConsumerRegisters) * kGroupWarps * kWarpSize <= 65536);

struct Job {
  GemmArgs args;
  TileOrder order;
  int num_steps = 0;  // of 16 in the padded K
  int k_splits = 1;   // blocks that share a tile by splitting K

  CAPSTAN_BOTH int size() const { return order.size() * k_splits; }
};

#if CAPSTAN_HAS_WGMMA
// A unit of work of a block: a tile of the output, and a range of K in steps of 16.
struct WorkItem {
  int feature_block, token_block, k_split, first_step, end_step;
};
__device__ __forceinline__ WorkItem work_item(const Job& job, int i) {
  WorkItem item;
  job.order.at(i / job.k_splits, item.feature_block, item.token_block);
  item.k_split = i % job.k_splits;
  item.first_step = k_split_begin(item.k_split, job.k_splits, job.num_steps),
  item.end_step = k_split_begin(item.k_split + 1, job.k_splits, job.num_steps);
  return item;
}

constexpr int kConsumerWarps = kConsumerGroups * kGroupWarps;
constexpr int kBlockTiles = kBlockFeatures / kTileRows;

// The same value in all lanes, which the compiler may then keep in a uniform register.
__device__ __forceinline__ int uniform(int value) {
  return __shfl_sync(0xffffffffu, value, 0);
}

template <int kTokens>
struct Ring {
  static constexpr int kStages = num_stages(kTokens);
  unsigned char* stages;

  __device__ __forceinline__ Ring() {
    unsigned char* const shared = shared_memory();
    stages = shared + (kSwizzleAtom - shared_address(shared) % kSwizzleAtom) % kSwizzleAtom;
  }
  __device__ __forceinline__ unsigned char* weights(int slot) const { return stages + slot * stage_bytes(kTokens); }
  __device__ __forceinline__ unsigned char* acts(int slot) const { return weights(slot) + weight_stage_bytes(); }
  __device__ __forceinline__ uint64_t* full(int slot) const {
    return reinterpret_cast<uint64_t*>(stages + kStages * stage_bytes(kTokens)) + slot;
  }
  __device__ __forceinline__ uint64_t* empty(int slot) const { return full(kStages + slot); }
  __device__ __forceinline__ float* transpose_buffer(int warp) const {
    return reinterpret_cast<float*>(full(2 * kStages)) + warp * kTransposeFloats;
  }
  __device__ __forceinline__ int32_t* block_number() const {
    return reinterpret_cast<int32_t*>(transpose_buffer(kConsumerWarps));
  }
};

// Runs in one thread of the producer warpgroup.
template <CodeKind kKind, int kTokens>
__device__ __forceinline__ void produce(const Ring<kTokens>& ring, const TensorMap& acts, const Job& job) {
  const DeviceMatrix& weights = job.args.weights;
  const int64_t num_tiles = (weights.rows + kTileRows - 1) / kTileRows, padded = weights.split.padded();
  RingPlace place;
  prefetch_tensormap(acts);
  for (int i = *ring.block_number(); i < job.size(); i += static_cast<int>(gridDim.x)) {
    const WorkItem item = work_item(job, i);
    const int64_t first_tile = int64_t{item.feature_block} * kBlockTiles;
    const int tiles = num_tiles - first_tile < kBlockTiles ? static_cast<int>(num_tiles - first_tile) : kBlockTiles;
    for (int step = item.first_step; step < item.end_step; step += kStageSteps) {
      const int steps = item.end_step - step < kStageSteps ? item.end_step - step : kStageSteps;
      const int tile_bytes = steps * 16 * kTileRows * 2;
      uint64_t* const full = ring.full(place.slot);
      mbarrier_wait(ring.empty(place.slot), place.parity ^ 1);
      mbarrier_arrive_expect_tx(full, kTokens * kSwizzledRow + (kKind == CodeKind::kNone ? tiles * tile_bytes : 0));
      tma_load_2d(ring.acts(place.slot), acts, step * 16, item.token_block * kTokens, full);
      if constexpr (kKind == CodeKind::kNone)
        for (int tile = 0; tile < tiles; ++tile)
          cp_async_bulk(ring.weights(place.slot) + tile * kTileRows * kStageDepth * 2,
                        weights.data + weight_index((first_tile + tile) * kTileRows, step * 16, padded), tile_bytes,
                        full);
      place.advance(Ring<kTokens>::kStages);
    }
  }
}

// The codes of a warp's tile of rows. They are loaded one stage before their products.
template <class T, CodeKind kKind>
struct CodeStream {
  static constexpr int kStageTiles = kStageDepth / kTileDepth;
  using Tile = typename TileOf<T, kKind>::Type;
  using Source = typename Tile::Source;
  const DeviceMatrix& matrix;
  Tile tiles[kStageTiles];
  Source source;              // of the next K tile; null after the last row
  int next_step, part_steps;  // within its part of K, in K tiles

  __device__ __forceinline__ CodeStream(const DeviceMatrix& matrix, int64_t tile, int first_k_tile) : matrix(matrix) {
    part_steps = static_cast<int>(matrix.split.padded_part / kTileDepth);
    next_step = first_k_tile % part_steps;
    source = tile * kTileRows < matrix.rows ? Tile::source(matrix, tile, first_k_tile / part_steps) : Source{};
  }
  // `num_tiles`, here and below: K tiles before the end of K, which may be fewer than those of a stage, or more.
  __device__ __forceinline__ void load(int num_tiles) {
#pragma unroll
    for (int i = 0; i < kStageTiles; ++i) {
      if (i >= num_tiles || !source) break;
      tiles[i].load(matrix, source, next_step);
      if (++next_step == part_steps) next_step = 0, source = source.next_part(matrix, part_steps);
    }
  }
  __device__ __forceinline__ void operands(int num_tiles, uint32_t (&a)[kStageSteps][4]) const {
#pragma unroll
    for (int i = 0; i < kStageTiles; ++i) {
      const TileOperands tile = i < num_tiles && source ? tiles[i].operands(matrix) : TileOperands{};
#pragma unroll
      for (int j = 0; j < 4; ++j)
        a[2 * i][j] = tile.low[j], a[2 * i + 1][j] = tile.high[j];
    }
  }
};

// A consumer warpgroup.
template <class T, CodeKind kKind, int kTokens>
__device__ __forceinline__ void consume(const Ring<kTokens>& ring, const Job& job, int warp) {
  constexpr int kStages = Ring<kTokens>::kStages;
  const int lane = lane_id();
  RingPlace place;
  // Registers of weights must not change until their products have ended. Those of 16-bit floats are read for the next
  // stage meanwhile. For codes ptxas would then let each product end before the next begins (C7513), so a warpgroup
  // first waits, and converts while the other one multiplies.
  constexpr bool kHasCodes = kKind != CodeKind::kNone;
  constexpr int kPending = kHasCodes ? 0 : 1;
  uint32_t weights[kPending + 1][kStageSteps][4];
  float acc[kTokens / 2];
  for (int i = uniform(*ring.block_number()); i < job.size(); i += static_cast<int>(gridDim.x)) {
    const WorkItem item = work_item(job, i);
#pragma unroll
    for (int j = 0; j < kTokens / 2; ++j)
      acc[j] = 0;
    CodeStream<T, kKind> codes(job.args.weights, int64_t{item.feature_block} * kBlockTiles + warp, item.first_step / 2);
    if constexpr (kHasCodes) codes.load((item.end_step - item.first_step) / 2);
    int before = -1;  // the slot that the pending products read
    const auto multiply = [&](uint32_t (&a)[kStageSteps][4], int steps) {
      if constexpr (kHasCodes) {
        codes.operands(steps / 2, a);
        codes.load((steps - kStageSteps) / 2);
      }
      mbarrier_wait(ring.full(place.slot), place.parity);
      if constexpr (!kHasCodes) {
        const auto* from =
            reinterpret_cast<const uint4*>(ring.weights(place.slot)) + warp * kStageSteps * kWarpSize + lane;
#pragma unroll
        for (int step = 0; step < kStageSteps; ++step) {
          // After the end of K the activations are zeros, but the stage contains stale weights.
          const uint4 word = step < steps ? from[step * kWarpSize] : uint4{0, 0, 0, 0};
          a[step][0] = word.x, a[step][1] = word.y, a[step][2] = word.z, a[step][3] = word.w;
        }
      }
      const uint64_t acts = swizzled_operand(shared_address(ring.acts(place.slot)));
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < kStageSteps; ++step)
        wgmma_m64nNk16<T, kTokens>(acc, a[step], next_depth(acts, step));
      wgmma_commit_group();
      // NOTE: ptxas before 13.3 may write the operands of the next product before this wait (triton-lang/triton#9433).
      // The machine code of these kernels from 12.8, 13.0 and 13.1 does not. To check a fault on a device, try
      // wgmma_wait_group<0>().
      wgmma_wait_group<kPending>();
      if (before >= 0 && lane == 0) mbarrier_arrive(ring.empty(before));
      before = place.slot;
      place.advance(kStages);
    };
    for (int step = item.first_step; step < item.end_step; step += (kPending + 1) * kStageSteps) {
      multiply(weights[0], item.end_step - step);
      if constexpr (kPending > 0)
        if (step + kStageSteps < item.end_step) multiply(weights[1], item.end_step - step - kStageSteps);
    }
    int lane_at_end = lane;
    hide_from_optimizer(lane_at_end);  // keeps the epilogue's values out of registers during the loop
    int32_t* const flag =
        job.k_splits == 1
            ? nullptr
            : job.args.tile_flags + 1 +
                  (int64_t{item.feature_block} * job.order.token_blocks + item.token_block) * kConsumerWarps + warp;
    if (item.k_split > 0) wait_and_clear_flag(flag);
    TileEpilogue<T, kTokens> end(job.args, int64_t{item.feature_block} * kBlockTiles + warp, item.token_block * kTokens,
                                 lane_at_end, ring.transpose_buffer(warp), item.k_split > 0);
    wgmma_wait_group<0>();
    warpgroup_fence_operand(acc);
    if (lane == 0) mbarrier_arrive(ring.empty(before));
    end.store(acc);
    if (item.k_split + 1 < job.k_splits) signal_flag(flag);
  }
}
#endif

template <class T, CodeKind kKind, int kTokens>
__global__ void __launch_bounds__(kThreads, 1)
    gemm_wgmma_kernel(const __grid_constant__ TensorMap acts, const __grid_constant__ Job job) {
#if CAPSTAN_HAS_WGMMA
  const Ring<kTokens> ring;
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < Ring<kTokens>::kStages; ++slot)
      mbarrier_init(ring.full(slot), 1), mbarrier_init(ring.empty(slot), kConsumerWarps);
    fence_mbarrier_init();
    *ring.block_number() = job.k_splits == 1 ? static_cast<int32_t>(blockIdx.x)
                                             : take_number(job.args.tile_flags, static_cast<int32_t>(gridDim.x));
  }
  __syncthreads();
  const int warp = uniform_warp_id();
  if (warp < kGroupWarps) {
    setmaxnreg_dec<kProducerRegisters>();
    if (threadIdx.x == 0) produce<kKind, kTokens>(ring, acts, job);
  } else {
    setmaxnreg_inc<kConsumerRegisters>();
    consume<T, kKind, kTokens>(ring, job, warp - kGroupWarps);
  }
#else
  __trap();
#endif
}

template <class T, CodeKind kKind, int kTokens>
void launch_with(const Job& job, const TensorMap& acts, int multiprocessors, cudaStream_t stream) {
  int blocks = job.size() < multiprocessors ? job.size() : multiprocessors;
  // All work items of a block have the same K split. A block waits only for the block with the number before its own,
  // which never waits.
  if (blocks > job.k_splits) blocks -= blocks % job.k_splits;
  launch(gemm_wgmma_kernel<T, kKind, kTokens>, dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
         gemm_shared_bytes(kTokens), stream, acts, job);
}

template <CodeKind kKind, int kTokens>
void launch_width(const Job& job, const TensorMap& acts, int multiprocessors, cudaStream_t stream) {
  if (job.args.type == FloatType::kBf16)
    launch_with<Bf16, kKind, kTokens>(job, acts, multiprocessors, stream);
  else
    launch_with<F16, kKind, kTokens>(job, acts, multiprocessors, stream);
}

template <CodeKind kKind>
void launch_kind(const Job& job, int width, int multiprocessors, cudaStream_t stream) {
  const ActMaps& acts = *job.args.act_maps;
  if constexpr (kKind == CodeKind::kNone) {
    if (width == 64) return launch_width<kKind, 64>(job, acts.of_width[0], multiprocessors, stream);
    if (width == 96) return launch_width<kKind, 96>(job, acts.of_width[1], multiprocessors, stream);
  }
  if (width == 128) return launch_width<kKind, 128>(job, acts.of_width[2], multiprocessors, stream);
  launch_width<kKind, 256>(job, acts.of_width[3], multiprocessors, stream);
}
void launch_plain(const Job& job, int width, int multiprocessors, cudaStream_t stream);
void launch_any(const Job& job, int width, int multiprocessors, cudaStream_t stream);  // all other codes

}  // namespace capstan::cuda::wgmma
