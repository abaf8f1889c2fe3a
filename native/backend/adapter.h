#pragma once
// Low-rank adapters (LoRA). In the rows of the sequences that have an adapter, a projection gives
// W · x + scale · B · (A · x), where A has few rows: the rank r of the adapter.
#include <cstdint>
#include <memory>
#include <vector>

#include "native/backend/backend.h"

namespace capstan {

constexpr int kMaxLoraRank = 256;

// The factors of one projection.
struct LoraFactors {
  TensorSlice a;  // (r, K of this rank of the model)
  // The output features of the matrix, from first_feature on, to which the rows of b (features, r) belong.
  struct Output {
    int64_t first_feature = 0;
    TensorSlice b;
  };
  std::vector<Output> outputs;
  float scale = 1;
};

// Memory that the updates of an adapter share.
class LoraMemory {
 public:
  virtual ~LoraMemory() = default;
};

// The factors of the projections that one matrix holds. Their outputs do not overlap.
struct LoraSource {
  std::shared_ptr<LoraMemory>* memory = nullptr;  // of the adapter; the backend creates it
  std::vector<LoraFactors> factors;
  MatrixKind kind = MatrixKind::kColumn;
  int64_t total_cols = 0;  // kRow: K of the whole matrix, over all ranks
  // The matrix is a table. A is (its rows, r), and the outputs are the columns of the table.
  bool is_of_table = false;
};

// The update of one matrix in device memory.
class LoraMatrix {
 public:
  virtual ~LoraMatrix() = default;
  int64_t bytes = 0;
};

struct ExpertAdapter {
  std::unique_ptr<LoraMatrix> gate_up_proj, down_proj;
};

// The updates of the matrices of a layer; null = none.
struct LayerAdapter {
  // qkv_proj: of a recurrent layer, the update of in_proj.
  std::unique_ptr<LoraMatrix> qkv_proj, o_proj, gate_up_proj, down_proj;
  std::unique_ptr<LoraMatrix> router, shared_gate;
  std::vector<ExpertAdapter> experts;  // (num_experts + 1), the last one of the shared expert; or empty
  std::unique_ptr<LoraMatrix> per_layer_gate, per_layer_projection;
};

// An adapter on one rank.
struct AdapterWeights {
  std::shared_ptr<LoraMemory> memory;
  std::vector<LayerAdapter> layers;
  std::unique_ptr<LoraMatrix> embed_tokens, per_layer_projection, lm_head;
  int64_t bytes = 0;
};

}  // namespace capstan
