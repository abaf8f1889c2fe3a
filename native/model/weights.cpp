#include "native/model/weights.h"

#include <algorithm>

#include "native/base/check.h"
#include "native/base/error.h"
#include "native/model/outer_weights.h"
#include "native/model/recurrent_weights.h"
#include "native/model/slicer.h"

namespace capstan {
namespace {

std::string layer_name(int layer, const char* tensor) {
  return "layers." + std::to_string(layer) + "." + tensor;
}

std::string shape_text(int64_t rows, int64_t cols) {
  return "(" + (rows == 1 ? "" : std::to_string(rows) + ", ") + std::to_string(cols) + ")";
}

// A group with a missing tensor would silently change the model.
void require_all_or_none(const TensorTable& tensors, const std::vector<std::string>& names) {
  const auto is_present = [&](const std::string& name) { return tensors.contains(name); };
  if (!std::any_of(names.begin(), names.end(), is_present)) return;
  for (const std::string& name : names)
    if (!is_present(name))
      throw Error(ErrorCode::kInvalidModel, "tensor " + name + " is missing, but others of its group are present");
}

// A range of the output features of a projection, or of a part of a projection that others share.
struct FeatureRange {
  int64_t begin = 0, count = 0;
};

void add_features(const Slicer& slicer, MatrixSource& source, const std::string& prefix, FeatureRange range) {
  source.slices.push_back(slicer.rows_of(prefix + ".weight", range.begin, range.count));
  slicer.add_bias(source, prefix, range.begin, range.count);
}

// The rows of q_proj when the query of each head is followed by its gate: the queries, or the gates.
void add_gated_queries(const Slicer& slicer, MatrixSource& source, const ModelSpec& spec, const ShardPlan& plan,
                       int layer, bool is_gate) {
  const int64_t d = spec.head_dim_of(spec.layers[static_cast<size_t>(layer)]);
  for (int head = plan.head_begin; head < plan.head_begin + plan.num_heads; ++head)
    add_features(slicer, source, layer_name(layer, "q_proj"), {(2 * int64_t{head} + (is_gate ? 1 : 0)) * d, d});
}

// The projections, or one that holds them one after the other; and then the gates, if there are any.
MatrixSource qkv_source(const Slicer& slicer, const ModelSpec& spec, const ShardPlan& plan, int layer) {
  MatrixSource source;
  const bool is_fused = slicer.has(layer_name(layer, "qkv_proj.weight"));
  const LayerSpec& layer_spec = spec.layers[static_cast<size_t>(layer)];
  const int64_t d = spec.head_dim_of(layer_spec);
  int64_t first = 0;
  const auto add = [&](const char* projection, HeadRange heads, int num_heads_of_all) {
    add_features(slicer, source, layer_name(layer, is_fused ? "qkv_proj" : projection),
                 {first + heads.begin * d, heads.count * d});
    if (is_fused) first += num_heads_of_all * d;
  };
  if (spec.has_output_gate)
    add_gated_queries(slicer, source, spec, plan, layer, false);
  else
    add("q_proj", {plan.head_begin, plan.num_heads}, spec.num_heads);
  if (layer_spec.kv_source < 0) {
    const int num_kv_heads = spec.num_kv_heads_of(layer_spec);
    const HeadRange heads = plan.kv_heads(num_kv_heads);
    add("k_proj", heads, num_kv_heads);
    add("v_proj", heads, num_kv_heads);
  }
  if (spec.has_output_gate) add_gated_queries(slicer, source, spec, plan, layer, true);
  return source;
}

// The gate and the up projection, or one that holds the gate before the up projection, or an up projection alone.
MatrixSource gate_up_source(const Slicer& slicer, const std::string& mlp, FeatureRange range, bool has_gate) {
  MatrixSource source;
  if (!has_gate) {
    add_features(slicer, source, mlp + "up_proj", range);
    return source;
  }
  source.interleave_pairs = true;
  const std::string fused = mlp + "gate_up_proj";
  if (slicer.has(fused + ".weight")) {
    const int64_t first_up = slicer.rows(fused + ".weight") / 2;
    add_features(slicer, source, fused, range);
    add_features(slicer, source, fused, {first_up + range.begin, range.count});
  } else {
    add_features(slicer, source, mlp + "gate_proj", range);
    add_features(slicer, source, mlp + "up_proj", range);
  }
  return source;
}

// Every rank loads the complete bias of a row-parallel matrix and adds it after the sum over ranks.
MatrixSource row_source(const Slicer& slicer, const std::string& prefix, FeatureRange range, int64_t hidden_size) {
  MatrixSource source;
  source.kind = MatrixKind::kRow;
  source.slices.push_back(slicer.cols_of(prefix + ".weight", range.begin, range.count));
  source.total_cols = source.slices[0].tensor->cols;
  slicer.add_bias(source, prefix, 0, hidden_size);
  return source;
}

// Loads the weights of one layer.
class LayerLoader {
 public:
  LayerLoader(const Slicer& slicer, const ModelSpec& spec, const ShardPlan& plan, int layer, WeightFormat format,
              Backend& backend, const LoadProgress& progress)
      : slicer_(slicer),
        spec_(spec),
        plan_(plan),
        layer_(layer),
        format_(format),
        backend_(backend),
        progress_(progress) {}

  LayerWeights load() const {
    LayerWeights weights;
    const LayerNorms& norms = spec_.norms;
    weights.input_norm = norm(norms.input && !spec_.layers[static_cast<size_t>(layer_)].lacks_input_norm, "input_norm");
    if (mixer() == Mixer::kAttention)
      load_attention(weights);
    else
      load_recurrent(weights);
    weights.attention_out_norm = norm(norms.attention_out, "attention_out_norm");
    weights.mlp_norm = norm(norms.mlp, "mlp_norm");
    if (layer().is_moe) {
      weights.moe = load_moe();
    } else {
      const int64_t size = spec_.intermediate_size_of(layer()) / plan_.world_size;
      ExpertWeights mlp = load_mlp(layer_name(layer_, ""), {plan_.rank * size, size});
      weights.gate_up_proj = std::move(mlp.gate_up_proj);
      weights.down_proj = std::move(mlp.down_proj);
    }
    weights.mlp_out_norm = norm(norms.mlp_out, "mlp_out_norm");
    if (spec_.per_layer_input_size > 0) load_per_layer_input(weights);
    if (spec_.has_layer_scales)
      weights.scale = backend_.load_vector(slicer_.whole(layer_name(layer_, "layer_scale")), 0.0f, progress_);
    return weights;
  }

 private:
  const LayerSpec& layer() const { return spec_.layers[static_cast<size_t>(layer_)]; }
  Mixer mixer() const { return layer().mixer; }
  bool has(const char* tensor) const { return slicer_.has(layer_name(layer_, tensor)); }
  std::unique_ptr<Matrix> matrix(MatrixSource source) const {
    source.format = format_;
    return backend_.load_matrix(source, progress_);
  }
  // Routers are not quantized, because their errors would choose other experts.
  std::unique_ptr<Matrix> f32_matrix(const char* projection) const {
    MatrixSource source;
    const std::string prefix = layer_name(layer_, projection);
    add_features(slicer_, source, prefix, {0, slicer_.rows(prefix + ".weight")});
    source.format = WeightFormat::kF32;
    return backend_.load_matrix(source, progress_);
  }
  std::unique_ptr<Vector> norm_slice(const TensorSlice& slice) const {
    return backend_.load_vector(slice, static_cast<float>(spec_.norm_offset), progress_);
  }
  // Returns null when the model has no such norm.
  std::unique_ptr<Vector> norm(bool is_there, const char* name) const {
    return is_there ? load_norm(spec_, slicer_, layer_name(layer_, name), backend_, progress_) : nullptr;
  }
  // The norm of q or k. This rank holds the features in `range`.
  std::unique_ptr<Vector> head_norm(const char* name, FeatureRange range) const {
    const std::string tensor = layer_name(layer_, name) + ".weight";
    if (spec_.qk_norm == QkNorm::kNone) return nullptr;
    if (spec_.qk_norm == QkNorm::kAllHeads) return norm_slice(slicer_.cols_of(tensor, range.begin, range.count));
    return norm_slice(slicer_.whole(tensor));
  }

  void load_attention(LayerWeights& weights) const {
    const int64_t d = spec_.head_dim_of(layer());
    const FeatureRange queries{plan_.head_begin * d, plan_.num_heads * d};
    weights.qkv_proj = matrix(qkv_source(slicer_, spec_, plan_, layer_));
    weights.q_norm = head_norm("q_norm", queries);
    if (layer().kv_source < 0) {
      const HeadRange heads = plan_.kv_heads(spec_.num_kv_heads_of(layer()));
      weights.k_norm = head_norm("k_norm", {heads.begin * d, heads.count * d});
    }
    if (spec_.has_sinks) {
      TensorSlice slice = slicer_.whole(layer_name(layer_, "sinks"));
      slice.col_begin = plan_.head_begin, slice.num_cols = plan_.num_heads;
      weights.sinks = backend_.load_vector(slice, 0.0f, progress_);
    }
    weights.o_proj = matrix(row_source(slicer_, layer_name(layer_, "o_proj"), queries, spec_.hidden_size));
  }

  void load_per_layer_input(LayerWeights& weights) const {
    const FeatureRange range{plan_.per_layer_begin, plan_.per_layer_size};
    MatrixSource gate;
    add_features(slicer_, gate, layer_name(layer_, "per_layer_gate"), range);
    weights.per_layer_gate = matrix(gate);
    weights.per_layer_projection =
        matrix(row_source(slicer_, layer_name(layer_, "per_layer_projection"), range, spec_.hidden_size));
    weights.per_layer_norm = norm(true, "per_layer_norm");
  }

  void load_recurrent(LayerWeights& weights) const {
    const RecurrentShard& shard = plan_.recurrent;
    weights.recurrent = load_recurrent_weights(
        spec_, mixer(), shard, slicer_, layer_name(layer_, ""),
        [&](MatrixSource source) { return matrix(std::move(source)); }, backend_, progress_);
    weights.o_proj = matrix(row_source(slicer_, layer_name(layer_, "o_proj"),
                                       {shard.first_channel, shard.shape.output_size()}, spec_.hidden_size));
  }

  ExpertWeights load_mlp(const std::string& prefix, FeatureRange range) const {
    ExpertWeights mlp;
    mlp.gate_up_proj = matrix(gate_up_source(slicer_, prefix, range, spec_.has_gated_mlp));
    mlp.down_proj = matrix(row_source(slicer_, prefix + "down_proj", range, spec_.hidden_size));
    return mlp;
  }

  std::unique_ptr<MoeWeights> load_moe() const {
    auto moe = std::make_unique<MoeWeights>();
    moe->router = f32_matrix("router");
    if (has("router.selection_bias"))
      moe->selection_bias =
          backend_.load_vector(slicer_.whole(layer_name(layer_, "router.selection_bias")), 0.0f, progress_);
    for (int expert = 0; expert < spec_.moe.num_experts; ++expert)
      moe->experts.push_back(load_mlp(layer_name(layer_, ("experts." + std::to_string(expert) + ".").c_str()),
                                      {plan_.expert_begin, plan_.expert_size}));
    if (spec_.moe.shared_intermediate_size == 0) return moe;
    moe->shared = load_mlp(layer_name(layer_, "shared_expert."), {plan_.shared_begin, plan_.shared_size});
    if (has("shared_gate.weight")) moe->shared_gate = f32_matrix("shared_gate");
    return moe;
  }

  const Slicer& slicer_;
  const ModelSpec& spec_;
  const ShardPlan& plan_;
  const int layer_;
  const WeightFormat format_;
  Backend& backend_;
  const LoadProgress& progress_;
};

// Rows can be stored as pairs in the heads of q and k, and in projections that hold gate and up.
void check_paired_rows(const ModelSpec& spec, const TensorTable& tensors) {
  const auto holds = [](const std::string& name, const char* part) { return name.find(part) != std::string::npos; };
  for (const auto& [name, tensor] : tensors) {
    int64_t allowed = 0;
    // The models whose layers differ in head_dim have rows in order.
    if (holds(name, ".q_proj.") || holds(name, ".k_proj.")) allowed = spec.head_dim;
    if (holds(name, ".gate_up_proj.")) allowed = tensor.rows == 1 ? tensor.cols : tensor.rows;
    if (tensor.paired_head_dim != 0 && tensor.paired_head_dim != allowed)
      throw Error(ErrorCode::kInvalidModel, "tensor " + name + ": interleavedHeadDim: expected 0" +
                                                (allowed == 0 ? std::string() : " or " + std::to_string(allowed)) +
                                                ", got " + std::to_string(tensor.paired_head_dim));
  }
}

// Checks the tensors of one layer.
class LayerChecker {
 public:
  LayerChecker(const ModelSpec& spec, const TensorTable& tensors, int layer)
      : spec_(spec), tensors_(tensors), layer_(layer) {}

  void check() const {
    const int64_t hidden = spec_.hidden_size;
    const LayerNorms& norms = spec_.norms;
    if (norms.input && !layer().lacks_input_norm) norm("input_norm", hidden);
    if (norms.attention_out) norm("attention_out_norm", hidden);
    if (norms.mlp) norm("mlp_norm", hidden);
    if (norms.mlp_out) norm("mlp_out_norm", hidden);
    if (layer().mixer == Mixer::kAttention)
      check_attention();
    else
      check_recurrent_tensors(spec_, layer().mixer, tensors_, name(""));
    if (layer().is_moe)
      check_moe();
    else
      check_mlp("", spec_.intermediate_size_of(layer()));
    if (const int64_t size = spec_.per_layer_input_size; size > 0) {
      linear("per_layer_gate", size, hidden);
      linear("per_layer_projection", hidden, size);
      vector("per_layer_norm.weight", hidden);
    }
    if (spec_.has_layer_scales) vector("layer_scale", 1);
  }

 private:
  const LayerSpec& layer() const { return spec_.layers[static_cast<size_t>(layer_)]; }
  std::string name(const std::string& tensor) const { return layer_name(layer_, tensor.c_str()); }
  bool has(const std::string& tensor) const { return tensors_.contains(name(tensor)); }
  void vector(const std::string& tensor, int64_t size) const { require_shape(tensors_, name(tensor), 1, size); }
  void vector_if_present(const std::string& tensor, int64_t size) const {
    require_shape_if_present(tensors_, name(tensor), size);
  }
  void norm(const std::string& prefix, int64_t size) const {
    vector(prefix + ".weight", size);
    vector_if_present(prefix + ".bias", size);
  }
  // A weight and perhaps a bias.
  void linear(const std::string& prefix, int64_t rows, int64_t cols) const {
    require_shape(tensors_, name(prefix + ".weight"), rows, cols);
    vector_if_present(prefix + ".bias", rows);
  }
  void all_or_none(const std::vector<std::string>& tensors) const {
    std::vector<std::string> names;
    for (const std::string& tensor : tensors)
      names.push_back(name(tensor));
    require_all_or_none(tensors_, names);
  }

  void check_attention() const {
    const int64_t d = spec_.head_dim_of(layer()), queries = spec_.num_heads * d,
                  keys = spec_.num_kv_heads_of(layer()) * d;
    const bool has_keys = layer().kv_source < 0;
    if (has("qkv_proj.weight")) {
      linear("qkv_proj", queries + 2 * keys, spec_.hidden_size);
    } else {
      linear("q_proj", (spec_.has_output_gate ? 2 : 1) * queries, spec_.hidden_size);
      if (has_keys) {
        linear("k_proj", keys, spec_.hidden_size);
        linear("v_proj", keys, spec_.hidden_size);
        all_or_none({"q_proj.bias", "k_proj.bias", "v_proj.bias"});
      }
    }
    linear("o_proj", spec_.hidden_size, queries);
    const bool is_of_all = spec_.qk_norm == QkNorm::kAllHeads;
    if (spec_.qk_norm != QkNorm::kNone) {
      vector("q_norm.weight", is_of_all ? queries : d);
      if (has_keys) vector("k_norm.weight", is_of_all ? keys : d);
    }
    if (spec_.has_sinks) vector("sinks", spec_.num_heads);
  }

  void check_mlp(const std::string& prefix, int64_t size) const {
    if (!spec_.has_gated_mlp) {
      linear(prefix + "up_proj", size, spec_.hidden_size);
    } else if (has(prefix + "gate_up_proj.weight")) {
      linear(prefix + "gate_up_proj", 2 * size, spec_.hidden_size);
    } else {
      linear(prefix + "gate_proj", size, spec_.hidden_size);
      linear(prefix + "up_proj", size, spec_.hidden_size);
      all_or_none({prefix + "gate_proj.bias", prefix + "up_proj.bias"});
    }
    linear(prefix + "down_proj", spec_.hidden_size, size);
  }

  void check_moe() const {
    const Moe& moe = spec_.moe;
    linear("router", moe.num_experts, spec_.hidden_size);
    vector_if_present("router.selection_bias", moe.num_experts);
    for (int expert = 0; expert < moe.num_experts; ++expert)
      check_mlp("experts." + std::to_string(expert) + ".", moe.intermediate_size);
    if (moe.shared_intermediate_size == 0) return;
    check_mlp("shared_expert.", moe.shared_intermediate_size);
    if (has("shared_gate.weight")) linear("shared_gate", 1, spec_.hidden_size);
  }

  const ModelSpec& spec_;
  const TensorTable& tensors_;
  const int layer_;
};

[[noreturn]] void refuse_split(int world_size, const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument,
              "tensorParallelSize " + std::to_string(world_size) + " does not fit this model: " + what);
}

// The world size must divide the number of parts of the row-parallel matrices, so that a rank holds complete parts.
void check_parts(int world_size, const char* matrix, int64_t total_cols) {
  const int parts = row_parallel_parts(total_cols);
  if (parts % world_size != 0)
    refuse_split(world_size, std::string(matrix) + " has " + std::to_string(total_cols) + " columns, which form " +
                                 std::to_string(parts) + " equal parts");
}

void check_split(const ModelSpec& spec, int world_size) {
  if (spec.num_heads % world_size != 0) refuse_split(world_size, std::to_string(spec.num_heads) + " attention heads");
  for (const LayerSpec& layer : spec.layers) {
    const int num_kv_heads = spec.num_kv_heads_of(layer);
    if (num_kv_heads % world_size != 0 && world_size % num_kv_heads != 0)
      refuse_split(world_size,
                   std::to_string(num_kv_heads) + " KV heads, which are neither a divisor nor a multiple of it");
    check_parts(world_size, "o_proj", int64_t{spec.num_heads} * spec.head_dim_of(layer));
    if (!layer.is_moe) check_parts(world_size, "down_proj", spec.intermediate_size_of(layer));
  }
  if (spec.per_layer_input_size > 0) check_parts(world_size, "per_layer_projection", spec.per_layer_input_size);
  if (spec.moe.num_experts > 0) check_parts(world_size, "down_proj of an expert", spec.moe.intermediate_size);
  if (spec.moe.shared_intermediate_size > 0)
    check_parts(world_size, "down_proj of the shared expert", spec.moe.shared_intermediate_size);
}

int64_t mlp_bytes(const std::unique_ptr<Matrix>& gate_up_proj, const std::unique_ptr<Matrix>& down_proj) {
  return gate_up_proj == nullptr ? 0 : gate_up_proj->bytes + down_proj->bytes;
}

int64_t layer_bytes(const LayerWeights& layer) {
  const Matrix& in_proj = layer.qkv_proj == nullptr ? *layer.recurrent.in_proj : *layer.qkv_proj;
  int64_t bytes = in_proj.bytes + layer.o_proj->bytes + mlp_bytes(layer.gate_up_proj, layer.down_proj) +
                  mlp_bytes(layer.per_layer_gate, layer.per_layer_projection);
  if (layer.moe == nullptr) return bytes;
  const MoeWeights& moe = *layer.moe;
  bytes += moe.router->bytes + mlp_bytes(moe.shared.gate_up_proj, moe.shared.down_proj);
  for (const ExpertWeights& expert : moe.experts)
    bytes += mlp_bytes(expert.gate_up_proj, expert.down_proj);
  return bytes;
}

}  // namespace

void require_shape(const TensorTable& tensors, const std::string& name, int64_t rows, int64_t cols) {
  const auto found = tensors.find(name);
  if (found == tensors.end())
    throw Error(ErrorCode::kInvalidModel,
                "tensor " + name + ": expected shape " + shape_text(rows, cols) + ", but it is missing");
  const FileTensor& tensor = found->second;
  if (tensor.rows != rows || tensor.cols != cols)
    throw Error(ErrorCode::kInvalidModel, "tensor " + name + ": expected shape " + shape_text(rows, cols) + ", got " +
                                              shape_text(tensor.rows, tensor.cols));
}

HeadRange ShardPlan::kv_heads(int total) const {
  const int num_heads_of_rank = std::max(1, total / world_size);
  return {total >= world_size ? rank * num_heads_of_rank : rank / (world_size / total), num_heads_of_rank};
}

ShardPlan make_shard_plan(const ModelSpec& spec, int rank, int world_size) {
  if (world_size > 1) check_split(spec, world_size);
  ShardPlan plan;
  plan.rank = rank;
  plan.world_size = world_size;
  plan.num_heads = spec.num_heads / world_size;
  plan.head_begin = rank * plan.num_heads;
  for (const LayerSpec& layer : spec.layers)
    plan.intermediate_size = std::max(plan.intermediate_size, spec.intermediate_size_of(layer) / world_size);
  plan.per_layer_size = spec.per_layer_input_size / world_size;
  plan.per_layer_begin = rank * plan.per_layer_size;
  plan.expert_size = spec.moe.intermediate_size / world_size;
  plan.expert_begin = rank * plan.expert_size;
  plan.shared_size = spec.moe.shared_intermediate_size / world_size;
  plan.shared_begin = rank * plan.shared_size;
  if (spec.recurrent.conv_taps > 0) plan.recurrent = make_recurrent_shard(spec, rank, world_size);
  // Splits at multiples of 16 rows, the panel height, so that only the last rank pads.
  const int64_t per_rank = (spec.vocab_size + int64_t{16} * world_size - 1) / (int64_t{16} * world_size) * 16;
  plan.vocab_begin = std::min(spec.vocab_size, rank * per_rank);
  plan.vocab_end = std::min(spec.vocab_size, plan.vocab_begin + per_rank);
  if (plan.vocab_begin == plan.vocab_end)
    refuse_split(world_size, "a vocabulary of " + std::to_string(spec.vocab_size) + " leaves a rank empty");
  return plan;
}

void check_tensors(const ModelSpec& spec, const TensorTable& tensors) {
  require_shape(tensors, "embed_tokens.weight", spec.vocab_size, spec.hidden_size);
  check_outer_tensors(spec, tensors);
  if (!spec.tie_word_embeddings) require_shape(tensors, "lm_head.weight", spec.vocab_size, spec.hidden_size);
  if (const int64_t size = spec.per_layer_input_size; size > 0) {
    require_shape(tensors, "per_layer_table.weight", spec.vocab_size, spec.num_layers() * size);
    require_shape(tensors, "per_layer_projection.weight", spec.num_layers() * size, spec.hidden_size);
    require_shape(tensors, "per_layer_norm.weight", 1, size);
  }
  for (int layer = 0; layer < spec.num_layers(); ++layer)
    LayerChecker(spec, tensors, layer).check();
  check_paired_rows(spec, tensors);
}

Weights load_weights(const ModelSpec& spec, const ShardPlan& plan, const TensorTable& tensors, WeightFormats formats,
                     Backend& backend, const LoadProgress& progress) {
  const Slicer slicer(tensors);
  const auto vocab_source = [&](const char* name) {
    MatrixSource source;
    source.format = formats.vocab;
    source.slices.push_back(slicer.rows_of(name, plan.vocab_begin, plan.vocab_end - plan.vocab_begin));
    return source;
  };
  Weights weights;
  weights.embed_tokens = backend.load_matrix(vocab_source("embed_tokens.weight"), progress);
  weights.embedding = load_embedding(spec, slicer, backend, progress);
  weights.per_layer_inputs = load_per_layer_inputs(spec, slicer, formats, backend, progress);
  for (int layer = 0; layer < spec.num_layers(); ++layer)
    weights.layers.push_back(LayerLoader(slicer, spec, plan, layer, formats.layers, backend, progress).load());
  if (spec.has_final_norm) weights.norm = load_norm(spec, slicer, "norm", backend, progress);
  weights.pooling_head = load_head(spec, slicer, backend, progress);
  if (!spec.tie_word_embeddings && spec.pooling == Pooling::kNone)
    weights.lm_head = backend.load_matrix(vocab_source("lm_head.weight"), progress);

  weights.bytes = weights.embed_tokens->bytes + (weights.lm_head ? weights.lm_head->bytes : 0) +
                  mlp_bytes(weights.per_layer_inputs.table, weights.per_layer_inputs.projection);
  for (const LayerWeights& layer : weights.layers)
    weights.bytes += layer_bytes(layer);
  for (const HeadLayer& layer : weights.pooling_head)
    weights.bytes += layer.matrix->bytes;
  return weights;
}

}  // namespace capstan
