#include "native/backend/cpu/cpu_backend.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "native/backend/cpu/act_tiles.h"
#include "native/backend/cpu/attention_plan.h"
#include "native/backend/cpu/expert_plan.h"
#include "native/backend/cpu/isa.h"
#include "native/backend/cpu/kernels.h"
#include "native/backend/cpu/matrix.h"
#include "native/backend/cpu/memory.h"
#include "native/backend/cpu/recurrent.h"
#include "native/backend/cpu/recurrent_kernels.h"
#include "native/backend/cpu/sample.h"
#include "native/backend/cpu/team.h"
#include "native/base/check.h"
#include "native/base/error.h"
#include "native/base/machine.h"

namespace capstan {

namespace {

// Up to this many rows the calling thread runs a small op alone, because waking the team costs more.
constexpr int64_t kSerialRows = 2;
// Panels that a thread claims at once: two passes of the widest tile.
constexpr int64_t kGemmPanels = 6;
// Up to this many multiply-adds (about two microseconds) the calling thread runs attention alone.
constexpr int64_t kSerialAttention = 64 << 10;
// Rows of a large step: their activations have the layout that takes the most words.
constexpr int64_t kManyRows = 64;

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Bytes of the keys (the values) of one block in one layer.
int64_t k_block_bytes(const KvLayout& layout) {
  return int64_t{layout.num_kv_heads} * layout.block_size * layout.k_dim *
         static_cast<int64_t>(dtype_size(layout.dtype));
}
int64_t v_block_bytes(const KvLayout& layout) {
  return int64_t{layout.num_kv_heads} * layout.block_size * layout.v_dim *
         static_cast<int64_t>(dtype_size(layout.dtype));
}

KvLayout make_kv_layout(const DeviceModel& model, int block_size, DType dtype) {
  return {dtype,
          block_size,
          model.num_kv_heads,
          model.head_dim,
          static_cast<int>(round_up(model.head_dim, 2)),
          static_cast<int>(round_up(model.head_dim, 16))};
}

const float* values_of(const Vector* vector) {
  return vector == nullptr ? nullptr : static_cast<const CpuVector*>(vector)->values.data();
}

const CpuMatrix& matrix_of(const std::unique_ptr<Matrix>& matrix) {
  return static_cast<const CpuMatrix&>(*matrix);
}

void check_at_most(const char* what, int limit, int value) {
  if (value > limit)
    throw Error(ErrorCode::kUnsupportedModel,
                std::string(what) + ": expected at most " + std::to_string(limit) + ", got " + std::to_string(value));
}

class CpuBackend final : public Backend {
 public:
  CpuBackend(const CpuBackendOptions& options, std::unique_ptr<Comm> comm)
      : weight_dtype_(options.weight_dtype),
        has_int8_acts_(options.has_int8_acts),
        kernels_(cpu_kernels(options.isa)),
        comm_(std::move(comm)),
        team_(options.cpus, options.may_spin) {
    has_bf16_acts_ = weight_dtype_ == DType::kBf16 && !options.compute_f32;
    info_.name = "cpu";
    info_.isa = cpu_isa_name(options.isa);
    info_.depth = 1;
    info_.preferred_block_size = kSlotGroup;
    info_.block_size_multiple = kSlotGroup;
    info_.has_quantized_weights = true;
    info_.has_kv_groups = true;
    info_.compute_dtype = has_bf16_acts_ ? DType::kBf16 : DType::kF32;
  }

  const BackendInfo& info() const override { return info_; }
  void check_model(const DeviceModel& model, int64_t weight_bytes) const override;

  std::unique_ptr<Matrix> load_matrix(const MatrixSource& source, const LoadProgress& progress) override {
    const DType dtype = source.format == WeightFormat::kF32 ? DType::kF32 : weight_dtype_;
    std::unique_ptr<CpuMatrix> matrix = pack_matrix(source, dtype, kernels_, team_, progress);
    for (const CpuMatrix* part = matrix.get(); part != nullptr; part = part->rest.get()) {
      if (is_quantized(*part)) {
        max_act_words_ = std::max(max_act_words_, part->quant.num_words + 3 * part->quant.num_runs);
        max_quantized_k_ = std::max(max_quantized_k_, part->padded_k);
      } else {
        max_plain_words_ = std::max(max_plain_words_, act_tiles(nullptr, kManyRows, *part).words);
      }
    }
    return matrix;
  }
  std::unique_ptr<Vector> load_vector(const TensorSlice& slice, float offset, const LoadProgress& progress) override {
    return read_vector(slice, offset, progress);
  }
  std::unique_ptr<Vector> load_convolution(const MatrixSource& source, const LoadProgress& progress) override {
    return read_convolution(source, progress);
  }

  int64_t kv_block_bytes(const DeviceModel& model, int kv_group, int block_size, DType kv_cache_dtype) const override {
    const KvLayout layout = make_kv_layout(model, block_size, kv_cache_dtype);
    return model.kv_groups[static_cast<size_t>(kv_group)].num_layers * (k_block_bytes(layout) + v_block_bytes(layout));
  }
  int64_t state_slot_bytes(const DeviceModel& model) const override {
    return RecurrentLayers::slot_floats(model) * static_cast<int64_t>(sizeof(float));
  }
  int64_t available_bytes() const override { return available_memory_bytes(); }
  void prepare(const DeviceModel& model, const DeviceLimits& limits) override;

  void begin_step(const StepInput& step) override;
  void embed(const Matrix& table) override;
  void norm_qkv(int layer, const LayerWeights& weights) override;
  void attention(int layer, const LayerWeights& weights) override;
  void recurrent(int layer, const LayerWeights& weights) override;
  void output_residual(const LayerWeights& weights) override;
  void norm_gate_up(const LayerWeights& weights) override;
  void down_residual(const LayerWeights& weights) override;
  void moe_residual(const LayerWeights& weights) override;
  void lm_head(const Vector& norm, const Matrix& head, std::span<const int32_t> rows) override;
  void sample(std::span<const SampleRow> rows, std::span<SampleResult> results) override;

 private:
  int world_size() const { return comm_ == nullptr ? 1 : comm_->world_size(); }
  int64_t num_tokens() const { return static_cast<int64_t>(step_.positions.size()); }
  float* hidden_row(int64_t row) const { return hidden_.as<float>() + row * hidden_stride_; }

  void plan_memory();
  void allocate();
  static bool is_quantized(const CpuMatrix& matrix) { return matrix.quant.type.bits != 0; }
  // Returns the activations that a matrix is multiplied with, in the memory at `data`.
  ActTiles act_tiles(uint32_t* data, int64_t rows, const CpuMatrix& matrix) const;
  // Row `row` of acts = x, or x * norm / rms(x) when `norm` is given.
  void store_row(const float* x, const Vector* norm, int64_t k, const ActTiles& acts, int64_t row) const;
  KvCache kv_cache(int layer) const;
  AttentionArgs attention_args(int layer, const Vector* sinks, const AttentionItem& item, int thread) const;
  void run_attention_item(int layer, const Vector* sinks, const AttentionItem& item, int thread);
  // Returns rms_norm(hidden) of the given rows, or of all rows when `rows` is empty, as the input of a matrix.
  ActTiles norm_rows(const Vector* norm, std::span<const int32_t> rows, int64_t num_rows, const CpuMatrix& matrix);
  // Returns the result of the MLP's first half: the input of the down projection, or f32 rows that it quantizes,
  // because a run's scale is known only when the whole row is.
  ActTiles mlp_tiles(const CpuMatrix& down_proj) const;
  // Returns f32 rows of `padded_k` words each.
  ActTiles float_rows(uint32_t* data, int64_t rows, const CpuMatrix& matrix) const;
  // Returns the rows x (num_tokens, stride) as the input of a matrix.
  ActTiles pack_rows(const float* x, int64_t stride, const CpuMatrix& matrix);
  // Computes panels [begin, end) on one of the team's threads.
  void run_panels(const GemmArgs& args, const CpuMatrix& matrix, int thread, int64_t begin, int64_t end);
  // out (num_tokens, features of the matrix and its rest) = rms_norm(hidden) · weightsᵀ + bias.
  void norm_gemm(const Vector* norm, const Matrix& weights, const FloatRows& out);
  void gate_attention();
  void run_gemm(const GemmArgs& args, const CpuMatrix& matrix);
  // Sets the inverse root mean squares over all heads of q and k of each row.
  void norm_all_heads();
  // hidden += residual_scale · norm(acts · weightsᵀ + bias), over all ranks.
  void row_parallel_residual(const ActTiles& acts, const CpuMatrix& matrix, const Vector* norm);
  // hidden += scale · norm(sum of all ranks' partial_ + bias).
  void add_all_partials(const float* bias, const Vector* norm, float scale);
  // Applies logit_scale and logit_soft_cap to the first `num_ids` logits of each row.
  void scale_logits(float* logits, int64_t num_ids);
  void route(const LayerWeights& weights);
  // The activations of the pairs of an expert, at the place of its first pair.
  ActTiles expert_tiles(const HugeBuffer& buffer, int expert, const CpuMatrix& matrix) const;
  // The input of an expert's down projection, or f32 rows that are quantized to it.
  ActTiles gated_tiles(int expert, const CpuMatrix& down_proj) const;
  void pack_expert_inputs(const LayerWeights& weights);
  void run_expert_gate_up(const MoeWeights& moe);
  void run_expert_down(const MoeWeights& moe);
  void add_expert_sums(const LayerWeights& weights);
  // Calls work(thread, expert, begin, end) for ranges of the panels of `matrix_of(expert)` of all experts with tokens.
  template <typename MatrixOf, typename Work>
  void for_expert_panels(MatrixOf matrix_of, Work work);

  const DType weight_dtype_;
  const bool has_int8_acts_;
  bool has_bf16_acts_;
  const CpuKernels& kernels_;
  const std::unique_ptr<Comm> comm_;
  Team team_;
  BackendInfo info_;

  DeviceModel model_;
  DeviceLimits limits_;
  KvLayout kv_layout_;
  int64_t hidden_stride_ = 0, qkv_stride_ = 0;

  std::vector<HugeBuffer> kv_;  // by KV group: (num_layers) K then V, layouts in kernels.h
  HugeBuffer hidden_;           // (max_num_tokens, hidden_stride)
  HugeBuffer partial_;          // (max_num_tokens, hidden_stride) this rank's part of a sum
  HugeBuffer qkv_;              // (max_num_tokens, qkv_stride) q, k, v; attention replaces q by its result
  HugeBuffer acts_;             // ActTiles: results of the norms, the attention result
  HugeBuffer mlp_acts_;         // ActTiles: input of the down projection
  HugeBuffer logits_;           // (max_num_seqs, vocab_size), filled on rank 0
  HugeBuffer
      squares_;  // (max_num_tokens, num_heads + num_kv_heads) squares of this rank's heads, for QkNorm::kAllHeads
  HugeBuffer inverse_rms_;     // (max_num_tokens, 2) of q and k over all heads
  HugeBuffer router_logits_;   // (max_num_tokens, num_experts rounded up to 16)
  HugeBuffer expert_acts_;     // (max_pairs, expert_act_words) ActTiles: inputs of the experts
  HugeBuffer expert_mlp_;      // the same: inputs of their down projections
  HugeBuffer expert_mlp_f32_;  // the same: f32 rows before they are quantized
  HugeBuffer expert_out_;      // (max_pairs, hidden_stride) this rank's part of the results
  int64_t expert_act_words_ = 0;
  ExpertPlan expert_plan_;
  std::vector<int64_t> expert_panels_;  // scratch of for_expert_panels
  HugeBuffer scratch_;                  // (threads, scratch_floats) of attention, and decoded weights
  HugeBuffer states_;                   // (max_states, v_dim + 2) of chunks of attention that several items compute
  int64_t scratch_floats_ = 0;
  int64_t max_act_words_ = 0, max_quantized_k_ = 0;  // over the quantized matrices
  int64_t max_plain_words_ = 0;                      // over the others

  StepInput step_;
  std::vector<AttentionShape> attention_shapes_;    // by KV group
  std::vector<AttentionPlan> attention_plans_;      // by KV group
  std::vector<std::atomic<int>> split_items_left_;  // by split of the current plan
  int64_t num_logit_rows_ = 0;
  std::optional<Sampler> sampler_;
  std::optional<RecurrentLayers> recurrent_;
  FloatRows mixer_rows_;  // result of the layer's mixer
};

void CpuBackend::prepare(const DeviceModel& model, const DeviceLimits& limits) {
  CAPSTAN_CHECK(limits.block_size > 0 && limits.block_size % kSlotGroup == 0);
  CAPSTAN_CHECK(limits.num_blocks.size() == model.kv_groups.size());
  for (const DeviceLayer& layer : model.layers)
    CAPSTAN_CHECK(layer.mixer != Mixer::kAttention ||
                  layer.window == model.kv_groups[static_cast<size_t>(layer.kv_group)].window);
  CAPSTAN_CHECK(limits.max_num_tokens > 0 && limits.max_num_seqs > 0);
  CAPSTAN_CHECK(model.num_kv_heads > 0 && model.num_heads % model.num_kv_heads == 0);
  for (const RopeTable& rope : model.rope_tables) {
    CAPSTAN_CHECK(rope.rotary_dim % 2 == 0 && rope.rotary_dim <= model.head_dim);
    CAPSTAN_CHECK(static_cast<int64_t>(rope.values.size()) >= int64_t{model.max_model_len} * rope.rotary_dim);
  }
  CAPSTAN_CHECK(model.head_dim <= kMaxHeadDim);
  model_ = model;
  limits_ = limits;
  kv_layout_ = make_kv_layout(model, limits.block_size, limits.kv_cache_dtype);
  plan_memory();
  allocate();
}

// Reserves the memory of the plans, so that no step allocates any.
void CpuBackend::plan_memory() {
  AttentionShape shape{model_.num_heads, model_.num_kv_heads, 0, team_.size(), 0};
  shape.max_states = max_attention_states(shape, limits_.max_num_seqs, model_.max_model_len);
  const int max_splits = max_attention_splits(shape);
  const size_t num_groups = model_.kv_groups.size();
  attention_shapes_.assign(num_groups, shape);
  attention_plans_.resize(num_groups);
  for (size_t i = 0; i < num_groups; ++i) {
    attention_shapes_[i].window = model_.kv_groups[i].window;
    attention_plans_[i].items.reserve(static_cast<size_t>(max_attention_items(shape, limits_.max_num_tokens)));
    attention_plans_[i].splits.reserve(static_cast<size_t>(max_splits));
  }
  split_items_left_ = std::vector<std::atomic<int>>(static_cast<size_t>(max_splits));
  states_ = HugeBuffer(static_cast<size_t>(chunk_state_floats(shape.max_states, kv_layout_.v_dim)) * sizeof(float),
                       "the states of attention");
}

void CpuBackend::allocate() {
  const int64_t rows = limits_.max_num_tokens;
  const int64_t q_size = int64_t{model_.num_heads} * model_.head_dim;
  const int64_t kv_size = int64_t{model_.num_kv_heads} * model_.head_dim;
  hidden_stride_ = round_up(model_.hidden_size, 16);
  qkv_stride_ = round_up((model_.has_output_gate ? 2 : 1) * q_size + 2 * kv_size, 16);
  const auto floats = [](int64_t count, const char* purpose) {
    return HugeBuffer(static_cast<size_t>(count) * sizeof(float), purpose);
  };
  hidden_ = floats(rows * hidden_stride_, "the hidden states");
  partial_ = floats(rows * hidden_stride_, "the partial sums of a rank");
  if (model_.qk_norm == QkNorm::kAllHeads) {
    squares_ = floats(rows * (model_.num_heads + model_.num_kv_heads), "the squares of the heads");
    inverse_rms_ = floats(rows * 2, "the norms of q and k");
  }
  qkv_ = floats(rows * qkv_stride_, "queries, keys and values");
  const int64_t act_rows = std::max<int64_t>(rows, limits_.max_num_seqs);
  const int64_t max_words = std::max(max_act_words_, max_plain_words_);
  acts_ =
      floats(act_rows * std::max(round_up(std::max({model_.hidden_size, q_size, model_.recurrent.output_size()}), 2),
                                 max_words),
             "the activations");
  mlp_acts_ =
      floats(rows * std::max(round_up(model_.intermediate_size, 2), max_plain_words_), "the activations of the MLP");
  logits_ = floats(int64_t{limits_.max_num_seqs} * model_.vocab_size, "the logits");
  if (model_.has_recurrent_layers()) recurrent_.emplace(model_, limits_, kernels_, team_);
  sampler_.emplace(kernels_, model_.vocab_size, model_.num_token_ids, team_);

  if (model_.moe.num_experts > 0) {
    expert_plan_.reserve(model_.moe, limits_.max_num_tokens);
    const int64_t pairs = rows * expert_plan_.slots;
    const int64_t inner = std::max(model_.moe.intermediate_size, model_.moe.shared_intermediate_size);
    expert_act_words_ = std::max(round_up(std::max(model_.hidden_size, inner), 2), max_words);
    router_logits_ = floats(rows * round_up(model_.moe.num_experts, 16), "the logits of the router");
    expert_acts_ = floats(pairs * expert_act_words_, "the inputs of the experts");
    expert_mlp_ = floats(pairs * expert_act_words_, "the activations of the experts");
    if (max_act_words_ > 0) expert_mlp_f32_ = floats(pairs * expert_act_words_, "the activations of the experts");
    expert_out_ = floats(pairs * hidden_stride_, "the results of the experts");
  }

  const int64_t item_rows = std::max<int64_t>(kAttentionRows, model_.num_heads / model_.num_kv_heads);
  scratch_floats_ = round_up(attention_scratch_floats(item_rows, kv_layout_.k_dim, kv_layout_.v_dim), 1024);
  if (!has_int8_acts_)
    scratch_floats_ = std::max(scratch_floats_, round_up(dequantized_floats(max_quantized_k_), 1024));
  scratch_ = floats(team_.size() * scratch_floats_, "the attention scratch");
  kv_.clear();
  for (size_t group = 0; group < model_.kv_groups.size(); ++group) {
    const int64_t layer_bytes = limits_.num_blocks[group] * (k_block_bytes(kv_layout_) + v_block_bytes(kv_layout_));
    kv_.emplace_back(static_cast<size_t>(model_.kv_groups[group].num_layers * layer_bytes), "the KV cache");
  }
}

KvCache CpuBackend::kv_cache(int layer) const {
  const DeviceLayer& place = model_.layer(layer);
  const auto group = static_cast<size_t>(place.kv_group);
  const int64_t k_bytes = limits_.num_blocks[group] * k_block_bytes(kv_layout_);
  const int64_t layer_bytes = k_bytes + limits_.num_blocks[group] * v_block_bytes(kv_layout_);
  char* k = kv_[group].as<char>() + place.kv_layer * layer_bytes;
  return {kv_layout_, k, k + k_bytes};
}

ActTiles CpuBackend::act_tiles(uint32_t* data, int64_t rows, const CpuMatrix& matrix) const {
  const QuantWeights& quant = matrix.quant;
  const bool is_bf16 = quant.type.bits == 0 && has_bf16_acts_ && matrix.dtype == DType::kBf16;
  ActTiles acts = plain_act_tiles(kernels_, is_bf16 ? bf16_act_format(kernels_, rows) : ActFormat::kF32, rows,
                                  matrix.padded_k, matrix.num_parts);
  acts.data = data;
  if (quant.type.bits != 0 && has_int8_acts_) {
    acts.format = ActFormat::kInt8;
    acts.words = quant.num_words;
    acts.runs = quant.runs;
    acts.num_runs = quant.num_runs;
    acts.scales = reinterpret_cast<float*>(acts.data + rows * quant.num_words);
    acts.sums = reinterpret_cast<int32_t*>(acts.scales + rows * quant.num_runs);
    acts.totals = acts.scales + 2 * rows * quant.num_runs;
  }
  return acts;
}

void CpuBackend::store_row(const float* x, const Vector* norm, int64_t k, const ActTiles& acts, int64_t row) const {
  const float* weight = values_of(norm);
  if (acts.format == ActFormat::kInt8)
    kernels_.quantize_row(x, weight, k, model_.rms_norm_eps, acts, row);
  else if (norm != nullptr)
    kernels_.rms_norm(x, weight, k, model_.rms_norm_eps, acts, row);
  else
    kernels_.pack_row(x, k, acts, row);
}

ActTiles CpuBackend::pack_rows(const float* x, int64_t stride, const CpuMatrix& matrix) {
  const ActTiles acts = act_tiles(acts_.as<uint32_t>(), num_tokens(), matrix);
  team_.for_ranges(num_tokens(), kSerialRows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      store_row(x + row * stride, nullptr, matrix.cols, acts, row);
  });
  return acts;
}

void CpuBackend::begin_step(const StepInput& step) {
  check_step(step, model_, limits_);
  team_.pin_caller();
  step_ = step;
  for (size_t i = 0; i < attention_plans_.size(); ++i)
    plan_attention(step, attention_shapes_[i], attention_plans_[i]);
}

void CpuBackend::embed(const Matrix& table) {
  const auto& matrix = static_cast<const CpuMatrix&>(table);
  const bool is_shared = world_size() > 1;
  float* out = is_shared ? partial_.as<float>() : hidden_.as<float>();
  team_.for_ranges(num_tokens(), kSerialRows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int32_t id = step_.input_ids[row];
      CAPSTAN_CHECK(id >= 0 && id < model_.vocab_size);  // depth 1: the host knows every id
      float* to = out + row * hidden_stride_;
      std::fill(hidden_row(row), hidden_row(row) + hidden_stride_, 0.0f);
      if (id >= model_.vocab_begin && id < model_.vocab_end)
        gather_row(matrix, id - model_.vocab_begin, to);
      else
        std::fill(to, to + hidden_stride_, 0.0f);
      // NOTE: adding the zeros of other ranks turns -0 into +0, so one rank adds +0 too, for equal bits.
      for (int64_t i = 0; i < matrix.cols; ++i)
        to[i] = to[i] * model_.embedding_scale + 0.0f;
    }
  });
  if (is_shared) add_all_partials(nullptr, nullptr, 1.0f);
}

ActTiles CpuBackend::norm_rows(const Vector* norm, std::span<const int32_t> rows, int64_t num_rows,
                               const CpuMatrix& matrix) {
  const ActTiles acts = act_tiles(acts_.as<uint32_t>(), num_rows, matrix);
  team_.for_ranges(num_rows, kSerialRows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      store_row(hidden_row(rows.empty() ? row : rows[row]), norm, model_.hidden_size, acts, row);
  });
  return acts;
}

void CpuBackend::check_model(const DeviceModel& model, int64_t weight_bytes) const {
  check_at_most("head size", kMaxHeadDim, model.head_dim);
  check_at_most("inputs of the convolution of a recurrent layer", kMaxConvTaps, model.recurrent.conv_taps);
  // All ranks keep their weights in the memory of this machine.
  const int64_t needed = weight_bytes * world_size(), available = available_bytes();
  if (needed > available)
    throw Error(ErrorCode::kOutOfMemory, "the weights need " + std::to_string(needed >> 20) + " MiB as " +
                                             dtype_name(weight_dtype_) + ", and " + std::to_string(available >> 20) +
                                             " MiB of memory are available");
}

void CpuBackend::run_panels(const GemmArgs& args, const CpuMatrix& matrix, int thread, int64_t begin, int64_t end) {
  GemmArgs part = args;
  part.weights = matrix.data.as<void>();
  part.weight_dtype = matrix.dtype;
  part.quant = matrix.quant;
  part.dequantized = scratch_.as<float>() + thread * scratch_floats_;
  part.num_parts = matrix.num_parts;
  part.panel_begin = begin;
  part.panel_end = end;
  kernels_.gemm(part);
}

void CpuBackend::run_gemm(const GemmArgs& args, const CpuMatrix& matrix) {
  CAPSTAN_CHECK(args.acts.words == act_tiles(nullptr, args.acts.rows, matrix).words);
  team_.for_pieces(matrix.num_panels, kGemmPanels,
                   [&](int thread, int64_t begin, int64_t end) { run_panels(args, matrix, thread, begin, end); });
}

void CpuBackend::norm_all_heads() {
  const int heads = model_.num_heads, kv_heads = model_.num_kv_heads, stride = heads + kv_heads;
  team_.for_ranges(num_tokens(), kSerialRows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      kernels_.head_squares(qkv_.as<float>() + row * qkv_stride_, stride, model_.head_dim,
                            squares_.as<float>() + row * stride);
  });
  void* own = squares_.as<void>();
  void* const* published = world_size() > 1 ? comm_->exchange(own) : &own;
  const int total_kv_heads = model_.total_kv_heads;
  // The heads are added in order, so that the sum does not depend on the number of ranks. More ranks than KV heads hold
  // copies of them.
  const auto inverse_rms = [&](int64_t row, int first, int per_rank, int total) {
    float sum = 0;
    for (int head = 0; head < total; ++head) {
      const int rank = static_cast<int>(int64_t{head} * world_size() / total);
      const int own_head = total >= world_size() ? head % per_rank : 0;
      sum += static_cast<const float*>(published[rank])[row * stride + first + own_head];
    }
    return 1.0f / std::sqrt(sum / static_cast<float>(total * model_.head_dim) + model_.rms_norm_eps);
  };
  for (int64_t row = 0; row < num_tokens(); ++row) {
    inverse_rms_.as<float>()[row * 2] = inverse_rms(row, 0, heads, heads * world_size());
    inverse_rms_.as<float>()[row * 2 + 1] = inverse_rms(row, heads, kv_heads, total_kv_heads);
  }
  if (world_size() > 1) comm_->barrier();
}

void CpuBackend::norm_gemm(const Vector* norm, const Matrix& weights, const FloatRows& out) {
  GemmArgs gemm;
  gemm.out = out.data;
  gemm.out_stride = out.stride;
  for (auto* matrix = static_cast<const CpuMatrix*>(&weights); matrix != nullptr; matrix = matrix->rest.get()) {
    gemm.acts = norm_rows(norm, {}, num_tokens(), *matrix);
    gemm.num_features = matrix->rows;
    gemm.bias = matrix->bias.empty() ? nullptr : matrix->bias.data();
    run_gemm(gemm, *matrix);
    gemm.out += matrix->rows;
  }
}

void CpuBackend::recurrent(int layer, const LayerWeights& weights) {
  norm_gemm(weights.input_norm.get(), *weights.recurrent.in_proj, recurrent_->projections());
  mixer_rows_ = recurrent_->run(layer, weights.recurrent, step_);
}

void CpuBackend::norm_qkv(int layer, const LayerWeights& weights) {
  norm_gemm(weights.input_norm.get(), *weights.qkv_proj, {qkv_.as<float>(), qkv_stride_});
  const bool has_norm_of_all = model_.qk_norm == QkNorm::kAllHeads;
  if (has_norm_of_all) norm_all_heads();
  QkvRowArgs args;
  args.num_heads = model_.num_heads;
  args.q_norm.weight = values_of(weights.q_norm.get());
  args.k_norm.weight = values_of(weights.k_norm.get());
  args.q_norm.is_of_all_heads = args.k_norm.is_of_all_heads = has_norm_of_all;
  args.eps = model_.rms_norm_eps;
  args.rotates_before_norm = model_.rotates_before_qk_norm;
  args.cache = kv_cache(layer);
  const int rope = model_.layer(layer).rope;
  static const RopeTable kNoRope;
  const RopeTable& table = rope < 0 ? kNoRope : model_.rope_tables[static_cast<size_t>(rope)];
  args.rotary_dim = table.rotary_dim;
  const std::span<const int32_t> slots =
      step_.kv_groups[static_cast<size_t>(model_.layer(layer).kv_group)].slot_mapping;
  team_.for_ranges(num_tokens(), kSerialRows, [&](int64_t begin, int64_t end) {
    QkvRowArgs row_args = args;
    for (int64_t row = begin; row < end; ++row) {
      row_args.qkv = qkv_.as<float>() + row * qkv_stride_;
      const int64_t position = step_.positions[row];
      row_args.rope = table.values.data() + position * args.rotary_dim;
      row_args.q_scale = model_.attention_scale * kLog2E;
      if (!table.query_scales.empty()) row_args.q_scale *= table.query_scales[static_cast<size_t>(position)];
      if (has_norm_of_all) {
        row_args.q_norm.inverse_rms = inverse_rms_.as<float>()[row * 2];
        row_args.k_norm.inverse_rms = inverse_rms_.as<float>()[row * 2 + 1];
      }
      row_args.slot = slots[row];
      kernels_.qkv_row(row_args);
    }
  });
}

AttentionArgs CpuBackend::attention_args(int layer, const Vector* sinks, const AttentionItem& item, int thread) const {
  const int heads_per_kv = model_.num_heads / model_.num_kv_heads;
  AttentionArgs args;
  args.q = qkv_.as<float>() + item.first_row * qkv_stride_ +
           (item.kv_head * heads_per_kv + item.first_head) * model_.head_dim;
  args.q_stride = qkv_stride_;
  args.num_rows = item.num_rows;
  args.num_heads = item.num_heads;
  args.first_position = item.first_position;
  args.window = model_.window(layer);
  args.first_chunk = item.first_chunk;
  args.end_chunk = item.end_chunk;
  args.has_bf16_products = has_bf16_acts_;
  args.soft_cap = model_.attention_soft_cap * kLog2E;
  if (sinks != nullptr) args.sinks = values_of(sinks) + item.kv_head * heads_per_kv + item.first_head;
  args.kv_head = item.kv_head;
  const KvGroupInput& group = step_.kv_groups[static_cast<size_t>(model_.layer(layer).kv_group)];
  args.block_table = group.block_tables.data() + int64_t{item.seq} * step_.max_blocks_per_seq;
  args.cache = kv_cache(layer);
  args.scratch = scratch_.as<float>() + thread * scratch_floats_;
  return args;
}

void CpuBackend::run_attention_item(int layer, const Vector* sinks, const AttentionItem& item, int thread) {
  AttentionArgs args = attention_args(layer, sinks, item, thread);
  if (item.split < 0) return kernels_.attention(args);
  const AttentionSplit& split = attention_plans_[model_.layer(layer).kv_group].splits[item.split];
  const int64_t chunk_states = int64_t{item.num_rows} * item.num_heads;
  float* states = states_.as<float>() + chunk_state_floats(split.first_state, kv_layout_.v_dim);
  args.states = states + chunk_state_floats((item.first_chunk - split.first_chunk) * chunk_states, kv_layout_.v_dim);
  kernels_.attention(args);
  if (split_items_left_[item.split].fetch_sub(1, std::memory_order_acq_rel) > 1) return;
  args.first_chunk = split.first_chunk;
  args.end_chunk = split.end_chunk;
  args.states = states;
  kernels_.combine_chunks(args);
}

void CpuBackend::attention(int layer, const LayerWeights& weights) {
  const AttentionPlan& plan = attention_plans_[model_.layer(layer).kv_group];
  for (size_t i = 0; i < plan.splits.size(); ++i)
    split_items_left_[i].store(plan.splits[i].num_items, std::memory_order_relaxed);
  std::atomic<size_t> next_item{0};
  const auto work = [&](int thread) {
    for (size_t i; (i = next_item.fetch_add(1, std::memory_order_relaxed)) < plan.items.size();)
      run_attention_item(layer, weights.sinks.get(), plan.items[i], thread);
  };
  int64_t cost = 0;
  for (const AttentionItem& item : plan.items)
    cost += item.cost * model_.head_dim * 2;
  if (cost <= kSerialAttention)
    team_.for_ranges(1, 1, [&](int64_t, int64_t) { work(0); });
  else
    team_.run(work);
  mixer_rows_ = {qkv_.as<float>(), qkv_stride_};
  if (model_.has_output_gate) gate_attention();
}

void CpuBackend::gate_attention() {
  const int64_t q_size = int64_t{model_.num_heads} * model_.head_dim;
  const int64_t gate_at = q_size + 2 * int64_t{model_.num_kv_heads} * model_.head_dim;
  team_.for_ranges(num_tokens(), kSerialRows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      kernels_.recurrent.sigmoid_gate(mixer_rows_.row(row), mixer_rows_.row(row) + gate_at, q_size);
  });
}

void CpuBackend::add_all_partials(const float* bias, const Vector* norm, float scale) {
  const float* partials[8];
  CAPSTAN_CHECK(world_size() <= 8);
  void* own = partial_.as<void>();
  void* const* published = world_size() > 1 ? comm_->exchange(own) : &own;
  for (int rank = 0; rank < world_size(); ++rank)
    partials[rank] = static_cast<const float*>(published[rank]);
  team_.for_ranges(num_tokens(), kSerialRows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* row_partials[8];
      for (int rank = 0; rank < world_size(); ++rank)
        row_partials[rank] = partials[rank] + row * hidden_stride_;
      kernels_.add_residual({hidden_row(row), row_partials, world_size(), bias, values_of(norm), model_.rms_norm_eps,
                             scale, model_.hidden_size});
    }
  });
  if (world_size() > 1) comm_->barrier();  // the other ranks have read this rank's partials
}

void CpuBackend::row_parallel_residual(const ActTiles& acts, const CpuMatrix& matrix, const Vector* norm) {
  const float* bias = matrix.bias.empty() ? nullptr : matrix.bias.data();
  GemmArgs gemm;
  gemm.acts = acts;
  gemm.num_features = matrix.rows;
  gemm.out_stride = hidden_stride_;
  if (world_size() == 1 && norm == nullptr && model_.residual_scale == 1.0f) {
    gemm.output = GemmOutput::kResidual;
    gemm.bias = bias;
    gemm.out = hidden_.as<float>();
    run_gemm(gemm, matrix);
  } else {
    gemm.out = partial_.as<float>();
    run_gemm(gemm, matrix);
    add_all_partials(bias, norm, model_.residual_scale);
  }
}

void CpuBackend::output_residual(const LayerWeights& weights) {
  const auto& matrix = static_cast<const CpuMatrix&>(*weights.o_proj);
  row_parallel_residual(pack_rows(mixer_rows_.data, mixer_rows_.stride, matrix), matrix,
                        weights.attention_out_norm.get());
}

ActTiles CpuBackend::mlp_tiles(const CpuMatrix& down_proj) const {
  ActTiles acts = act_tiles(mlp_acts_.as<uint32_t>(), num_tokens(), down_proj);
  if (acts.format != ActFormat::kInt8) return acts;
  return float_rows(mlp_acts_.as<uint32_t>(), num_tokens(), down_proj);
}

ActTiles CpuBackend::float_rows(uint32_t* data, int64_t rows, const CpuMatrix& matrix) const {
  ActTiles acts;
  acts.data = data;
  acts.rows = rows;
  acts.words = matrix.padded_k;
  return acts;
}

void CpuBackend::norm_gate_up(const LayerWeights& weights) {
  const auto& matrix = static_cast<const CpuMatrix&>(*weights.gate_up_proj);
  GemmArgs gemm;
  gemm.acts = norm_rows(weights.mlp_norm.get(), {}, num_tokens(), matrix);
  gemm.num_features = matrix.rows / 2;
  gemm.bias = matrix.bias.empty() ? nullptr : matrix.bias.data();
  gemm.output = GemmOutput::kGated;
  gemm.gated = mlp_tiles(static_cast<const CpuMatrix&>(*weights.down_proj));
  gemm.activation = model_.activation;
  run_gemm(gemm, matrix);
}

void CpuBackend::down_residual(const LayerWeights& weights) {
  const auto& matrix = static_cast<const CpuMatrix&>(*weights.down_proj);
  const ActTiles mlp = mlp_tiles(matrix);
  const bool is_input = act_tiles(nullptr, num_tokens(), matrix).format == mlp.format;
  row_parallel_residual(is_input ? mlp : pack_rows(mlp_acts_.as<float>(), mlp.words, matrix), matrix,
                        weights.mlp_out_norm.get());
}

// ---- mixture of experts ----

// Chooses the experts of each token from the logits of the router and of the shared expert's gate.
void CpuBackend::route(const LayerWeights& weights) {
  const MoeWeights& moe = *weights.moe;
  const CpuMatrix& router = matrix_of(moe.router);
  const int64_t stride = round_up(model_.moe.num_experts, 16);
  GemmArgs gemm;
  gemm.acts = norm_rows(weights.mlp_norm.get(), {}, num_tokens(), router);
  gemm.num_features = router.rows;
  gemm.bias = router.bias.empty() ? nullptr : router.bias.data();
  gemm.out = router_logits_.as<float>();
  gemm.out_stride = stride;
  run_gemm(gemm, router);
  expert_plan_.begin(model_.moe, num_tokens());
  const int slots = expert_plan_.slots, top_k = model_.moe.top_k;
  team_.for_ranges(num_tokens(), kSerialRows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      int32_t* experts = expert_plan_.experts.data() + row * slots;
      choose_experts(model_.moe, router_logits_.as<float>() + row * stride, values_of(moe.selection_bias.get()),
                     {experts, expert_plan_.weights.data() + row * slots});
      if (slots > top_k) experts[top_k] = model_.moe.num_experts;
    }
  });
  expert_plan_.sort_by_expert();
  if (slots == top_k || moe.shared_gate == nullptr) return;
  const CpuMatrix& gate = matrix_of(moe.shared_gate);
  gemm.acts = norm_rows(weights.mlp_norm.get(), {}, num_tokens(), gate);
  gemm.num_features = 1;
  gemm.bias = nullptr;
  run_gemm(gemm, gate);
  for (int64_t row = 0; row < num_tokens(); ++row)
    expert_plan_.weights[static_cast<size_t>(row * slots + top_k)] =
        1.0f / (1.0f + std::exp(-router_logits_.as<float>()[row * stride]));
}

ActTiles CpuBackend::expert_tiles(const HugeBuffer& buffer, int expert, const CpuMatrix& matrix) const {
  const int64_t first_pair = expert_plan_.first_pair[static_cast<size_t>(expert)];
  return act_tiles(buffer.as<uint32_t>() + first_pair * expert_act_words_, expert_plan_.num_pairs(expert), matrix);
}

const ExpertWeights& expert_of(const MoeWeights& moe, int expert) {
  return expert < static_cast<int>(moe.experts.size()) ? moe.experts[static_cast<size_t>(expert)] : moe.shared;
}

void CpuBackend::pack_expert_inputs(const LayerWeights& weights) {
  const MoeWeights& moe = *weights.moe;
  team_.for_pieces(model_.moe.num_experts + 1, 1, [&](int, int64_t begin, int64_t end) {
    for (int expert = static_cast<int>(begin); expert < end; ++expert) {
      const int count = expert_plan_.num_pairs(expert);
      if (count == 0) continue;
      const ActTiles acts = expert_tiles(expert_acts_, expert, matrix_of(expert_of(moe, expert).gate_up_proj));
      const int32_t* tokens = expert_plan_.tokens.data() + expert_plan_.first_pair[static_cast<size_t>(expert)];
      for (int i = 0; i < count; ++i)
        store_row(hidden_row(tokens[i]), weights.mlp_norm.get(), model_.hidden_size, acts, i);
    }
  });
}

template <typename MatrixOf, typename Work>
void CpuBackend::for_expert_panels(MatrixOf matrix_of, Work work) {
  // Panels of all experts with tokens are numbered one after the other.
  const int num_experts = model_.moe.num_experts + 1;
  int64_t total = 0;
  expert_panels_.assign(static_cast<size_t>(num_experts) + 1, 0);
  for (int expert = 0; expert < num_experts; ++expert) {
    if (expert_plan_.num_pairs(expert) > 0) total += matrix_of(expert).num_panels;
    expert_panels_[static_cast<size_t>(expert) + 1] = total;
  }
  team_.for_pieces(total, kGemmPanels, [&](int thread, int64_t begin, int64_t end) {
    auto next = std::upper_bound(expert_panels_.begin(), expert_panels_.end(), begin);
    for (; begin < end; ++next) {
      const int64_t first = *(next - 1), last = std::min(end, *next);
      if (last > begin) work(thread, static_cast<int>(next - expert_panels_.begin()) - 1, begin - first, last - first);
      begin = std::max(begin, last);
    }
  });
}

void CpuBackend::run_expert_gate_up(const MoeWeights& moe) {
  const auto gate_up = [&](int expert) -> const CpuMatrix& { return matrix_of(expert_of(moe, expert).gate_up_proj); };
  for_expert_panels(gate_up, [&](int thread, int expert, int64_t begin, int64_t end) {
    const CpuMatrix& matrix = gate_up(expert);
    const CpuMatrix& down = matrix_of(expert_of(moe, expert).down_proj);
    GemmArgs gemm;
    gemm.acts = expert_tiles(expert_acts_, expert, matrix);
    gemm.num_features = matrix.rows / 2;
    gemm.bias = matrix.bias.empty() ? nullptr : matrix.bias.data();
    gemm.output = GemmOutput::kGated;
    gemm.gated = gated_tiles(expert, down);
    gemm.activation = model_.activation;
    run_panels(gemm, matrix, thread, begin, end);
  });
}

ActTiles CpuBackend::gated_tiles(int expert, const CpuMatrix& down_proj) const {
  const ActTiles acts = expert_tiles(expert_mlp_, expert, down_proj);
  return acts.format == ActFormat::kInt8
             ? float_rows(expert_tiles(expert_mlp_f32_, expert, down_proj).data, acts.rows, down_proj)
             : acts;
}

void CpuBackend::run_expert_down(const MoeWeights& moe) {
  const auto down = [&](int expert) -> const CpuMatrix& { return matrix_of(expert_of(moe, expert).down_proj); };
  team_.for_pieces(max_act_words_ > 0 ? model_.moe.num_experts + 1 : 0, 1, [&](int, int64_t begin, int64_t end) {
    for (int expert = static_cast<int>(begin); expert < end; ++expert) {
      if (expert_plan_.num_pairs(expert) == 0) continue;
      const ActTiles acts = expert_tiles(expert_mlp_, expert, down(expert)), rows = gated_tiles(expert, down(expert));
      if (acts.format == rows.format) continue;
      for (int64_t i = 0; i < acts.rows; ++i)
        store_row(reinterpret_cast<const float*>(rows.data) + i * rows.words, nullptr, down(expert).cols, acts, i);
    }
  });
  for_expert_panels(down, [&](int thread, int expert, int64_t begin, int64_t end) {
    GemmArgs gemm;
    gemm.acts = expert_tiles(expert_mlp_, expert, down(expert));
    gemm.num_features = down(expert).rows;
    gemm.out = expert_out_.as<float>() + expert_plan_.first_pair[static_cast<size_t>(expert)] * hidden_stride_;
    gemm.out_stride = hidden_stride_;
    run_panels(gemm, down(expert), thread, begin, end);
  });
}

// Adds the weighted results of each token's experts, over all ranks.
void CpuBackend::add_expert_sums(const LayerWeights& weights) {
  void* own = expert_out_.as<void>();
  void* const* published = world_size() > 1 ? comm_->exchange(own) : &own;
  const int slots = expert_plan_.slots, num_ranks = world_size();
  team_.for_ranges(num_tokens(), kSerialRows, [&](int64_t begin, int64_t end) {
    const float* partials[(kMaxTopK + 1) * 8];
    const float* biases[kMaxTopK + 1];
    for (int64_t row = begin; row < end; ++row) {
      for (int slot = 0; slot < slots; ++slot) {
        const size_t i = static_cast<size_t>(row * slots + slot);
        for (int rank = 0; rank < num_ranks; ++rank)
          partials[slot * num_ranks + rank] =
              static_cast<const float*>(published[rank]) + expert_plan_.pairs[i] * hidden_stride_;
        const CpuMatrix& down = matrix_of(expert_of(*weights.moe, expert_plan_.experts[i]).down_proj);
        biases[slot] = down.bias.empty() ? nullptr : down.bias.data();
      }
      float* sum = partial_.as<float>() + row * hidden_stride_;
      kernels_.weighted_sum(
          {sum, slots, partials, num_ranks, biases, expert_plan_.weights.data() + row * slots, model_.hidden_size});
      const float* const sums[1] = {sum};
      kernels_.add_residual({hidden_row(row), sums, 1, nullptr, values_of(weights.mlp_out_norm.get()),
                             model_.rms_norm_eps, model_.residual_scale, model_.hidden_size});
    }
  });
  if (world_size() > 1) comm_->barrier();  // the other ranks have read this rank's results
}

void CpuBackend::moe_residual(const LayerWeights& weights) {
  route(weights);
  pack_expert_inputs(weights);
  run_expert_gate_up(*weights.moe);
  run_expert_down(*weights.moe);
  add_expert_sums(weights);
}

void CpuBackend::lm_head(const Vector& norm, const Matrix& head, std::span<const int32_t> rows) {
  const auto& matrix = static_cast<const CpuMatrix&>(head);
  num_logit_rows_ = static_cast<int64_t>(rows.size());
  CAPSTAN_CHECK(num_logit_rows_ > 0 && num_logit_rows_ <= limits_.max_num_seqs);
  for (const int32_t row : rows)
    CAPSTAN_CHECK(row >= 0 && row < num_tokens());
  GemmArgs gemm;
  gemm.acts = norm_rows(&norm, rows, num_logit_rows_, matrix);
  gemm.num_features = matrix.rows;
  gemm.bias = matrix.bias.empty() ? nullptr : matrix.bias.data();
  gemm.out_stride = model_.vocab_size;
  float* logits = logits_.as<float>();
  // Every rank writes its columns of rank 0's array.
  if (world_size() > 1) logits = static_cast<float*>(comm_->exchange(logits)[0]);
  gemm.out = logits + model_.vocab_begin;
  run_gemm(gemm, matrix);
  scale_logits(gemm.out, matrix.rows);
  if (world_size() > 1) comm_->barrier();
}

void CpuBackend::scale_logits(float* logits, int64_t num_ids) {
  const float scale = model_.logit_scale, cap = model_.logit_soft_cap;
  if (scale == 1.0f && cap == 0.0f) return;
  team_.for_ranges(num_logit_rows_, 0, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      kernels_.scale_logits(logits + row * model_.vocab_size, num_ids, scale, cap);
  });
}

void CpuBackend::sample(std::span<const SampleRow> rows, std::span<SampleResult> results) {
  for (const SampleRow& row : rows)
    CAPSTAN_CHECK(row.logits_row >= 0 && row.logits_row < num_logit_rows_);
  sampler_->sample(logits_.as<float>(), rows, results);
}

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(const CpuBackendOptions& options, std::unique_ptr<Comm> comm) {
  return std::make_unique<CpuBackend>(options, std::move(comm));
}

}  // namespace capstan
