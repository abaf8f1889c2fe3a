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
#include "native/backend/cpu/isa.h"
#include "native/backend/cpu/kernels.h"
#include "native/backend/cpu/matrix.h"
#include "native/backend/cpu/memory.h"
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
    info_.compute_dtype = has_bf16_acts_ ? DType::kBf16 : DType::kF32;
  }

  const BackendInfo& info() const override { return info_; }
  void check_model(const DeviceModel& model, int64_t weight_bytes) const override;

  std::unique_ptr<Matrix> load_matrix(const MatrixSource& source, const LoadProgress& progress) override {
    std::unique_ptr<CpuMatrix> matrix = pack_matrix(source, weight_dtype_, kernels_, team_, progress);
    for (const CpuMatrix* part = matrix.get(); part != nullptr; part = part->rest.get()) {
      if (is_quantized(*part)) {
        max_act_words_ = std::max(max_act_words_, part->quant.num_words + 3 * part->quant.num_runs);
        max_quantized_k_ = std::max(max_quantized_k_, part->padded_k);
      } else {
        max_plain_words_ = std::max(max_plain_words_, act_tiles(acts_, kManyRows, *part).words);
      }
    }
    return matrix;
  }
  std::unique_ptr<Vector> load_vector(const TensorSlice& slice, const LoadProgress& progress) override {
    return read_vector(slice, progress);
  }

  int64_t kv_block_bytes(const DeviceModel& model, int block_size, DType kv_cache_dtype) const override {
    const KvLayout layout = make_kv_layout(model, block_size, kv_cache_dtype);
    return model.num_layers() * (k_block_bytes(layout) + v_block_bytes(layout));
  }
  int64_t available_bytes() const override { return available_memory_bytes(); }
  void prepare(const DeviceModel& model, const DeviceLimits& limits) override;

  void begin_step(const StepInput& step) override;
  void embed(const Matrix& table) override;
  void norm_qkv(int layer, const LayerWeights& weights) override;
  void attention(int layer) override;
  void output_residual(const LayerWeights& weights) override;
  void norm_gate_up(const LayerWeights& weights) override;
  void down_residual(const LayerWeights& weights) override;
  void lm_head(const Vector& norm, const Matrix& head, std::span<const int32_t> rows) override;
  void sample(std::span<const SampleRow> rows, std::span<SampleResult> results) override;

 private:
  int world_size() const { return comm_ == nullptr ? 1 : comm_->world_size(); }
  int64_t num_tokens() const { return static_cast<int64_t>(step_.positions.size()); }
  float* hidden_row(int64_t row) const { return hidden_.as<float>() + row * hidden_stride_; }

  void plan_memory();
  void allocate();
  static bool is_quantized(const CpuMatrix& matrix) { return matrix.quant.type.bits != 0; }
  // Returns the activations that a matrix is multiplied with, in `buffer`.
  ActTiles act_tiles(const HugeBuffer& buffer, int64_t rows, const CpuMatrix& matrix) const;
  // Row `row` of acts = x, or x * norm / rms(x) when `norm` is given.
  void store_row(const float* x, const Vector* norm, int64_t k, const ActTiles& acts, int64_t row) const;
  KvCache kv_cache(int layer) const;
  AttentionArgs attention_args(int layer, const AttentionItem& item, int thread) const;
  void run_attention_item(int layer, const AttentionItem& item, int thread);
  // Returns rms_norm(hidden) of the given rows, or of all rows when `rows` is empty, as the input of a matrix.
  ActTiles norm_rows(const Vector& norm, std::span<const int32_t> rows, int64_t num_rows, const CpuMatrix& matrix);
  // Returns the result of the MLP's first half: the input of the down projection, or f32 rows that it quantizes,
  // because a run's scale is known only when the whole row is.
  ActTiles mlp_tiles(const CpuMatrix& down_proj) const;
  // Returns the rows x (num_tokens, stride) as the input of a matrix.
  ActTiles pack_rows(const float* x, int64_t stride, const CpuMatrix& matrix);
  void run_gemm(const GemmArgs& args, const CpuMatrix& matrix);
  // hidden += acts · weightsᵀ + bias, over all ranks.
  void row_parallel_residual(const ActTiles& acts, const CpuMatrix& matrix);
  void add_all_partials(const float* bias);

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

  HugeBuffer kv_;        // (num_layers) K then V, layouts in kernels.h
  HugeBuffer hidden_;    // (max_num_tokens, hidden_stride)
  HugeBuffer partial_;   // (max_num_tokens, hidden_stride) this rank's part of a sum; only with several ranks
  HugeBuffer qkv_;       // (max_num_tokens, qkv_stride) q, k, v; attention replaces q by its result
  HugeBuffer acts_;      // ActTiles: results of the norms, the attention result
  HugeBuffer mlp_acts_;  // ActTiles: input of the down projection
  HugeBuffer logits_;    // (max_num_seqs, vocab_size), filled on rank 0
  HugeBuffer scratch_;   // (threads, scratch_floats) of attention, and decoded weights
  HugeBuffer states_;    // (max_states, v_dim + 2) of chunks of attention that several items compute
  int64_t scratch_floats_ = 0;
  int64_t max_act_words_ = 0, max_quantized_k_ = 0;  // over the quantized matrices
  int64_t max_plain_words_ = 0;                      // over the others

  StepInput step_;
  std::vector<AttentionShape> attention_shapes_;    // by KV group
  std::vector<AttentionPlan> attention_plans_;      // by KV group
  std::vector<std::atomic<int>> split_items_left_;  // by split of the current plan
  int64_t num_logit_rows_ = 0;
  std::optional<Sampler> sampler_;
};

void CpuBackend::prepare(const DeviceModel& model, const DeviceLimits& limits) {
  CAPSTAN_CHECK(limits.block_size > 0 && limits.block_size % kSlotGroup == 0 && limits.num_blocks > 0);
  CAPSTAN_CHECK(limits.max_num_tokens > 0 && limits.max_num_seqs > 0);
  CAPSTAN_CHECK(model.num_kv_heads > 0 && model.num_heads % model.num_kv_heads == 0);
  for (const RopeTable& rope : model.rope_tables) {
    CAPSTAN_CHECK(rope.rotary_dim % 2 == 0 && rope.rotary_dim <= model.head_dim);
    CAPSTAN_CHECK(static_cast<int64_t>(rope.values.size()) >= int64_t{model.max_model_len} * rope.rotary_dim);
  }
  if (model.head_dim > kMaxHeadDim)
    throw Error(ErrorCode::kUnsupportedModel, "head size: expected at most " + std::to_string(kMaxHeadDim) + ", got " +
                                                  std::to_string(model.head_dim));
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
  qkv_stride_ = round_up(q_size + 2 * kv_size, 16);
  const auto floats = [](int64_t count, const char* purpose) {
    return HugeBuffer(static_cast<size_t>(count) * sizeof(float), purpose);
  };
  hidden_ = floats(rows * hidden_stride_, "the hidden states");
  if (world_size() > 1) partial_ = floats(rows * hidden_stride_, "the partial sums of a rank");
  qkv_ = floats(rows * qkv_stride_, "queries, keys and values");
  const int64_t act_rows = std::max<int64_t>(rows, limits_.max_num_seqs);
  const int64_t max_words = std::max(max_act_words_, max_plain_words_);
  acts_ = floats(act_rows * std::max(round_up(std::max(model_.hidden_size, q_size), 2), max_words), "the activations");
  mlp_acts_ =
      floats(rows * std::max(round_up(model_.intermediate_size, 2), max_plain_words_), "the activations of the MLP");
  logits_ = floats(int64_t{limits_.max_num_seqs} * model_.vocab_size, "the logits");
  sampler_.emplace(kernels_, model_.vocab_size, model_.num_token_ids, team_);

  const int64_t item_rows = std::max<int64_t>(kAttentionRows, model_.num_heads / model_.num_kv_heads);
  scratch_floats_ = round_up(attention_scratch_floats(item_rows, kv_layout_.k_dim, kv_layout_.v_dim), 1024);
  if (!has_int8_acts_)
    scratch_floats_ = std::max(scratch_floats_, round_up(dequantized_floats(max_quantized_k_), 1024));
  scratch_ = floats(team_.size() * scratch_floats_, "the attention scratch");
  const int64_t layer_bytes = limits_.num_blocks * (k_block_bytes(kv_layout_) + v_block_bytes(kv_layout_));
  kv_ = HugeBuffer(static_cast<size_t>(model_.num_layers() * layer_bytes), "the KV cache");
}

KvCache CpuBackend::kv_cache(int layer) const {
  const int64_t k_bytes = limits_.num_blocks * k_block_bytes(kv_layout_);
  const int64_t layer_bytes = k_bytes + limits_.num_blocks * v_block_bytes(kv_layout_);
  char* k = kv_.as<char>() + layer * layer_bytes;
  return {kv_layout_, k, k + k_bytes};
}

ActTiles CpuBackend::act_tiles(const HugeBuffer& buffer, int64_t rows, const CpuMatrix& matrix) const {
  const QuantWeights& quant = matrix.quant;
  const bool is_bf16 = quant.type.bits == 0 && has_bf16_acts_;
  ActTiles acts = plain_act_tiles(kernels_, is_bf16 ? bf16_act_format(kernels_, rows) : ActFormat::kF32, rows,
                                  matrix.padded_k, matrix.num_parts);
  acts.data = buffer.as<uint32_t>();
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
  const float* weight = norm == nullptr ? nullptr : static_cast<const CpuVector*>(norm)->values.data();
  if (acts.format == ActFormat::kInt8)
    kernels_.quantize_row(x, weight, k, model_.rms_norm_eps, acts, row);
  else if (norm != nullptr)
    kernels_.rms_norm(x, weight, k, model_.rms_norm_eps, acts, row);
  else
    kernels_.pack_row(x, k, acts, row);
}

ActTiles CpuBackend::pack_rows(const float* x, int64_t stride, const CpuMatrix& matrix) {
  const ActTiles acts = act_tiles(acts_, num_tokens(), matrix);
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
      if (!is_shared)
        for (int64_t i = 0; i < matrix.cols; ++i)
          to[i] += 0.0f;
    }
  });
  if (is_shared) add_all_partials(nullptr);
}

ActTiles CpuBackend::norm_rows(const Vector& norm, std::span<const int32_t> rows, int64_t num_rows,
                               const CpuMatrix& matrix) {
  const ActTiles acts = act_tiles(acts_, num_rows, matrix);
  team_.for_ranges(num_rows, kSerialRows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      store_row(hidden_row(rows.empty() ? row : rows[row]), &norm, model_.hidden_size, acts, row);
  });
  return acts;
}

// All ranks keep their weights in the memory of this machine.
void CpuBackend::check_model(const DeviceModel&, int64_t weight_bytes) const {
  const int64_t needed = weight_bytes * world_size(), available = available_bytes();
  if (needed > available)
    throw Error(ErrorCode::kOutOfMemory, "the weights need " + std::to_string(needed >> 20) + " MiB as " +
                                             dtype_name(weight_dtype_) + ", and " + std::to_string(available >> 20) +
                                             " MiB of memory are available");
}

void CpuBackend::run_gemm(const GemmArgs& args, const CpuMatrix& matrix) {
  CAPSTAN_CHECK(args.acts.words == act_tiles(acts_, args.acts.rows, matrix).words);
  team_.for_pieces(matrix.num_panels, kGemmPanels, [&](int thread, int64_t panel_begin, int64_t panel_end) {
    GemmArgs part = args;
    part.weights = matrix.data.as<void>();
    part.weight_dtype = matrix.dtype;
    part.quant = matrix.quant;
    part.dequantized = scratch_.as<float>() + thread * scratch_floats_;
    part.num_parts = matrix.num_parts;
    part.panel_begin = panel_begin;
    part.panel_end = panel_end;
    kernels_.gemm(part);
  });
}

void CpuBackend::norm_qkv(int layer, const LayerWeights& weights) {
  GemmArgs gemm;
  gemm.out = qkv_.as<float>();
  gemm.out_stride = qkv_stride_;
  for (auto* matrix = static_cast<const CpuMatrix*>(weights.qkv_proj.get()); matrix != nullptr;
       matrix = matrix->rest.get()) {
    gemm.acts = norm_rows(*weights.input_norm, {}, num_tokens(), *matrix);
    gemm.num_features = matrix->rows;
    gemm.bias = matrix->bias.empty() ? nullptr : matrix->bias.data();
    run_gemm(gemm, *matrix);
    gemm.out += matrix->rows;
  }

  QkvRowArgs args;
  args.num_heads = model_.num_heads;
  args.q_norm = weights.q_norm == nullptr ? nullptr : static_cast<const CpuVector&>(*weights.q_norm).values.data();
  args.k_norm = weights.k_norm == nullptr ? nullptr : static_cast<const CpuVector&>(*weights.k_norm).values.data();
  args.eps = model_.rms_norm_eps;
  args.q_scale = model_.attention_scale * kLog2E;
  args.cache = kv_cache(layer);
  const int rope = model_.layer(layer).rope;
  const float* rope_values = nullptr;
  if (rope >= 0) {
    rope_values = model_.rope_tables[static_cast<size_t>(rope)].values.data();
    args.rotary_dim = model_.rope_tables[static_cast<size_t>(rope)].rotary_dim;
  }
  team_.for_ranges(num_tokens(), kSerialRows, [&](int64_t begin, int64_t end) {
    QkvRowArgs row_args = args;
    for (int64_t row = begin; row < end; ++row) {
      row_args.qkv = qkv_.as<float>() + row * qkv_stride_;
      row_args.rope = rope_values + int64_t{step_.positions[row]} * args.rotary_dim;
      row_args.slot = step_.slot_mapping[row];
      kernels_.qkv_row(row_args);
    }
  });
}

AttentionArgs CpuBackend::attention_args(int layer, const AttentionItem& item, int thread) const {
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
  args.kv_head = item.kv_head;
  args.block_table = step_.block_tables.data() + int64_t{item.seq} * step_.max_blocks_per_seq;
  args.cache = kv_cache(layer);
  args.scratch = scratch_.as<float>() + thread * scratch_floats_;
  return args;
}

void CpuBackend::run_attention_item(int layer, const AttentionItem& item, int thread) {
  AttentionArgs args = attention_args(layer, item, thread);
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

void CpuBackend::attention(int layer) {
  const AttentionPlan& plan = attention_plans_[model_.layer(layer).kv_group];
  for (size_t i = 0; i < plan.splits.size(); ++i)
    split_items_left_[i].store(plan.splits[i].num_items, std::memory_order_relaxed);
  std::atomic<size_t> next_item{0};
  const auto work = [&](int thread) {
    for (size_t i; (i = next_item.fetch_add(1, std::memory_order_relaxed)) < plan.items.size();)
      run_attention_item(layer, plan.items[i], thread);
  };
  int64_t cost = 0;
  for (const AttentionItem& item : plan.items)
    cost += item.cost * model_.head_dim * 2;
  if (cost <= kSerialAttention)
    team_.for_ranges(1, 1, [&](int64_t, int64_t) { work(0); });
  else
    team_.run(work);
}

void CpuBackend::add_all_partials(const float* bias) {
  const float* partials[8];
  CAPSTAN_CHECK(world_size() <= 8);
  void* const* published = comm_->exchange(partial_.as<void>());
  for (int rank = 0; rank < world_size(); ++rank)
    partials[rank] = static_cast<const float*>(published[rank]);
  team_.for_ranges(num_tokens(), kSerialRows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* row_partials[8];
      for (int rank = 0; rank < world_size(); ++rank)
        row_partials[rank] = partials[rank] + row * hidden_stride_;
      kernels_.add_partials(hidden_row(row), row_partials, world_size(), bias, model_.hidden_size);
    }
  });
  comm_->barrier();  // the other ranks have read this rank's partials
}

void CpuBackend::row_parallel_residual(const ActTiles& acts, const CpuMatrix& matrix) {
  const float* bias = matrix.bias.empty() ? nullptr : matrix.bias.data();
  GemmArgs gemm;
  gemm.acts = acts;
  gemm.num_features = matrix.rows;
  gemm.out_stride = hidden_stride_;
  if (world_size() == 1) {
    gemm.output = GemmOutput::kResidual;
    gemm.bias = bias;
    gemm.out = hidden_.as<float>();
    run_gemm(gemm, matrix);
  } else {
    gemm.out = partial_.as<float>();
    run_gemm(gemm, matrix);
    add_all_partials(bias);
  }
}

void CpuBackend::output_residual(const LayerWeights& weights) {
  const auto& matrix = static_cast<const CpuMatrix&>(*weights.o_proj);
  row_parallel_residual(pack_rows(qkv_.as<float>(), qkv_stride_, matrix), matrix);
}

ActTiles CpuBackend::mlp_tiles(const CpuMatrix& down_proj) const {
  ActTiles acts = act_tiles(mlp_acts_, num_tokens(), down_proj);
  if (acts.format != ActFormat::kInt8) return acts;
  acts = {};
  acts.data = mlp_acts_.as<uint32_t>();
  acts.rows = num_tokens();
  acts.words = down_proj.padded_k;
  return acts;
}

void CpuBackend::norm_gate_up(const LayerWeights& weights) {
  const auto& matrix = static_cast<const CpuMatrix&>(*weights.gate_up_proj);
  GemmArgs gemm;
  gemm.acts = norm_rows(*weights.post_attention_norm, {}, num_tokens(), matrix);
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
  const bool is_input = act_tiles(mlp_acts_, num_tokens(), matrix).format == mlp.format;
  row_parallel_residual(is_input ? mlp : pack_rows(mlp_acts_.as<float>(), mlp.words, matrix), matrix);
}

void CpuBackend::lm_head(const Vector& norm, const Matrix& head, std::span<const int32_t> rows) {
  const auto& matrix = static_cast<const CpuMatrix&>(head);
  num_logit_rows_ = static_cast<int64_t>(rows.size());
  CAPSTAN_CHECK(num_logit_rows_ > 0 && num_logit_rows_ <= limits_.max_num_seqs);
  for (const int32_t row : rows)
    CAPSTAN_CHECK(row >= 0 && row < num_tokens());
  GemmArgs gemm;
  gemm.acts = norm_rows(norm, rows, num_logit_rows_, matrix);
  gemm.num_features = matrix.rows;
  gemm.bias = matrix.bias.empty() ? nullptr : matrix.bias.data();
  gemm.out_stride = model_.vocab_size;
  float* logits = logits_.as<float>();
  // Every rank writes its columns of rank 0's array.
  if (world_size() > 1) logits = static_cast<float*>(comm_->exchange(logits)[0]);
  gemm.out = logits + model_.vocab_begin;
  run_gemm(gemm, matrix);
  if (world_size() > 1) comm_->barrier();
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
