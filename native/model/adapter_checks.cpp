#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <utility>

#include "native/base/error.h"
#include "native/model/adapter_weights.h"
#include "native/model/recurrent_weights.h"

namespace capstan {
namespace {

// Inputs and outputs of a projection in the whole model.
struct ProjectionSize {
  int64_t inputs = 0, outputs = 0;
};
using ProjectionSizes = std::map<std::string, ProjectionSize>;

void add_mlp_sizes(ProjectionSizes& sizes, const std::string& prefix, int64_t hidden, int64_t inner, bool is_gated) {
  sizes[prefix + "up_proj"] = {hidden, inner};
  if (is_gated) sizes[prefix + "gate_proj"] = {hidden, inner}, sizes[prefix + "gate_up_proj"] = {hidden, 2 * inner};
  sizes[prefix + "down_proj"] = {inner, hidden};
}

void add_mixer_sizes(ProjectionSizes& sizes, const ModelSpec& spec, const LayerSpec& layer) {
  const int64_t hidden = spec.hidden_size, d = spec.head_dim_of(layer);
  if (layer.mixer != Mixer::kAttention) {
    for (const auto& [name, outputs] : recurrent_projections(spec, layer.mixer))
      sizes[name] = {hidden, outputs};
    sizes["o_proj"] = {spec.recurrent.output_size(), hidden};
    return;
  }
  const int64_t queries = spec.num_heads * d, keys = spec.num_kv_heads_of(layer) * d;
  const bool has_keys = layer.kv_source < 0;
  sizes["q_proj"] = {hidden, spec.has_output_gate ? 2 * queries : queries};
  if (has_keys) sizes["k_proj"] = sizes["v_proj"] = {hidden, keys};
  if (has_keys && !spec.has_output_gate) sizes["qkv_proj"] = {hidden, queries + 2 * keys};
  sizes["o_proj"] = {queries, hidden};
}

// `layer` -1: the projections outside of the layers.
ProjectionSizes projection_sizes(const ModelSpec& spec, int layer) {
  const int64_t hidden = spec.hidden_size, per_layer = spec.per_layer_input_size;
  ProjectionSizes sizes;
  if (layer < 0) {
    sizes["embed_tokens"] = {spec.vocab_size, hidden};
    sizes["lm_head"] = {hidden, spec.vocab_size};
    if (per_layer > 0) sizes["per_layer_projection"] = {hidden, spec.num_layers() * per_layer};
    return sizes;
  }
  const LayerSpec& layer_spec = spec.layers[static_cast<size_t>(layer)];
  add_mixer_sizes(sizes, spec, layer_spec);
  if (per_layer > 0) sizes["per_layer_gate"] = {hidden, per_layer}, sizes["per_layer_projection"] = {per_layer, hidden};
  if (!layer_spec.is_moe) {
    add_mlp_sizes(sizes, "", hidden, spec.intermediate_size_of(layer_spec), spec.has_gated_mlp);
    return sizes;
  }
  const Moe& moe = spec.moe;
  sizes["router"] = {hidden, moe.num_experts};
  add_mlp_sizes(sizes, "experts.", hidden, moe.intermediate_size, true);
  for (int expert = 0; expert < moe.num_experts; ++expert)
    add_mlp_sizes(sizes, "experts." + std::to_string(expert) + ".", hidden, moe.intermediate_size, true);
  if (moe.shared_intermediate_size > 0) {
    add_mlp_sizes(sizes, "shared_expert.", hidden, moe.shared_intermediate_size, true);
    sizes["shared_gate"] = {hidden, 1};
  }
  return sizes;
}

void check_module(const ModelSpec& spec, const AdapterModule& module, const ProjectionSizes& sizes,
                  const TensorTable& tensors, int max_rank) {
  const auto refuse = [&](const std::string& reason) {
    throw Error(ErrorCode::kInvalidModel, "tensor " + module.a.name + ": " + reason);
  };
  const auto size = sizes.find(module.projection);
  if (size == sizes.end())
    refuse("expected a projection " +
           (module.layer < 0 ? "outside of the layers" : "of layer " + std::to_string(module.layer)) + ", got " +
           module.projection);
  const auto& [inputs, outputs] = size->second;
  const int64_t experts = module.holds_experts() ? spec.moe.num_experts : 1;
  const FileTensor& a = tensors.at(module.a.name);
  const int64_t r = module.is_of_table() ? a.cols : a.rows / experts;
  if (r > max_rank)
    refuse("expected a rank of at most maxLoraRank (" + std::to_string(max_rank) + "), got " + std::to_string(r));
  if (module.is_of_table())
    require_shape(tensors, module.a.name, inputs, r);
  else
    require_shape(tensors, module.a.name, r * experts, inputs);
  require_shape(tensors, module.b.name, outputs, r * experts);
}

using LayerProjections = std::set<std::pair<int, std::string>>;

[[noreturn]] void refuse_both(const AdapterModule& module, const std::string& other) {
  throw Error(ErrorCode::kInvalidModel,
              "tensor " + module.a.name + ": expected " + module.projection + " or its parts, got " + other + " too");
}

// The memory of an update holds the parts of a projection or the fused one, not both.
void check_fused(const AdapterModule& module, const LayerProjections& seen) {
  static const std::map<std::string, std::vector<std::string>> kParts = {{"qkv_proj", {"q_proj", "k_proj", "v_proj"}},
                                                                         {"gate_up_proj", {"gate_proj", "up_proj"}}};
  const size_t begin = module.projection.rfind('.') + 1;
  const std::string prefix = module.projection.substr(0, begin);
  const auto parts = kParts.find(module.projection.substr(begin));
  if (parts != kParts.end())
    for (const std::string& part : parts->second)
      if (seen.contains({module.layer, prefix + part})) refuse_both(module, prefix + part);
  if (!module.holds_experts()) return;
  // The names of single experts come first.
  const auto other = seen.lower_bound({module.layer, prefix});
  if (std::isdigit(static_cast<unsigned char>(other->second[begin]))) refuse_both(module, other->second);
}

}  // namespace

bool AdapterModule::holds_experts() const {
  return projection == "experts.gate_up_proj" || projection == "experts.down_proj";
}

bool AdapterModule::is_of_table() const {
  return projection == "embed_tokens";
}

TensorTable check_adapter(const ModelSpec& spec, const AdapterSource& source, const CheckpointFiles& files,
                          int max_rank) {
  std::vector<TensorEntry> entries;
  LayerProjections seen;
  for (const AdapterModule& module : source.modules) {
    entries.push_back(module.a);
    entries.push_back(module.b);
    if (!seen.emplace(module.layer, module.projection).second)
      throw Error(ErrorCode::kInvalidModel, "tensor " + module.a.name + ": expected one entry for " +
                                                module.projection + " of its layer, got two");
  }
  TensorTable tensors = files.make_table(entries);
  std::map<int, ProjectionSizes> sizes;  // by layer
  for (const AdapterModule& module : source.modules) {
    if (module.layer < -1 || module.layer >= spec.num_layers())
      throw Error(ErrorCode::kInvalidModel, "tensor " + module.a.name + ": expected a layer below " +
                                                std::to_string(spec.num_layers()) + ", got " +
                                                std::to_string(module.layer));
    if (!sizes.contains(module.layer)) sizes[module.layer] = projection_sizes(spec, module.layer);
    check_module(spec, module, sizes[module.layer], tensors, max_rank);
    check_fused(module, seen);
  }
  return tensors;
}

}  // namespace capstan
