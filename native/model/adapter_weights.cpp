#include "native/model/adapter_weights.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "native/base/error.h"
#include "native/model/recurrent_weights.h"
#include "native/model/slicer.h"

namespace capstan {
namespace {

// Inputs and outputs of a projection in the whole model.
struct ProjectionSize {
  int64_t inputs = 0, outputs = 0;
};

std::map<std::string, ProjectionSize> projection_sizes(const ModelSpec& spec, const LayerSpec& layer) {
  const int64_t hidden = spec.hidden_size, inner = spec.intermediate_size_of(layer), d = spec.head_dim_of(layer);
  const int64_t queries = spec.num_heads * d, keys = spec.num_kv_heads_of(layer) * d;
  const bool has_keys = layer.kv_source < 0;
  std::map<std::string, ProjectionSize> sizes;
  if (layer.mixer == Mixer::kAttention) {
    sizes["q_proj"] = {hidden, spec.has_output_gate ? 2 * queries : queries};
    if (has_keys) sizes["k_proj"] = sizes["v_proj"] = {hidden, keys};
    if (has_keys && !spec.has_output_gate) sizes["qkv_proj"] = {hidden, queries + 2 * keys};
    sizes["o_proj"] = {queries, hidden};
  } else {
    for (const auto& [name, outputs] : recurrent_projections(spec, layer.mixer))
      sizes[name] = {hidden, outputs};
    sizes["o_proj"] = {spec.recurrent.output_size(), hidden};
  }
  if (!layer.is_moe) {
    sizes["up_proj"] = {hidden, inner};
    if (spec.has_gated_mlp) sizes["gate_proj"] = {hidden, inner}, sizes["gate_up_proj"] = {hidden, 2 * inner};
    sizes["down_proj"] = {inner, hidden};
  }
  return sizes;
}

void check_module(const ModelSpec& spec, const AdapterModule& module, const TensorTable& tensors, int max_rank) {
  const auto refuse = [&](const std::string& reason) {
    throw Error(ErrorCode::kInvalidModel, "tensor " + module.a.name + ": " + reason);
  };
  if (module.layer < 0 || module.layer >= spec.num_layers())
    refuse("expected a layer below " + std::to_string(spec.num_layers()) + ", got " + std::to_string(module.layer));
  const auto sizes = projection_sizes(spec, spec.layers[static_cast<size_t>(module.layer)]);
  const auto size = sizes.find(module.projection);
  if (size == sizes.end())
    refuse("expected a projection of the mixer or of a dense MLP of layer " + std::to_string(module.layer) + ", got " +
           module.projection);
  const int64_t r = tensors.at(module.a.name).rows;
  if (r > max_rank)
    refuse("expected a rank of at most maxLoraRank (" + std::to_string(max_rank) + "), got " + std::to_string(r));
  require_shape(tensors, module.a.name, r, size->second.inputs);
  require_shape(tensors, module.b.name, size->second.outputs, r);
}

using LayerProjections = std::set<std::pair<int, std::string>>;

// The memory of an update holds the parts of a projection or the fused one, not both.
void check_fused(const AdapterModule& module, const LayerProjections& seen) {
  static const std::map<std::string, std::vector<std::string>> kParts = {{"qkv_proj", {"q_proj", "k_proj", "v_proj"}},
                                                                         {"gate_up_proj", {"gate_proj", "up_proj"}}};
  const auto parts = kParts.find(module.projection);
  if (parts == kParts.end()) return;
  for (const std::string& part : parts->second)
    if (seen.contains({module.layer, part}))
      throw Error(ErrorCode::kInvalidModel, "tensor " + module.a.name + ": expected " + module.projection +
                                                " or its parts, got " + part + " too");
}

// Builds the sources of the matrices of one layer.
class LayerSources {
 public:
  LayerSources(const ModelSpec& spec, const LayerSpec& layer, const ShardPlan& plan, const Slicer& slicer)
      : spec_(spec), layer_(layer), plan_(plan), slicer_(slicer) {}

  LoraSource qkv, o, gate_up, down;  // qkv: of a recurrent layer, in_proj

  void add(const AdapterModule& module) {
    const std::string& name = module.projection;
    if (name == "o_proj")
      add_row_parallel(o, module, mixer_outputs());
    else if (name == "down_proj")
      add_row_parallel(down, module, intermediate());
    else if (name == "gate_proj" || name == "up_proj" || name == "gate_up_proj")
      add_gate_up(module);
    else if (layer_.mixer == Mixer::kAttention)
      add_attention_inputs(module);
    else
      add_recurrent_inputs(module);
  }

 private:
  struct Range {
    int64_t begin = 0, count = 0;
  };
  int64_t head_dim() const { return spec_.head_dim_of(layer_); }
  Range mixer_outputs() const {
    if (layer_.mixer == Mixer::kAttention) return {plan_.head_begin * head_dim(), plan_.num_heads * head_dim()};
    return {plan_.recurrent.first_channel, plan_.recurrent.shape.output_size()};
  }
  Range intermediate() const {
    const int64_t size = spec_.intermediate_size_of(layer_) / plan_.world_size;
    return {plan_.rank * size, size};
  }

  LoraFactors& add_column_parallel(LoraSource& source, const AdapterModule& module) {
    return source.factors.emplace_back(LoraFactors{slicer_.whole(module.a.name), {}, module.scale});
  }

  // The features of the matrix from `first_feature` on are `rows` of B.
  void add_output(LoraFactors& factors, const AdapterModule& module, int64_t first_feature, Range rows) {
    factors.outputs.push_back({first_feature, slicer_.rows_of(module.b.name, rows.begin, rows.count)});
  }

  // The matrix holds the heads of q, those of k and of v, and then the gates of the heads.
  void add_attention_inputs(const AdapterModule& module) {
    const bool is_fused = module.projection == "qkv_proj";
    const Range q{plan_.head_begin * head_dim(), plan_.num_heads * head_dim()};
    const int num_kv_heads = spec_.num_kv_heads_of(layer_);
    const HeadRange kv_range = plan_.kv_heads(num_kv_heads);
    const Range kv{kv_range.begin * head_dim(), layer_.kv_source < 0 ? kv_range.count * head_dim() : 0};
    const int64_t queries = is_fused ? spec_.num_heads * head_dim() : 0;
    const int64_t keys = is_fused ? num_kv_heads * head_dim() : 0;
    LoraFactors& factors = add_column_parallel(qkv, module);
    if (module.projection == "q_proj" && spec_.has_output_gate)
      return add_gated_queries(factors, module, q.count + 2 * kv.count);
    if (is_fused || module.projection == "q_proj") add_output(factors, module, 0, q);
    if (is_fused || module.projection == "k_proj") add_output(factors, module, q.count, {queries + kv.begin, kv.count});
    if (is_fused || module.projection == "v_proj")
      add_output(factors, module, q.count + kv.count, {queries + keys + kv.begin, kv.count});
  }

  void add_recurrent_inputs(const AdapterModule& module) {
    LoraFactors& factors = add_column_parallel(qkv, module);
    const HasTensor has = [&](const std::string& name) { return name == module.projection; };
    int64_t first_feature = 0;
    for (const auto& [tensor, begin, count] : recurrent_columns(spec_, layer_.mixer, plan_.recurrent, has)) {
      if (tensor == module.projection) add_output(factors, module, first_feature, {begin, count});
      first_feature += count;
    }
  }

  // In q_proj, the query of each head is followed by its gate.
  void add_gated_queries(LoraFactors& factors, const AdapterModule& module, int64_t first_gate) {
    const int64_t d = head_dim();
    for (int head = 0; head < plan_.num_heads; ++head) {
      const int64_t begin = 2 * d * (plan_.head_begin + head);
      add_output(factors, module, head * d, {begin, d});
      add_output(factors, module, first_gate + head * d, {begin + d, d});
    }
  }

  void add_gate_up(const AdapterModule& module) {
    const Range range = intermediate();
    const bool is_fused = module.projection == "gate_up_proj";
    LoraFactors& factors = add_column_parallel(gate_up, module);
    if (module.projection != "up_proj") add_output(factors, module, 0, range);
    if (module.projection != "gate_proj")
      add_output(factors, module, spec_.has_gated_mlp ? range.count : 0,
                 {is_fused ? spec_.intermediate_size_of(layer_) + range.begin : range.begin, range.count});
  }

  // Each rank has the inputs in `range`, and adds the whole update to the sum over the ranks.
  void add_row_parallel(LoraSource& source, const AdapterModule& module, Range range) {
    const TensorSlice a = slicer_.cols_of(module.a.name, range.begin, range.count);
    source.kind = MatrixKind::kRow;
    source.total_cols = a.tensor->cols;
    source.factors.push_back({a, {{0, slicer_.whole(module.b.name)}}, module.scale});
  }

  const ModelSpec& spec_;
  const LayerSpec& layer_;
  const ShardPlan& plan_;
  const Slicer& slicer_;
};

}  // namespace

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
  for (const AdapterModule& module : source.modules) {
    check_module(spec, module, tensors, max_rank);
    check_fused(module, seen);
  }
  return tensors;
}

AdapterWeights load_adapter_weights(const ModelSpec& spec, const ShardPlan& plan, const AdapterSource& source,
                                    const TensorTable& tensors, const Weights& weights, const Backend& backend) {
  const Slicer slicer(tensors);
  AdapterWeights adapter;
  adapter.layers.resize(weights.layers.size());
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    LayerSources sources(spec, spec.layers[i], plan, slicer);
    for (const AdapterModule& module : source.modules)
      if (module.layer == static_cast<int>(i)) sources.add(module);
    const auto load = [&](LoraSource& from, const std::unique_ptr<Matrix>& matrix) {
      if (from.factors.empty()) return std::unique_ptr<LoraMatrix>();
      from.memory = &adapter.memory;
      std::unique_ptr<LoraMatrix> lora = backend.load_lora(from, *matrix);
      adapter.bytes += lora->bytes;
      return lora;
    };
    const LayerWeights& layer = weights.layers[i];
    const bool is_recurrent = layer.qkv_proj == nullptr;
    adapter.layers[i] = {load(sources.qkv, is_recurrent ? layer.recurrent.in_proj : layer.qkv_proj),
                         load(sources.o, layer.o_proj), load(sources.gate_up, layer.gate_up_proj),
                         load(sources.down, layer.down_proj)};
  }
  return adapter;
}

}  // namespace capstan
