// What is done to one token at a time: the embedding, norms, and the rows of q, k and v.
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "native/base/check.h"

namespace capstan::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;

// Sum over the block, the same bits in all threads. `shared` holds kWarps floats.
__device__ __forceinline__ float block_sum(float value, float* shared) {
  value = warp_sum(value);
  if (lane_id() == 0) shared[warp_id()] = value;
  __syncthreads();
  float sum = 0;
  for (int w = 0; w < kWarps; ++w) sum += shared[w];
  return sum;
}

template <class T>
__global__ void __launch_bounds__(kThreads) embed_kernel(EmbedArgs args) {
  const int64_t token = blockIdx.x;
  const int32_t given = args.ids[token];
  const int32_t id = given >= 0 || given == kNoToken ? given : args.drawn_ids[-1 - given];
  const int64_t row = int64_t{id} - args.vocab_begin;
  const bool is_mine = row >= 0 && row < args.table.rows;
  for (int64_t k = threadIdx.x; k < args.hidden_size; k += kThreads) {
    const float value = is_mine ? to_float<T>(args.table.data[weight_index(row, args.table.split.place(k), args.table.split.padded())]) : 0.0f;
    args.hidden[token * args.hidden_size + k] = value + 0.0f;  // -0 of one rank is +0 beside the zeros of the others
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) norm_kernel(NormArgs args) {
  const int64_t row = blockIdx.x;
  const float* from = args.hidden + (args.rows == nullptr ? row : args.rows[row]) * args.hidden_size;
  float square = 0;
  for (int64_t k = threadIdx.x; k < args.hidden_size; k += kThreads) square += from[k] * from[k];
  const float sum = block_sum(square, reinterpret_cast<float*>(shared_memory()));
  const float scale = 1.0f / sqrtf(sum / static_cast<float>(args.hidden_size) + args.eps);
  for (int64_t k = threadIdx.x; k < args.hidden_size; k += kThreads)
    args.acts[operand_index(row, args.split.place(k), args.split.padded())] = to_bits<T>(from[k] * scale * args.weight[k]);
}

// One warp per (token, head), heads of q, then k, then v. `shared` holds head_dim floats a warp.
template <class T>
__global__ void __launch_bounds__(kThreads) qkv_kernel(QkvArgs args) {
  const int num_kv_heads = args.layout.num_kv_heads, head_dim = args.layout.head_dim;
  const int num_all = args.num_heads + 2 * num_kv_heads;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + warp_id();
  if (item >= int64_t{args.num_tokens} * num_all) return;
  const int64_t token = item / num_all;
  const int head = static_cast<int>(item % num_all);
  const int lane = lane_id();
  const bool is_q = head < args.num_heads, is_v = head >= args.num_heads + num_kv_heads;
  const float* from = args.qkv + token * args.qkv_stride + int64_t{head} * head_dim;
  float* row = reinterpret_cast<float*>(shared_memory()) + warp_id() * head_dim;

  const float* norm = is_v ? nullptr : is_q ? args.q_norm : args.k_norm;
  float scale = 1.0f;
  if (norm != nullptr) {
    float square = 0;
    for (int d = lane; d < head_dim; d += kWarpSize) square += from[d] * from[d];
    scale = 1.0f / sqrtf(warp_sum(square) / static_cast<float>(head_dim) + args.eps);
  }
  for (int d = lane; d < head_dim; d += kWarpSize) row[d] = norm == nullptr ? from[d] : from[d] * scale * norm[d];
  __syncwarp();
  if (!is_v) {
    const int half = args.rotary_dim / 2;
    const float* rope = args.rope + int64_t{args.positions[token]} * args.rotary_dim;
    for (int d = lane; d < half; d += kWarpSize) {
      const float first = row[d], second = row[d + half], c = rope[d], s = rope[d + half];
      row[d] = first * c - second * s;
      row[d + half] = second * c + first * s;
    }
    __syncwarp();
  }

  if (is_q) {
    uint16_t* to = args.q + (token * args.num_heads + head) * args.layout.k_dim;
    for (int d = lane; d < args.layout.k_dim; d += kWarpSize) to[d] = d < head_dim ? to_bits<T>(row[d]) : 0;
    return;
  }
  const int64_t slot = args.slots[token];
  if (slot < 0) return;
  const int kv_head = (head - args.num_heads) % num_kv_heads;
  if (is_v) {
    for (int d = lane; d < head_dim; d += kWarpSize) args.cache[args.layout.value(slot, kv_head, d)] = to_bits<T>(row[d]);
  } else {
    for (int d = lane; d < args.layout.k_dim; d += kWarpSize) args.cache[args.layout.key(slot, kv_head, d)] = d < head_dim ? to_bits<T>(row[d]) : 0;
  }
}

}  // namespace

void launch_embed(const EmbedArgs& args, cudaStream_t stream) {
  CAPSTAN_CHECK(args.num_tokens > 0 && args.hidden_size > 0 && args.drawn_ids != nullptr);
  launch(args.type == FloatType::kBf16 ? embed_kernel<Bf16> : embed_kernel<F16>, dim3(static_cast<unsigned>(args.num_tokens)), dim3(kThreads), 0, stream, args);
}

void launch_norm(const NormArgs& args, cudaStream_t stream) {
  CAPSTAN_CHECK(args.num_rows > 0 && args.split.parts * args.split.part_cols == args.hidden_size);
  launch(args.type == FloatType::kBf16 ? norm_kernel<Bf16> : norm_kernel<F16>, dim3(static_cast<unsigned>(args.num_rows)), dim3(kThreads), kWarps * sizeof(float), stream, args);
}

void launch_qkv(const QkvArgs& args, cudaStream_t stream) {
  CAPSTAN_CHECK(args.num_tokens > 0 && args.layout.block_size % 32 == 0 && args.rotary_dim % 2 == 0 && args.rotary_dim <= args.layout.head_dim);
  const int64_t items = int64_t{args.num_tokens} * (args.num_heads + 2 * args.layout.num_kv_heads);
  launch(args.type == FloatType::kBf16 ? qkv_kernel<Bf16> : qkv_kernel<F16>, dim3(static_cast<unsigned>((items + kWarps - 1) / kWarps)), dim3(kThreads),
         sizeof(float) * kWarps * static_cast<size_t>(args.layout.head_dim), stream, args);
}

}  // namespace capstan::cuda
