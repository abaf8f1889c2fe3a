// Kernels that process one token at a time: embedding, norm, and the epilogue of q, k and v.
#include "cuda/kernels/epilogue.h"
#include "cuda/kernels/rows.h"
#include "cuda/kernels/weight_tiles.h"
#include "cuda/launch.h"
#include "native/base/check.h"

namespace capstan::cuda {
namespace {

constexpr int kThreads = kNormThreads;
constexpr int kWarps = kNormWarps;

template <class T>
__global__ void __launch_bounds__(kThreads) embed_kernel(EmbedArgs args) {
  griddepcontrol_launch_dependents();
  const int64_t token = blockIdx.x;
  const int32_t given = args.ids[token];
  const int32_t id = given >= 0 || given == kNoToken ? given : args.drawn_ids[-1 - given];
  const int64_t row = int64_t{id} - args.vocab_begin;
  const bool is_mine = row >= 0 && row < args.table.rows;
  for (int64_t k = threadIdx.x; k < args.hidden_size; k += kThreads) {
    const float value = is_mine ? weight_value<T>(args.table, row, k) : 0.0f;
    // The addition turns -0 into +0, as adding the other ranks' zeros would.
    args.hidden[token * args.hidden_size + k] = value + 0.0f;
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) norm_kernel(NormArgs args) {
  griddepcontrol_launch_dependents();
  griddepcontrol_wait();
  const int64_t row = blockIdx.x;
  if (args.rows != nullptr && args.rows[row] < 0) return;
  const float* from = args.hidden + (args.rows == nullptr ? row : args.rows[row]) * args.hidden_size;
  float* squares = reinterpret_cast<float*>(shared_memory());
  const float square = warp_sum(partial_sum_of_squares(from, args.hidden_size));
  if (lane_id() == 0) squares[warp_id()] = square;
  __syncthreads();
  const float scale = norm_scale(squares, args.hidden_size, args.eps);
  for (int64_t k = threadIdx.x; k < args.hidden_size; k += kThreads)
    args.acts[act_index(args.is_row_major, row, args.split.place(k), args.split.padded())] =
        to_bits<T>(from[k] * scale * args.weight[k]);
}

// One warp per (token, head), with the heads of q, then k, then v. Shared memory holds head_dim floats per warp.
template <class T>
__global__ void __launch_bounds__(kThreads) qkv_kernel(QkvArgs args) {
  griddepcontrol_launch_dependents();
  griddepcontrol_wait();
  const int num_kv_heads = args.layout.num_kv_heads, head_dim = args.layout.head_dim;
  const int num_all = args.num_heads + 2 * num_kv_heads;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + warp_id();
  if (item >= int64_t{args.num_tokens} * num_all) return;
  const int64_t token = item / num_all;
  const int head = static_cast<int>(item % num_all);
  const float* from = args.qkv + token * args.qkv_stride + int64_t{head} * head_dim;
  float* row = reinterpret_cast<float*>(shared_memory()) + warp_id() * head_dim;
#pragma unroll 4
  for (int d = lane_id(); d < head_dim; d += kWarpSize) {
    row[d] = tree_sum(from + d, args.num_tokens * args.qkv_stride, args.parts);
    if (args.bias != nullptr) row[d] += args.bias[int64_t{head} * head_dim + d];
  }
  __syncwarp();
  finish_head<T>(args, token, head, row);
}

}  // namespace

void launch_embed(const EmbedArgs& args, cudaStream_t stream) {
  CAPSTAN_CHECK(args.num_tokens > 0 && args.hidden_size > 0 && args.drawn_ids != nullptr);
  CAPSTAN_CHECK(has_weights(args.table));
  launch(args.type == FloatType::kBf16 ? embed_kernel<Bf16> : embed_kernel<F16>,
         dim3(static_cast<unsigned>(args.num_tokens)), dim3(kThreads), 0, stream, args);
}

void launch_norm(const NormArgs& args, cudaStream_t stream) {
  CAPSTAN_CHECK(args.num_rows > 0 && args.split.parts * args.split.part_cols == args.hidden_size);
  launch_pdl(args.uses_pdl, args.type == FloatType::kBf16 ? norm_kernel<Bf16> : norm_kernel<F16>,
             dim3(static_cast<unsigned>(args.num_rows)), dim3(kThreads), kWarps * sizeof(float), stream, args);
}

void launch_qkv(const QkvArgs& args, cudaStream_t stream) {
  CAPSTAN_CHECK(args.num_tokens > 0 && args.parts >= 1 && args.parts <= kMaxParts &&
                (args.parts & (args.parts - 1)) == 0);
  CAPSTAN_CHECK(args.layout.block_size % 32 == 0 && args.rotary_dim % 2 == 0 &&
                args.rotary_dim <= args.layout.head_dim);
  const int64_t items = int64_t{args.num_tokens} * (args.num_heads + 2 * args.layout.num_kv_heads);
  launch_pdl(args.uses_pdl, args.type == FloatType::kBf16 ? qkv_kernel<Bf16> : qkv_kernel<F16>,
             dim3(static_cast<unsigned>((items + kWarps - 1) / kWarps)), dim3(kThreads),
             sizeof(float) * kWarps * static_cast<size_t>(args.layout.head_dim), stream, args);
}

}  // namespace capstan::cuda
