#pragma once
// The architecture and the sizes of a model, as a device needs them.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace capstan {

enum class Activation : uint8_t {
  kSilu,
  kGelu,
  kGeluTanh,
  kClampedSwish,  // gpt-oss: gate · sigmoid(1.702 · gate) · (up + 1), gate at most 7, up within ±7
  kRelu,
  kTanh,
  kIdentity,
  // x² · a + x · b above 0, and (exp(x) - 1 - x) · c + x · b below, with the a, b and c of the layer (XieluWeights).
  kXielu,
};

// What the projections of q and k are normalized over.
enum class QkNorm : uint8_t { kNone, kHead, kAllHeads };

// What mixes the tokens of a sequence in a layer. All but attention are recurrent: they keep a state per sequence in
// place of keys and values.
enum class Mixer : uint8_t { kAttention, kDeltaNet, kShortConv, kMamba2 };

// The sizes of attention on this rank.
struct KvShape {
  int num_kv_heads = 0;
  int total_kv_heads = 0;  // over all ranks
  int head_dim = 0;

  bool operator==(const KvShape&) const = default;
};

// The attention layers with one window and one shape. They share block tables (architecture, contract 6).
struct KvGroup {
  int window = 0;      // the blocks before the newest `window` positions may be freed; 0 = none
  int num_layers = 0;  // that store keys and values
  KvShape shape = {};  // of a group that differs from the model; head_dim 0 = as DeviceModel says
};

// The sizes of the recurrent layers on this rank. A model has one kind of them.
struct RecurrentShape {
  int num_heads = 0;   // of values; 0 for short convolutions
  int num_groups = 0;  // of heads that share keys and queries (B and C of Mamba 2)
  // Head h belongs to group h % num_groups, as in GGUF files of Qwen3.5. Otherwise the heads of a group are neighbours.
  bool heads_alternate = false;
  int head_dim = 0;           // of a value
  int state_size = 0;         // of a key
  int conv_taps = 0;          // inputs of a convolution, the token's own included
  int64_t conv_channels = 0;  // values, keys and queries; of short convolutions, the channels

  // Values of one row of the result.
  int64_t output_size() const { return num_heads == 0 ? conv_channels : int64_t{num_heads} * head_dim; }
  int group_of(int head) const { return heads_alternate ? head % num_groups : head / (num_heads / num_groups); }
};

struct DeviceLayer {
  Mixer mixer = Mixer::kAttention;
  int kv_group = 0;  // index into kv_groups; -1 = a recurrent layer
  int kv_layer = 0;  // place of its keys and values among the layers of the group
  int rope = 0;      // index into rope_tables; -1 = no rotation
  int window = 0;  // how many of the newest positions a query sees, its own included; 0 = all. Not causal: on each side
  bool reads_kv = false;          // an earlier layer stores the keys and values at its place
  int first_key = 0;              // positions before it have no keys
  int64_t intermediate_size = 0;  // of its MLP, on this rank; 0 = as DeviceModel says
};

// Rotary position encoding of some layers.
struct RopeTable {
  int rotary_dim = 0;  // leading dimensions of a head that are rotated
  // (max_model_len, 2, rotary_dim / 2): cosines, then sines, both multiplied by the attention factor.
  std::vector<float> values;
  std::vector<float> query_scales;  // (max_model_len) factors of q, or empty
  bool has_query_scales = false;    // set before the values of query_scales are
};

// kRms: x · weight / rms(x). kLayer: (x - mean) · weight / deviation + bias.
enum class NormKind : uint8_t { kRms, kLayer };

// Which norms a layer has: before attention, of its result, before the MLP, and of its result.
struct LayerNorms {
  bool input = true, attention_out = false, mlp = true, mlp_out = false;
  // The norms of results are of the hidden states after the result is added, and replace them (BERT).
  bool is_of_sum = false;
};

// What is added to the embedding of a token before the first layer.
struct EmbeddingShape {
  int num_positions = 0;    // rows of the table of positions; 0 = none
  int position_offset = 0;  // the row of position 0
  int num_token_types = 0;  // rows of the table of token types; 0 = none
  bool has_norm = false;    // of the sum
  int num_distances = 0;    // rows of the table that attention adds to the scores, by distance; 0 = none

  bool is_plain() const { return num_positions == 0 && num_token_types == 0 && !has_norm && num_distances == 0; }
};

// Which hidden states of a sequence give its result. kNone: the model generates text. kMax: the largest of each
// feature. kWeightedMean: a mean in which a token weighs as much as its position, from 1. kRootMean: the sum divided by
// the square root of the number of tokens.
enum class Pooling : uint8_t { kNone, kLast, kMean, kFirst, kMax, kWeightedMean, kRootMean };

constexpr int kMaxTopK = 64;  // experts of a token

enum class RouterScore : uint8_t { kSoftmax, kSigmoid };

// The mixture of experts: what each token adds to its hidden state is the sum of its top_k experts and the shared one.
struct Moe {
  int num_experts = 0;  // 0 = the model has none
  int top_k = 0;
  // A token's experts are of the `top_groups` best groups of neighbouring experts. The score of a group is the sum of
  // its two best.
  int num_groups = 1, top_groups = 1;
  int64_t intermediate_size = 0;         // of one expert
  int64_t shared_intermediate_size = 0;  // of the expert that all tokens have; 0 = none
  RouterScore score = RouterScore::kSoftmax;
  bool normalizes_weights = false;  // divides the scores of a token's experts by their sum
  double weight_scale = 1;          // factor of these weights
  double logit_scale = 1;           // factor of the router's logits
  // The router, the experts and the shared expert read different norms of the hidden states, and the results of the
  // experts and of the shared expert have norms before they are added.
  bool has_separate_norms = false;
};

// What makes the inputs per layer: factors of the projected hidden state, of the row of the table, and of their sum.
struct PerLayerScales {
  float projection = 1, table = 1, sum = 1;
};

// The sizes of this rank's share of the model.
struct DeviceModel {
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;  // of this rank, the largest of all layers
  int num_heads = 0;              // of this rank
  int head_begin = 0;             // the first of them
  int total_heads = 0;            // of the whole model
  int num_kv_heads = 0;           // of this rank
  int total_kv_heads = 0;         // of the whole model
  int head_dim = 0;
  int64_t vocab_size = 0;     // of the whole model
  int64_t vocab_begin = 0;    // first row of the embedding and the LM head on this rank
  int64_t vocab_end = 0;      // one past the last row on this rank
  int64_t num_token_ids = 0;  // ids from here to vocab_size have no token and are never sampled
  NormKind norm_kind = NormKind::kRms;
  float rms_norm_eps = 1e-6f;  // of all norms
  float attention_scale = 1.0f;
  LayerNorms norms;
  bool has_sinks = false;
  float attention_soft_cap = 0.0f;  // c: scores become c · tanh(score / c); 0 = none
  QkNorm qk_norm = QkNorm::kNone;
  bool has_v_norm = false;  // divides each head of v by its root mean square
  bool rotates_before_qk_norm = false;
  float embedding_scale = 1.0f;
  float residual_scale = 1.0f;  // factor of what a layer adds to the hidden states
  float logit_scale = 1.0f;
  float logit_soft_cap = 0.0f;  // as attention_soft_cap, of the scaled logits
  Activation activation = Activation::kSilu;
  bool has_gated_mlp = true;  // otherwise the MLP is act(x · Wup) · Wdown
  bool is_parallel = false;   // the MLP reads the hidden states before the result of the mixer is added
  // Otherwise a query sees the keys of the whole sequence, or of its window on both sides. Then each sequence runs
  // whole in one step, and all layers of a KV group share the memory of one.
  bool is_causal = true;
  EmbeddingShape embedding;
  Pooling pooling = Pooling::kNone;
  std::vector<int64_t> head_sizes;  // values after each layer of the pooling head
  Moe moe;                          // sizes of this rank
  std::vector<DeviceLayer> layers;
  std::vector<KvGroup> kv_groups;
  std::vector<RopeTable> rope_tables;
  RecurrentShape recurrent;                        // of the layers that are recurrent
  bool has_output_gate = false;                    // sigmoid of a gate times the result of attention
  int64_t per_layer_input_size = 0;                // of the vector that each layer has for a token; 0 = none
  int64_t per_layer_begin = 0, per_layer_end = 0;  // the part of it that this rank uses
  bool has_layer_scales = false;
  bool has_mtp = false;  // the last layer belongs to the MTP head
  int max_model_len = 0;

  int num_layers() const { return static_cast<int>(layers.size()); }
  int64_t max_head_size() const {
    return head_sizes.empty() ? 0 : *std::max_element(head_sizes.begin(), head_sizes.end());
  }
  bool has_recurrent_layers() const { return recurrent.conv_taps > 0; }
  const DeviceLayer& layer(int index) const { return layers[static_cast<size_t>(index)]; }
  int window(int index) const { return layer(index).window; }
  int64_t intermediate_size_of(const DeviceLayer& layer) const {
    return layer.intermediate_size > 0 ? layer.intermediate_size : intermediate_size;
  }
  PerLayerScales per_layer_scales() const {
    return {1.0f / std::sqrt(static_cast<float>(hidden_size)), std::sqrt(static_cast<float>(per_layer_input_size)),
            std::sqrt(0.5f)};
  }
  KvShape kv_shape(int kv_group) const {
    const KvShape& shape = kv_groups[static_cast<size_t>(kv_group)].shape;
    return shape.head_dim > 0 ? shape : KvShape{num_kv_heads, total_kv_heads, head_dim};
  }
};

}  // namespace capstan
