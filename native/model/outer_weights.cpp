#include "native/model/outer_weights.h"

#include <string>

#include "native/base/error.h"

namespace capstan {
namespace {

std::string head_name(size_t layer) {
  return "head." + std::to_string(layer);
}

void check_norm(const TensorTable& tensors, const std::string& name, int64_t size) {
  require_shape(tensors, name + ".weight", 1, size);
  require_shape_if_present(tensors, name + ".bias", size);
}

}  // namespace

void require_shape_if_present(const TensorTable& tensors, const std::string& name, int64_t cols) {
  if (tensors.contains(name)) require_shape(tensors, name, 1, cols);
}

std::unique_ptr<Vector> load_norm(const ModelSpec& spec, const Slicer& slicer, const std::string& name,
                                  Backend& backend, const LoadProgress& progress) {
  const TensorSlice weight = slicer.whole(name + ".weight");
  if (spec.norm_kind == NormKind::kRms)
    return backend.load_vector(weight, static_cast<float>(spec.norm_offset), progress);
  if (!slicer.has(name + ".bias")) return backend.load_layer_norm(weight, nullptr, progress);
  const TensorSlice bias = slicer.whole(name + ".bias");
  return backend.load_layer_norm(weight, &bias, progress);
}

void check_outer_tensors(const ModelSpec& spec, const TensorTable& tensors) {
  const EmbeddingShape& embedding = spec.embedding;
  if (embedding.num_positions > 0)
    require_shape(tensors, "position_embeddings.weight", embedding.num_positions, spec.hidden_size);
  if (embedding.num_token_types > 0)
    require_shape(tensors, "token_type_embeddings.weight", embedding.num_token_types, spec.hidden_size);
  if (embedding.num_distances > 0)
    require_shape(tensors, "distance_biases.weight", embedding.num_distances, spec.num_heads);
  if (embedding.has_norm) check_norm(tensors, "embed_norm", spec.hidden_size);
  if (spec.has_final_norm) check_norm(tensors, "norm", spec.hidden_size);
  if (spec.has_mtp) {
    require_shape(tensors, "mtp.fc.weight", spec.hidden_size, 2 * spec.hidden_size);
    for (const char* name : {"mtp.embedding_norm", "mtp.hidden_norm", "mtp.norm"})
      check_norm(tensors, name, spec.hidden_size);
  }
  int64_t size = spec.hidden_size;
  for (size_t i = 0; i < spec.head.size(); ++i) {
    const HeadLayerSpec& layer = spec.head[i];
    if (layer.token_ids.empty()) {
      require_shape(tensors, head_name(i) + ".weight", layer.output_size, size);
      require_shape_if_present(tensors, head_name(i) + ".bias", layer.output_size);
    } else if (size != spec.hidden_size) {
      throw Error(ErrorCode::kInvalidModel, "rows of the LM head: expected as the first layer of a pooling head");
    }
    if (layer.has_norm) check_norm(tensors, head_name(i) + ".norm", layer.output_size);
    size = layer.output_size;
  }
}

EmbeddingWeights load_embedding(const ModelSpec& spec, const Slicer& slicer, Backend& backend,
                                const LoadProgress& progress) {
  EmbeddingWeights weights;
  const auto table = [&](const char* name) { return backend.load_vector(slicer.whole(name), 0.0f, progress); };
  if (spec.embedding.num_positions > 0) weights.positions = table("position_embeddings.weight");
  if (spec.embedding.num_token_types > 0) weights.token_types = table("token_type_embeddings.weight");
  if (spec.embedding.num_distances > 0) weights.distances = table("distance_biases.weight");
  if (spec.embedding.has_norm) weights.norm = load_norm(spec, slicer, "embed_norm", backend, progress);
  return weights;
}

PerLayerInputWeights load_per_layer_inputs(const ModelSpec& spec, const Slicer& slicer, WeightFormats formats,
                                           Backend& backend, const LoadProgress& progress) {
  PerLayerInputWeights weights;
  if (spec.per_layer_input_size == 0) return weights;
  const auto whole = [&](const char* name, WeightFormat format) {
    MatrixSource source;
    source.format = format;
    source.slices.push_back(slicer.whole(name));
    return backend.load_matrix(source, progress);
  };
  weights.table = whole("per_layer_table.weight", formats.vocab);
  weights.projection = whole("per_layer_projection.weight", formats.layers);
  weights.norm =
      backend.load_vector(slicer.whole("per_layer_norm.weight"), static_cast<float>(spec.norm_offset), progress);
  return weights;
}

std::vector<HeadLayer> load_head(const ModelSpec& spec, const Slicer& slicer, Backend& backend,
                                 const LoadProgress& progress) {
  std::vector<HeadLayer> head;
  const std::string vocab = spec.tie_word_embeddings ? "embed_tokens.weight" : "lm_head.weight";
  for (size_t i = 0; i < spec.head.size(); ++i) {
    const HeadLayerSpec& layer = spec.head[i];
    MatrixSource source;
    for (const int32_t id : layer.token_ids)
      source.slices.push_back(slicer.rows_of(vocab, id, 1));
    if (layer.token_ids.empty()) {
      source.slices.push_back(slicer.whole(head_name(i) + ".weight"));
      slicer.add_bias(source, head_name(i), 0, layer.output_size);
    }
    HeadLayer& loaded = head.emplace_back();
    loaded.matrix = backend.load_matrix(source, progress);
    loaded.activation = layer.activation;
    if (layer.has_norm) loaded.norm = load_norm(spec, slicer, head_name(i) + ".norm", backend, progress);
  }
  return head;
}

MtpWeights load_mtp(const ModelSpec& spec, const Slicer& slicer, WeightFormat format, Backend& backend,
                    const LoadProgress& progress) {
  MtpWeights weights;
  MatrixSource fc;
  fc.format = format;
  fc.slices.push_back(slicer.whole("mtp.fc.weight"));
  weights.fc = backend.load_matrix(fc, progress);
  weights.embedding_norm = load_norm(spec, slicer, "mtp.embedding_norm", backend, progress);
  weights.hidden_norm = load_norm(spec, slicer, "mtp.hidden_norm", backend, progress);
  weights.norm = load_norm(spec, slicer, "mtp.norm", backend, progress);
  return weights;
}

}  // namespace capstan
