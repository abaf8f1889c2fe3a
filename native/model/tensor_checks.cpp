// The tensors of a checkpoint that a model needs, and their shapes.
#include <algorithm>

#include "native/base/error.h"
#include "native/model/outer_weights.h"
#include "native/model/recurrent_weights.h"
#include "native/model/weights.h"

namespace capstan {
namespace {

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
    if (spec_.activation == Activation::kXielu)
      for (const char* value : {"xielu.alpha_p", "xielu.alpha_n", "xielu.beta"})
        vector(value, 1);
    if (const int64_t size = spec_.per_layer_input_size; size > 0) {
      linear("per_layer_gate", size, hidden);
      linear("per_layer_projection", hidden, size);
      vector("per_layer_norm.weight", hidden);
    }
    if (spec_.has_layer_scales) vector("layer_scale", 1);
  }

 private:
  const LayerSpec& layer() const { return spec_.layers[static_cast<size_t>(layer_)]; }
  std::string name(const std::string& tensor) const { return layer_name(layer_, tensor); }
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
    vector_if_present("router.scales", moe.num_experts);
    if (moe.has_separate_norms)
      for (const char* part : {"router_norm", "expert_norm", "expert_out_norm", "shared_out_norm"})
        norm(part, spec_.hidden_size);
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

}  // namespace

std::string layer_name(int layer, const std::string& tensor) {
  return "layers." + std::to_string(layer) + "." + tensor;
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

}  // namespace capstan
