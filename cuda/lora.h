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

// The update of a matrix. t has the values of its factors one after the other. Of a table, A is (rows of the table,
// num_values), and the rows of B are the columns of the table.
struct DeviceLora {
  const uint16_t* a = nullptr;        // (num_values, cols), row-major
  const float* scales = nullptr;      // (num_values)
  const uint16_t* b = nullptr;        // (most values of a range, rows)
  const LoraRange* ranges = nullptr;  // (rows)
  int32_t num_values = 0;
  int64_t rows = 0, cols = 0;  // of the matrix; rows in its order, with padding
  // In place of a and b: of routers, whose rounding would choose other experts.
  const float *float_a = nullptr, *float_b = nullptr;
};

// The rows of a product that may have an update.
struct LoraRows {
  const int32_t* tokens = nullptr;           // (num_rows), ascending; null: row i is token i
  const int32_t* adapters = nullptr;         // (num_rows) index into loras; null: row i has update i
  const DeviceLora* const* loras = nullptr;  // of one matrix by adapter, or by row; null = no update
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
// The same for the rows of a table that ids choose. Ids are those of EmbedArgs.
struct LoraEmbedArgs {
  FloatType type = FloatType::kBf16;
  LoraRows rows;
  const int32_t* ids = nullptr;  // (num_tokens)
  const int32_t* drawn_ids = nullptr;
  float* t = nullptr;
  int t_stride = 0;
};
void launch_lora_embed(const LoraEmbedArgs& args, cudaStream_t stream);
// Most columns of a matrix that launch_lora_values accepts.
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
  const float* factors = nullptr;  // of kActivated, (num_tokens, factor_stride) or null
  int64_t factor_stride = 0;
};
void launch_gate(const GateArgs& args, cudaStream_t stream);

// Looks up the update of each row of experts (experts.h), and then that of each token's shared expert.
struct ExpertLorasArgs {
  const int32_t* token_adapters = nullptr;   // (num_tokens) adapter of a token, or -1
  const int32_t* row_tokens = nullptr;       // (num_rows)
  const int32_t* tile_experts = nullptr;     // (num_rows / tile_rows)
  const DeviceLora* const* loras = nullptr;  // (num_experts + 1, num_adapters), the last ones of the shared expert
  int num_rows = 0, tile_rows = 0, num_tokens = 0, num_experts = 0, num_adapters = 0;
  const DeviceLora** of_rows = nullptr;  // (num_rows + num_tokens)
};
void launch_expert_loras(const ExpertLorasArgs& args, cudaStream_t stream);

}  // namespace capstan::cuda
