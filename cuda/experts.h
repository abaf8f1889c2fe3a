#pragma once
// The launchers of a mixture of experts. Pairs are (token, expert) in the order of `experts`. The pairs of an expert
// lie in rows that begin at a tile, so that the columns of a product's tile have one expert.
#include <algorithm>
#include <cstdint>

#include "cuda/lora.h"

namespace capstan::cuda {

// Chooses the experts of each token from norm(hidden) in f32, as choose_experts (native/backend/cpu/expert_plan.h).
struct RouterArgs {
  Moe moe;
  const float* hidden = nullptr;  // (num_tokens, hidden_size)
  const int32_t* ids = nullptr;   // (num_tokens) a token with kNoToken has no experts
  int num_tokens = 0;
  int64_t hidden_size = 0;
  const float* norm = nullptr;  // (hidden_size) or null
  float eps = 0;
  const float* router = nullptr;          // (num_experts, hidden_size)
  const float* bias = nullptr;            // (num_experts) or null
  const float* selection_bias = nullptr;  // (num_experts) or null
  const float* scales = nullptr;          // (num_experts) or null
  const float* shared_gate = nullptr;     // (hidden_size) or null
  int32_t* experts = nullptr;             // (num_tokens, top_k), best first, or -1
  float* weights = nullptr;               // (num_tokens, top_k)
  float* shared_weights = nullptr;        // (num_tokens) with a shared gate
  // Of adapters, which change the logits: the adapter of each token, or -1; the updates of the router and of the shared
  // gate by adapter, null without; and (num_tokens, num_experts + 1) scratch.
  const int32_t* token_adapters = nullptr;
  const DeviceLora* const* router_loras = nullptr;
  const DeviceLora* const* gate_loras = nullptr;
  float* updates = nullptr;  // null = no adapter changes the logits
};
void launch_router(const RouterArgs& args, cudaStream_t stream);
bool supports_router(const Moe& moe, int64_t hidden_size);

// Rows per tile. Few tokens per expert take small tiles.
inline int expert_tile_rows(int64_t num_pairs, int num_experts) {
  return num_pairs > int64_t{num_experts} * kTileTokens ? 4 * kTileTokens : kTileTokens;
}
// The most tiles that any choice of experts takes.
inline int64_t max_expert_tiles(int64_t num_pairs, int num_experts, int tile_rows) {
  return (num_pairs + std::min<int64_t>(num_pairs, num_experts) * (tile_rows - 1)) / tile_rows;
}

// The most rows that the experts of a step have.
inline int64_t rows_of_experts(int64_t num_tokens, const Moe& moe) {
  const int64_t pairs = num_tokens * moe.top_k;
  const int tile_rows = expert_tile_rows(pairs, moe.num_experts);
  return max_expert_tiles(pairs, moe.num_experts, tile_rows) * tile_rows;
}

// Assigns a row to each pair, in the order of the experts and then of the tokens.
struct ExpertRowsArgs {
  const int32_t* experts = nullptr;  // (num_pairs)
  int num_pairs = 0, top_k = 0, num_experts = 0;
  int tile_rows = 0, num_tiles = 0;  // expert_tile_rows, max_expert_tiles
  int32_t* first_rows = nullptr;     // (num_experts + 1)
  int32_t* tile_experts = nullptr;   // (num_tiles), -1 after the last tile
  int32_t* row_tokens = nullptr;     // (num_tiles * tile_rows), -1 for padding
  int32_t* pair_rows = nullptr;      // (num_pairs), -1 without an expert
};
void launch_expert_rows(const ExpertRowsArgs& args, cudaStream_t stream);

// launch_gemm of each tile of rows with the weights of its expert. All experts have the shape and the kind of codes of
// product.weights, whose arrays are not read. product.num_tokens is the number of all rows.
struct ExpertGemmArgs {
  GemmArgs product;
  const DeviceMatrix* experts = nullptr;  // (num_experts)
  const int32_t* tile_experts = nullptr;  // (num_tokens / tile_rows)
  int tile_rows = 0;
  bool adds_bias = true;
};
void launch_expert_gemm(const ExpertGemmArgs& args, const DeviceResources& resources, cudaStream_t stream);

// hidden += scale · (Σ weight · (result of the expert + its bias) + shared weight · (result of the shared expert + its
// bias)). Each result is the sum over the ranks, as a binary tree. With norms, both terms are normalized first.
struct ExpertSumArgs {
  float* hidden = nullptr;  // (num_tokens, hidden_size)
  bool replaces = false;    // hidden = the sum, without the scale
  float scale = 1;
  int first = 0, end = 0;        // the tokens to sum; with `replaces` the others become zeros
  const float* results[8] = {};  // by rank: (rows, hidden_size)
  int64_t shared_row = -1;       // the first of num_tokens rows of the shared expert; -1: there is none
  int world_size = 1;
  const int32_t* experts = nullptr;                            // (num_tokens, top_k)
  const int32_t* pair_rows = nullptr;                          // (num_tokens, top_k)
  const float* weights = nullptr;                              // (num_tokens, top_k)
  const float* shared_weights = nullptr;                       // (num_tokens); null = 1
  const DeviceMatrix* downs = nullptr;                         // (num_experts) for the biases
  const float* shared_bias = nullptr;                          // (hidden_size) or null
  const float *expert_norm = nullptr, *shared_norm = nullptr;  // (hidden_size) or null, both
  float eps = 0;                                               // of the norms
  int num_tokens = 0, top_k = 0;
  int64_t hidden_size = 0;
  // Of adapters: the update of each row, null without, and where its t (rows, t_stride) begins in the results of each
  // rank. The results have one rank's part of t, and B · t is added to their sum.
  FloatType type = FloatType::kBf16;
  const DeviceLora* const* loras = nullptr;
  int64_t t_begin = 0;
  int t_stride = 0;
};
void launch_expert_sum(const ExpertSumArgs& args, cudaStream_t stream);

}  // namespace capstan::cuda
