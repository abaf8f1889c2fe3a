#pragma once
// Loads one rank's shard of the weights from a table of checkpoint tensors.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "native/backend/backend.h"
#include "native/model/spec.h"

namespace capstan {

struct Weights {
  std::unique_ptr<Matrix> embed_tokens;  // (vocab rows of this rank, hidden_size)
  EmbeddingWeights embedding;
  PerLayerInputWeights per_layer_inputs;  // without a table if the model has none
  bool is_parallel = false;               // as in DeviceModel
  std::vector<LayerWeights> layers;       // with an MTP head, the last one is its own
  MtpWeights mtp;
  std::unique_ptr<Vector> norm;     // (hidden_size); null without a final norm
  std::unique_ptr<Matrix> lm_head;  // (vocab rows of this rank, hidden_size); null when tied to embed_tokens, or unused
  std::vector<HeadLayer> pooling_head;  // whole on each rank
  int64_t bytes = 0;

  const Matrix& head() const { return lm_head ? *lm_head : *embed_tokens; }
  bool has_mtp() const { return mtp.fc != nullptr; }
  // Without that of the MTP head.
  int num_decoder_layers() const { return static_cast<int>(layers.size()) - (has_mtp() ? 1 : 0); }
};

// Tensors by canonical name (listed in `ts/addon-types.ts`).
using TensorTable = std::map<std::string, FileTensor>;

// Returns the canonical name of a tensor of a layer.
std::string layer_name(int layer, const std::string& tensor);

// Throws kInvalidModel with the name and the expected shape unless the tensor is present with that shape.
void require_shape(const TensorTable& tensors, const std::string& name, int64_t rows, int64_t cols);

// The part of the recurrent layers that a rank holds.
struct RecurrentShard {
  RecurrentShape shape;  // of this rank
  int first_head = 0, first_group = 0;
  int64_t first_channel = 0;  // of the mixer's result, and of a short convolution
};

struct HeadRange {
  int begin = 0, count = 0;
};

// The part of each layer that a rank holds.
struct ShardPlan {
  // Returns the KV heads of this rank. They are replicated when there are more ranks than KV heads.
  HeadRange kv_heads(int total) const;

  int rank = 0, world_size = 1;
  int head_begin = 0, num_heads = 0;
  int64_t intermediate_size = 0;  // the largest of a layer
  int64_t per_layer_begin = 0, per_layer_size = 0;
  int64_t expert_begin = 0, expert_size = 0;  // of the intermediate size of each expert
  int64_t shared_begin = 0, shared_size = 0;  // of the intermediate size of the shared expert
  int64_t vocab_begin = 0, vocab_end = 0;
  RecurrentShard recurrent;
};

// Throws kInvalidArgument with the numbers when the model cannot be split over `world_size` ranks.
ShardPlan make_shard_plan(const ModelSpec& spec, int rank, int world_size);

DeviceModel make_device_model(const ModelSpec& spec, const ShardPlan& plan, int64_t num_token_ids, int max_model_len);
// Fills the tables of a model with a context of `max_model_len`, which make_device_model leaves empty.
void fill_rope_tables(const ModelSpec& spec, int max_model_len, std::vector<RopeTable>& tables);

// Throws kInvalidModel with the name and the expected shape unless every tensor that the spec needs is present with the
// correct shape.
void check_tensors(const ModelSpec& spec, const TensorTable& tensors);

// How load_weights keeps the matrices.
struct WeightFormats {
  WeightFormat layers = WeightFormat::kDType;
  WeightFormat vocab = WeightFormat::kDType;  // the embedding and the LM head
};

// Streams this rank's shard through `backend` into its packed layout. `tensors` must have passed check_tensors.
Weights load_weights(const ModelSpec& spec, const ShardPlan& plan, const TensorTable& tensors, WeightFormats formats,
                     Backend& backend, const LoadProgress& progress);

}  // namespace capstan
