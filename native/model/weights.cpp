#include "native/model/weights.h"

#include <algorithm>

#include "native/base/check.h"
#include "native/base/error.h"
#include "native/model/outer_weights.h"
#include "native/model/recurrent_weights.h"
#include "native/model/slicer.h"

namespace capstan {
namespace {

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
      if (spec_.activation == Activation::kXielu)
        weights.xielu = {vector("xielu.alpha_p"), vector("xielu.alpha_n"), vector("xielu.beta")};
    }
    weights.mlp_out_norm = norm(norms.mlp_out, "mlp_out_norm");
    if (spec_.per_layer_input_size > 0) load_per_layer_input(weights);
    if (spec_.has_layer_scales) weights.scale = vector("layer_scale");
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
  std::unique_ptr<Vector> vector(const char* name) const {
    return backend_.load_vector(slicer_.whole(layer_name(layer_, name)), 0.0f, progress_);
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
    if (has("router.selection_bias")) moe->selection_bias = vector("router.selection_bias");
    if (has("router.scales")) moe->scales = vector("router.scales");
    const bool has_norms = spec_.moe.has_separate_norms;
    moe->router_norm = norm(has_norms, "router_norm");
    moe->expert_norm = norm(has_norms, "expert_norm");
    moe->expert_out_norm = norm(has_norms, "expert_out_norm");
    moe->shared_out_norm = norm(has_norms, "shared_out_norm");
    for (int expert = 0; expert < spec_.moe.num_experts; ++expert)
      moe->experts.push_back(load_mlp(layer_name(layer_, "experts." + std::to_string(expert) + "."),
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
  weights.is_parallel = spec.is_parallel;
  weights.embed_tokens = backend.load_matrix(vocab_source("embed_tokens.weight"), progress);
  weights.embedding = load_embedding(spec, slicer, backend, progress);
  weights.per_layer_inputs = load_per_layer_inputs(spec, slicer, formats, backend, progress);
  for (int layer = 0; layer < spec.num_layers(); ++layer)
    weights.layers.push_back(LayerLoader(slicer, spec, plan, layer, formats.layers, backend, progress).load());
  if (spec.has_final_norm) weights.norm = load_norm(spec, slicer, "norm", backend, progress);
  if (spec.has_mtp) weights.mtp = load_mtp(spec, slicer, formats.layers, backend, progress);
  weights.pooling_head = load_head(spec, slicer, backend, progress);
  if (!spec.tie_word_embeddings && spec.pooling == Pooling::kNone)
    weights.lm_head = backend.load_matrix(vocab_source("lm_head.weight"), progress);

  weights.bytes = weights.embed_tokens->bytes + (weights.lm_head ? weights.lm_head->bytes : 0) +
                  mlp_bytes(weights.per_layer_inputs.table, weights.per_layer_inputs.projection) +
                  (weights.has_mtp() ? weights.mtp.fc->bytes : 0);
  for (const LayerWeights& layer : weights.layers)
    weights.bytes += layer_bytes(layer);
  for (const HeadLayer& layer : weights.pooling_head)
    weights.bytes += layer.matrix->bytes;
  return weights;
}

}  // namespace capstan
