// Kernels that process one token at a time: embedding, norm, and the epilogue of q, k and v.
#include "cuda/kernels/epilogue.h"
#include "cuda/kernels/rows.h"
#include "cuda/kernels/weight_tiles.h"
#include "cuda/launch.h"
#include "cuda/lora.h"
#include "native/base/check.h"

namespace capstan::cuda {
namespace {

constexpr int kThreads = kNormThreads;
constexpr int kWarps = kNormWarps;

// The id that a negative one refers to.
__device__ __forceinline__ int32_t drawn_id(int32_t given, const int32_t* drawn_ids) {
  return given >= 0 || given == kNoToken ? given : drawn_ids[-1 - given];
}

template <class T>
__global__ void __launch_bounds__(kThreads) embed_kernel(EmbedArgs args) {
  griddepcontrol_launch_dependents();
  const int64_t token = blockIdx.x;
  const int32_t id = drawn_id(args.ids[token], args.drawn_ids);
  const int64_t row = int64_t{id} - args.vocab_begin;
  const bool is_mine = row >= 0 && row < args.table.rows;
  for (int64_t k = threadIdx.x; k < args.hidden_size; k += kThreads) {
    const float value = is_mine ? weight_value<T>(args.table, row, k) : 0.0f;
    // The addition turns -0 into +0, as adding the other ranks' zeros would.
    args.hidden[token * args.hidden_size + k] = fmaf(value, args.scale, 0.0f);
  }
}

// One block per row with an adapter.
template <class T>
__global__ void __launch_bounds__(kThreads) lora_embed_kernel(LoraEmbedArgs args) {
  const int64_t row = blockIdx.x;
  const DeviceLora* const lora = args.rows.loras[args.rows.adapters[row]];
  if (lora == nullptr) return;
  const int64_t id = drawn_id(args.ids[args.rows.tokens[row]], args.drawn_ids);  // -1 if no id was drawn
  for (int value = static_cast<int>(threadIdx.x); value < lora->num_values; value += kThreads)
    args.t[row * args.t_stride + value] = id < 0 ? 0.0f : to_float<T>(lora->a[id * lora->num_values + value]);
}

template <class T>
__global__ void __launch_bounds__(kThreads) norm_kernel(NormArgs args) {
  griddepcontrol_launch_dependents();
  griddepcontrol_wait();
  const int64_t row = blockIdx.x;
  if (args.rows != nullptr && args.rows[row] < 0) return;
  const float* from = args.hidden + (args.rows == nullptr ? row : args.rows[row]) * args.hidden_size;
  const RowNorm norm =
      row_norm(from, args.hidden_size, args.eps, args.bias != nullptr, reinterpret_cast<float*>(shared_memory()));
  for (int64_t k = threadIdx.x; k < args.hidden_size; k += kThreads)
    args.acts[act_index(args.is_row_major, row, args.split.place(k), args.split.padded())] =
        to_bits<T>(normed(args, norm, from[k], k));
}

// One warp per (token, layer).
template <class T>
__global__ void __launch_bounds__(kThreads) layer_inputs_kernel(LayerInputArgs args) {
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + warp_id();
  if (item >= int64_t{args.num_tokens} * args.num_layers) return;
  const int32_t id = drawn_id(args.ids[item / args.num_layers], args.drawn_ids);
  const int64_t first_col = item % args.num_layers * args.size;
  float* const row = args.inputs + item * args.size;
  float square = 0;
  for (int64_t k = lane_id(); k < args.size; k += kWarpSize) {
    const float scaled = row[k] * args.projection_scale;
    square = fmaf(scaled, scaled, square);
  }
  const float scale = args.projection_scale / sqrtf(warp_sum(square) / static_cast<float>(args.size) + args.eps);
  for (int64_t k = lane_id(); k < args.size; k += kWarpSize) {
    const float of_table = id < 0 ? 0.0f : weight_value<T>(args.table, id, first_col + k);
    row[k] = fmaf(of_table, args.table_scale, row[k] * scale * args.norm[k]) * args.sum_scale;
  }
}

// Grid: (blocks of ids, rows).
__global__ void __launch_bounds__(kThreads) scale_logits_kernel(LogitsArgs args) {
  const int64_t id = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (id >= args.num_ids) return;
  float& logit = args.logits[blockIdx.y * args.stride + id];
  const float value = logit * args.scale;
  logit = args.soft_cap == 0 ? value : args.soft_cap * tanhf(value / args.soft_cap);
}

// One warp per (token, head), with the heads of q, then k, then v. Shared memory holds head_dim floats per warp.
template <class T>
__global__ void __launch_bounds__(kThreads) qkv_kernel(QkvArgs args) {
  griddepcontrol_launch_dependents();
  griddepcontrol_wait();
  const int head_dim = args.layout.head_dim, num_all = args.num_product_heads();
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
  finish_head<T, true>(args, token, head, row);
}

// One warp per (token, head of q or k).
__global__ void __launch_bounds__(kThreads) head_squares_kernel(QkvArgs args, float* squares) {
  const int num_heads = args.num_heads + args.layout.num_kv_heads, head_dim = args.layout.head_dim;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + warp_id();
  if (item >= int64_t{args.num_tokens} * num_heads) return;
  const float* const row = args.qkv + item / num_heads * args.qkv_stride + item % num_heads * head_dim;
  float square = 0;
  for (int d = lane_id(); d < head_dim; d += kWarpSize)
    square = fmaf(row[d], row[d], square);
  square = warp_sum(square);
  if (lane_id() == 0) squares[item] = square;
}

}  // namespace

void launch_embed(const EmbedArgs& args, cudaStream_t stream) {
  CAPSTAN_CHECK(args.num_tokens > 0 && args.hidden_size > 0 && args.drawn_ids != nullptr);
  CAPSTAN_CHECK(has_weights(args.table));
  launch(args.type == FloatType::kBf16 ? embed_kernel<Bf16> : embed_kernel<F16>,
         dim3(static_cast<unsigned>(args.num_tokens)), dim3(kThreads), 0, stream, args);
}

void launch_lora_embed(const LoraEmbedArgs& args, cudaStream_t stream) {
  const LoraRows& rows = args.rows;
  CAPSTAN_CHECK(rows.num_rows > 0 && rows.tokens != nullptr && rows.adapters != nullptr && rows.loras != nullptr);
  CAPSTAN_CHECK(args.ids != nullptr && args.drawn_ids != nullptr && args.t != nullptr && args.t_stride > 0);
  launch(args.type == FloatType::kBf16 ? lora_embed_kernel<Bf16> : lora_embed_kernel<F16>,
         dim3(static_cast<unsigned>(rows.num_rows)), dim3(kThreads), 0, stream, args);
}

void launch_layer_inputs(const LayerInputArgs& args, cudaStream_t stream) {
  CAPSTAN_CHECK(args.num_tokens > 0 && args.num_layers > 0 && args.size > 0 && args.drawn_ids != nullptr);
  CAPSTAN_CHECK(has_weights(args.table) && args.norm != nullptr && args.inputs != nullptr);
  const int64_t items = int64_t{args.num_tokens} * args.num_layers;
  launch(args.type == FloatType::kBf16 ? layer_inputs_kernel<Bf16> : layer_inputs_kernel<F16>,
         dim3(static_cast<unsigned>((items + kWarps - 1) / kWarps)), dim3(kThreads), 0, stream, args);
}

void launch_norm(const NormArgs& args, cudaStream_t stream) {
  CAPSTAN_CHECK(args.num_rows > 0 && args.split.parts * args.split.part_cols == args.hidden_size);
  launch_pdl(args.uses_pdl, args.type == FloatType::kBf16 ? norm_kernel<Bf16> : norm_kernel<F16>,
             dim3(static_cast<unsigned>(args.num_rows)), dim3(kThreads), kRowNormFloats * sizeof(float), stream, args);
}

void launch_logits(const LogitsArgs& args, cudaStream_t stream) {
  CAPSTAN_CHECK(args.num_rows > 0 && args.num_rows < 65536 && args.num_ids > 0 && args.num_ids <= args.stride &&
                args.logits != nullptr);
  launch(scale_logits_kernel,
         dim3(static_cast<unsigned>((args.num_ids + kThreads - 1) / kThreads), static_cast<unsigned>(args.num_rows)),
         dim3(kThreads), 0, stream, args);
}

void launch_qkv(const QkvArgs& args, cudaStream_t stream) {
  CAPSTAN_CHECK(args.num_tokens > 0 && args.parts >= 1 && args.parts <= kMaxParts &&
                (args.parts & (args.parts - 1)) == 0);
  CAPSTAN_CHECK(args.layout.block_size % 32 == 0 && args.rotary_dim % 2 == 0 &&
                args.rotary_dim <= args.layout.head_dim);
  CAPSTAN_CHECK(args.squares[0] == nullptr ||
                (args.world_size >= 1 && args.world_size <= 8 && args.total_kv_heads > 0));
  const int64_t items = int64_t{args.num_tokens} * args.num_product_heads();
  launch_pdl(args.uses_pdl, args.type == FloatType::kBf16 ? qkv_kernel<Bf16> : qkv_kernel<F16>,
             dim3(static_cast<unsigned>((items + kWarps - 1) / kWarps)), dim3(kThreads),
             sizeof(float) * kWarps * static_cast<size_t>(args.layout.head_dim), stream, args);
}

void launch_head_squares(const QkvArgs& args, float* squares, cudaStream_t stream) {
  CAPSTAN_CHECK(args.num_tokens > 0 && args.parts == 1 && args.bias == nullptr && squares != nullptr);
  const int64_t items = int64_t{args.num_tokens} * (args.num_heads + args.layout.num_kv_heads);
  launch(head_squares_kernel, dim3(static_cast<unsigned>((items + kWarps - 1) / kWarps)), dim3(kThreads), 0, stream,
         args, squares);
}

}  // namespace capstan::cuda
