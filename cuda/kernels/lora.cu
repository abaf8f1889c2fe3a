// The updates of adapters: t = A · x, then B · t added to the outputs of a product. Each row is computed alone, so that
// the other rows change no bit.
#include "cuda/kernels/lora.h"
#include "cuda/launch.h"
#include "native/backend/adapter.h"
#include "native/base/check.h"

namespace capstan::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kValues = 4 * kWarps;  // of t per block
constexpr int kMaxValues = 4 * kMaxLoraRank;

__device__ __forceinline__ const DeviceLora* lora_of(const LoraRows& rows, int row) {
  return rows.loras[rows.adapters == nullptr ? row : rows.adapters[row]];
}
__device__ __forceinline__ int token_of(const LoraRows& rows, int row) {
  return rows.tokens == nullptr ? row : rows.tokens[row];
}

// Grid: (rows, groups of kValues). Shared memory holds the row's activations, in the order of the columns.
template <class T>
__global__ void __launch_bounds__(kThreads) lora_values_kernel(LoraValuesArgs args) {
  const int row = static_cast<int>(blockIdx.x), lane = lane_id();
  const DeviceLora* const lora = lora_of(args.rows, row);
  const int first = static_cast<int>(blockIdx.y) * kValues;
  if (lora == nullptr || first >= lora->num_values) return;
  auto* const x = reinterpret_cast<uint16_t*>(shared_memory());
  const int64_t token = token_of(args.rows, row), part_cols = args.split.part_cols, padded = args.split.padded();
  for (int64_t k = threadIdx.x; k < lora->cols; k += kThreads)
    x[k] = args.acts[operand_index(token, args.split.place(k), padded)];
  __syncthreads();
  const int end = first + kValues < lora->num_values ? first + kValues : lora->num_values;
  for (int value = first + warp_id(); value < end; value += kWarps) {
    const uint16_t* const a = lora->a + value * lora->cols;
    float parts[kMaxParts];
#pragma unroll
    for (int part = 0; part < kMaxParts; ++part) {
      float sum = 0;
      if (part < args.split.parts)
        for (int64_t k = part * part_cols + lane; k < (part + 1) * part_cols; k += kWarpSize)
          sum = fmaf(to_float<T>(a[k]), to_float<T>(x[k]), sum);
      parts[part] = warp_sum(sum);
    }
    if (lane == 0) args.t[int64_t{row} * args.t_stride + value] = tree_sum(parts, 1, args.split.parts);
  }
}

// Grid: (rows, groups of kThreads features). Without a list of tokens, the rows are those from first_token on.
template <class T>
__global__ void __launch_bounds__(kThreads) lora_update_kernel(LoraUpdateArgs args) {
  const int row = static_cast<int>(blockIdx.x) + (args.rows.tokens == nullptr ? args.first_token : 0),
            token = token_of(args.rows, row);
  const DeviceLora* const lora = lora_of(args.rows, row);
  if (lora == nullptr || token < args.first_token || token >= args.end_token) return;
  auto* const t = reinterpret_cast<float*>(shared_memory());
  for (int value = static_cast<int>(threadIdx.x); value < lora->num_values; value += kThreads) {
    float parts[8];
#pragma unroll
    for (int rank = 0; rank < 8; ++rank)
      parts[rank] = rank < args.world_size ? args.t[rank][int64_t{row} * args.t_stride + value] : 0.0f;
    t[value] = tree_sum(parts, 1, args.world_size) * lora->scales[value];
  }
  __syncthreads();
  const int64_t feature = int64_t{blockIdx.y} * kThreads + threadIdx.x;
  if (feature >= lora->rows) return;
  if (lora->ranges[feature].count == 0) return;
  const float sum = lora_feature<T>(*lora, t, feature);
  float& out = args.out[(token - args.first_token) * args.out_stride + feature];
  out = fmaf(sum, args.residual_scale, out);
}

// One thread per output.
template <class T>
__global__ void __launch_bounds__(kThreads) gate_kernel(GateArgs args) {
  const int64_t size = args.gated_split.parts * args.gated_split.part_cols,
                item = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (item >= args.num_tokens * size) return;
  const int64_t token = item / size, feature = item % size;
  const float* const row = args.from + token * args.stride;
  const float* const gate = row + feature / (kTileRows / 2) * kTileRows + feature % (kTileRows / 2);
  float value = args.is_gated ? gated_value(args.activation, gate[0], gate[kTileRows / 2])
                              : activate(args.activation, args.xielu, row[feature]);
  if (args.factors != nullptr) value *= args.factors[token * args.factor_stride + feature];
  args.gated[operand_index(token, args.gated_split.place(feature), args.gated_split.padded())] = to_bits<T>(value);
}

// One thread per row.
__global__ void __launch_bounds__(kThreads) expert_loras_kernel(ExpertLorasArgs args) {
  const int row = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (row >= args.num_rows + args.num_tokens) return;
  const bool is_shared = row >= args.num_rows;
  const int token = is_shared ? row - args.num_rows : args.row_tokens[row],
            expert = is_shared ? args.num_experts : args.tile_experts[row / args.tile_rows],
            adapter = token < 0 ? -1 : args.token_adapters[token];
  args.of_rows[row] = adapter < 0 ? nullptr : args.loras[expert * args.num_adapters + adapter];
}

void check_rows(const LoraRows& rows, int t_stride) {
  CAPSTAN_CHECK(rows.num_rows > 0 && rows.loras != nullptr);
  CAPSTAN_CHECK(t_stride > 0 && t_stride <= kMaxValues);
}

}  // namespace

void launch_lora_values(const LoraValuesArgs& args, cudaStream_t stream) {
  check_rows(args.rows, args.t_stride);
  const int64_t cols = args.split.parts * args.split.part_cols;
  CAPSTAN_CHECK(args.acts != nullptr && args.t != nullptr && cols <= kMaxLoraInputs);
  launch(
      args.type == FloatType::kBf16 ? lora_values_kernel<Bf16> : lora_values_kernel<F16>,
      dim3(static_cast<unsigned>(args.rows.num_rows), static_cast<unsigned>((args.t_stride + kValues - 1) / kValues)),
      dim3(kThreads), static_cast<size_t>(cols) * sizeof(uint16_t), stream, args);
}

void launch_lora_update(const LoraUpdateArgs& args, cudaStream_t stream) {
  check_rows(args.rows, args.t_stride);
  CAPSTAN_CHECK(args.out != nullptr && args.num_features > 0 && args.first_token < args.end_token);
  CAPSTAN_CHECK(args.world_size == 1 || args.world_size == 2 || args.world_size == 4 || args.world_size == 8);
  const int num_rows = args.rows.tokens == nullptr ? args.end_token - args.first_token : args.rows.num_rows;
  CAPSTAN_CHECK(args.rows.tokens != nullptr || args.end_token <= args.rows.num_rows);
  launch(args.type == FloatType::kBf16 ? lora_update_kernel<Bf16> : lora_update_kernel<F16>,
         dim3(static_cast<unsigned>(num_rows), static_cast<unsigned>((args.num_features + kThreads - 1) / kThreads)),
         dim3(kThreads), static_cast<size_t>(args.t_stride) * sizeof(float), stream, args);
}

void launch_gate(const GateArgs& args, cudaStream_t stream) {
  CAPSTAN_CHECK(args.num_tokens > 0 && args.from != nullptr && args.gated != nullptr);
  const int64_t count = args.num_tokens * args.gated_split.parts * args.gated_split.part_cols;
  launch(args.type == FloatType::kBf16 ? gate_kernel<Bf16> : gate_kernel<F16>,
         dim3(static_cast<unsigned>((count + kThreads - 1) / kThreads)), dim3(kThreads), 0, stream, args);
}

void launch_expert_loras(const ExpertLorasArgs& args, cudaStream_t stream) {
  CAPSTAN_CHECK(args.num_rows > 0 && args.tile_rows > 0 && args.num_tokens > 0 && args.num_adapters > 0);
  CAPSTAN_CHECK(args.token_adapters != nullptr && args.loras != nullptr && args.of_rows != nullptr);
  const int count = args.num_rows + args.num_tokens;
  launch(expert_loras_kernel, dim3(static_cast<unsigned>((count + kThreads - 1) / kThreads)), dim3(kThreads), 0, stream,
         args);
}

}  // namespace capstan::cuda
