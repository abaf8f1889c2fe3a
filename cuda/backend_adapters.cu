// Products with the updates of adapters. Steps with adapters run without graphs and without wgmma.
#include <algorithm>

#include "cuda/cuda_backend.h"
#include "native/base/check.h"

namespace capstan::cuda {
namespace {

// Tokens whose gates and ups are kept in f32 at a time.
constexpr int kGateTokens = 512;

// A stream for one upload, beside the steps.
class UploadStream {
 public:
  UploadStream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream"); }
  ~UploadStream() {
    if (!is_device_lost()) cudaStreamDestroy(stream_);
  }
  UploadStream(const UploadStream&) = delete;
  UploadStream& operator=(const UploadStream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace

// NOTE: a failure, such as too little memory, does not lose the device.
std::unique_ptr<LoraMatrix> CudaBackend::load_lora(const LoraSource& source, const Matrix& matrix) const {
  throw_if_device_lost();
  check(cudaSetDevice(device_), "selecting the device");
  const UploadStream stream;
  return upload_lora(source, cuda_matrix(matrix), dtype_, stream.get());
}

void CudaBackend::allocate_adapters(int64_t num_tokens, int64_t gate_up_rows) {
  lora_values_ = device_floats(num_tokens * max_lora_values(limits_.max_lora_rank), "the products of adapters");
  gates_ups_ = device_floats(std::min<int64_t>(num_tokens, kGateTokens) * gate_up_rows, "the gates of adapters");
}

// Computes t for the rows.
void CudaBackend::multiply_a(const LoraRows& rows, const Acts& acts) {
  LoraValuesArgs args;
  args.type = type();
  args.rows = rows;
  args.acts = acts.data(false);
  args.split = acts.split;
  args.t = lora_values_.as<float>();
  args.t_stride = max_lora_values(limits_.max_lora_rank);
  launch_lora_values(args, stream_);
}

LoraUpdateArgs CudaBackend::update_args(const LoraRows& rows, const Matrix& matrix, float* out,
                                        int64_t out_stride) const {
  LoraUpdateArgs args;
  args.type = type();
  args.rows = rows;
  args.t[0] = lora_values_.as<float>();
  args.t_stride = max_lora_values(limits_.max_lora_rank);
  args.end_token = step_.num_tokens;
  args.out = out;
  args.out_stride = out_stride;
  args.num_features = round_up(cuda_matrix(matrix).device.rows, kTileRows);
  return args;
}

// Adds pending sums, and normalizes the hidden states into norm_acts_.
void CudaBackend::norm_alone(const NormArgs& norm) {
  if (pending_)
    all_reduce_and_norm(norm);
  else
    launch_norm(norm, stream_);
}

void CudaBackend::updated_qkv(const LoraRows& rows, const GemmArgs& product, const Matrix& weights,
                              const NormArgs& norm, const QkvArgs& heads) {
  norm_alone(norm);
  project(product);
  multiply_a(rows, norm_acts_);
  launch_lora_update(update_args(rows, weights, product.out, product.out_stride), stream_);
  finish_heads(heads);
}

// Each rank adds the whole update after the sum of all ranks: to its hidden states, or to the result that has a norm.
void CudaBackend::updated_residual(const LoraRows& rows, GemmArgs product, const Matrix& weights, const Acts& acts,
                                   const float* norm) {
  LoraUpdateArgs update = update_args(rows, weights, hidden_.as<float>(), model_.hidden_size);
  if (norm == nullptr) update.residual_scale = model_.residual_scale;
  if (world_size() == 1) {
    if (norm == nullptr) product.output = GemmOutput::kResidual;
    product.out = norm == nullptr ? hidden_.as<float>() : partial();
    product.residual_scale = update.residual_scale;
    project(product);
    multiply_a(rows, acts);
    update.out = product.out;
    launch_lora_update(update, stream_);
    if (norm != nullptr) pending_ = PendingSum{nullptr, false, norm, model_.residual_scale, product.out, 1};
    return;
  }
  pending_ = PendingSum{product.weights.bias, norm != nullptr, nullptr, update.residual_scale};
  product.weights.bias = nullptr;
  product.out = partial();
  project(product);
  if (norm != nullptr) update.out = sums_.as<float>();
  all_reduce_partials(update.out);
  multiply_a(rows, acts);
  const auto all = ranks_->begin_exchange(lora_values_.as<void>(), stream_);
  update.world_size = world_size();
  for (int rank = 0; rank < world_size(); ++rank)
    update.t[rank] = static_cast<const float*>(all[static_cast<size_t>(rank)]);
  launch_lora_update(update, stream_);
  ranks_->end_exchange(stream_);
  if (norm != nullptr) pending_ = PendingSum{nullptr, false, norm, model_.residual_scale, update.out, 1};
}

void CudaBackend::updated_gate_up(const LoraRows& rows, GemmArgs product, const Matrix& weights, const NormArgs& norm) {
  norm_alone(norm);
  multiply_a(rows, norm_acts_);
  const int64_t stride = round_up(cuda_matrix(weights).device.rows, kTileRows);
  LoraUpdateArgs update = update_args(rows, weights, gates_ups_.as<float>(), stride);
  GateArgs gate;
  gate.type = type();
  gate.from = gates_ups_.as<float>();
  gate.stride = stride;
  gate.gated_split = product.gated_split;
  gate.activation = product.activation;
  gate.is_gated = product.output == GemmOutput::kGated;
  gate.xielu = product.xielu;
  product.output = GemmOutput::kStore;
  product.out = gates_ups_.as<float>();
  product.out_stride = stride;
  for (int first = 0; first < step_.num_tokens; first += kGateTokens) {
    const int end = std::min(first + kGateTokens, step_.num_tokens);
    product.acts = norm_acts_.data(false) + operand_index(first, 0, norm_acts_.split.padded());
    product.num_tokens = end - first;
    project(product);
    update.first_token = first;
    update.end_token = end;
    launch_lora_update(update, stream_);
    gate.num_tokens = end - first;
    gate.gated = product.gated + operand_index(first, 0, product.gated_split.padded());
    launch_gate(gate, stream_);
  }
}

}  // namespace capstan::cuda
