// Products of many tokens on compute capability 9.0. Weights, packed as everywhere, are the side of 64 rows and come
// from shared memory through registers; the activations, which lie in rows, are the other side, straight from shared
// memory. One warp copies both into a ring of stages; two groups of four warps multiply, 64 features each. Blocks go
// over tiles until none is left; the copies of the next tile begin during the end of one.
//
// Order of sums: one chain over the padded K of the matrix, in steps of 16, whatever the number of tokens and their
// place; where flags are given, a long K is two of them, added to the output one after the other. The parts of K
// (contract 3) are not kept apart, so that not the bits of launch_gemm come out: a backend that is to be deterministic
// does not come here.
#include "cuda/hopper.h"
#include "cuda/kernels.h"
#include "cuda/kernels/tile_end.h"
#include "cuda/launch.h"
#include "native/base/check.h"

namespace capstan::cuda {
namespace {

constexpr int kConsumerGroups = 2;
constexpr int kThreads = (1 + kConsumerGroups) * kGroupWarps * kWarpSize;
// Together no more than the 65,536 of a multiprocessor.
constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
static_assert((kProducerRegisters + kConsumerGroups * kConsumerRegisters) * kGroupWarps * kWarpSize <= 65536);

struct Job {
  GemmArgs args;
  TileOrder order;
  int num_steps = 0;  // in the padded K
  int cuts = 1;       // of K

  CAPSTAN_BOTH int size() const { return order.size() * cuts; }
};

#if CAPSTAN_HAS_WGMMA
// What a block multiplies at a time: a tile of the output, from one step of K (of 16) to another.
struct Piece {
  int feature_block, token_block, cut, first_step, end_step;
};
__device__ __forceinline__ Piece piece_of(const Job& job, int i) {
  Piece piece;
  job.order.at(i / job.cuts, piece.feature_block, piece.token_block);
  piece.cut = i % job.cuts;
  piece.first_step = cut_begin(piece.cut, job.cuts, job.num_steps),
  piece.end_step = cut_begin(piece.cut + 1, job.cuts, job.num_steps);
  return piece;
}

constexpr int kConsumerWarps = kConsumerGroups * kGroupWarps;
constexpr int kBlockTiles = kBlockFeatures / kTileRows;

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
  __device__ __forceinline__ float* turning(int warp) const {
    return reinterpret_cast<float*>(full(2 * kStages)) + warp * kTurnFloats;
  }
};

// One thread.
template <int kTokens>
__device__ __forceinline__ void produce(const Ring<kTokens>& ring, const TensorMap& acts, const Job& job) {
  const DeviceMatrix& weights = job.args.weights;
  const int64_t num_tiles = (weights.rows + kTileRows - 1) / kTileRows, padded = weights.split.padded();
  RingPlace place;
  prefetch_map(acts);
  for (int i = static_cast<int>(blockIdx.x); i < job.size(); i += static_cast<int>(gridDim.x)) {
    const Piece piece = piece_of(job, i);
    const int64_t first_tile = int64_t{piece.feature_block} * kBlockTiles;
    const int tiles = num_tiles - first_tile < kBlockTiles ? static_cast<int>(num_tiles - first_tile) : kBlockTiles;
    for (int step = piece.first_step; step < piece.end_step; step += kStageSteps) {
      const int steps = piece.end_step - step < kStageSteps ? piece.end_step - step : kStageSteps;
      const int tile_bytes = steps * 16 * kTileRows * 2;
      uint64_t* const full = ring.full(place.slot);
      mbarrier_wait(ring.empty(place.slot), place.parity ^ 1);
      mbarrier_arrive_expecting(full, kTokens * kSwizzledRow + tiles * tile_bytes);
      tensor_copy(ring.acts(place.slot), acts, step * 16, piece.token_block * kTokens, full);
      for (int tile = 0; tile < tiles; ++tile)
        bulk_copy(ring.weights(place.slot) + tile * kTileRows * kDepthOfStage * 2,
                  weights.data + weight_index((first_tile + tile) * kTileRows, step * 16, padded), tile_bytes, full);
      place.advance(Ring<kTokens>::kStages);
    }
  }
}

// One of the groups that multiply.
template <class T, int kTokens>
__device__ __forceinline__ void consume(const Ring<kTokens>& ring, const Job& job, int warp) {
  constexpr int kStages = Ring<kTokens>::kStages;
  const int lane = lane_id();
  RingPlace place;
  uint32_t weights[2][kStageSteps][4];
  float acc[kTokens / 2];
  for (int i = static_cast<int>(blockIdx.x); i < job.size(); i += static_cast<int>(gridDim.x)) {
    const Piece piece = piece_of(job, i);
#pragma unroll
    for (int j = 0; j < kTokens / 2; ++j)
      acc[j] = 0;
    int before = -1;  // the slot that the products under way read
    const auto multiply = [&](uint32_t (&a)[kStageSteps][4], int steps) {
      mbarrier_wait(ring.full(place.slot), place.parity);
      const auto* from =
          reinterpret_cast<const uint4*>(ring.weights(place.slot)) + warp * kStageSteps * kWarpSize + lane;
#pragma unroll
      for (int step = 0; step < kStageSteps; ++step) {
        // Beyond K the activations are zeros, but the weights of the stage are whatever was there.
        const uint4 word = step < steps ? from[step * kWarpSize] : uint4{0, 0, 0, 0};
        a[step][0] = word.x, a[step][1] = word.y, a[step][2] = word.z, a[step][3] = word.w;
      }
      const uint64_t acts = swizzled_operand(shared_address(ring.acts(place.slot)));
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < kStageSteps; ++step)
        wgmma_m64k16<T, kTokens>(acc, a[step], next_depth(acts, step));
      wgmma_commit();
      // NOTE: versions of ptxas before 13.3 may write the operands of the next product before this wait
      // (triton-lang/triton#9433). In the machine code of these kernels by 12.8, 13.0 and 13.1 none was found to;
      // wgmma_wait<0>() shows whether a fault on a device is that.
      wgmma_wait<1>();
      if (before >= 0 && lane == 0) mbarrier_arrive(ring.empty(before));
      before = place.slot;
      place.advance(kStages);
    };
    for (int step = piece.first_step; step < piece.end_step; step += 2 * kStageSteps) {
      multiply(weights[0], piece.end_step - step);
      if (step + kStageSteps < piece.end_step) multiply(weights[1], piece.end_step - step - kStageSteps);
    }
    int lane_at_end = lane;
    settle(lane_at_end);  // so that nothing of the end takes registers all the time
    int32_t* const flag =
        job.cuts == 1
            ? nullptr
            : job.args.tile_flags +
                  (int64_t{piece.feature_block} * job.order.token_blocks + piece.token_block) * kConsumerWarps + warp;
    if (piece.cut > 0) await_flag(flag);
    TileEnd<T, kTokens> end(job.args, int64_t{piece.feature_block} * kBlockTiles + warp, piece.token_block * kTokens,
                            lane_at_end, ring.turning(warp), piece.cut > 0);
    wgmma_wait<0>();
    settle(acc);
    if (lane == 0) mbarrier_arrive(ring.empty(before));
    end.store(acc);
    if (piece.cut + 1 < job.cuts) raise_flag(flag);
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
    mbarrier_init_done();
  }
  __syncthreads();
  const int warp = uniform_warp_id();
  if (warp < kGroupWarps) {
    keep_registers<kProducerRegisters>();
    if (threadIdx.x == 0) produce<kTokens>(ring, acts, job);
  } else {
    take_registers<kConsumerRegisters>();
    consume<T, kTokens>(ring, job, warp - kGroupWarps);
  }
#else
  __trap();
#endif
}

template <class T, int kTokens>
void launch_with(const Job& job, const TensorMap& acts, int multiprocessors, cudaStream_t stream) {
  int blocks = job.size() < multiprocessors ? job.size() : multiprocessors;
  // Every block has the same cut of all its tiles: one that waits does so for the block before it, which never waits.
  if (blocks > job.cuts) blocks -= blocks % job.cuts;
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

bool can_gemm_by_wgmma() {
  return knows_tensor_maps() && has_hopper_code(gemm_wgmma_kernel<Bf16, 128>);
}

bool make_act_maps(ActMaps& maps, const uint16_t* acts, int64_t rows, int64_t padded_k) {
  for (int i = 0; i < kNumWidths; ++i)
    if (!make_tensor_map(maps.of_width[i], acts, rows, padded_k, kTokenWidths[i])) return false;
  return true;
}

void launch_gemm_wgmma(const GemmArgs& args, int multiprocessors, cudaStream_t stream, int width) {
  CAPSTAN_CHECK(args.act_maps != nullptr);
  CAPSTAN_CHECK(args.num_tokens > 0 && args.weights.rows > 0 && args.weights.split.padded_part % kTileDepth == 0 &&
                multiprocessors > 0);
  CAPSTAN_CHECK(args.output == GemmOutput::kGated ? args.gated != nullptr && args.weights.rows % kTileRows == 0
                                                  : args.out != nullptr && args.output != GemmOutput::kParts);
  const int cuts = args.tile_flags == nullptr ? 1 : depth_cuts(args.weights.split.padded());
  CAPSTAN_CHECK(cuts == 1 || args.output != GemmOutput::kGated);
  if (width == 0) width = choose_width(args.weights.rows, args.num_tokens, multiprocessors, cuts);
  const Job job{args, tile_order(args.weights.rows, args.num_tokens, width),
                static_cast<int>(args.weights.split.padded() / 16), cuts};
  if (args.type == FloatType::kBf16)
    launch_for<Bf16>(job, *args.act_maps, width, multiprocessors, stream);
  else
    launch_for<F16>(job, *args.act_maps, width, multiprocessors, stream);
}

}  // namespace capstan::cuda
