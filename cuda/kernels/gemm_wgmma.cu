// Products of many tokens on compute capability 9.0. Weights are the operand of 64 rows, from shared memory through
// registers. Row-major activations are the other operand, directly from shared memory. One producer warp copies both
// into a ring of stages; two consumer warpgroups multiply, 64 features each. Blocks are persistent: the copies of the
// next tile start during the epilogue of the current one.
// Order of sums: one chain over the padded K in steps of 16, independent of the number and position of tokens. With
// tile flags a long K is two chains, added to the output in order. Unlike launch_gemm, the parts of K (contract 3) are
// not separate, so the bits differ; a deterministic backend does not use this kernel.
#include "cuda/flags.h"
#include "cuda/hopper.h"
#include "cuda/kernels.h"
#include "cuda/kernels/tile_epilogue.h"
#include "cuda/launch.h"
#include "native/base/check.h"

namespace capstan::cuda {
namespace {

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
template <int kTokens>
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
      mbarrier_arrive_expect_tx(full, kTokens * kSwizzledRow + tiles * tile_bytes);
      tma_load_2d(ring.acts(place.slot), acts, step * 16, item.token_block * kTokens, full);
      for (int tile = 0; tile < tiles; ++tile)
        cp_async_bulk(ring.weights(place.slot) + tile * kTileRows * kStageDepth * 2,
                      weights.data + weight_index((first_tile + tile) * kTileRows, step * 16, padded), tile_bytes,
                      full);
      place.advance(Ring<kTokens>::kStages);
    }
  }
}

// A consumer warpgroup.
template <class T, int kTokens>
__device__ __forceinline__ void consume(const Ring<kTokens>& ring, const Job& job, int warp) {
  constexpr int kStages = Ring<kTokens>::kStages;
  const int lane = lane_id();
  RingPlace place;
  uint32_t weights[2][kStageSteps][4];
  float acc[kTokens / 2];
  for (int i = uniform(*ring.block_number()); i < job.size(); i += static_cast<int>(gridDim.x)) {
    const WorkItem item = work_item(job, i);
#pragma unroll
    for (int j = 0; j < kTokens / 2; ++j)
      acc[j] = 0;
    int before = -1;  // the slot that the pending products read
    const auto multiply = [&](uint32_t (&a)[kStageSteps][4], int steps) {
      mbarrier_wait(ring.full(place.slot), place.parity);
      const auto* from =
          reinterpret_cast<const uint4*>(ring.weights(place.slot)) + warp * kStageSteps * kWarpSize + lane;
#pragma unroll
      for (int step = 0; step < kStageSteps; ++step) {
        // After the end of K the activations are zeros, but the stage contains stale weights.
        const uint4 word = step < steps ? from[step * kWarpSize] : uint4{0, 0, 0, 0};
        a[step][0] = word.x, a[step][1] = word.y, a[step][2] = word.z, a[step][3] = word.w;
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
      wgmma_wait_group<1>();
      if (before >= 0 && lane == 0) mbarrier_arrive(ring.empty(before));
      before = place.slot;
      place.advance(kStages);
    };
    for (int step = item.first_step; step < item.end_step; step += 2 * kStageSteps) {
      multiply(weights[0], item.end_step - step);
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

template <class T, int kTokens>
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
    if (threadIdx.x == 0) produce<kTokens>(ring, acts, job);
  } else {
    setmaxnreg_inc<kConsumerRegisters>();
    consume<T, kTokens>(ring, job, warp - kGroupWarps);
  }
#else
  __trap();
#endif
}

template <class T, int kTokens>
void launch_with(const Job& job, const TensorMap& acts, int multiprocessors, cudaStream_t stream) {
  int blocks = job.size() < multiprocessors ? job.size() : multiprocessors;
  // All work items of a block have the same K split. A block waits only for the block with the number before its own,
  // which never waits.
  if (blocks > job.k_splits) blocks -= blocks % job.k_splits;
  launch(gemm_wgmma_kernel<T, kTokens>, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), gemm_shared_bytes(kTokens),
         stream, acts, job);
}

template <class T>
void launch_for(const Job& job, const ActMaps& acts, int width, int multiprocessors, cudaStream_t stream) {
  switch (width) {
    case 64:
      return launch_with<T, 64>(job, acts.of_width[0], multiprocessors, stream);
    case 96:
      return launch_with<T, 96>(job, acts.of_width[1], multiprocessors, stream);
    case 128:
      return launch_with<T, 128>(job, acts.of_width[2], multiprocessors, stream);
    default:
      return launch_with<T, 256>(job, acts.of_width[3], multiprocessors, stream);
  }
}

}  // namespace

bool supports_gemm_wgmma() {
  return supports_tensor_maps() && has_sm90a_code(gemm_wgmma_kernel<Bf16, 128>);
}

bool make_act_maps(ActMaps& maps, const uint16_t* acts, int64_t rows, int64_t padded_k) {
  for (int i = 0; i < kNumWidths; ++i)
    if (!make_tensor_map(maps.of_width[i], acts, rows, padded_k, kTokenWidths[i])) return false;
  return true;
}

void launch_gemm_wgmma(const GemmArgs& args, int multiprocessors, cudaStream_t stream, int width) {
  CAPSTAN_CHECK(args.act_maps != nullptr && args.weights.codes.kind == CodeKind::kNone);
  CAPSTAN_CHECK(args.num_tokens > 0 && args.weights.rows > 0 && args.weights.split.padded_part % kTileDepth == 0 &&
                multiprocessors > 0);
  CAPSTAN_CHECK(has_acts(args.output) ? args.gated != nullptr
                                      : args.out != nullptr && args.output != GemmOutput::kParts);
  CAPSTAN_CHECK(args.output != GemmOutput::kGated || args.weights.rows % kTileRows == 0);
  check(connect_spin_report(), "the report of waits");
  const int k_splits = args.tile_flags == nullptr ? 1 : k_splits_of(args.weights.split.padded());
  CAPSTAN_CHECK(k_splits == 1 || !has_acts(args.output));
  if (width == 0) width = choose_width(args.weights.rows, args.num_tokens, multiprocessors, k_splits);
  const Job job{args, tile_order(args.weights.rows, args.num_tokens, width),
                static_cast<int>(args.weights.split.padded() / 16), k_splits};
  if (args.type == FloatType::kBf16)
    launch_for<Bf16>(job, *args.act_maps, width, multiprocessors, stream);
  else
    launch_for<F16>(job, *args.act_maps, width, multiprocessors, stream);
}

}  // namespace capstan::cuda
