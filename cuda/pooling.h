#pragma once
// The launchers of encoders and of models that pool: embeddings of positions and of token types, biases of distances,
// norms of f32 rows, and the sums over the rows of sequences.
#include <cstdint>

#include "cuda/kernels.h"

namespace capstan::cuda {

// hidden (num_tokens, hidden_size) += the rows of the tables, which may be null.
struct AddEmbeddingsArgs {
  float* hidden = nullptr;
  int num_tokens = 0;
  int64_t hidden_size = 0;
  const float* token_type_table = nullptr;  // (num_token_types, hidden_size)
  const int32_t* token_types = nullptr;     // (num_tokens)
  const float* position_table = nullptr;    // (num_positions, hidden_size)
  const int32_t* positions = nullptr;       // (num_tokens)
  int position_offset = 0;                  // the row of position 0
};
void launch_add_embeddings(const AddEmbeddingsArgs& args, cudaStream_t stream);

// biases (num_heads, num_distances) = the columns of the heads from the given rows of the table.
struct BiasesArgs {
  const float* table = nullptr;   // (…, total_heads)
  const int32_t* rows = nullptr;  // (num_distances)
  int num_distances = 0, num_heads = 0, head_begin = 0, total_heads = 0;
  float* biases = nullptr;
};
void launch_biases(const BiasesArgs& args, cudaStream_t stream);

// rows (num_rows, size) = norm(activation(rows)), in place. Without a weight there is no norm.
struct RowNormArgs {
  float* rows = nullptr;
  int num_rows = 0;
  int64_t size = 0;
  Activation activation = Activation::kIdentity;
  const float* weight = nullptr;  // (size) or null
  const float* bias = nullptr;    // (size) of a layer norm, or null
  float eps = 0;
};
void launch_row_norm(const RowNormArgs& args, cudaStream_t stream);

// A PoolRow (backend.h) without its spans.
struct PoolItem {
  int32_t first_row = 0, num_rows = 0, first_weight = 0;
  int32_t result = -1;  // row of the results, or -1
  float divisor = 1;
};

// sums = before and the rows of hidden, added in order; results = sums / divisor.
struct PoolArgs {
  Pooling pooling = Pooling::kLast;
  const float* hidden = nullptr;  // (…, hidden_size)
  int64_t hidden_size = 0;
  const PoolItem* items = nullptr;  // (num_items)
  int num_items = 0;
  const float* before = nullptr;  // (num_items, hidden_size)
  float* sums = nullptr;          // (num_items, hidden_size)
  float* results = nullptr;       // (…, hidden_size)
};
void launch_pool(const PoolArgs& args, cudaStream_t stream);

}  // namespace capstan::cuda
