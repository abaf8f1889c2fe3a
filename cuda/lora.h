#pragma once
// Adapters (native/backend/adapter.h) in device memory, and the launchers of their kernels. The rows of a step that
// have an adapter are a list. After a product, they get B · t, where t = scale · A · x.
#include <cstdint>

#include "cuda/kernels.h"

namespace capstan::cuda {

// The values of t that a row of the matrix is multiplied with.
struct LoraRange {
  int32_t first = 0, count = 0;  // count 0: no update
};

// The update of a matrix. t has the values of its factors one after the other.
struct DeviceLora {
  const uint16_t* a = nullptr;        // (num_values, cols), row-major
  const float* scales = nullptr;      // (num_values)
  const uint16_t* b = nullptr;        // (most values of a range, rows)
  const LoraRange* ranges = nullptr;  // (rows)
  int32_t num_values = 0;
  int64_t rows = 0, cols = 0;  // of the matrix; rows in its order, with padding
};

// The rows of a step that have an adapter.
struct LoraRows {
  const int32_t* tokens = nullptr;           // (num_rows), ascending
  const int32_t* adapters = nullptr;         // (num_rows) index into loras
  const DeviceLora* const* loras = nullptr;  // (adapters) of one matrix; null = no update
  int num_rows = 0;
};

// t (num_rows, t_stride) = A · x without the scale: the sum of this rank's parts of K, as a binary tree.
struct LoraValuesArgs {
  FloatType type = FloatType::kBf16;
  LoraRows rows;
  const uint16_t* acts = nullptr;  // in operand layout
  DepthSplit split;
  float* t = nullptr;
  int t_stride = 0;  // most values of t
};
void launch_lora_values(const LoraValuesArgs& args, cudaStream_t stream);
constexpr int64_t kMaxLoraInputs = static_cast<int64_t>(kMinSharedBytes / sizeof(uint16_t));

// out[token - first_token] += residual_scale · B · scale · (sum of t over the ranks, as a binary tree), for tokens from
// first_token up to end_token.
struct LoraUpdateArgs {
  FloatType type = FloatType::kBf16;
  LoraRows rows;
  const float* t[8] = {};  // by rank
  int world_size = 1;
  int t_stride = 0;
  int first_token = 0, end_token = 0;
  float* out = nullptr;  // (end_token - first_token, out_stride)
  int64_t out_stride = 0;
  float residual_scale = 1;
  int64_t num_features = 0;  // rows of the matrix
};
void launch_lora_update(const LoraUpdateArgs& args, cudaStream_t stream);

// What GemmOutput::kGated or kActivated stores, in operand layout, from the outputs of the product.
struct GateArgs {
  FloatType type = FloatType::kBf16;
  const float* from = nullptr;  // (num_tokens, stride)
  int64_t stride = 0;
  int num_tokens = 0;
  uint16_t* gated = nullptr;
  DepthSplit gated_split;
  Activation activation = Activation::kSilu;
  bool is_gated = true;
  Xielu xielu = {};
};
void launch_gate(const GateArgs& args, cudaStream_t stream);

}  // namespace capstan::cuda
