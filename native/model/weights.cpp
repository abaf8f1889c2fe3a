#include "native/model/weights.h"

#include <algorithm>

#include "native/base/check.h"
#include "native/base/error.h"

namespace capstan {
namespace {

std::string layer_name(int layer, const char* tensor) {
  return "layers." + std::to_string(layer) + "." + tensor;
}

std::string shape_text(int64_t rows, int64_t cols) {
  return "(" + (rows == 1 ? "" : std::to_string(rows) + ", ") + std::to_string(cols) + ")";
}

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

void require_shape_if_present(const TensorTable& tensors, const std::string& name, int64_t cols) {
  if (tensors.contains(name)) require_shape(tensors, name, 1, cols);
}

// A group with a missing tensor would silently change the model.
void require_all_or_none(const TensorTable& tensors, const std::vector<std::string>& names) {
  const auto is_present = [&](const std::string& name) { return tensors.contains(name); };
  if (!std::any_of(names.begin(), names.end(), is_present)) return;
  for (const std::string& name : names)
    if (!is_present(name))
      throw Error(ErrorCode::kInvalidModel, "tensor " + name + " is missing, but others of its group are present");
}

// Builds the slices of one rank.
class Slicer {
 public:
  explicit Slicer(const TensorTable& tensors) : tensors_(tensors) {}

  TensorSlice whole(const std::string& name) const { return rows_of(name, 0, tensor(name).rows); }
  TensorSlice rows_of(const std::string& name, int64_t begin, int64_t count) const {
    const FileTensor& found = tensor(name);
    return {&found, begin, count, 0, found.cols};
  }
  TensorSlice cols_of(const std::string& name, int64_t begin, int64_t count) const {
    const FileTensor& found = tensor(name);
    return {&found, 0, found.rows, begin, count};
  }
  // Appends the bias of `prefix` for output features [begin, begin + count) if the checkpoint has one.
  void add_bias(MatrixSource& source, const std::string& prefix, int64_t begin, int64_t count) const {
    if (const auto found = tensors_.find(prefix + ".bias"); found != tensors_.end())
      source.bias.push_back({&found->second, 0, 1, begin, count});
  }
  bool has(const std::string& name) const { return tensors_.contains(name); }

 private:
  const FileTensor& tensor(const std::string& name) const { return tensors_.at(name); }
  const TensorTable& tensors_;
};

MatrixSource qkv_source(const Slicer& slicer, const ModelSpec& spec, const ShardPlan& plan, int layer) {
  MatrixSource source;
  const auto add = [&](const char* projection, int head_begin, int num_heads) {
    const std::string prefix = layer_name(layer, projection);
    const int64_t begin = int64_t{head_begin} * spec.head_dim, count = int64_t{num_heads} * spec.head_dim;
    source.slices.push_back(slicer.rows_of(prefix + ".weight", begin, count));
    slicer.add_bias(source, prefix, begin, count);
  };
  add("q_proj", plan.head_begin, plan.num_heads);
  add("k_proj", plan.kv_head_begin, plan.num_kv_heads);
  add("v_proj", plan.kv_head_begin, plan.num_kv_heads);
  return source;
}

MatrixSource gate_up_source(const Slicer& slicer, const ShardPlan& plan, int layer) {
  MatrixSource source;
  source.interleave_pairs = true;
  for (const char* projection : {"gate_proj", "up_proj"}) {
    const std::string prefix = layer_name(layer, projection);
    source.slices.push_back(slicer.rows_of(prefix + ".weight", plan.intermediate_begin, plan.intermediate_size));
    slicer.add_bias(source, prefix, plan.intermediate_begin, plan.intermediate_size);
  }
  return source;
}

// Every rank loads the complete bias of a row-parallel matrix and adds it after the sum over ranks.
MatrixSource row_source(const Slicer& slicer, const std::string& prefix, int64_t begin, int64_t count,
                        int64_t hidden_size) {
  MatrixSource source;
  source.kind = MatrixKind::kRow;
  source.slices.push_back(slicer.cols_of(prefix + ".weight", begin, count));
  source.total_cols = source.slices[0].tensor->cols;
  slicer.add_bias(source, prefix, 0, hidden_size);
  return source;
}

LayerWeights load_layer(const Slicer& slicer, const ModelSpec& spec, const ShardPlan& plan, int layer,
                        WeightFormat format, Backend& backend, const LoadProgress& progress) {
  const auto matrix = [&](MatrixSource source) {
    source.format = format;
    return backend.load_matrix(source, progress);
  };
  const auto vector = [&](const char* tensor) {
    return backend.load_vector(slicer.whole(layer_name(layer, tensor)), progress);
  };
  LayerWeights weights;
  weights.input_norm = vector("input_norm.weight");
  weights.qkv_proj = matrix(qkv_source(slicer, spec, plan, layer));
  if (slicer.has(layer_name(layer, "q_norm.weight"))) {
    weights.q_norm = vector("q_norm.weight");
    weights.k_norm = vector("k_norm.weight");
  }
  weights.o_proj = matrix(row_source(slicer, layer_name(layer, "o_proj"), int64_t{plan.head_begin} * spec.head_dim,
                                     int64_t{plan.num_heads} * spec.head_dim, spec.hidden_size));
  weights.post_attention_norm = vector("post_attention_norm.weight");
  weights.gate_up_proj = matrix(gate_up_source(slicer, plan, layer));
  weights.down_proj = matrix(row_source(slicer, layer_name(layer, "down_proj"), plan.intermediate_begin,
                                        plan.intermediate_size, spec.hidden_size));
  return weights;
}

// Rows of heads can be stored as pairs in the q and k projections only.
void check_paired_rows(const ModelSpec& spec, const TensorTable& tensors) {
  for (const auto& [name, tensor] : tensors) {
    const bool is_of_heads = name.find(".q_proj.") != std::string::npos || name.find(".k_proj.") != std::string::npos;
    const int allowed = is_of_heads ? spec.head_dim : 0;
    if (tensor.paired_head_dim != 0 && tensor.paired_head_dim != allowed)
      throw Error(ErrorCode::kInvalidModel, "tensor " + name + ": interleavedHeadDim: expected 0" +
                                                (is_of_heads ? " or " + std::to_string(allowed) : std::string()) +
                                                ", got " + std::to_string(tensor.paired_head_dim));
  }
}

void check_layer(const ModelSpec& spec, const TensorTable& tensors, int layer) {
  const int64_t q_size = int64_t{spec.num_heads} * spec.head_dim, kv_size = int64_t{spec.num_kv_heads} * spec.head_dim;
  const auto name = [&](const char* tensor) { return layer_name(layer, tensor); };
  require_shape(tensors, name("input_norm.weight"), 1, spec.hidden_size);
  require_shape(tensors, name("post_attention_norm.weight"), 1, spec.hidden_size);
  require_shape(tensors, name("q_proj.weight"), q_size, spec.hidden_size);
  require_shape(tensors, name("k_proj.weight"), kv_size, spec.hidden_size);
  require_shape(tensors, name("v_proj.weight"), kv_size, spec.hidden_size);
  require_shape(tensors, name("o_proj.weight"), spec.hidden_size, q_size);
  require_shape(tensors, name("gate_proj.weight"), spec.intermediate_size, spec.hidden_size);
  require_shape(tensors, name("up_proj.weight"), spec.intermediate_size, spec.hidden_size);
  require_shape(tensors, name("down_proj.weight"), spec.hidden_size, spec.intermediate_size);
  require_all_or_none(tensors, {name("q_proj.bias"), name("k_proj.bias"), name("v_proj.bias")});
  require_all_or_none(tensors, {name("gate_proj.bias"), name("up_proj.bias")});
  require_all_or_none(tensors, {name("q_norm.weight"), name("k_norm.weight")});
  require_shape_if_present(tensors, name("q_proj.bias"), q_size);
  require_shape_if_present(tensors, name("k_proj.bias"), kv_size);
  require_shape_if_present(tensors, name("v_proj.bias"), kv_size);
  require_shape_if_present(tensors, name("o_proj.bias"), spec.hidden_size);
  require_shape_if_present(tensors, name("gate_proj.bias"), spec.intermediate_size);
  require_shape_if_present(tensors, name("up_proj.bias"), spec.intermediate_size);
  require_shape_if_present(tensors, name("down_proj.bias"), spec.hidden_size);
  require_shape_if_present(tensors, name("q_norm.weight"), spec.head_dim);
  require_shape_if_present(tensors, name("k_norm.weight"), spec.head_dim);
}

// Returns the group of attention layers with this window, and adds it if there is none yet.
int find_kv_group(DeviceModel& model, int window) {
  const auto found = std::ranges::find(model.kv_groups, window, &KvGroup::window);
  const int index = static_cast<int>(found - model.kv_groups.begin());
  if (found == model.kv_groups.end()) model.kv_groups.push_back({window, 0});
  return index;
}

[[noreturn]] void refuse_split(int world_size, const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument,
              "tensorParallelSize " + std::to_string(world_size) + " does not fit this model: " + what);
}

// The world size must divide the number of parts of both row-parallel matrices, so that a rank holds complete parts.
void check_parts(int world_size, const char* matrix, int64_t total_cols) {
  const int parts = row_parallel_parts(total_cols);
  if (parts % world_size != 0)
    refuse_split(world_size, std::string(matrix) + " has " + std::to_string(total_cols) + " columns, which form " +
                                 std::to_string(parts) + " equal parts");
}

}  // namespace

ShardPlan make_shard_plan(const ModelSpec& spec, int rank, int world_size) {
  if (world_size > 1) {
    if (spec.num_heads % world_size != 0) refuse_split(world_size, std::to_string(spec.num_heads) + " attention heads");
    if (spec.num_kv_heads % world_size != 0 && world_size % spec.num_kv_heads != 0)
      refuse_split(world_size,
                   std::to_string(spec.num_kv_heads) + " KV heads, which are neither a divisor nor a multiple of it");
    check_parts(world_size, "o_proj", int64_t{spec.num_heads} * spec.head_dim);
    check_parts(world_size, "down_proj", spec.intermediate_size);
  }
  ShardPlan plan;
  plan.num_heads = spec.num_heads / world_size;
  plan.head_begin = rank * plan.num_heads;
  plan.num_kv_heads = std::max(1, spec.num_kv_heads / world_size);
  plan.kv_head_begin =
      spec.num_kv_heads >= world_size ? rank * plan.num_kv_heads : rank / (world_size / spec.num_kv_heads);
  plan.intermediate_size = spec.intermediate_size / world_size;
  plan.intermediate_begin = rank * plan.intermediate_size;
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
  require_shape(tensors, "norm.weight", 1, spec.hidden_size);
  if (!spec.tie_word_embeddings) require_shape(tensors, "lm_head.weight", spec.vocab_size, spec.hidden_size);
  for (int layer = 0; layer < spec.num_layers(); ++layer)
    check_layer(spec, tensors, layer);
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
  for (int layer = 0; layer < spec.num_layers(); ++layer)
    weights.layers.push_back(load_layer(slicer, spec, plan, layer, formats.layers, backend, progress));
  weights.norm = backend.load_vector(slicer.whole("norm.weight"), progress);
  if (!spec.tie_word_embeddings) weights.lm_head = backend.load_matrix(vocab_source("lm_head.weight"), progress);

  weights.bytes = weights.embed_tokens->bytes + (weights.lm_head ? weights.lm_head->bytes : 0);
  for (const LayerWeights& layer : weights.layers)
    weights.bytes += layer.qkv_proj->bytes + layer.o_proj->bytes + layer.gate_up_proj->bytes + layer.down_proj->bytes;
  return weights;
}

DeviceModel make_device_model(const ModelSpec& spec, const ShardPlan& plan, int64_t num_token_ids, int max_model_len) {
  DeviceModel model;
  model.hidden_size = spec.hidden_size;
  model.intermediate_size = plan.intermediate_size;
  model.num_heads = plan.num_heads;
  model.num_kv_heads = plan.num_kv_heads;
  model.head_dim = spec.head_dim;
  model.vocab_size = spec.vocab_size;
  model.vocab_begin = plan.vocab_begin;
  model.vocab_end = plan.vocab_end;
  model.num_token_ids = std::min(num_token_ids, spec.vocab_size);
  model.rms_norm_eps = static_cast<float>(spec.rms_norm_eps);
  model.attention_scale = static_cast<float>(spec.attention_scale);
  model.activation = spec.activation;
  for (const LayerSpec& layer : spec.layers) {
    const int group = find_kv_group(model, layer.window);
    model.layers.push_back({layer.mixer, group, model.kv_groups[static_cast<size_t>(group)].num_layers++, layer.rope});
  }
  for (const RopeSpec& rope : spec.ropes)
    model.rope_tables.push_back({rope.rotary_dim, {}});
  model.max_model_len = max_model_len;
  return model;
}

}  // namespace capstan
