// Inputs per layer: a vector that each layer has for a token, from a table and from the embedding (Gemma 4).
#include "native/backend/cpu/cpu_backend_class.h"

namespace capstan {

void CpuBackend::per_layer_inputs(const PerLayerInputWeights& weights) {
  const PartScope part(profile_, StepPart::kPerLayer);
  float* inputs = per_layer_inputs_.as<float>();
  begin_update([](const AdapterWeights& adapter) { return adapter.per_layer_projection.get(); });
  norm_gemm(nullptr, *weights.projection, {inputs, per_layer_stride_});
  end_update();
  const CpuMatrix& table = matrix_of(weights.table);
  PerLayerInputArgs args;
  args.norm = values_of(weights.norm.get());
  args.num_layers = model_.num_layers();
  args.size = model_.per_layer_input_size;
  args.eps = model_.rms_norm_eps;
  const PerLayerScales scales = model_.per_layer_scales();
  args.projection_scale = scales.projection;
  args.table_scale = scales.table;
  args.sum_scale = scales.sum;
  team_.for_pieces(num_tokens(), 1, [&](int thread, int64_t begin, int64_t end) {
    PerLayerInputArgs row_args = args;
    float* const table_row = per_layer_rows_.as<float>() + thread * per_layer_stride_;
    row_args.table = table_row;
    for (int64_t row = begin; row < end; ++row) {
      gather_row(table, step_.input_ids[row], table_row);
      row_args.inputs = inputs + row * per_layer_stride_;
      kernels_.per_layer_inputs(row_args);
    }
  });
}

void CpuBackend::end_layer(int layer, const LayerWeights& weights) {
  const PartScope part(profile_, StepPart::kPerLayer);
  if (weights.per_layer_gate != nullptr) {
    const FloatRows gate{per_layer_gate_.as<float>(), per_layer_gate_stride_};
    begin_layer_update(&LayerAdapter::per_layer_gate);
    norm_gemm(nullptr, *weights.per_layer_gate, gate);
    end_update();
    const float* inputs = per_layer_inputs_.as<float>() + layer * model_.per_layer_input_size + model_.per_layer_begin;
    team_.for_ranges(num_tokens(), kSerialRows, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        kernels_.gated_row(gate.row(row), inputs + row * per_layer_stride_,
                           model_.per_layer_end - model_.per_layer_begin, model_.activation);
    });
    const CpuMatrix& projection = matrix_of(weights.per_layer_projection);
    begin_layer_update(&LayerAdapter::per_layer_projection);
    row_parallel_residual(pack_rows(gate.data, gate.stride, projection), projection, weights.per_layer_norm.get());
  }
  if (weights.scale == nullptr) return;
  const float scale = values_of(weights.scale.get())[0];
  team_.for_ranges(num_tokens(), kSerialRows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t i = 0; i < model_.hidden_size; ++i)
        hidden_row(row)[i] *= scale;
  });
}

}  // namespace capstan
