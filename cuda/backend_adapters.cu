// Products with the updates of adapters. Steps with adapters run without graphs and without wgmma.
#include <algorithm>

#include "cuda/cuda_backend.h"
#include "native/base/check.h"

namespace capstan::cuda {
namespace {

// Tokens or rows of experts whose gates and ups are kept in f32 at a time. A multiple of the rows of a tile.
constexpr int kGateTokens = 512;

}  // namespace

// NOTE: a failure, such as too little memory, does not lose the device. A step that finds no memory does, so adapters
// leave some: once for the graphs, and as much again for larger requests and for code that is loaded late.
std::unique_ptr<LoraMatrix> CudaBackend::load_lora(const LoraSource& source, const Matrix& matrix) const {
  throw_if_device_lost();
  check(cudaSetDevice(device_), "selecting the device");
  CAPSTAN_CHECK(source.memory != nullptr && adapter_stream_ != nullptr);
  if (*source.memory == nullptr) *source.memory = std::make_shared<CudaLoraMemory>(2 * graph_budget_);
  auto lora =
      upload_lora(source, cuda_matrix(matrix), dtype_, static_cast<CudaLoraMemory&>(**source.memory), adapter_stream_);
  CAPSTAN_CHECK(lora->num_values <= lora_stride_);
  return lora;
}

void CudaBackend::allocate_adapters() {
  check(cudaStreamCreateWithFlags(&adapter_stream_, cudaStreamNonBlocking), "creating a stream");
  const Moe& moe = model_.moe;
  const int64_t num_tokens = limits_.max_num_tokens,
                num_rows = moe.num_experts > 0 ? rows_of_experts(num_tokens, moe) : 0,
                widest =
                    std::max({model_.intermediate_size, moe.shared_intermediate_size, model_.per_layer_input_size});
  lora_stride_ = max_lora_values(
      limits_.max_lora_rank,
      std::ranges::any_of(model_.layers, [](const DeviceLayer& layer) { return layer.mixer == Mixer::kDeltaNet; }));
  lora_values_ = device_floats(std::max<int64_t>({num_tokens, limits_.max_num_seqs, num_rows}) * lora_stride_,
                               "the products of adapters");
  const auto gates_ups = [](int64_t rows, int64_t size) {
    return std::min<int64_t>(rows, kGateTokens) * 2 * round_up(size, kTileRows / 2);
  };
  gates_ups_ = device_floats(std::max(gates_ups(num_tokens, widest), gates_ups(num_rows, moe.intermediate_size)),
                             "the gates of adapters");
  if (moe.num_experts == 0) return;
  const auto pointers = [](int64_t count) {
    return DeviceBuffer(static_cast<size_t>(count) * sizeof(void*), "the adapters of experts");
  };
  experts_.gate_up_loras = pointers(num_rows + num_tokens);
  experts_.down_loras = pointers(num_rows + num_tokens);
  experts_.router_updates = device_floats(num_tokens * (moe.num_experts + 1), "the adapters of routers");
}

// Computes t (rows, t_stride).
void CudaBackend::multiply_a(const LoraRows& rows, const Acts& acts, float* t, int t_stride) {
  LoraValuesArgs args;
  args.type = type();
  args.rows = rows;
  args.acts = acts.data(false);
  args.split = acts.split;
  args.t = t;
  args.t_stride = t_stride;
  launch_lora_values(args, stream_);
}

// The update of the outputs of `product`.
LoraUpdateArgs CudaBackend::update_args(const LoraRows& rows, const GemmArgs& product) const {
  LoraUpdateArgs args;
  args.type = type();
  args.rows = rows;
  args.t[0] = lora_values_.as<float>();
  args.t_stride = lora_stride_;
  args.end_token = product.num_tokens;
  args.out = product.out;
  args.out_stride = product.out_stride;
  args.num_features = round_up(product.weights.rows, kTileRows);
  return args;
}

// Adds pending sums, and normalizes the hidden states into norm_acts_.
void CudaBackend::norm_alone(const NormArgs& norm) {
  if (pending_)
    all_reduce_and_norm(norm);
  else
    launch_norm(norm, stream_);
}

// Each rank adds the whole update after the sum of all ranks.
void CudaBackend::updated_embeddings(const LoraRows& rows) {
  finish_sum();
  LoraEmbedArgs args;
  args.type = type();
  args.rows = rows;
  args.ids = step_.ids;
  args.t = lora_values_.as<float>();
  args.t_stride = lora_stride_;
  read_drawn_ids([&](const int32_t* drawn_ids) {
    args.drawn_ids = drawn_ids;
    launch_lora_embed(args, stream_);
  });
  LoraUpdateArgs update;
  update.type = type();
  update.rows = rows;
  update.t[0] = args.t;
  update.t_stride = lora_stride_;
  update.end_token = step_.num_tokens;
  update.out = hidden_.as<float>();
  update.out_stride = model_.hidden_size;
  update.residual_scale = model_.embedding_scale;
  update.num_features = round_up(model_.hidden_size, kTileRows);
  launch_lora_update(update, stream_);
}

void CudaBackend::updated_product(const LoraRows& rows, const GemmArgs& product, const Acts& acts) {
  project(product);
  multiply_a(rows, acts);
  launch_lora_update(update_args(rows, product), stream_);
}

// Each rank adds the whole update after the sum of all ranks: to its hidden states, or to the result that has a norm.
void CudaBackend::updated_residual(const LoraRows& rows, GemmArgs product, const Acts& acts, const float* norm) {
  product.out = hidden_.as<float>();
  LoraUpdateArgs update = update_args(rows, product);
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

// The product of a gate and an up projection, or of one projection with an activation, and its update.
void CudaBackend::updated_gates(const LoraRows& rows, GemmArgs product, const Acts& acts, const Multiply& multiply) {
  multiply_a(rows, acts);
  const int num_tokens = product.num_tokens;
  GateArgs gate;
  gate.type = type();
  gate.from = gates_ups_.as<float>();
  gate.stride = round_up(product.weights.rows, kTileRows);
  gate.gated_split = product.gated_split;
  gate.activation = product.activation;
  gate.is_gated = product.output == GemmOutput::kGated;
  gate.xielu = product.xielu;
  gate.factor_stride = product.factor_stride;
  product.output = GemmOutput::kStore;
  product.out = gates_ups_.as<float>();
  product.out_stride = gate.stride;
  LoraUpdateArgs update = update_args(rows, product);
  for (int first = 0; first < num_tokens; first += kGateTokens) {
    limit_run_ahead();
    const int end = std::min(first + kGateTokens, num_tokens);
    product.acts = acts.data(false) + operand_index(first, 0, acts.split.padded());
    product.num_tokens = end - first;
    multiply(product, first);
    update.first_token = first;
    update.end_token = end;
    launch_lora_update(update, stream_);
    gate.num_tokens = end - first;
    gate.gated = product.gated + operand_index(first, 0, product.gated_split.padded());
    if (product.factors != nullptr) gate.factors = product.factors + first * product.factor_stride;
    launch_gate(gate, stream_);
  }
}

}  // namespace capstan::cuda
