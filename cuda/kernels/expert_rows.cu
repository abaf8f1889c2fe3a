// The rows of a mixture of experts: which row each pair of token and expert has, and the sums of the results.
#include "cuda/experts.h"
#include "cuda/kernels/lora.h"
#include "cuda/kernels/rows.h"
#include "cuda/launch.h"
#include "native/backend/adapter.h"
#include "native/base/check.h"

namespace capstan::cuda {
namespace {

constexpr int kCountThreads = 1024;
constexpr int kThreads = kNormThreads;
constexpr int kWarps = kThreads / kWarpSize;

// One block counts the pairs of each expert and assigns the tiles. Atomic additions of integers have one result.
__global__ void __launch_bounds__(kCountThreads) expert_count_kernel(ExpertRowsArgs args) {
  int* const counts = reinterpret_cast<int*>(shared_memory());
  const int thread = static_cast<int>(threadIdx.x);
  for (int e = thread; e < args.num_experts; e += kCountThreads)
    counts[e] = 0;
  __syncthreads();
  for (int pair = thread; pair < args.num_pairs; pair += kCountThreads)
    if (args.experts[pair] >= 0)
      atomicAdd(counts + args.experts[pair], 1);
    else
      args.pair_rows[pair] = -1;
  __syncthreads();
  const auto tiles_of = [&](int e) { return (counts[e] + args.tile_rows - 1) / args.tile_rows; };
  // The last turn computes the end of all tiles.
  int* const num_used = counts + args.num_experts;
  for (int e = thread; e <= args.num_experts; e += kCountThreads) {
    int first = 0;
    for (int before = 0; before < e; ++before)
      first += tiles_of(before);
    args.first_rows[e] = first * args.tile_rows;
    if (e == args.num_experts) *num_used = first;
    for (int tile = 0; e < args.num_experts && tile < tiles_of(e); ++tile)
      args.tile_experts[first + tile] = e;
  }
  __syncthreads();
  for (int tile = *num_used + thread; tile < args.num_tiles; tile += kCountThreads)
    args.tile_experts[tile] = -1;
  for (int row = *num_used * args.tile_rows + thread; row < args.num_tiles * args.tile_rows; row += kCountThreads)
    args.row_tokens[row] = -1;
}

// A warp per expert gives its pairs their rows.
__global__ void __launch_bounds__(kThreads) expert_place_kernel(ExpertRowsArgs args) {
  const int expert = static_cast<int>(blockIdx.x) * kWarps + warp_id(), lane = lane_id();
  if (expert >= args.num_experts) return;
  int row = args.first_rows[expert];
  const int end = args.first_rows[expert + 1];
  if (row == end) return;
#pragma unroll 4
  for (int first = 0; first < args.num_pairs; first += kWarpSize) {
    const int pair = first + lane;
    const bool is_mine = pair < args.num_pairs && args.experts[pair] == expert;
    const uint32_t mask = warp_mask(is_mine);
    if (is_mine) {
      const int at = row + __popc(mask & ((1u << lane) - 1));
      args.row_tokens[at] = pair / args.top_k;
      args.pair_rows[pair] = at;
    }
    row += __popc(mask);
  }
  if (row + lane < end) args.row_tokens[row + lane] = -1;
}

// What the norms of the results take of the shared memory.
CAPSTAN_BOTH int64_t norm_floats(const ExpertSumArgs& args) {
  return args.expert_norm == nullptr ? 0 : 2 * kRowNormFloats + 2 * args.hidden_size;
}

// The updates of a token's results. t (top_k + 1, t_stride) is in shared memory, and the last slot is that of the
// shared expert.
template <class T>
struct ResultUpdates {
  const ExpertSumArgs& args;
  const int64_t token;
  float* const t;

  // The row of a slot, or -1.
  __device__ __forceinline__ int64_t row_of(int slot) const {
    if (slot < args.top_k) return args.pair_rows[token * args.top_k + slot];
    return args.shared_row < 0 ? -1 : args.shared_row + token;
  }
  __device__ __forceinline__ const DeviceLora* lora_of(int slot) const {
    const int64_t row = row_of(slot);
    return row < 0 ? nullptr : args.loras[row];
  }
  // Computes t of all slots. Ends with a barrier.
  __device__ __forceinline__ void sum_values() const {
    for (int slot = warp_id(); slot <= args.top_k; slot += kWarps) {
      const DeviceLora* const lora = lora_of(slot);
      if (lora == nullptr) continue;
      const int64_t row = row_of(slot);
      for (int value = lane_id(); value < lora->num_values; value += kWarpSize) {
        float parts[8];
#pragma unroll
        for (int rank = 0; rank < 8; ++rank)
          parts[rank] = rank < args.world_size ? args.results[rank][args.t_begin + row * args.t_stride + value] : 0.0f;
        t[slot * args.t_stride + value] = tree_sum(parts, 1, args.world_size) * lora->scales[value];
      }
    }
    __syncthreads();
  }
  __device__ __forceinline__ float at(int slot, int64_t k) const {
    const DeviceLora* const lora = lora_of(slot);
    return lora == nullptr ? 0.0f : lora_feature<T>(*lora, t + slot * args.t_stride, k);
  }
};

// One block per token.
template <class T, bool kIsUpdated>
__global__ void __launch_bounds__(kThreads) expert_sum_kernel(ExpertSumArgs args) {
  const int token = static_cast<int>(blockIdx.x);
  const int64_t size = args.hidden_size;
  const bool is_mine = token >= args.first && token < args.end;
  const auto result = [&](int64_t row, int64_t k) {
    float parts[8];
#pragma unroll
    for (int rank = 0; rank < 8; ++rank)
      parts[rank] = rank < args.world_size ? args.results[rank][row * size + k] : 0.0f;
    return tree_sum(parts, 1, args.world_size);
  };
  float* const of_norms = reinterpret_cast<float*>(shared_memory());
  [[maybe_unused]] const ResultUpdates<T> updates{args, token, of_norms + norm_floats(args)};
  if constexpr (kIsUpdated)
    if (is_mine) updates.sum_values();
  const auto of_experts = [&](int64_t k) {
    float sum = 0;
    for (int slot = 0; is_mine && slot < args.top_k; ++slot) {
      const int pair = token * args.top_k + slot, row = args.pair_rows[pair];
      if (row < 0) continue;
      const float* const bias = args.downs[args.experts[pair]].bias;
      float value = result(row, k);
      if (bias != nullptr) value += bias[k];
      if constexpr (kIsUpdated) value += updates.at(slot, k);
      sum = fmaf(value, args.weights[pair], sum);
    }
    return sum;
  };
  const auto of_shared = [&](int64_t k) {
    float value = result(args.shared_row + token, k);
    if (args.shared_bias != nullptr) value += args.shared_bias[k];
    if constexpr (kIsUpdated) value += updates.at(args.top_k, k);
    return value;
  };
  const auto store = [&](int64_t k, float sum) {
    float* const to = args.hidden + token * size + k;
    *to = args.replaces ? sum : fmaf(sum, args.scale, *to);
  };
  if (args.expert_norm == nullptr) {
    const float shared_weight = args.shared_weights == nullptr ? 1.0f : args.shared_weights[token];
    for (int64_t k = threadIdx.x; k < size; k += kThreads) {
      float sum = of_experts(k);
      if (is_mine && args.shared_row >= 0) sum = fmaf(of_shared(k), shared_weight, sum);
      store(k, sum);
    }
    return;
  }
  // Each thread reads only the sums that it wrote.
  float *const experts = of_norms + 2 * kRowNormFloats, *const shared = experts + size;
  for (int64_t k = threadIdx.x; k < size; k += kThreads)
    experts[k] = of_experts(k), shared[k] = is_mine ? of_shared(k) : 0.0f;
  const float expert_scale = row_norm(experts, size, args.eps, false, of_norms).scale,
              shared_scale = row_norm(shared, size, args.eps, false, of_norms + kRowNormFloats).scale;
  for (int64_t k = threadIdx.x; k < size; k += kThreads)
    store(k, fmaf(shared[k] * shared_scale, args.shared_norm[k], experts[k] * expert_scale * args.expert_norm[k]));
}

}  // namespace

void launch_expert_rows(const ExpertRowsArgs& args, cudaStream_t stream) {
  CAPSTAN_CHECK(args.num_pairs > 0 && args.top_k > 0 && args.num_experts > 0 && args.tile_rows > 0 &&
                args.tile_rows <= kWarpSize);
  CAPSTAN_CHECK(args.num_tiles >= max_expert_tiles(args.num_pairs, args.num_experts, args.tile_rows));
  launch(expert_count_kernel, dim3(1), dim3(kCountThreads), static_cast<size_t>(args.num_experts + 1) * sizeof(int),
         stream, args);
  launch(expert_place_kernel, dim3(static_cast<unsigned>((args.num_experts + kWarps - 1) / kWarps)), dim3(kThreads), 0,
         stream, args);
}

void launch_expert_sum(const ExpertSumArgs& args, cudaStream_t stream) {
  CAPSTAN_CHECK(args.num_tokens > 0 && args.hidden_size > 0 && args.top_k > 0);
  CAPSTAN_CHECK(args.world_size == 1 || args.world_size == 2 || args.world_size == 4 || args.world_size == 8);
  CAPSTAN_CHECK(args.replaces || (args.first == 0 && args.end == args.num_tokens));
  const bool has_norms = args.expert_norm != nullptr;
  CAPSTAN_CHECK(has_norms == (args.shared_norm != nullptr) && (!has_norms || args.shared_row >= 0));
  CAPSTAN_CHECK(!has_norms || args.shared_weights == nullptr);
  const bool is_updated = args.loras != nullptr;
  CAPSTAN_CHECK(!is_updated || (args.t_begin > 0 && args.t_stride > 0 && args.t_stride <= kMaxLoraRank));
  const int64_t floats = norm_floats(args) + (is_updated ? int64_t{args.top_k + 1} * args.t_stride : 0);
  const auto updated = args.type == FloatType::kBf16 ? expert_sum_kernel<Bf16, true> : expert_sum_kernel<F16, true>;
  launch(is_updated ? updated : expert_sum_kernel<Bf16, false>, dim3(static_cast<unsigned>(args.num_tokens)),
         dim3(kThreads), static_cast<size_t>(floats) * sizeof(float), stream, args);
}

}  // namespace capstan::cuda
