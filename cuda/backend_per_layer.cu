// Inputs per layer: a vector that each layer has for a token, from a table and from the embedding (Gemma 4).
#include "cuda/cuda_backend.h"
#include "native/base/check.h"

namespace capstan::cuda {

void CudaBackend::allocate_layer_inputs(int64_t num_tokens) {
  const int64_t size = model_.per_layer_end - model_.per_layer_begin, total = size * world_size();
  layer_inputs_.inputs =
      device_floats(num_tokens * model_.num_layers() * model_.per_layer_input_size, "the inputs of layers");
  layer_inputs_.acts =
      make_acts(num_tokens, split_depth(size, total, row_parallel_parts(total)), "the activations of inputs of layers");
}

void CudaBackend::per_layer_inputs(const PerLayerInputWeights& weights) {
  enqueue([this, &weights] {
    const NormArgs norm = norm_args(nullptr, nullptr, step_.num_tokens);
    GemmArgs product = gemm_args(*weights.projection, norm_acts_, step_.num_tokens);
    product.out = layer_inputs_.inputs.as<float>();
    product.out_stride = model_.num_layers() * model_.per_layer_input_size;
    const LoraRows rows = adapters_.rows_of(&AdapterWeights::per_layer_projection);
    if (rows.num_rows > 0) {
      norm_alone(norm);
      updated_product(rows, product, norm_acts_);
    } else {
      project(product, &norm);
    }

    LayerInputArgs args;
    args.type = type();
    args.table = cuda_matrix(*weights.table).device;
    args.ids = step_.ids;
    args.num_tokens = step_.num_tokens;
    args.num_layers = model_.num_layers();
    args.size = model_.per_layer_input_size;
    args.norm = device_vector(weights.norm);
    args.eps = model_.rms_norm_eps;
    const PerLayerScales scales = model_.per_layer_scales();
    args.projection_scale = scales.projection;
    args.table_scale = scales.table;
    args.sum_scale = scales.sum;
    args.inputs = product.out;
    read_drawn_ids([&](const int32_t* drawn_ids) {
      args.drawn_ids = drawn_ids;
      launch_layer_inputs(args, stream_);
    });
  });
}

void CudaBackend::end_layer(int layer, const LayerWeights& weights) {
  if (weights.per_layer_gate != nullptr) {
    enqueue([this, layer, &weights] {
      const NormArgs norm = norm_args(nullptr, nullptr, step_.num_tokens);
      GemmArgs product = gemm_args(*weights.per_layer_gate, norm_acts_, step_.num_tokens);
      product.output = GemmOutput::kActivated;
      product.gated = layer_inputs_.acts.data(is_row_major(step_.num_tokens));
      product.gated_split = layer_inputs_.acts.split;
      product.activation = model_.activation;
      product.factors = layer_inputs_.inputs.as<float>() + layer * model_.per_layer_input_size + model_.per_layer_begin;
      product.factor_stride = model_.num_layers() * model_.per_layer_input_size;
      const LoraRows rows = adapters_.rows_of(layer, &LayerAdapter::per_layer_gate);
      if (rows.num_rows == 0) return project(product, &norm);
      norm_alone(norm);
      updated_gates(rows, product, norm_acts_, [this](const GemmArgs& some, int) { project(some); });
    });
    row_parallel_residual(*weights.per_layer_projection, layer_inputs_.acts, &LayerAdapter::per_layer_projection,
                          device_vector(weights.per_layer_norm));
  }
  if (weights.scale == nullptr) return;
  const float scale = first_value(weights.scale);
  enqueue([this, scale] {
    CAPSTAN_CHECK(pending_ && !pending_->replaces);
    pending_->factor = scale;
  });
}

}  // namespace capstan::cuda
