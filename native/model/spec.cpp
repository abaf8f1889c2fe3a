#include "native/model/spec.h"

#include <algorithm>
#include <cmath>

#include "native/base/error.h"

namespace capstan {
namespace {

// Keeps tables and products over positions within 32 bits.
constexpr int kLongestContext = 1 << 24;
constexpr int kMaxExperts = 4096;

void require(bool is_met, const std::string& message) {
  if (!is_met) throw Error(ErrorCode::kInvalidModel, message);
}

void require_positive(int64_t value, const char* name) {
  // No model has a dimension near 2^31, and the product of two such dimensions does not overflow.
  require(value > 0 && value < int64_t{1} << 31,
          std::string(name) + ": expected a positive integer below 2^31, got " + std::to_string(value));
}

// Factors are used as f32.
void require_finite(double value, const char* name) {
  require(std::isfinite(static_cast<float>(value)),
          std::string(name) + ": expected a finite number, got " + std::to_string(value));
}

void check_divisors(const RopeSpec& rope, const std::vector<float>& divisors) {
  require(
      divisors.empty() || static_cast<int>(divisors.size()) == rope.rotary_dim / 2,
      "rotary divisors: expected " + std::to_string(rope.rotary_dim / 2) + ", got " + std::to_string(divisors.size()));
  // Infinity is for dimensions without rotation.
  require(std::all_of(divisors.begin(), divisors.end(), [](float value) { return value > 0; }),
          "rotary divisors: expected positive numbers");
}

// Returns the longest context that one rotation supports.
int max_rope_length(const RopeSpec& rope, int max_position_embeddings) {
  if (rope.type == RopeType::kDefault || rope.type == RopeType::kLlama3 || rope.type == RopeType::kLongRope)
    return max_position_embeddings;
  // Dynamic NTK supports any length.
  if (rope.type == RopeType::kDynamic) return kLongestContext;
  const double stretched = rope.original_max_positions * rope.factor;
  return std::max(max_position_embeddings, static_cast<int>(std::min<double>(stretched, kLongestContext)));
}

void check_rope(const RopeSpec& rope, int head_dim) {
  require(rope.rotary_dim > 0 && rope.rotary_dim <= head_dim && rope.rotary_dim % 2 == 0,
          "rotary dimension: expected an even number up to head_dim " + std::to_string(head_dim) + ", got " +
              std::to_string(rope.rotary_dim));
  check_divisors(rope, rope.frequency_divisors);
  check_divisors(rope, rope.long_frequency_divisors);
  require(rope.query_scale_growth == 0 || rope.original_max_positions > 0, "a query scale needs the trained length");
  require_finite(rope.theta, "rope_theta");
  require_finite(rope.factor, "rotary scaling factor");
  require_finite(rope.low_freq_factor, "low_freq_factor");
  require_finite(rope.high_freq_factor, "high_freq_factor");
  require_finite(rope.beta_fast, "beta_fast");
  require_finite(rope.beta_slow, "beta_slow");
  require_finite(rope.attention_factor, "rotary attention factor");
  require_finite(rope.query_scale_growth, "growth of the query scale");
  require(rope.theta > 0 && rope.factor > 0, "rope_theta and the scaling factor must be positive");
}

void check_moe(const Moe& moe) {
  require(moe.num_experts > 0 && moe.num_experts <= kMaxExperts,
          "experts: expected 1 to " + std::to_string(kMaxExperts) + ", got " + std::to_string(moe.num_experts));
  const int most = std::min(moe.num_experts, kMaxTopK);
  require(moe.top_k > 0 && moe.top_k <= most,
          "experts per token: expected 1 to " + std::to_string(most) + ", got " + std::to_string(moe.top_k));
  const int num_groups = std::max(moe.num_groups, 1);
  require(moe.num_groups == 1 ||
              (moe.num_groups > 1 && moe.num_experts % num_groups == 0 && moe.num_experts / num_groups >= 2),
          "groups of experts: expected a divisor of " + std::to_string(moe.num_experts) +
              " with two experts or more in a group, got " + std::to_string(moe.num_groups));
  require(
      moe.top_groups > 0 && moe.top_groups <= num_groups && moe.top_k <= moe.num_experts / num_groups * moe.top_groups,
      "groups of a token: expected up to " + std::to_string(num_groups) + " that hold " + std::to_string(moe.top_k) +
          " experts, got " + std::to_string(moe.top_groups));
  require_positive(moe.intermediate_size, "moe_intermediate_size");
  require(moe.shared_intermediate_size >= 0 && moe.shared_intermediate_size < int64_t{1} << 31,
          "shared_expert_intermediate_size must not be negative");
  require(!moe.has_separate_norms || moe.shared_intermediate_size > 0, "separate norms need a shared expert");
}

void check_recurrent(const RecurrentShape& shape, Mixer mixer) {
  require_positive(shape.conv_taps, "inputs of a convolution");
  require_positive(shape.conv_channels, "channels of a convolution");
  if (mixer == Mixer::kShortConv) return;
  require_positive(shape.num_heads, "heads of a recurrent layer");
  require_positive(shape.num_groups, "groups of heads of a recurrent layer");
  require_positive(shape.head_dim, "head size of a recurrent layer");
  require_positive(shape.state_size, "state size of a recurrent layer");
  require(shape.num_heads % shape.num_groups == 0, "heads of a recurrent layer: expected a multiple of its " +
                                                       std::to_string(shape.num_groups) + " groups, got " +
                                                       std::to_string(shape.num_heads));
  const double channels = 1.0 * shape.num_heads * shape.head_dim + 2.0 * shape.num_groups * shape.state_size;
  require(static_cast<double>(shape.conv_channels) == channels,
          "channels of a convolution: expected those of values, keys and queries, got " +
              std::to_string(shape.conv_channels));
}

void check_scales(const ModelSpec& spec) {
  require_finite(spec.embedding_scale, "embedding scale");
  require_finite(spec.residual_scale, "residual scale");
  require_finite(spec.logit_scale, "logit scale");
  require_finite(spec.logit_soft_cap, "soft cap of the logits");
  require_finite(spec.attention_scale, "attention scale");
  require_finite(spec.attention_soft_cap, "soft cap of attention");
  require_finite(spec.norm_offset, "offset of the norms");
  require_finite(spec.moe.weight_scale, "scale of the expert weights");
  require_finite(spec.moe.logit_scale, "scale of the router's logits");
  require_finite(spec.rms_norm_eps, "rms_norm_eps");
}

// All recurrent layers have one shape, so they are of one kind.
void check_mixers(const ModelSpec& spec) {
  const LayerSpec* first = nullptr;
  for (const LayerSpec& layer : spec.layers) {
    if (layer.mixer == Mixer::kAttention) continue;
    if (first == nullptr) first = &layer;
    require(layer.mixer == first->mixer, "recurrent layers: expected one kind, got several");
  }
  if (first != nullptr) check_recurrent(spec.recurrent, first->mixer);
}

void check_kv_source(const ModelSpec& spec, int index) {
  const LayerSpec& layer = spec.layers[static_cast<size_t>(index)];
  if (layer.kv_source == -1) return;
  require(layer.kv_source >= 0 && layer.kv_source < index,
          "source of keys and values: expected an earlier layer, got " + std::to_string(layer.kv_source) +
              " in layer " + std::to_string(index));
  const LayerSpec& source = spec.layers[static_cast<size_t>(layer.kv_source)];
  require(source.mixer == Mixer::kAttention && layer.mixer == Mixer::kAttention && source.kv_source == -1 &&
              source.window == layer.window && spec.head_dim_of(source) == spec.head_dim_of(layer) &&
              spec.num_kv_heads_of(source) == spec.num_kv_heads_of(layer),
          "source of keys and values: layer " + std::to_string(layer.kv_source) + " does not fit layer " +
              std::to_string(index));
}

void check_layer(const ModelSpec& spec, int index) {
  const LayerSpec& layer = spec.layers[static_cast<size_t>(index)];
  const int num_ropes = static_cast<int>(spec.ropes.size());
  require(layer.window >= 0, "sliding window: expected 0 or more, got " + std::to_string(layer.window));
  require(
      layer.rope >= -1 && layer.rope < num_ropes,
      "rotation of a layer: expected -1 to " + std::to_string(num_ropes - 1) + ", got " + std::to_string(layer.rope));
  require(layer.head_dim >= 0 && layer.num_kv_heads >= 0 && layer.intermediate_size >= 0 &&
              layer.intermediate_size < int64_t{1} << 31,
          "sizes of layer " + std::to_string(index) + " must not be negative");
  require(spec.num_heads % spec.num_kv_heads_of(layer) == 0,
          "num_attention_heads " + std::to_string(spec.num_heads) + " is not a multiple of the " +
              std::to_string(spec.num_kv_heads_of(layer)) + " KV heads of layer " + std::to_string(index));
  if (layer.rope >= 0) check_rope(spec.ropes[static_cast<size_t>(layer.rope)], spec.head_dim_of(layer));
  check_kv_source(spec, index);
}

// What a model lacks that reads a whole sequence at once, or that pools.
void check_pooling(const ModelSpec& spec) {
  const bool pools = spec.pooling != Pooling::kNone;
  require(spec.is_causal || pools, "an encoder needs a pooling");
  require(pools || spec.has_final_norm, "a model that generates text needs a final norm");
  require(pools || spec.head.empty(), "a model that generates text has no pooling head");
  const bool is_attention = std::ranges::all_of(
      spec.layers, [](const LayerSpec& layer) { return layer.mixer == Mixer::kAttention && !layer.is_moe; });
  require(spec.is_causal || is_attention, "an encoder has layers of attention with dense MLPs only");
  const bool is_layer = spec.norm_kind == NormKind::kLayer;
  require(!is_layer || (is_attention && spec.norm_offset == 0 && spec.qk_norm == QkNorm::kNone),
          "layer norms: expected dense layers without other norms");
  const bool has_result_norms = spec.norms.attention_out || spec.norms.mlp_out;
  require(spec.norms.is_of_sum ? is_layer && spec.norms.attention_out && spec.norms.mlp_out
                               : !is_layer || !has_result_norms,
          "norms of results: expected RMS norms of the results, or layer norms of the sums");
  require(spec.has_gated_mlp || is_attention, "MLPs without gates: expected dense layers");
  require(spec.has_gated_mlp || spec.activation != Activation::kClampedSwish, "this activation needs a gate");
  require(!spec.has_gated_mlp || spec.activation != Activation::kXielu, "this activation is for MLPs without gates");
  require(!spec.is_parallel || (is_attention && spec.norms.mlp && !has_result_norms),
          "MLPs beside attention: expected dense layers without norms of results");
  require(spec.embedding.num_positions >= 0 && spec.embedding.position_offset >= 0 &&
              spec.embedding.num_token_types >= 0 &&
              (spec.embedding.num_positions == 0 || spec.embedding.position_offset < spec.embedding.num_positions),
          "embeddings of positions: expected an offset below the size of the table");
  require(spec.embedding.num_distances == 0 || (spec.embedding.num_distances >= 4 && !spec.is_causal),
          "biases of distances: expected at least 4, in an encoder");
  for (const HeadLayerSpec& layer : spec.head) {
    require_positive(layer.output_size, "size of a pooling head");
    require(layer.activation != Activation::kClampedSwish, "a pooling head has no gates");
    require(layer.activation != Activation::kXielu, "the activation of a pooling head has no weights");
    for (const int32_t id : layer.token_ids)
      require(id >= 0 && id < spec.vocab_size, "token ids of a pooling head: expected ids of the vocabulary");
    require(layer.token_ids.empty() || static_cast<int64_t>(layer.token_ids.size()) == layer.output_size,
            "token ids of a pooling head: expected one per value");
  }
}

void check_mtp(const ModelSpec& spec) {
  if (!spec.has_mtp) return;
  const LayerSpec& layer = spec.layers.back();
  require(spec.num_layers() > 1, "an MTP head needs a decoder with layers");
  require(layer.mixer == Mixer::kAttention && layer.window == 0 && layer.kv_source < 0,
          "the layer of an MTP head: expected attention to all positions");
  require(spec.pooling == Pooling::kNone && spec.norm_kind == NormKind::kRms && spec.embedding.is_plain() &&
              spec.per_layer_input_size == 0 && !spec.is_parallel,
          "an MTP head needs a plain decoder that generates text");
}

double weights_per_layer(const ModelSpec& spec) {
  const double query_size = static_cast<double>(spec.num_heads) * spec.head_dim;
  const double kv_size = static_cast<double>(spec.num_kv_heads) * spec.head_dim;
  const double inner = static_cast<double>(spec.moe.num_experts == 0 ? spec.intermediate_size
                                                                     : spec.moe.top_k * spec.moe.intermediate_size +
                                                                           spec.moe.shared_intermediate_size);
  return static_cast<double>(spec.hidden_size) * (2 * query_size + 2 * kv_size + (spec.has_gated_mlp ? 3 : 2) * inner);
}

}  // namespace

int64_t result_size(const ModelSpec& spec) {
  return spec.head.empty() ? spec.hidden_size : spec.head.back().output_size;
}

int max_context_length(const ModelSpec& spec) {
  int length = kLongestContext;
  if (spec.embedding.num_positions > 0) length = spec.embedding.num_positions - spec.embedding.position_offset;
  if (spec.ropes.empty()) return std::min(length, spec.max_position_embeddings);
  for (const RopeSpec& rope : spec.ropes)
    length = std::min(length, max_rope_length(rope, spec.max_position_embeddings));
  return length;
}

double weights_per_token(const ModelSpec& spec) {
  return spec.num_layers() * weights_per_layer(spec) + static_cast<double>(spec.vocab_size * spec.hidden_size);
}

std::map<int, double> attention_work_by_window(const ModelSpec& spec) {
  const double weights = spec.num_layers() * weights_per_layer(spec);
  std::map<int, double> work;
  for (const LayerSpec& layer : spec.layers)
    if (layer.mixer == Mixer::kAttention)
      work[layer.window] += 2.0 * spec.num_heads * spec.head_dim_of(layer) / weights;
  return work;
}

void check_spec(const ModelSpec& spec) {
  require_positive(spec.vocab_size, "vocab_size");
  require_positive(spec.hidden_size, "hidden_size");
  require_positive(spec.intermediate_size, "intermediate_size");
  require_positive(spec.num_layers(), "num_hidden_layers");
  require_positive(spec.num_heads, "num_attention_heads");
  require_positive(spec.num_kv_heads, "num_key_value_heads");
  require_positive(spec.head_dim, "head_dim");
  require_positive(spec.max_position_embeddings, "max_position_embeddings");
  require(spec.num_heads % spec.num_kv_heads == 0, "num_attention_heads " + std::to_string(spec.num_heads) +
                                                       " is not a multiple of num_key_value_heads " +
                                                       std::to_string(spec.num_kv_heads));
  for (int layer = 0; layer < spec.num_layers(); ++layer)
    check_layer(spec, layer);
  const bool has_moe = std::ranges::any_of(spec.layers, &LayerSpec::is_moe);
  if (has_moe) check_moe(spec.moe);
  require(has_moe == (spec.moe.num_experts > 0), "the number of experts contradicts the layers");
  check_mixers(spec);
  check_pooling(spec);
  check_mtp(spec);
  check_scales(spec);
  require(spec.rms_norm_eps > 0, "rms_norm_eps must be positive");
  require(spec.per_layer_input_size >= 0 && spec.per_layer_input_size < 1 << 20,
          "hidden_size_per_layer_input: expected 0 to 2^20, got " + std::to_string(spec.per_layer_input_size));
  require(spec.default_length >= 0, "default context length: expected 0 or more");
}

}  // namespace capstan
