// Device memory of the backend: activation buffers, KV cache and the budget of CUDA graphs.
#include <algorithm>

#include "cuda/cuda_backend.h"
#include "cuda/recurrent.h"
#include "cuda/wgmma_layout.h"
#include "native/base/check.h"

namespace capstan::cuda {

CudaBackend::Memory CudaBackend::memory() const {
  return guarded([] {
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "querying free memory");
    return Memory{static_cast<int64_t>(free), static_cast<int64_t>(total)};
  });
}

CudaBackend::Acts CudaBackend::make_acts(int64_t rows, const DepthSplit& split, const char* purpose,
                                         bool may_be_row_major) {
  const auto zeros = [&] {
    DeviceBuffer buffer(static_cast<size_t>(round_up(rows, kTokenPad) * split.padded()) * 2, purpose);
    check(cudaMemsetAsync(buffer.as<void>(), 0, buffer.bytes(), stream_), purpose);
    return buffer;
  };
  Acts acts;
  acts.buffer = zeros();
  acts.split = split;
  if (!may_be_row_major || !is_row_major(static_cast<int>(rows))) return acts;
  if (split.part_cols != split.padded_part) acts.row_major = zeros();
  if (!make_act_maps(acts.maps, acts.data(true), round_up(rows, kTokenPad), split.padded()))
    throw Error(ErrorCode::kInternal, std::string("CUDA: the driver cannot create a tensor map of ") + purpose);
  return acts;
}

// Returns what the model needs and the device lacks, or null.
const char* unsupported_feature(const DeviceModel& model) {
  const LayerNorms& norms = model.norms;
  if (!model.layers.empty() && model.kv_groups.empty()) return "models without attention";
  // Scales are factors of the sum that the next norm adds.
  if (model.has_layer_scales && !norms.mlp_out) return "scales of layers without norms of their results";
  const bool has_norms_of_results = (norms.attention_out || norms.mlp_out) && !norms.is_of_sum;
  if (model.norm_kind != NormKind::kRms && (has_norms_of_results || model.moe.num_experts > 0))
    return "layer norms of results or before experts";
  if (model.embedding.num_distances > 0 && model.head_dim > kMaxBiasedHeadDim)
    return "biases of distances with heads of more than 64 dimensions";
  return nullptr;
}

void CudaBackend::check_model(const DeviceModel& model, int64_t weight_bytes) const {
  for (size_t i = 0; i < model.kv_groups.size(); ++i)
    if (const int head_dim = model.kv_shape(static_cast<int>(i)).head_dim; head_dim > kMaxHeadDim)
      throw Error(ErrorCode::kUnsupportedModel, "CUDA: head size: expected at most " + std::to_string(kMaxHeadDim) +
                                                    ", got " + std::to_string(head_dim) +
                                                    ": run this model with device cpu");
  if (const char* feature = unsupported_feature(model))
    throw Error(ErrorCode::kUnsupportedModel,
                std::string("CUDA: ") + feature + " are not supported yet: run this model with device cpu");
  const RecurrentShape& recurrent = model.recurrent;
  if (recurrent.conv_taps > kMaxConvTaps || recurrent.state_size > kMaxStateSize)
    throw Error(ErrorCode::kUnsupportedModel,
                "CUDA: recurrent layers: expected at most " + std::to_string(kMaxConvTaps) +
                    " inputs of the convolution and a state size of at most " + std::to_string(kMaxStateSize) +
                    ", got " + std::to_string(recurrent.conv_taps) + " and " + std::to_string(recurrent.state_size) +
                    ": run this model with device cpu");
  if (model.moe.num_experts > 0 && !supports_router(model.moe, model.hidden_size))
    throw Error(ErrorCode::kUnsupportedModel,
                "CUDA: router: expected a hidden size and twice the experts to be at most " +
                    std::to_string(kMinSharedBytes / sizeof(float)) + " together, got " +
                    std::to_string(model.hidden_size) + " and " + std::to_string(model.moe.num_experts) +
                    " experts: run this model with device cpu");
  if (model.vocab_size > kMaxVocab)
    throw Error(ErrorCode::kUnsupportedModel, "CUDA: vocabulary: expected at most " + std::to_string(kMaxVocab) +
                                                  " tokens, got " + std::to_string(model.vocab_size) +
                                                  ": run this model with device cpu");
  const int64_t needed = weight_bytes * num_sharing_, available = available_bytes();
  if (needed > available)
    throw Error(ErrorCode::kOutOfMemory, "the weights need " + std::to_string(needed >> 20) + " MiB as " +
                                             dtype_name(dtype_) + " on device " + std::to_string(device_) +
                                             ", which has " + std::to_string(available >> 20) + " MiB of free memory");
}

static KvLayout layout_of(const DeviceModel& model, int kv_group, int block_size, DType kv_cache_dtype) {
  const KvShape shape = model.kv_shape(kv_group);
  return make_kv_layout(block_size, shape.num_kv_heads, shape.head_dim, kv_cache_dtype == DType::kFp8E4m3);
}

int64_t CudaBackend::kv_block_bytes(const DeviceModel& model, int kv_group, int block_size,
                                    DType kv_cache_dtype) const {
  return model.kv_groups[static_cast<size_t>(kv_group)].num_layers *
         layout_of(model, kv_group, block_size, kv_cache_dtype).block_bytes();
}

void CudaBackend::reserve(const DeviceModel& model, const DeviceLimits& limits) {
  DeviceLimits one_block = limits;
  one_block.num_blocks.assign(model.kv_groups.size(), 1);
  prepare(model, one_block);
  can_capture_ = false;  // a graph would contain the address of the temporary block
}

void CudaBackend::allocate(const DeviceModel& model, const DeviceLimits& limits) {
  if (limits.kv_cache_dtype != dtype_ && limits.kv_cache_dtype != DType::kFp8E4m3)
    throw Error(ErrorCode::kInvalidArgument, std::string("kvCacheDtype: expected fp8 or ") + dtype_name(dtype_) +
                                                 ", the compute type, got " + dtype_name(limits.kv_cache_dtype));
  model_ = model;
  limits_ = limits;
  const int64_t rows = limits.max_num_tokens, seqs = limits.max_num_seqs;
  // Row-parallel layers take their parts from K of the whole model, not from this rank's share.
  const auto split_of_rank = [&](int64_t size) {
    return split_depth(size, size * world_size(), row_parallel_parts(size * world_size()));
  };
  int num_kv_heads = 0, k_dim = 0;
  int64_t scratch_floats = 0;
  for (int group = 0; group < static_cast<int>(model.kv_groups.size()); ++group) {
    const KvLayout layout = layout_of(model, group, limits.block_size, limits.kv_cache_dtype);
    const int64_t q_size = int64_t{model.num_heads} * layout.head_dim,
                  kv_size = int64_t{layout.num_kv_heads} * layout.head_dim;
    layouts_.push_back(layout);
    attention_acts_.push_back(make_acts(rows, split_of_rank(q_size), "the activations of attention"));
    qkv_stride_ = std::max(qkv_stride_, q_size + 2 * kv_size + (model.has_output_gate ? q_size : 0));
    num_kv_heads = std::max(num_kv_heads, layout.num_kv_heads);
    k_dim = std::max(k_dim, layout.k_dim);
    scratch_floats =
        std::max(scratch_floats, attention_scratch_floats(max_attention_splits(model, group, limits), layout));
  }
  const bool has_norms_of_results =
      ((model.norms.attention_out || model.norms.mlp_out) && !model.norms.is_of_sum) || model.per_layer_input_size > 0;
  hidden_ =
      device_floats(rows * model.hidden_size * (world_size() > 1 || has_norms_of_results ? 2 : 1), "the hidden states");
  if (has_norms_of_results && world_size() > 1 && limits.max_lora_rank > 0)
    sums_ = device_floats(rows * model.hidden_size, "the updated results");
  qkv_ = device_floats(rows * qkv_stride_, "queries, keys and values");
  q_ = DeviceBuffer(static_cast<size_t>(rows * model.num_heads * k_dim) * 2, "the queries");
  const bool has_logits = model.pooling == Pooling::kNone;
  if (has_logits) logits_ = device_floats(seqs * logits_stride(), "the logits");
  if (has_logits && ranks_->is_first())
    sampler_ =
        std::make_unique<DeviceSampler>(model.vocab_size, logits_stride(), model.num_token_ids, limits.max_num_seqs,
                                        limits.max_num_tokens + limits.max_num_seqs, stream_);
  norm_acts_ = make_acts(std::max(rows, seqs),
                         split_depth(model.hidden_size, model.hidden_size, row_parallel_parts(model.hidden_size)),
                         "the activations");
  for (const DeviceLayer& layer : model.layers)
    if (const int64_t size = model.intermediate_size_of(layer); !mlp_acts_.contains(size))
      mlp_acts_[size] = make_acts(rows, split_of_rank(size), "the activations of the MLP");
  if (model.has_recurrent_layers()) allocate_recurrent(rows);
  if (model.per_layer_input_size > 0) allocate_layer_inputs(rows);
  if (model.embedding.num_distances > 0) allocate_distances();
  if (model.moe.num_experts > 0) allocate_experts(rows);
  if (limits.max_lora_rank > 0) allocate_adapters();
  int64_t rope_floats = 0;
  for (const RopeTable& table : model.rope_tables) {
    rope_offsets_.push_back(rope_floats);
    rope_floats += int64_t{model.max_model_len} * table.rotary_dim;
  }
  rope_ = device_floats(rope_floats, "the RoPE tables");
  if (std::ranges::any_of(model.rope_tables, &RopeTable::has_query_scales)) {
    query_scales_ = device_floats(std::ssize(model.rope_tables) * model.max_model_len, "the scales of queries");
    check(cudaMemsetAsync(query_scales_.as<void>(), 0, query_scales_.bytes(), stream_), "the scales of queries");
  }
  if (model.qk_norm == QkNorm::kAllHeads)
    squares_ = device_floats(rows * (model.num_heads + num_kv_heads), "the squares of heads");
  // Warm-up steps run before the tables are known.
  check(cudaMemsetAsync(rope_.as<void>(), 0, rope_.bytes(), stream_), "the RoPE tables");
  scratch_ = device_floats(scratch_floats, "the scratch memory of attention");
  rows_done_ = DeviceBuffer(static_cast<size_t>(model.num_heads + 2 * num_kv_heads) * sizeof(int32_t),
                            "the row counters of a product");
  check(cudaMemsetAsync(rows_done_.as<void>(), 0, rows_done_.bytes(), stream_), "the row counters of a product");
  if (is_row_major(static_cast<int>(rows))) {
    tile_flags_ = DeviceBuffer(static_cast<size_t>(num_tile_flags(model.hidden_size, rows)) * sizeof(int32_t),
                               "the tile flags of a product");
    check(cudaMemsetAsync(tile_flags_.as<void>(), 0, tile_flags_.bytes(), stream_), "the tile flags of a product");
  }
  parts_ = device_floats(kMaxParts * std::min<int64_t>(rows, kSkinnyTokens) * std::max(model.hidden_size, qkv_stride_),
                         "the partial sums of a product");
  arrays_ = std::make_unique<StepArrays>(model, limits);
  if (has_logits)
    rows_staging_.ensure_capacity(3 * (static_cast<size_t>(seqs) * sizeof(int32_t) + 16));
  else
    allocate_pooling(seqs);
  wait_for(stream_);
}

// Splits what is left of the memory share evenly among the ranks of this device. NOTE: all ranks of the device have
// reserved their buffers before any of them calls this.
int64_t CudaBackend::kv_budget_bytes(double utilization) const {
  const auto [free, total] = memory();
  const auto share = static_cast<int64_t>(static_cast<double>(total) * utilization);
  const int64_t usable = share - (total - free) - graph_budget_;
  return std::max<int64_t>(usable, 1) / num_sharing_ + 1;
}

std::vector<std::string> CudaBackend::notes() const {
  std::vector<std::string> all;
  if (num_decoded_ > 0)
    all.push_back(std::to_string(num_decoded_) + " quantized matrices are decoded to " + dtype_name(dtype_) +
                  " on cuda: they have several types, or parts of them begin between multiples of 16 columns");
  if (features_.graphs && model_.pooling == Pooling::kNone) all.push_back(graph_note());
  return all;
}

std::string CudaBackend::graph_note() const {
  if (!graph_failure_.empty())
    return (graphs_.empty() ? "no step has a CUDA graph: " : "some steps have no CUDA graph: ") + graph_failure_;
  const std::string budget = std::to_string(graph_budget_ >> 20) + " MiB";
  if (graphs_.empty())
    return "the largest steps run without a CUDA graph: it would need more than the graph budget of " + budget;
  return "CUDA graphs use " + std::to_string((graph_bytes_ + (1 << 20) - 1) >> 20) + " MiB of their budget of " +
         budget + "; when it is used up, steps of new sizes run without a graph";
}

void CudaBackend::prepare(const DeviceModel& model, const DeviceLimits& limits) {
  guarded([&] {
    if (hidden_.bytes() == 0) allocate(model, limits);
    CAPSTAN_CHECK(limits.max_num_tokens == limits_.max_num_tokens && limits.max_num_seqs == limits_.max_num_seqs &&
                  model.max_model_len <= model_.max_model_len);
    CAPSTAN_CHECK(model.kv_groups.size() == layouts_.size() && limits.num_blocks.size() == layouts_.size());
    const int allocated_len = model_.max_model_len;
    model_ = model;
    model_.max_model_len = allocated_len;
    limits_ = limits;
    for (size_t i = 0; i < model.rope_tables.size(); ++i) {
      const RopeTable& table = model.rope_tables[i];
      CAPSTAN_CHECK(std::ssize(table.values) <= int64_t{allocated_len} * table.rotary_dim);
      if (!table.values.empty())
        check(cudaMemcpyAsync(rope_.as<float>() + rope_offsets_[i], table.values.data(),
                              table.values.size() * sizeof(float), cudaMemcpyHostToDevice, stream_),
              "the RoPE tables");
      CAPSTAN_CHECK(std::ssize(table.query_scales) <= allocated_len);
      if (!table.query_scales.empty())
        check(cudaMemcpyAsync(query_scales_.as<float>() + static_cast<int64_t>(i) * allocated_len,
                              table.query_scales.data(), table.query_scales.size() * sizeof(float),
                              cudaMemcpyHostToDevice, stream_),
              "the scales of queries");
    }
    graphs_.clear();
    can_capture_ = features_.graphs;
    kv_.clear();
    for (size_t group = 0; group < layouts_.size(); ++group)
      kv_.emplace_back(static_cast<size_t>(model.kv_groups[group].num_layers * layer_bytes(group)), "the KV cache");
    if (model.has_recurrent_layers()) allocate_states();
    wait_for(stream_);
    uploader_ = nullptr;
  });
}

}  // namespace capstan::cuda
