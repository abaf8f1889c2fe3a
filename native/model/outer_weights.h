#pragma once
// The weights outside of the layers: embeddings of positions, norms, and the head of a model that pools.
#include <memory>
#include <string>
#include <vector>

#include "native/model/slicer.h"

namespace capstan {

void require_shape_if_present(const TensorTable& tensors, const std::string& name, int64_t cols);
// Checks the tensors outside of the layers but the embedding of tokens and the LM head, as check_tensors.
void check_outer_tensors(const ModelSpec& spec, const TensorTable& tensors);
// `name` is without ".weight".
std::unique_ptr<Vector> load_norm(const ModelSpec& spec, const Slicer& slicer, const std::string& name,
                                  Backend& backend, const LoadProgress& progress);
EmbeddingWeights load_embedding(const ModelSpec& spec, const Slicer& slicer, Backend& backend,
                                const LoadProgress& progress);
// Without a table if the model has no inputs per layer.
PerLayerInputWeights load_per_layer_inputs(const ModelSpec& spec, const Slicer& slicer, WeightFormats formats,
                                           Backend& backend, const LoadProgress& progress);
std::vector<HeadLayer> load_head(const ModelSpec& spec, const Slicer& slicer, Backend& backend,
                                 const LoadProgress& progress);

MtpWeights load_mtp(const ModelSpec& spec, const Slicer& slicer, WeightFormat format, Backend& backend,
                    const LoadProgress& progress);

}  // namespace capstan
