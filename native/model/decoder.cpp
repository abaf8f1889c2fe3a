#include "native/model/decoder.h"

namespace capstan {

void decoder_forward(const Weights& weights, const StepInput& step, Backend& backend) {
  backend.begin_step(step);
  backend.embed(*weights.embed_tokens);
  const EmbeddingWeights& embedding = weights.embedding;
  if (embedding.positions || embedding.token_types || embedding.norm) backend.add_embeddings(embedding);
  if (weights.per_layer_inputs.table != nullptr) backend.per_layer_inputs(weights.per_layer_inputs);
  for (int layer = 0; layer < static_cast<int>(weights.layers.size()); ++layer) {
    const LayerWeights& layer_weights = weights.layers[static_cast<size_t>(layer)];
    if (layer_weights.recurrent.in_proj) {
      backend.recurrent(layer, layer_weights);
    } else {
      backend.norm_qkv(layer, layer_weights);
      backend.attention(layer, layer_weights);
    }
    if (weights.is_parallel) backend.norm_gate_up(layer_weights);
    backend.output_residual(layer_weights);
    if (layer_weights.moe != nullptr) {
      backend.moe_residual(layer_weights);
    } else {
      if (!weights.is_parallel) backend.norm_gate_up(layer_weights);
      backend.down_residual(layer_weights);
    }
    if (layer_weights.per_layer_gate != nullptr || layer_weights.scale != nullptr)
      backend.end_layer(layer, layer_weights);
  }
}

}  // namespace capstan
