#include <algorithm>

#include "native/model/rope.h"
#include "native/model/weights.h"

namespace capstan {
namespace {

// Returns the group of attention layers with this window and shape, and adds it if there is none yet.
int find_kv_group(DeviceModel& model, int window, const KvShape& shape) {
  const auto found = std::ranges::find_if(
      model.kv_groups, [&](const KvGroup& group) { return group.window == window && group.shape == shape; });
  const int index = static_cast<int>(found - model.kv_groups.begin());
  if (found == model.kv_groups.end()) model.kv_groups.push_back({window, 0, shape});
  return index;
}

DeviceLayer make_device_layer(DeviceModel& model, const ModelSpec& spec, const ShardPlan& plan,
                              const LayerSpec& layer) {
  if (layer.mixer != Mixer::kAttention) return {layer.mixer, -1, -1, -1, 0};
  if (layer.kv_source >= 0) {
    DeviceLayer shared = model.layer(layer.kv_source);
    shared.reads_kv = true;
    shared.rope = layer.rope;
    return shared;
  }
  KvShape shape;
  const int total = spec.num_kv_heads_of(layer), d = spec.head_dim_of(layer);
  if (total != spec.num_kv_heads || d != spec.head_dim) shape = {plan.kv_heads(total).count, total, d};
  const int group = find_kv_group(model, layer.window, shape);
  int& num_layers = model.kv_groups[static_cast<size_t>(group)].num_layers;
  // The keys and values of an encoder are needed only within their layer.
  const int kv_layer = spec.is_causal ? num_layers++ : 0;
  if (!spec.is_causal) num_layers = 1;
  return {layer.mixer, group, kv_layer, layer.rope, layer.window};
}

}  // namespace

DeviceModel make_device_model(const ModelSpec& spec, const ShardPlan& plan, int64_t num_token_ids, int max_model_len) {
  DeviceModel model;
  model.hidden_size = spec.hidden_size;
  model.intermediate_size = plan.intermediate_size;
  model.num_heads = plan.num_heads;
  model.head_begin = plan.head_begin;
  model.total_heads = spec.num_heads;
  model.num_kv_heads = plan.kv_heads(spec.num_kv_heads).count;
  model.total_kv_heads = spec.num_kv_heads;
  model.head_dim = spec.head_dim;
  model.vocab_size = spec.vocab_size;
  model.vocab_begin = plan.vocab_begin;
  model.vocab_end = plan.vocab_end;
  model.num_token_ids = std::min(num_token_ids, spec.vocab_size);
  model.norm_kind = spec.norm_kind;
  model.is_causal = spec.is_causal;
  model.has_gated_mlp = spec.has_gated_mlp;
  model.is_parallel = spec.is_parallel;
  model.embedding = spec.embedding;
  model.pooling = spec.pooling;
  for (const HeadLayerSpec& layer : spec.head)
    model.head_sizes.push_back(layer.output_size);
  model.rms_norm_eps = static_cast<float>(spec.rms_norm_eps);
  model.attention_scale = static_cast<float>(spec.attention_scale);
  model.norms = spec.norms;
  model.has_sinks = spec.has_sinks;
  model.attention_soft_cap = static_cast<float>(spec.attention_soft_cap);
  model.qk_norm = spec.qk_norm;
  model.has_v_norm = spec.has_v_norm;
  model.rotates_before_qk_norm = spec.rotates_before_qk_norm;
  model.embedding_scale = static_cast<float>(spec.embedding_scale);
  model.residual_scale = static_cast<float>(spec.residual_scale);
  model.logit_scale = static_cast<float>(spec.logit_scale);
  model.logit_soft_cap = static_cast<float>(spec.logit_soft_cap);
  model.activation = spec.activation;
  model.moe = spec.moe;
  model.moe.intermediate_size = plan.expert_size;
  model.moe.shared_intermediate_size = plan.shared_size;
  model.recurrent = plan.recurrent.shape;
  model.has_output_gate = spec.has_output_gate;
  model.per_layer_input_size = spec.per_layer_input_size;
  model.per_layer_begin = plan.per_layer_begin;
  model.per_layer_end = plan.per_layer_begin + plan.per_layer_size;
  model.has_layer_scales = spec.has_layer_scales;
  for (const LayerSpec& layer : spec.layers) {
    model.layers.push_back(make_device_layer(model, spec, plan, layer));
    model.layers.back().intermediate_size = spec.intermediate_size_of(layer) / plan.world_size;
  }
  model.has_mtp = spec.has_mtp;
  // The keys of a token lie at its place, and the first token has no hidden state before it.
  if (spec.has_mtp) model.layers.back().first_key = 1;
  for (const RopeSpec& rope : spec.ropes)
    model.rope_tables.push_back({rope.rotary_dim, {}, {}, rope.query_scale_growth != 0});
  model.max_model_len = max_model_len;
  return model;
}

void fill_rope_tables(const ModelSpec& spec, int max_model_len, std::vector<RopeTable>& tables) {
  for (size_t i = 0; i < tables.size(); ++i) {
    tables[i].values = make_rope_table(spec.ropes[i], max_model_len);
    tables[i].query_scales = make_query_scales(spec.ropes[i], max_model_len);
  }
}

}  // namespace capstan
