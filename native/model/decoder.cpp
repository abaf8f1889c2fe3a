#include "native/model/decoder.h"

namespace capstan {
namespace {

void run_layer(const Weights& weights, int layer, Backend& backend) {
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

}  // namespace

void decoder_forward(const Weights& weights, const StepInput& step, Backend& backend) {
  backend.begin_step(step);
  backend.embed(*weights.embed_tokens);
  const EmbeddingWeights& embedding = weights.embedding;
  if (embedding.positions || embedding.token_types || embedding.norm) backend.add_embeddings(embedding);
  if (weights.per_layer_inputs.table != nullptr) backend.per_layer_inputs(weights.per_layer_inputs);
  for (int layer = 0; layer < weights.num_decoder_layers(); ++layer)
    run_layer(weights, layer, backend);
}

void mtp_follow(const Weights& weights, std::span<const int32_t> hidden_before, std::span<const StoredHidden> stored,
                Backend& backend) {
  backend.keep_hidden(*weights.norm);
  backend.embed(*weights.embed_tokens);
  backend.mtp_input(weights.mtp, hidden_before);
  // Not before: the first row may need what is stored with the same block.
  backend.store_hidden(stored);
  backend.norm_qkv(weights.num_decoder_layers(), weights.layers.back());
}

void mtp_forward(const Weights& weights, const StepInput& step, std::span<const int32_t> hidden_before,
                 Backend& backend) {
  backend.begin_step(step);
  backend.embed(*weights.embed_tokens);
  backend.mtp_input(weights.mtp, hidden_before);
  run_layer(weights, weights.num_decoder_layers(), backend);
}

}  // namespace capstan
