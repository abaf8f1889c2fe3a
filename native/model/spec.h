#pragma once
// A model architecture as data, which `ts/model` reads from config.json. Sizes are of the complete model, before it is
// split over ranks.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "native/backend/backend.h"

namespace capstan {

enum class RopeType : uint8_t { kDefault, kLinear, kDynamic, kLlama3, kYarn, kLongRope };

struct RopeSpec {
  RopeType type = RopeType::kDefault;
  double theta = 10000;
  int rotary_dim = 0;  // leading dimensions of a head that are rotated
  double factor = 1;
  int original_max_positions = 0;                    // trained length
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3
  double beta_fast = 32, beta_slow = 1;              // yarn
  bool truncate = true;                              // yarn: round the correction range to integers
  double attention_factor = 1;                       // multiplies cos and sin
  // (rotary_dim / 2) or empty: divide the frequencies, after any scaling. GGUF files store the llama3 scaling so.
  std::vector<float> frequency_divisors;
  // The same for a context above the trained length, when they differ (LongRoPE); otherwise empty.
  std::vector<float> long_frequency_divisors;
  // b: q is multiplied by 1 + b · ln(1 + floor(position / trained length)), as in Llama 4; 0 = none.
  double query_scale_growth = 0;
};

struct LayerSpec {
  Mixer mixer = Mixer::kAttention;
  int window = 0;  // how many of the newest positions a query sees, its own included; 0 = all
  int rope = 0;    // index into ModelSpec::ropes; -1 = no rotation
  bool is_moe = false;
  bool lacks_input_norm = false;  // although LayerNorms::input says otherwise
  // Of layers that differ from the model; 0 = as ModelSpec says.
  int head_dim = 0, num_kv_heads = 0;
  int64_t intermediate_size = 0;
  int kv_source = -1;  // the earlier layer whose keys and values it reads; -1 = it has its own
};

// One layer of what turns a pooled hidden state into the result.
struct HeadLayerSpec {
  int64_t output_size = 0;
  Activation activation = Activation::kIdentity;
  bool has_norm = false;
  std::vector<int32_t> token_ids;  // not empty: its weights are these rows of the LM head, and it has no tensors
};

struct ModelSpec {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  NormKind norm_kind = NormKind::kRms;
  double rms_norm_eps = 1e-6;  // of all norms
  Activation activation = Activation::kSilu;
  bool tie_word_embeddings = false;
  // As in DeviceModel.
  double attention_scale = 1, attention_soft_cap = 0;
  QkNorm qk_norm = QkNorm::kNone;
  bool has_v_norm = false;
  LayerNorms norms;
  bool has_sinks = false;
  bool rotates_before_qk_norm = false;
  double embedding_scale = 1, residual_scale = 1, logit_scale = 1, logit_soft_cap = 0;
  double norm_offset = 0;  // added to the weights of all norms; Gemma stores them minus 1
  Moe moe;
  std::vector<LayerSpec> layers;     // (num_layers)
  std::vector<RopeSpec> ropes;       // the distinct rotations of the layers
  RecurrentShape recurrent;          // of the layers that are not attention; conv_taps = 0 without such layers
  bool has_output_gate = false;      // in q_proj, the query of each head is followed by a gate of its attention result
  int64_t per_layer_input_size = 0;  // as in DeviceModel
  bool has_layer_scales = false;     // each layer multiplies its result by `layers.N.layer_scale`
  bool has_mtp = false;              // the last layer is not of the decoder: it belongs to the MTP head
  int max_position_embeddings = 0;
  int default_length = 0;  // the context length unless another is requested; 0 = max_position_embeddings
  // As in DeviceModel.
  bool is_causal = true, has_gated_mlp = true, is_parallel = false, has_final_norm = true;
  EmbeddingShape embedding;
  Pooling pooling = Pooling::kNone;
  std::vector<HeadLayerSpec> head;  // of a model that pools

  int head_dim_of(const LayerSpec& layer) const { return layer.head_dim > 0 ? layer.head_dim : head_dim; }
  int num_kv_heads_of(const LayerSpec& layer) const {
    return layer.num_kv_heads > 0 ? layer.num_kv_heads : num_kv_heads;
  }
  int64_t intermediate_size_of(const LayerSpec& layer) const {
    return layer.intermediate_size > 0 ? layer.intermediate_size : intermediate_size;
  }
  int num_layers() const { return static_cast<int>(layers.size()); }  // that of the MTP head included
};

// Returns the number of values of a pooled result.
int64_t result_size(const ModelSpec& spec);

// Returns the longest context that the position encoding supports: the configured length, or the trained length times
// the scaling factor.
int max_context_length(const ModelSpec& spec);

// Returns the number of weights that one token is multiplied with, those of the LM head included.
double weights_per_token(const ModelSpec& spec);

// Returns the arithmetic work of attention to one token of context, relative to all products of one token with weights,
// by the window of the layers. Window 0 = none.
std::map<int, double> attention_work_by_window(const ModelSpec& spec);

// Throws kInvalidModel when a size is out of range or sizes contradict each other.
void check_spec(const ModelSpec& spec);

}  // namespace capstan
