#include "native/model/adapter_weights.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string>
#include <utility>

#include "native/backend/panel_reader.h"
#include "native/base/error.h"
#include "native/model/recurrent_weights.h"
#include "native/model/slicer.h"

namespace capstan {
namespace {

struct Range {
  int64_t begin = 0, count = 0;
};

// The factors of a module, or of one expert of a module that holds those of all experts.
struct FactorSlices {
  TensorSlice a;  // (r, inputs)
  TensorSlice b;  // (outputs, r)
  float scale = 1;

  TensorSlice cols_of_a(Range range) const {
    TensorSlice slice = a;
    slice.col_begin += range.begin, slice.num_cols = range.count;
    return slice;
  }
  TensorSlice rows_of_b(Range range) const {
    TensorSlice slice = b;
    slice.row_begin += range.begin, slice.num_rows = range.count;
    return slice;
  }
  // Each rank has all inputs. The caller adds the outputs.
  LoraFactors& add_column_parallel(LoraSource& source) const {
    return source.factors.emplace_back(LoraFactors{a, {}, scale});
  }
  // Each rank has the inputs in `range`, and adds the whole update to the sum over the ranks.
  void add_row_parallel(LoraSource& source, Range range) const {
    source.kind = MatrixKind::kRow;
    source.total_cols = a.num_cols;
    source.factors.push_back({cols_of_a(range), {{0, b}}, scale});
  }
  // The features of the matrix from `first_feature` on are `rows` of B.
  void add_output(LoraFactors& factors, int64_t first_feature, Range rows) const {
    factors.outputs.push_back({first_feature, rows_of_b(rows)});
  }
};

// Values in memory in place of a tensor of a file.
class MemoryTensor {
 public:
  MemoryTensor(const std::string& name, int64_t rows, int64_t cols)
      : values_(std::make_shared<std::vector<char>>(static_cast<size_t>(rows * cols) * sizeof(float))) {
    tensor_.name = name;
    tensor_.rows = rows;
    tensor_.cols = cols;
  }
  MemoryTensor(const MemoryTensor&) = delete;
  MemoryTensor& operator=(const MemoryTensor&) = delete;

  float* values() { return reinterpret_cast<float*>(values_->data()); }
  TensorSlice rows(int64_t begin, int64_t count) const {
    return {&tensor_, begin, count, 0, tensor_.cols, nullptr, values_};
  }

 private:
  FileTensor tensor_;
  std::shared_ptr<std::vector<char>> values_;
};

// B of a module that holds all experts is (outputs, r * experts), and the column i * experts + e is the column i of
// expert e. Writes (experts, outputs, r).
void sort_by_expert(const TensorSlice& b, int64_t num_experts, float* to) {
  const std::vector<float> values = read_floats(b);
  const size_t count = static_cast<size_t>(num_experts), size = values.size() / count;
  for (size_t expert = 0; expert < count; ++expert)
    for (size_t i = 0; i < size; ++i)
      *to++ = values[i * count + expert];
}

// Returns the head of an adapter that is head `head` of the model.
int64_t adapter_head(const RecurrentShape& shape, int64_t head) {
  if (!shape.heads_alternate) return head;
  return head % shape.num_groups * (shape.num_heads / shape.num_groups) + head / shape.num_groups;
}

// Writes A (r, heads * head_dim) with the heads in the order of the model.
void sort_heads(const TensorSlice& a, const RecurrentShape& shape, float* to) {
  const std::vector<float> values = read_floats(a);
  for (int64_t row = 0; row < a.num_rows; ++row)
    for (int64_t head = 0; head < shape.num_heads; ++head) {
      const auto from = values.begin() + row * a.num_cols + adapter_head(shape, head) * shape.head_dim;
      to = std::copy_n(from, shape.head_dim, to);
    }
}

struct MlpSources {
  LoraSource gate_up, down;

  // `inner`: of the whole MLP. This rank has the features in `range`.
  void add(const std::string& name, const FactorSlices& slices, int64_t inner, Range range, bool is_gated) {
    if (name == "down_proj") return slices.add_row_parallel(down, range);
    LoraFactors& factors = slices.add_column_parallel(gate_up);
    if (name != "up_proj") slices.add_output(factors, 0, range);
    const int64_t first_up = name == "gate_up_proj" ? inner : 0;
    if (name != "gate_proj")
      slices.add_output(factors, is_gated ? range.count : 0, {first_up + range.begin, range.count});
  }
};

// Builds the sources of the matrices of one layer.
class LayerSources {
 public:
  LayerSources(const ModelSpec& spec, const LayerSpec& layer, const ShardPlan& plan, const Slicer& slicer)
      : spec_(spec), layer_(layer), plan_(plan), slicer_(slicer) {
    if (layer.is_moe) experts.resize(static_cast<size_t>(spec.moe.num_experts) + 1);
  }

  LoraSource qkv, o, router, shared_gate, per_layer_gate, per_layer_projection;  // qkv: of a recurrent layer, in_proj
  MlpSources mlp;
  std::vector<MlpSources> experts;  // as in LayerAdapter

  void add(const AdapterModule& module) {
    const std::string& name = module.projection;
    const Range per_layer{plan_.per_layer_begin, plan_.per_layer_size};
    if (name.starts_with("experts.")) return add_experts(module);
    const FactorSlices slices{slicer_.whole(module.a.name), slicer_.whole(module.b.name), module.scale};
    if (name.starts_with("shared_expert."))
      experts.back().add(name.substr(name.find('.') + 1), slices, spec_.moe.shared_intermediate_size,
                         {plan_.shared_begin, plan_.shared_size}, true);
    else if (name == "router" || name == "shared_gate")
      add_all_outputs(name == "router" ? router : shared_gate, slices);
    else if (name == "per_layer_gate")
      slices.add_output(slices.add_column_parallel(per_layer_gate), 0, per_layer);
    else if (name == "per_layer_projection")
      slices.add_row_parallel(per_layer_projection, per_layer);
    else if (name == "o_proj")
      add_mixer_outputs(slices);
    else if (name == "gate_proj" || name == "up_proj" || name == "gate_up_proj" || name == "down_proj")
      mlp.add(name, slices, spec_.intermediate_size_of(layer_), intermediate(), spec_.has_gated_mlp);
    else if (layer_.mixer == Mixer::kAttention)
      add_attention_inputs(name, slices);
    else
      add_recurrent_inputs(name, slices);
  }

  static void add_all_outputs(LoraSource& source, const FactorSlices& slices) {
    slices.add_output(slices.add_column_parallel(source), 0, {0, slices.b.num_rows});
  }

 private:
  int64_t head_dim() const { return spec_.head_dim_of(layer_); }
  Range mixer_outputs() const {
    if (layer_.mixer == Mixer::kAttention) return {plan_.head_begin * head_dim(), plan_.num_heads * head_dim()};
    return {plan_.recurrent.first_channel, plan_.recurrent.shape.output_size()};
  }
  Range intermediate() const {
    const int64_t size = spec_.intermediate_size_of(layer_) / plan_.world_size;
    return {plan_.rank * size, size};
  }

  // Returns a tensor in memory with the name of another.
  MemoryTensor& make_tensor(const TensorSlice& from, int64_t rows, int64_t cols) {
    return *memory_.emplace_back(std::make_unique<MemoryTensor>(from.tensor->name, rows, cols));
  }

  void add_mixer_outputs(FactorSlices slices) {
    if (layer_.mixer != Mixer::kAttention && spec_.recurrent.heads_alternate) {
      MemoryTensor& sorted = make_tensor(slices.a, slices.a.num_rows, slices.a.num_cols);
      sort_heads(slices.a, spec_.recurrent, sorted.values());
      slices.a = sorted.rows(0, slices.a.num_rows);
    }
    slices.add_row_parallel(o, mixer_outputs());
  }

  // The projection of one expert, "experts.3.down_proj", or of all of them, "experts.down_proj".
  void add_experts(const AdapterModule& module) {
    const std::string name = module.projection.substr(module.projection.rfind('.') + 1);
    const auto add_to = [&](int expert, const FactorSlices& slices) {
      experts[static_cast<size_t>(expert)].add(name, slices, spec_.moe.intermediate_size,
                                               {plan_.expert_begin, plan_.expert_size}, true);
    };
    if (module.holds_experts()) {
      const int num_experts = spec_.moe.num_experts;
      const TensorSlice a = slicer_.whole(module.a.name), b = slicer_.whole(module.b.name);
      const int64_t r = a.num_rows / num_experts;
      MemoryTensor& sorted = make_tensor(b, num_experts * b.num_rows, r);
      sort_by_expert(b, num_experts, sorted.values());
      for (int expert = 0; expert < num_experts; ++expert) {
        FactorSlices slices{a, sorted.rows(expert * b.num_rows, b.num_rows), module.scale};
        slices.a.row_begin = expert * r, slices.a.num_rows = r;
        add_to(expert, slices);
      }
      return;
    }
    int expert = 0;
    const char* number = module.projection.data() + std::strlen("experts.");
    std::from_chars(number, module.projection.data() + module.projection.size(), expert);
    add_to(expert, {slicer_.whole(module.a.name), slicer_.whole(module.b.name), module.scale});
  }

  // The matrix holds the heads of q, those of k and of v, and then the gates of the heads.
  void add_attention_inputs(const std::string& name, const FactorSlices& slices) {
    const bool is_fused = name == "qkv_proj";
    const Range q{plan_.head_begin * head_dim(), plan_.num_heads * head_dim()};
    const int num_kv_heads = spec_.num_kv_heads_of(layer_);
    const HeadRange kv_range = plan_.kv_heads(num_kv_heads);
    const Range kv{kv_range.begin * head_dim(), layer_.kv_source < 0 ? kv_range.count * head_dim() : 0};
    const int64_t queries = is_fused ? spec_.num_heads * head_dim() : 0;
    const int64_t keys = is_fused ? num_kv_heads * head_dim() : 0;
    LoraFactors& factors = slices.add_column_parallel(qkv);
    if (name == "q_proj" && spec_.has_output_gate) return add_gated_queries(factors, slices, q.count + 2 * kv.count);
    if (is_fused || name == "q_proj") slices.add_output(factors, 0, q);
    if (is_fused || name == "k_proj") slices.add_output(factors, q.count, {queries + kv.begin, kv.count});
    if (is_fused || name == "v_proj")
      slices.add_output(factors, q.count + kv.count, {queries + keys + kv.begin, kv.count});
  }

  void add_recurrent_inputs(const std::string& name, const FactorSlices& slices) {
    LoraFactors& factors = slices.add_column_parallel(qkv);
    const HasTensor has = [&](const std::string& tensor) { return tensor == name; };
    int64_t first_feature = 0;
    for (const auto& [tensor, begin, count] : recurrent_columns(spec_, layer_.mixer, plan_.recurrent, has)) {
      const int64_t keys = 2 * int64_t{spec_.recurrent.num_groups} * spec_.recurrent.state_size;
      const bool is_of_keys = name == "in_proj_qkv" && begin < keys;
      if (tensor == name && spec_.recurrent.heads_alternate && !is_of_keys)
        add_heads(factors, slices, first_feature, name == "in_proj_qkv" ? keys : 0, count);
      else if (tensor == name)
        slices.add_output(factors, first_feature, {begin, count});
      first_feature += count;
    }
  }

  // The features of the heads of this rank, from `first_feature` on. In B, those of all heads begin at `first_row`.
  void add_heads(LoraFactors& factors, const FactorSlices& slices, int64_t first_feature, int64_t first_row,
                 int64_t count) {
    const RecurrentShard& shard = plan_.recurrent;
    const int64_t size = count / shard.shape.num_heads;
    for (int head = 0; head < shard.shape.num_heads; ++head)
      slices.add_output(factors, first_feature + head * size,
                        {first_row + adapter_head(spec_.recurrent, shard.first_head + head) * size, size});
  }

  // In q_proj, the query of each head is followed by its gate.
  void add_gated_queries(LoraFactors& factors, const FactorSlices& slices, int64_t first_gate) {
    const int64_t d = head_dim();
    for (int head = 0; head < plan_.num_heads; ++head) {
      const int64_t begin = 2 * d * (plan_.head_begin + head);
      slices.add_output(factors, head * d, {begin, d});
      slices.add_output(factors, first_gate + head * d, {begin + d, d});
    }
  }

  const ModelSpec& spec_;
  const LayerSpec& layer_;
  const ShardPlan& plan_;
  const Slicer& slicer_;
  std::vector<std::unique_ptr<MemoryTensor>> memory_;
};

// Loads the updates of an adapter into one backend.
class AdapterLoad {
 public:
  AdapterLoad(AdapterWeights& adapter, const Backend& backend) : adapter_(adapter), backend_(backend) {}

  std::unique_ptr<LoraMatrix> load(LoraSource& from, const Matrix* matrix) {
    if (from.factors.empty()) return nullptr;
    if (matrix == nullptr)
      throw Error(ErrorCode::kInvalidModel, "tensor " + from.factors[0].a.tensor->name +
                                                ": expected a projection of the model, got one that it does not have");
    from.memory = &adapter_.memory;
    std::unique_ptr<LoraMatrix> lora = backend_.load_lora(from, *matrix);
    adapter_.bytes += lora->bytes;
    return lora;
  }

  LayerAdapter load_layer(LayerSources& sources, const LayerWeights& layer) {
    LayerAdapter to;
    const Matrix* in_proj = layer.qkv_proj != nullptr ? layer.qkv_proj.get() : layer.recurrent.in_proj.get();
    to.qkv_proj = load(sources.qkv, in_proj);
    to.o_proj = load(sources.o, layer.o_proj.get());
    to.gate_up_proj = load(sources.mlp.gate_up, layer.gate_up_proj.get());
    to.down_proj = load(sources.mlp.down, layer.down_proj.get());
    to.per_layer_gate = load(sources.per_layer_gate, layer.per_layer_gate.get());
    to.per_layer_projection = load(sources.per_layer_projection, layer.per_layer_projection.get());
    if (layer.moe == nullptr) return to;
    const MoeWeights& moe = *layer.moe;
    to.router = load(sources.router, moe.router.get());
    to.shared_gate = load(sources.shared_gate, moe.shared_gate.get());
    std::vector<ExpertAdapter> experts;
    for (size_t i = 0; i < sources.experts.size(); ++i) {
      const ExpertWeights& expert = i < moe.experts.size() ? moe.experts[i] : moe.shared;
      MlpSources& from = sources.experts[i];
      experts.push_back({load(from.gate_up, expert.gate_up_proj.get()), load(from.down, expert.down_proj.get())});
    }
    const auto is_changed = [](const ExpertAdapter& expert) { return expert.gate_up_proj || expert.down_proj; };
    if (std::ranges::any_of(experts, is_changed)) to.experts = std::move(experts);
    return to;
  }

  void load_outer(const AdapterModule& module, const Slicer& slicer, const ShardPlan& plan, const Weights& weights) {
    const FactorSlices slices{slicer.whole(module.a.name), slicer.whole(module.b.name), module.scale};
    LoraSource source;
    source.is_of_table = module.is_of_table();
    if (module.projection == "lm_head") {
      slices.add_output(slices.add_column_parallel(source), 0, {plan.vocab_begin, plan.vocab_end - plan.vocab_begin});
      adapter_.lm_head = load(source, &weights.head());
      return;
    }
    LayerSources::add_all_outputs(source, slices);
    if (source.is_of_table)
      adapter_.embed_tokens = load(source, weights.embed_tokens.get());
    else
      adapter_.per_layer_projection = load(source, weights.per_layer_inputs.projection.get());
  }

 private:
  AdapterWeights& adapter_;
  const Backend& backend_;
};

}  // namespace

AdapterWeights load_adapter_weights(const ModelSpec& spec, const ShardPlan& plan, const AdapterSource& source,
                                    const TensorTable& tensors, const Weights& weights, const Backend& backend) {
  const Slicer slicer(tensors);
  AdapterWeights adapter;
  AdapterLoad load(adapter, backend);
  adapter.layers.resize(weights.layers.size());
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    LayerSources sources(spec, spec.layers[i], plan, slicer);
    for (const AdapterModule& module : source.modules)
      if (module.layer == static_cast<int>(i)) sources.add(module);
    adapter.layers[i] = load.load_layer(sources, weights.layers[i]);
  }
  for (const AdapterModule& module : source.modules)
    if (module.layer < 0) load.load_outer(module, slicer, plan, weights);
  return adapter;
}

}  // namespace capstan
