// Recurrent layers: the states of the sequences, and the mixer of a layer.
#include <algorithm>

#include "cuda/cuda_backend.h"
#include "cuda/recurrent.h"

namespace capstan::cuda {
namespace {

bool is_recurrent(const DeviceLayer& layer) {
  return layer.mixer != Mixer::kAttention;
}

int64_t slot_floats(const DeviceModel& model) {
  return std::ranges::count_if(model.layers, is_recurrent) * layer_state_floats(model.recurrent);
}

}  // namespace

std::unique_ptr<Vector> CudaBackend::load_convolution(const MatrixSource& source, const LoadProgress& progress) {
  return guarded([&] { return upload_convolution(source, stream_, progress); });
}

int64_t CudaBackend::state_slot_bytes(const DeviceModel& model) const {
  return slot_floats(model) * static_cast<int64_t>(sizeof(float));
}

void CudaBackend::allocate_recurrent(int64_t num_tokens) {
  const RecurrentShape& shape = model_.recurrent;
  const Mixer mixer = std::ranges::find_if(model_.layers, is_recurrent)->mixer;
  RecurrentBuffers& buffers = recurrent_;
  buffers.projection_stride = num_projections(mixer, shape);
  buffers.projections = device_floats(num_tokens * buffers.projection_stride, "the projections of recurrent layers");
  if (mixer != Mixer::kShortConv) {
    buffers.mixed = device_floats(num_tokens * shape.conv_channels, "the results of recurrent layers");
    buffers.gates = device_floats(num_tokens * 2 * shape.num_heads, "the gates of recurrent layers");
  }
  const int64_t size = shape.output_size(), total = size * world_size();
  buffers.acts =
      make_acts(num_tokens, split_depth(size, total, row_parallel_parts(total)), "the activations of recurrent layers");
}

// The states of all sequences. A slot is written before it is read.
void CudaBackend::allocate_states() {
  recurrent_.states = {};
  recurrent_.states = device_floats(limits_.num_state_slots * slot_floats(model_), "the states of recurrent layers");
}

void CudaBackend::recurrent(int layer, const LayerWeights& weights) {
  mixer_acts_ = &recurrent_.acts;
  enqueue([this, layer, &weights] {
    limit_run_ahead();
    layer_ = layer;
    const RecurrentBuffers& buffers = recurrent_;
    const NormArgs norm = norm_args(device_vector(weights.input_norm), nullptr, step_.num_tokens);
    GemmArgs product = gemm_args(*weights.recurrent.in_proj, norm_acts_, step_.num_tokens);
    product.out = buffers.projections.as<float>();
    product.out_stride = buffers.projection_stride;
    const LoraRows rows = adapters_.rows_of(layer, &LayerAdapter::qkv_proj);
    if (rows.num_rows > 0) {
      norm_alone(norm);
      updated_product(rows, product, norm_acts_);
    } else {
      project(product, &norm);
    }

    const int64_t slot_stride = slot_floats(model_);
    const auto before = std::count_if(model_.layers.begin(), model_.layers.begin() + layer, is_recurrent);
    RecurrentArgs args;
    args.type = type();
    args.mixer = model_.layer(layer).mixer;
    args.shape = model_.recurrent;
    args.eps = model_.rms_norm_eps;
    args.num_tokens = step_.num_tokens;
    args.num_seqs = step_.num_seqs;
    args.cu_seqlens = step_.cu_seqlens;
    args.token_seqs = step_.token_seqs;
    args.state_reads = step_.state_reads;
    args.state_writes = step_.state_writes;
    args.conv = device_vector(weights.recurrent.conv);
    args.conv_stride = round_up(args.shape.conv_channels, 16);
    args.a_log = device_vector(weights.recurrent.a_log);
    args.dt_bias = device_vector(weights.recurrent.dt_bias);
    args.skip = device_vector(weights.recurrent.skip);
    args.norm = device_vector(weights.recurrent.norm);
    args.projections = product.out;
    args.projection_stride = buffers.projection_stride;
    args.mixed = buffers.mixed.as<float>();
    args.gates = buffers.gates.as<float>();
    args.states = buffers.states.as<float>() + before * layer_state_floats(args.shape);
    args.slot_stride = slot_stride;
    args.split = buffers.acts.split;
    args.is_row_major = is_row_major(step_.num_tokens);
    args.acts = buffers.acts.data(args.is_row_major);
    launch_recurrent(args, stream_);
  });
}

// Multiplies the result of attention by its gate, which follows q, k and v in the projections.
void CudaBackend::gate_attention(int layer) {
  const KvLayout& layout = layouts_[kv_group(layer)];
  const Acts& acts = attention_acts_[kv_group(layer)];
  OutputGateArgs args;
  args.type = type();
  args.num_tokens = step_.num_tokens;
  args.gates = qkv_.as<float>() + int64_t{model_.num_heads + 2 * layout.num_kv_heads} * layout.head_dim;
  args.gate_stride = qkv_stride_;
  args.split = acts.split;
  args.is_row_major = is_row_major(step_.num_tokens);
  args.acts = acts.data(args.is_row_major);
  launch_output_gate(args, stream_);
}

}  // namespace capstan::cuda
