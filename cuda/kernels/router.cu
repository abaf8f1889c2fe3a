// The router of a mixture of experts: the norm of the hidden states, the logits in f32, and the choice of the experts.
// Blocks have several tokens, which read the router once. The number of tokens changes no bit.
#include "cuda/experts.h"
#include "cuda/kernels/rows.h"
#include "cuda/launch.h"
#include "native/backend/adapter.h"
#include "native/base/check.h"

namespace capstan::cuda {
namespace {

constexpr int kThreads = kNormThreads;
constexpr int kWarps = kNormWarps;
constexpr float kMinusInfinity = -__builtin_inff();

// Floats in the block's shared memory, per token.
struct RouterLayout {
  int64_t scores, keys, groups, squares, floats;  // the normed row is at 0
};
CAPSTAN_BOTH RouterLayout router_layout(const Moe& moe, int64_t hidden_size) {
  RouterLayout offsets;
  offsets.scores = hidden_size;
  offsets.keys = offsets.scores + moe.num_experts + 1;
  offsets.groups = offsets.keys + moe.num_experts;
  offsets.squares = offsets.groups + moe.num_groups;
  offsets.floats = offsets.squares + kWarps;
  return offsets;
}

// ---- the choice, by one warp

// The scores of all experts, from the logits in `scores`.
__device__ __forceinline__ void score_experts(const Moe& moe, float* scores) {
  const float logit_scale = static_cast<float>(moe.logit_scale);
  if (moe.score == RouterScore::kSigmoid) {
    for (int i = lane_id(); i < moe.num_experts; i += kWarpSize)
      scores[i] = 1.0f / (1.0f + expf(-scores[i] * logit_scale));
    return;
  }
  float largest = kMinusInfinity, sum = 0;
  for (int i = lane_id(); i < moe.num_experts; i += kWarpSize)
    largest = fmaxf(largest, scores[i] *= logit_scale);
  largest = warp_max(largest);
  for (int i = lane_id(); i < moe.num_experts; i += kWarpSize)
    sum += scores[i] = expf(scores[i] - largest);
  sum = warp_sum(sum);
  for (int i = lane_id(); i < moe.num_experts; i += kWarpSize)
    scores[i] /= sum;
}

// Sets the keys of all groups but the best ones to -Inf. Ties go to the lowest group.
__device__ __forceinline__ void keep_best_groups(const Moe& moe, float* keys, float* groups) {
  const int size = moe.num_experts / moe.num_groups;
  for (int group = lane_id(); group < moe.num_groups; group += kWarpSize) {
    float first = kMinusInfinity, second = kMinusInfinity;
    for (int i = 0; i < size; ++i) {
      const float key = keys[group * size + i];
      second = fmaxf(second, fminf(first, key));
      first = fmaxf(first, key);
    }
    groups[group] = first + second;
  }
  __syncwarp();
  for (int group = lane_id(); group < moe.num_groups; group += kWarpSize) {
    int better = 0;
    for (int other = 0; other < moe.num_groups; ++other)
      better += groups[other] > groups[group] || (groups[other] == groups[group] && other < group) ? 1 : 0;
    for (int i = 0; better >= moe.top_groups && i < size; ++i)
      keys[group * size + i] = kMinusInfinity;
  }
  __syncwarp();
}

// Returns the expert with the largest key that is not taken. The keys of taken ones are NaN. Ties go to the lowest.
__device__ __forceinline__ int best_expert(const float* keys, int num_experts) {
  int best = -1;
  float key = 0;
  for (int i = lane_id(); i < num_experts; i += kWarpSize)
    if (keys[i] == keys[i] && (best < 0 || keys[i] > key)) best = i, key = keys[i];
#pragma unroll
  for (int bits = kWarpSize / 2; bits > 0; bits /= 2) {
    const int other = __shfl_xor_sync(0xffffffffu, best, bits);
    const float other_key = __shfl_xor_sync(0xffffffffu, key, bits);
    const bool is_better = best < 0 || other_key > key || (other_key == key && other < best);
    if (other >= 0 && is_better) best = other, key = other_key;
  }
  return best;
}

__device__ __forceinline__ void choose_experts(const RouterArgs& args, int64_t token, float* scores, float* keys,
                                               float* groups) {
  const Moe& moe = args.moe;
  int32_t* const experts = args.experts + token * moe.top_k;
  float* const weights = args.weights + token * moe.top_k;
  if (args.ids != nullptr && args.ids[token] == kNoToken) {
    for (int k = lane_id(); k < moe.top_k; k += kWarpSize)
      experts[k] = -1, weights[k] = 0;
    return;
  }
  score_experts(moe, scores);
  __syncwarp();
  for (int i = lane_id(); i < moe.num_experts; i += kWarpSize) {
    const float key = args.selection_bias == nullptr ? scores[i] : scores[i] + args.selection_bias[i];
    keys[i] = key == key ? key : kMinusInfinity;
  }
  __syncwarp();
  if (moe.num_groups > 1) keep_best_groups(moe, keys, groups);
  float sum = 0;
  for (int k = 0; k < moe.top_k; ++k) {
    const int best = best_expert(keys, moe.num_experts);
    const float weight = scores[best];
    sum += weight;
    if (lane_id() == 0) {
      experts[k] = best, weights[k] = weight;
      keys[best] = as_float(0x7fc00000u);
    }
    __syncwarp();
  }
  if (lane_id() != 0) return;
  const float scale = static_cast<float>(moe.weight_scale) / (moe.normalizes_weights ? sum : 1.0f);
  for (int k = 0; k < moe.top_k; ++k)
    weights[k] *= args.scales == nullptr ? scale : scale * args.scales[experts[k]];
}

// ---- the kernels

// Stores what the router reads of a token. `squares` are the sums of squares by warp.
__device__ __forceinline__ void store_normed(const RouterArgs& args, const float* from, const float* squares,
                                             float* to) {
  const float scale = norm_scale(squares, args.hidden_size, args.eps);
  for (int64_t k = threadIdx.x; k < args.hidden_size; k += kThreads)
    to[k] = args.norm == nullptr ? from[k] : from[k] * scale * args.norm[k];
}

// Writes what the adapter of a token adds to its logits, or zeros. One block per token.
__global__ void __launch_bounds__(kThreads) router_update_kernel(RouterArgs args) {
  const int num_experts = args.moe.num_experts, token = static_cast<int>(blockIdx.x), lane = lane_id();
  const int64_t size = args.hidden_size;
  const float* const from = args.hidden + token * size;
  float *const x = reinterpret_cast<float*>(shared_memory()), *const squares = x + size, *const t = squares + kWarps;
  const float square = warp_sum(partial_sum_of_squares(from, size));
  if (lane == 0) squares[warp_id()] = square;
  __syncthreads();
  store_normed(args, from, squares, x);
  const int adapter = args.token_adapters[token];
  for (int turn = 0; turn < 2; ++turn) {
    const bool is_gate = turn == 1;
    const DeviceLora* const* const loras = is_gate ? args.gate_loras : args.router_loras;
    const DeviceLora* const lora = adapter < 0 || loras == nullptr ? nullptr : loras[adapter];
    float* const out = args.updates + int64_t{token} * (num_experts + 1) + (is_gate ? num_experts : 0);
    __syncthreads();  // x is stored, and t is no longer read
    for (int value = warp_id(); lora != nullptr && value < lora->num_values; value += kWarps) {
      float sum = 0;
      for (int64_t k = lane; k < size; k += kWarpSize)
        sum = fmaf(lora->float_a[value * size + k], x[k], sum);
      sum = warp_sum(sum);
      if (lane == 0) t[value] = sum * lora->scales[value];
    }
    __syncthreads();
    for (int row = static_cast<int>(threadIdx.x); row < (is_gate ? 1 : num_experts); row += kThreads) {
      float sum = 0;
      for (int j = 0; lora != nullptr && j < lora->num_values; ++j)
        sum = fmaf(lora->float_b[j * lora->rows + row], t[j], sum);
      out[row] = sum;
    }
  }
}

// Block b has the tokens from b * kTokens on. The shared gate is one more row of the router.
template <int kTokens>
__global__ void __launch_bounds__(kThreads) router_kernel(RouterArgs args) {
  static_assert(kTokens <= kWarps);
  const Moe& moe = args.moe;
  const int64_t size = args.hidden_size;
  const RouterLayout layout = router_layout(moe, size);
  auto* const shared = reinterpret_cast<float*>(shared_memory());
  const int first = static_cast<int>(blockIdx.x) * kTokens, lane = lane_id(), warp = warp_id();
  const auto hidden_of = [&](int t) {
    return args.hidden + (first + t < args.num_tokens ? first + t : args.num_tokens - 1) * size;
  };
  for (int t = 0; t < kTokens; ++t) {
    const float square = warp_sum(partial_sum_of_squares(hidden_of(t), size));
    if (lane == 0) shared[t * layout.floats + layout.squares + warp] = square;
  }
  __syncthreads();
  for (int t = 0; t < kTokens; ++t)
    store_normed(args, hidden_of(t), shared + t * layout.floats + layout.squares, shared + t * layout.floats);
  __syncthreads();
  const int num_rows = moe.num_experts + (args.shared_gate == nullptr ? 0 : 1);
  for (int row = warp; row < num_rows; row += kWarps) {
    const float* const weights = row < moe.num_experts ? args.router + row * size : args.shared_gate;
    float sums[kTokens] = {};
#pragma unroll 4
    for (int64_t k = lane; k < size; k += kWarpSize) {
      const float weight = weights[k];
#pragma unroll
      for (int t = 0; t < kTokens; ++t)
        sums[t] = fmaf(weight, shared[t * layout.floats + k], sums[t]);
    }
    const float bias = args.bias != nullptr && row < moe.num_experts ? args.bias[row] : 0.0f;
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      float sum = warp_sum(sums[t]) + bias;
      if (args.updates != nullptr && first + t < args.num_tokens)
        sum += args.updates[int64_t{first + t} * (moe.num_experts + 1) + row];
      if (lane == 0) shared[t * layout.floats + layout.scores + row] = sum;
    }
  }
  __syncthreads();
  const int token = first + warp;
  if (warp >= kTokens || token >= args.num_tokens) return;
  float* const mine = shared + warp * layout.floats;
  if (args.shared_gate != nullptr && lane == 0)
    args.shared_weights[token] = 1.0f / (1.0f + expf(-mine[layout.scores + moe.num_experts]));
  choose_experts(args, token, mine + layout.scores, mine + layout.keys, mine + layout.groups);
}

size_t token_bytes(const Moe& moe, int64_t hidden_size) {
  return static_cast<size_t>(router_layout(moe, hidden_size).floats) * sizeof(float);
}

// Returns false when the tokens of a block do not fit in shared memory, or are more than there are.
template <int kTokens>
bool launch_with(const RouterArgs& args, cudaStream_t stream) {
  const size_t bytes = kTokens * token_bytes(args.moe, args.hidden_size);
  if (bytes > kMinSharedBytes || (kTokens > 1 && args.num_tokens < kTokens)) return false;
  launch(router_kernel<kTokens>, dim3(static_cast<unsigned>((args.num_tokens + kTokens - 1) / kTokens)), dim3(kThreads),
         bytes, stream, args);
  return true;
}

}  // namespace

bool supports_router(const Moe& moe, int64_t hidden_size) {
  return token_bytes(moe, hidden_size) <= kMinSharedBytes;
}

void launch_router(const RouterArgs& args, cudaStream_t stream) {
  const Moe& moe = args.moe;
  CAPSTAN_CHECK(args.num_tokens > 0 && args.hidden_size > 0 && supports_router(moe, args.hidden_size));
  CAPSTAN_CHECK(moe.num_experts > 0 && moe.top_k > 0 && moe.top_k <= moe.num_experts && moe.num_groups > 0 &&
                moe.num_experts % moe.num_groups == 0);
  CAPSTAN_CHECK(args.experts != nullptr && args.weights != nullptr &&
                (args.shared_gate == nullptr || args.shared_weights != nullptr));
  if (args.updates != nullptr) {
    CAPSTAN_CHECK(args.token_adapters != nullptr);
    const size_t floats = static_cast<size_t>(args.hidden_size) + kWarps + kMaxLoraRank;
    launch(router_update_kernel, dim3(static_cast<unsigned>(args.num_tokens)), dim3(kThreads), floats * sizeof(float),
           stream, args);
  }
  // With few tokens, more blocks are better than fewer reads of the router.
  constexpr int kManyTokens = 256;
  if (args.num_tokens >= kManyTokens && (launch_with<8>(args, stream) || launch_with<4>(args, stream))) return;
  launch_with<1>(args, stream);
}

}  // namespace capstan::cuda
