// The mixture of experts of a layer.
#include <algorithm>
#include <utility>
#include <vector>

#include "cuda/cuda_backend.h"
#include "cuda/experts.h"
#include "native/base/check.h"

namespace capstan::cuda {
namespace {

// The matrices as an array that the kernels index by expert.
DeviceBuffer upload_array(const std::vector<ExpertWeights>& experts, std::unique_ptr<Matrix> ExpertWeights::* which,
                          cudaStream_t stream) {
  std::vector<DeviceMatrix> all;
  for (const ExpertWeights& expert : experts)
    all.push_back(static_cast<const CudaMatrix&>(*(expert.*which)).device);
  for (const DeviceMatrix& matrix : all)
    if (matrix.codes.kind != all[0].codes.kind)
      throw Error(ErrorCode::kUnsupportedModel,
                  "CUDA: experts of one layer whose weights have different types are not supported yet: run this model "
                  "with device cpu");
  DeviceBuffer buffer(all.size() * sizeof(DeviceMatrix), "the list of experts");
  check(cudaMemcpyAsync(buffer.as<void>(), all.data(), buffer.bytes(), cudaMemcpyHostToDevice, stream),
        "the list of experts");
  wait_for(stream);
  return buffer;
}

}  // namespace

void CudaBackend::allocate_experts(int64_t num_tokens) {
  const Moe& moe = model_.moe;
  const auto words = [](int64_t count, const char* purpose) {
    return DeviceBuffer(static_cast<size_t>(count) * 4, purpose);
  };
  const int64_t pairs = num_tokens * moe.top_k, rows = rows_of_experts(num_tokens, moe);
  const auto split_of_rank = [&](int64_t size) {
    return split_depth(size, size * world_size(), row_parallel_parts(size * world_size()));
  };
  ExpertBuffers& buffers = experts_;
  buffers.chosen = words(pairs, "the choice of experts");
  buffers.weights = words(pairs + num_tokens, "the weights of experts");
  buffers.pair_rows = words(pairs, "the rows of experts");
  buffers.row_tokens = words(rows, "the tokens of experts");
  buffers.first_rows = words(moe.num_experts + 1, "the rows of experts");
  buffers.tile_experts = words(rows / kTileTokens, "the tiles of experts");
  // The first `rows` are those of the experts, and then each token has one of the shared expert.
  buffers.results = words(expert_t_begin() + (rows + num_tokens) * limits_.max_lora_rank, "the results of experts");
  buffers.acts = make_acts(rows, norm_acts_.split, "the activations of experts", false);
  buffers.mlp_acts = make_acts(rows, split_of_rank(moe.intermediate_size), "the activations of experts", false);
  if (moe.shared_intermediate_size > 0)
    buffers.shared_acts = make_acts(num_tokens, split_of_rank(moe.shared_intermediate_size),
                                    "the activations of the shared expert", true);
}

// NOTE: uploads at the first step of each layer, before a step is captured.
const CudaBackend::ExpertArrays& CudaBackend::arrays_of(const MoeWeights& moe) {
  const auto found = expert_arrays_.find(&moe);
  if (found != expert_arrays_.end()) return found->second;
  ExpertArrays arrays{upload_array(moe.experts, &ExpertWeights::gate_up_proj, stream_),
                      upload_array(moe.experts, &ExpertWeights::down_proj, stream_)};
  return expert_arrays_.emplace(&moe, std::move(arrays)).first->second;
}

int64_t CudaBackend::expert_t_begin() const {
  const int64_t num_tokens = limits_.max_num_tokens;
  return (rows_of_experts(num_tokens, model_.moe) + (model_.moe.shared_intermediate_size > 0 ? num_tokens : 0)) *
         model_.hidden_size;
}

CudaBackend::ExpertLoras CudaBackend::look_up_expert_loras(const ExpertRowsArgs& rows) {
  const StepAdapters::Experts experts = adapters_.experts_of(layer_);
  const auto look_up = [&](StepAdapters::Loras loras, const DeviceBuffer& of_rows) -> StepAdapters::Loras {
    if (loras == nullptr) return nullptr;
    ExpertLorasArgs args;
    args.token_adapters = adapters_.token_adapters();
    args.row_tokens = rows.row_tokens;
    args.tile_experts = rows.tile_experts;
    args.loras = loras;
    args.num_rows = rows.num_tiles * rows.tile_rows;
    args.tile_rows = rows.tile_rows;
    args.num_tokens = step_.num_tokens;
    args.num_experts = rows.num_experts;
    args.num_adapters = adapters_.num_adapters();
    args.of_rows = of_rows.as<const DeviceLora*>();
    launch_expert_loras(args, stream_);
    return args.of_rows;
  };
  return {look_up(experts.gate_ups, experts_.gate_up_loras), look_up(experts.downs, experts_.down_loras)};
}

// Computes t of the results from `first_row` on, beside the results.
void CudaBackend::multiply_expert_a(StepAdapters::Loras loras, const Acts& acts, int64_t first_row, int num_rows) {
  float* const t = experts_.results.as<float>() + expert_t_begin() + first_row * limits_.max_lora_rank;
  multiply_a({nullptr, nullptr, loras + first_row, num_rows}, acts, t, limits_.max_lora_rank);
}

// The experts' products, for the rows that launch_expert_rows has assigned.
void CudaBackend::multiply_experts(const MoeWeights& weights, const ExpertArrays& arrays, const ExpertRowsArgs& rows,
                                   const ExpertLoras& loras) {
  ExpertGemmArgs args;
  args.tile_experts = rows.tile_experts;
  args.tile_rows = rows.tile_rows;
  GemmArgs& product = args.product;
  product.type = type();
  product.num_tokens = rows.num_tiles * rows.tile_rows;
  product.weights = cuda_matrix(*weights.experts[0].gate_up_proj).device;
  product.acts = experts_.acts.data(false);
  product.output = GemmOutput::kGated;
  product.gated = experts_.mlp_acts.data(false);
  product.gated_split = experts_.mlp_acts.split;
  product.activation = model_.activation;
  args.experts = arrays.gate_ups.as<DeviceMatrix>();
  if (loras.gate_ups == nullptr) {
    launch_expert_gemm(args, resources_, stream_);
  } else {
    const LoraRows updated{nullptr, nullptr, loras.gate_ups, product.num_tokens};
    updated_gates(updated, product, experts_.acts, [&](const GemmArgs& some, int first_row) {
      ExpertGemmArgs of_some = args;
      of_some.product = some;
      of_some.tile_experts += first_row / args.tile_rows;
      launch_expert_gemm(of_some, resources_, stream_);
    });
  }
  product.weights = cuda_matrix(*weights.experts[0].down_proj).device;
  product.acts = experts_.mlp_acts.data(false);
  product.output = GemmOutput::kStore;
  product.out = experts_.results.as<float>();
  product.out_stride = model_.hidden_size;
  args.adds_bias = false;  // launch_expert_sum adds it once for all ranks
  args.experts = arrays.downs.as<DeviceMatrix>();
  launch_expert_gemm(args, resources_, stream_);
  if (loras.downs != nullptr) multiply_expert_a(loras.downs, experts_.mlp_acts, 0, product.num_tokens);
}

// Writes the results of the shared expert to their rows.
void CudaBackend::multiply_shared_expert(const ExpertWeights& shared, int64_t first_row, const ExpertLoras& loras) {
  GemmArgs product = gemm_args(*shared.gate_up_proj, norm_acts_, step_.num_tokens);
  product.output = GemmOutput::kGated;
  product.gated = experts_.shared_acts.data(is_row_major(step_.num_tokens));
  product.gated_split = experts_.shared_acts.split;
  product.activation = model_.activation;
  if (loras.gate_ups == nullptr) {
    project(product);
  } else {
    const LoraRows updated{nullptr, nullptr, loras.gate_ups + first_row, step_.num_tokens};
    updated_gates(updated, product, norm_acts_, [this](const GemmArgs& some, int) { project(some); });
  }
  product = gemm_args(*shared.down_proj, experts_.shared_acts, step_.num_tokens);
  product.out = experts_.results.as<float>() + first_row * model_.hidden_size;
  product.out_stride = model_.hidden_size;
  product.weights.bias = nullptr;
  project(product);
  if (loras.downs != nullptr) multiply_expert_a(loras.downs, experts_.shared_acts, first_row, step_.num_tokens);
}

void CudaBackend::moe_residual(const LayerWeights& weights) {
  if (mode_ == StepMode::kReplay) return;
  const ExpertArrays& arrays = guarded([&]() -> const ExpertArrays& { return arrays_of(*weights.moe); });
  enqueue([this, &weights, &arrays] {
    const MoeWeights& experts = *weights.moe;
    const Moe& moe = model_.moe;
    const int num_tokens = step_.num_tokens;
    const bool has_shared = moe.shared_intermediate_size > 0;
    const bool has_norms = moe.has_separate_norms;
    NormArgs norm = norm_args(device_vector(weights.mlp_norm), nullptr, num_tokens);
    if (pending_ || has_shared) norm_alone(norm);

    RouterArgs router;
    router.moe = moe;
    router.hidden = hidden_.as<float>();
    router.ids = step_.ids;
    router.num_tokens = num_tokens;
    router.hidden_size = model_.hidden_size;
    router.norm = has_norms ? device_vector(experts.router_norm) : norm.weight;
    router.eps = norm.eps;
    router.router = cuda_matrix(*experts.router).floats;
    router.bias = cuda_matrix(*experts.router).device.bias;
    router.selection_bias = device_vector(experts.selection_bias);
    router.scales = device_vector(experts.scales);
    router.shared_gate = has_shared && experts.shared_gate ? cuda_matrix(*experts.shared_gate).floats : nullptr;
    router.experts = experts_.chosen.as<int32_t>();
    router.weights = experts_.weights.as<float>();
    router.shared_weights = router.weights + int64_t{limits_.max_num_tokens} * moe.top_k;
    router.router_loras = adapters_.loras_of(layer_, &LayerAdapter::router);
    router.gate_loras = adapters_.loras_of(layer_, &LayerAdapter::shared_gate);
    if (router.router_loras != nullptr || router.gate_loras != nullptr) {
      router.token_adapters = adapters_.token_adapters();
      router.updates = experts_.router_updates.as<float>();
    }
    launch_router(router, stream_);

    ExpertRowsArgs rows;
    rows.experts = router.experts;
    rows.num_pairs = num_tokens * moe.top_k;
    rows.top_k = moe.top_k;
    rows.num_experts = moe.num_experts;
    rows.tile_rows = expert_tile_rows(rows.num_pairs, rows.num_experts);
    rows.num_tiles = static_cast<int>(max_expert_tiles(rows.num_pairs, rows.num_experts, rows.tile_rows));
    rows.first_rows = experts_.first_rows.as<int32_t>();
    rows.tile_experts = experts_.tile_experts.as<int32_t>();
    rows.row_tokens = experts_.row_tokens.as<int32_t>();
    rows.pair_rows = experts_.pair_rows.as<int32_t>();
    launch_expert_rows(rows, stream_);
    const ExpertLoras loras = look_up_expert_loras(rows);

    if (has_norms) norm.weight = device_vector(experts.expert_norm);
    norm.rows = rows.row_tokens;
    norm.num_rows = rows.num_tiles * rows.tile_rows;
    norm.is_row_major = false;
    norm.acts = experts_.acts.data(false);
    norm.uses_pdl = false;
    launch_norm(norm, stream_);
    multiply_experts(experts, arrays, rows, loras);
    if (has_shared) multiply_shared_expert(experts.shared, norm.num_rows, loras);

    // Each rank adds the results of all ranks for its share of the tokens. The next norm adds the shares.
    ExpertSumArgs sum;
    const bool is_alone = world_size() == 1;
    const float* const out_norm = device_vector(weights.mlp_out_norm);
    sum.replaces = !is_alone || out_norm != nullptr;
    sum.hidden = sum.replaces ? partial() : hidden_.as<float>();
    sum.scale = model_.residual_scale;
    sum.first = is_alone ? 0 : share_begin(ranks_->rank());
    sum.end = is_alone ? num_tokens : share_begin(ranks_->rank() + 1);
    sum.shared_row = has_shared ? norm.num_rows : -1;
    sum.world_size = world_size();
    sum.experts = router.experts;
    sum.pair_rows = rows.pair_rows;
    sum.weights = router.weights;
    sum.shared_weights = router.shared_gate == nullptr ? nullptr : router.shared_weights;
    sum.downs = arrays.downs.as<DeviceMatrix>();
    sum.shared_bias = has_shared ? cuda_matrix(*experts.shared.down_proj).device.bias : nullptr;
    sum.expert_norm = device_vector(experts.expert_out_norm);
    sum.shared_norm = device_vector(experts.shared_out_norm);
    sum.eps = model_.rms_norm_eps;
    sum.num_tokens = num_tokens;
    sum.top_k = moe.top_k;
    sum.hidden_size = model_.hidden_size;
    sum.type = type();
    sum.loras = loras.downs;
    sum.t_begin = expert_t_begin();
    sum.t_stride = limits_.max_lora_rank;
    const auto all = ranks_->begin_exchange(experts_.results.as<void>(), stream_);
    for (int rank = 0; rank < world_size(); ++rank)
      sum.results[rank] = static_cast<const float*>(all[static_cast<size_t>(rank)]);
    launch_expert_sum(sum, stream_);
    ranks_->end_exchange(stream_);
    if (!sum.replaces) return;
    pending_ = PendingSum{nullptr, false, out_norm, model_.residual_scale};
    if (is_alone) pending_->local = sum.hidden, pending_->parts = 1;
  });
}

}  // namespace capstan::cuda
