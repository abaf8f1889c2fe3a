#pragma once
// The class of the CPU backend. The ops of attention and of dense layers are in cpu_backend.cpp, its memory is in
// cpu_prepare.cpp, the mixture of experts in cpu_experts.cpp, inputs per layer in cpu_per_layer.cpp, layer norms and
// pooling in cpu_pooling.cpp, the updates by adapters in cpu_lora.cpp, the MTP head in cpu_mtp.cpp, and what the ops
// take in cpu_work.cpp.
#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "native/backend/cpu/act_tiles.h"
#include "native/backend/cpu/attention_plan.h"
#include "native/backend/cpu/cpu_backend.h"
#include "native/backend/cpu/expert_plan.h"
#include "native/backend/cpu/isa.h"
#include "native/backend/cpu/kernels.h"
#include "native/backend/cpu/lora.h"
#include "native/backend/cpu/matrix.h"
#include "native/backend/cpu/memory.h"
#include "native/backend/cpu/recurrent.h"
#include "native/backend/cpu/sample.h"
#include "native/backend/cpu/team.h"
#include "native/base/machine.h"

namespace capstan {

// Panels that a thread claims at once: two passes of the widest tile.
constexpr int64_t kGemmPanels = 6;
// Rows of a large step: their activations have the layout that takes the most words.
constexpr int64_t kManyRows = 64;
// Towards the end. Few rows take one panel after the other. With many rows, each tile takes long.
inline int64_t least_panels(int64_t num_rows, int tile_panels) {
  if (num_rows <= 4) return 1;
  return num_rows >= kManyRows ? tile_panels : kGemmPanels;
}

// Bytes of the keys (the values) of one block in one layer.
inline int64_t k_block_bytes(const KvLayout& layout) {
  return int64_t{layout.num_kv_heads} * layout.block_size * slot_bytes(layout.dtype, layout.k_dim);
}
inline int64_t v_block_bytes(const KvLayout& layout) {
  return int64_t{layout.num_kv_heads} * layout.block_size * slot_bytes(layout.dtype, layout.v_dim);
}

inline KvLayout make_kv_layout(const KvShape& shape, int block_size, DType dtype) {
  return {dtype,
          block_size,
          shape.num_kv_heads,
          shape.head_dim,
          static_cast<int>(round_up(shape.head_dim, dtype == DType::kInt8 ? 4 : 2)),
          static_cast<int>(round_up(shape.head_dim, 16))};
}

inline const CpuMatrix& matrix_of(const std::unique_ptr<Matrix>& matrix) {
  return static_cast<const CpuMatrix&>(*matrix);
}

class CpuBackend final : public Backend {
 public:
  CpuBackend(const CpuBackendOptions& options, std::unique_ptr<Comm> comm)
      : weight_dtype_(options.weight_dtype),
        has_int8_acts_(options.has_int8_acts),
        kernels_(cpu_kernels(options.isa)),
        comm_(std::move(comm)),
        profile_(options.profile),
        team_(options.cpus, options.may_spin, options.profile) {
    has_bf16_acts_ = weight_dtype_ == DType::kBf16 && !options.compute_f32;
    info_.name = "cpu";
    info_.isa = cpu_isa_name(options.isa);
    info_.depth = 1;
    info_.preferred_block_size = kSlotGroup;
    info_.block_size_multiple = kSlotGroup;
    info_.has_quantized_weights = true;
    info_.has_int8_cache = true;
    info_.has_adapters = true;
    info_.has_mtp = true;
    info_.has_kv_copies = true;
    info_.compute_dtype = has_bf16_acts_ ? DType::kBf16 : DType::kF32;
  }

  const BackendInfo& info() const override { return info_; }
  void check_model(const DeviceModel& model, int64_t weight_bytes) const override;

  std::unique_ptr<Matrix> load_matrix(const MatrixSource& source, const LoadProgress& progress) override {
    const DType dtype = source.format == WeightFormat::kF32 ? DType::kF32 : weight_dtype_;
    std::unique_ptr<CpuMatrix> matrix = pack_matrix(source, dtype, kernels_, team_, weight_pool_, progress);
    for (const CpuMatrix* part = matrix.get(); part != nullptr; part = part->rest.get()) {
      if (is_quantized(*part)) {
        max_act_words_ = std::max(max_act_words_, int8_act_words(kernels_, part->quant));
        max_decoded_floats_ = std::max(max_decoded_floats_, has_int8_acts_ ? int8_scratch_floats(kernels_, part->quant)
                                                                           : dequantized_floats(part->padded_k));
      } else {
        max_plain_words_ = std::max(max_plain_words_, act_tiles(nullptr, kManyRows, *part).words);
      }
    }
    return matrix;
  }
  std::unique_ptr<Vector> load_vector(const TensorSlice& slice, float offset, const LoadProgress& progress) override {
    return read_vector(slice, offset, progress);
  }
  std::unique_ptr<Vector> load_layer_norm(const TensorSlice& weight, const TensorSlice* bias,
                                          const LoadProgress& progress) override {
    return read_layer_norm(weight, bias, progress);
  }
  std::unique_ptr<Vector> load_convolution(const MatrixSource& source, const LoadProgress& progress) override {
    return read_convolution(source, progress);
  }

  std::unique_ptr<LoraMatrix> load_lora(const LoraSource& source, const Matrix& matrix) const override;

  int64_t kv_block_bytes(const DeviceModel& model, int kv_group, int block_size, DType kv_cache_dtype) const override {
    const KvLayout layout = make_kv_layout(model.kv_shape(kv_group), block_size, kv_cache_dtype);
    return model.kv_groups[static_cast<size_t>(kv_group)].num_layers * (k_block_bytes(layout) + v_block_bytes(layout)) +
           stored_hidden_bytes(model, kv_group);
  }
  int64_t state_slot_bytes(const DeviceModel& model) const override {
    return RecurrentLayers::slot_floats(model) * static_cast<int64_t>(sizeof(float));
  }
  int64_t available_bytes() const override { return available_memory_bytes(); }
  void prepare(const DeviceModel& model, const DeviceLimits& limits) override;

  void begin_step(const StepInput& step) override;
  void embed(const Matrix& table) override;
  void per_layer_inputs(const PerLayerInputWeights& weights) override;
  void add_embeddings(const EmbeddingWeights& weights) override;
  void norm_qkv(int layer, const LayerWeights& weights) override;
  void attention(int layer, const LayerWeights& weights) override;
  void recurrent(int layer, const LayerWeights& weights) override;
  void output_residual(const LayerWeights& weights) override;
  void norm_gate_up(const LayerWeights& weights) override;
  void down_residual(const LayerWeights& weights) override;
  void moe_residual(const LayerWeights& weights) override;
  void end_layer(int layer, const LayerWeights& weights) override;
  void lm_head(const Vector& norm, const Matrix& head, std::span<const int32_t> rows) override;
  void sample(std::span<const SampleRow> rows, std::span<SampleResult> results) override;
  void pool(const Vector* norm, std::span<const HeadLayer> head, std::span<const PoolRow> rows) override;
  void keep_hidden(const Vector& norm) override;
  void store_hidden(std::span<const StoredHidden> rows) override;
  void mtp_input(const MtpWeights& weights, std::span<const int32_t> hidden_before) override;
  void read_kv_block(int kv_group, int32_t block_id, std::span<std::byte> to) const override;
  void write_kv_block(int kv_group, int32_t block_id, std::span<const std::byte> from) override;

 private:
  int world_size() const { return comm_ == nullptr ? 1 : comm_->world_size(); }
  int64_t num_tokens() const { return static_cast<int64_t>(step_.positions.size()); }
  float* hidden_row(int64_t row) const { return hidden_.as<float>() + row * hidden_stride_; }

  void plan_memory();
  void allocate();
  void allocate_mtp();
  // Returns the bytes of the hidden state that is stored with a block of the MTP head's KV group; 0 in other groups.
  static int64_t stored_hidden_bytes(const DeviceModel& model, int kv_group);
  static bool is_quantized(const CpuMatrix& matrix) { return matrix.quant.type.bits != 0; }
  // Returns the activations that a matrix is multiplied with, in the memory at `data`.
  ActTiles act_tiles(uint32_t* data, int64_t rows, const CpuMatrix& matrix) const;
  // Row `row` of acts = x, or x * norm / rms(x) when `norm` is given.
  void store_row(const float* x, const Vector* norm, int64_t k, const ActTiles& acts, int64_t row) const;
  size_t kv_group(int layer) const { return static_cast<size_t>(model_.layer(layer).kv_group); }
  KvShape kv_shape(int layer) const { return model_.kv_shape(model_.layer(layer).kv_group); }
  KvCache kv_cache(int layer) const;
  template <typename Visit>
  void for_block_parts(int kv_group, int32_t block_id, Visit visit) const;
  AttentionArgs attention_args(int layer, const Vector* sinks, const AttentionItem& item, int thread) const;
  void run_attention_item(int layer, const Vector* sinks, const AttentionItem& item, int thread);
  // Returns rms_norm(hidden) of the given rows, or of all rows when `rows` is empty, as the input of a matrix.
  ActTiles norm_rows(const Vector* norm, std::span<const int32_t> rows, int64_t num_rows, const CpuMatrix& matrix);
  // Returns the result of the MLP's first half: the input of the down projection, or f32 rows that it quantizes,
  // because a run's scale is known only when the whole row is.
  ActTiles mlp_tiles(const CpuMatrix& down_proj) const;
  bool mlp_is_input(const CpuMatrix& down_proj) const;
  // Returns f32 rows of `padded_k` words each.
  ActTiles float_rows(uint32_t* data, int64_t rows, const CpuMatrix& matrix) const;
  // Stores rows [row, row + count) = x (count, stride), for the update too.
  void store_rows(const float* x, int64_t stride, int64_t k, const ActTiles& acts, int64_t row, int64_t count);
  // Returns the rows x (num_tokens, stride) as the input of a matrix.
  ActTiles pack_rows(const float* x, int64_t stride, const CpuMatrix& matrix);
  // Computes panels [begin, end) on one of the team's threads.
  void run_panels(const GemmArgs& args, const CpuMatrix& matrix, int thread, int64_t begin, int64_t end);
  // out (num_tokens, features of the matrix and its rest) = rms_norm(hidden) · weightsᵀ + bias.
  void norm_gemm(const Vector* norm, const Matrix& weights, const FloatRows& out);
  void gate_attention(const KvShape& shape);
  void run_gemm(const GemmArgs& args, const CpuMatrix& matrix);
  // What the products of the rows with a matrix take, and the attention of the step. Call them with a profile only.
  void count_product(const ActTiles& acts, const CpuMatrix& matrix);
  void count_attention(int layer);
  void count_experts(const HugeBuffer& acts, const MoeWeights& moe, std::unique_ptr<Matrix> ExpertWeights::* matrix);
  // Publishes `own`, which must not move, and returns the pointers of all ranks.
  void* const* exchange(void* const& own);
  // Waits for the other ranks.
  void meet_ranks();
  // Sets the inverse root mean squares over all heads of q and k of each row.
  void norm_all_heads(const KvShape& shape);
  // hidden += residual_scale · norm(acts · weightsᵀ + bias), over all ranks. A norm of the sum comes after the
  // addition.
  void row_parallel_residual(const ActTiles& acts, const CpuMatrix& matrix, const Vector* layer_norm);
  // out (n) = norm(x), or x when `norm` is null. Both have a multiple of 16 values.
  void norm_row(const float* x, const Vector* norm, int64_t n, float* out) const;
  // Fills biases_ from the table, unless it holds them already.
  void spread_biases(const Vector& table);
  // Of a head, in biases_: distances from -max_model_len on, and the rest of the last tile.
  int64_t bias_stride() const { return round_up(2 * int64_t{model_.max_model_len} + kKvTile, 16); }
  // hidden = norm(hidden).
  void norm_hidden(const Vector& norm);
  // Adds a row to the sum of its sequence, in the way of the model's pooling.
  void add_to_pool(const float* row, int weight, std::span<float> sum) const;
  // pooled rows [0, num_rows) = head(them).
  void run_head(std::span<const HeadLayer> head, int64_t num_rows);
  // hidden += scale · norm(sum of all ranks' partial_ + update + bias).
  void add_all_partials(const float* bias, const Vector* norm, float scale);
  // Applies logit_scale and logit_soft_cap to the first `num_ids` logits of each row.
  void scale_logits(float* logits, int64_t num_ids);
  // q_size: features of all heads.
  void allocate_lora(int64_t q_size);
  void allocate_expert_lora(int64_t num_pairs, int64_t widest);
  // `widest`: the most inputs of a matrix.
  LoraBuffers make_lora_buffers(int64_t num_rows, int64_t num_runs, int64_t widest);
  // Begins the update of one matrix: of_adapter(adapter) returns it, or null. Until end_update, the rows that norm_rows
  // and pack_rows store are stored for A too.
  template <typename OfAdapter>
  void begin_update(OfAdapter of_adapter);
  // The same for a matrix of the current layer.
  void begin_layer_update(std::unique_ptr<LoraMatrix> LayerAdapter::* matrix);
  void end_update() { has_update_ = false; }
  const CpuLora* lora_of_row(int64_t row) const;
  // The activations of the rows of a run for A.
  ActTiles lora_tiles(const LoraBuffers& buffers, const LoraRun& run) const;
  float* lora_t(const LoraBuffers& buffers, int64_t place) const { return buffers.t + place * lora_t_stride_; }
  float* lora_lanes(const LoraBuffers& buffers, int64_t place) const {
    return buffers.lanes.as<float>() + place * lora_lane_stride_;
  }
  void store_lora_row(const float* x, const Vector* norm, int64_t k, int64_t row) const;
  // Stores row `i` of a run.
  void store_run_row(const LoraBuffers& buffers, const LoraRun& run, const float* x, const Vector* norm, int64_t k,
                     int64_t i) const;
  // t = scale · A · x of all rows. `is_partial`: A · x of this rank's part of K.
  void multiply_a(bool is_partial);
  void multiply_runs(const LoraBuffers& buffers, bool is_partial);
  void multiply_panel(const LoraBuffers& buffers, const LoraRun& run, int64_t panel, int thread, bool is_partial);
  static void spread_to_lanes(const CpuLora& lora, const float* t, int begin, float* lanes);
  // Returns the update of a row for a matrix, or one of those that follow it as `rest`.
  LoraRow lora_row(const LoraBuffers& buffers, const CpuLora& lora, size_t part, int64_t place) const;
  // Returns the updates of all rows. Null without an update.
  const LoraRow* update_rows(size_t part);
  // Returns the update of a row of a row-parallel product, or null. `published`: partial_ of all ranks.
  const float* summed_update(int64_t row, void* const* published);
  // The same from the products with A of all ranks, which begin `t_at` floats after the published pointers.
  const float* sum_update(const LoraBuffers& buffers, const CpuLora& lora, int64_t place, int64_t t_at,
                          void* const* published);
  // Adds the updates of the embedding to the hidden states.
  void update_embeddings();
  // Whether a row of the step has an adapter with an update of such a matrix of the layer's experts.
  bool has_expert_update(std::unique_ptr<LoraMatrix> ExpertAdapter::* matrix) const;
  // Sets the runs of the pairs of experts that have an update of the given matrix.
  void plan_expert_update(std::unique_ptr<LoraMatrix> ExpertAdapter::* matrix);
  const CpuLora* lora_of_pair(int expert, int64_t pair, std::unique_ptr<LoraMatrix> ExpertAdapter::* matrix) const;
  // Stores the rows of these runs: row_of(run, pair).
  template <typename RowOf>
  void store_expert_runs(RowOf row_of);
  // Returns the update of a pair's result of a row-parallel product, or null. `published`: expert_out_ of all ranks.
  const float* summed_expert_update(int expert, int64_t pair, void* const* published);
  // Computes t of the runs, and returns the updates by pair. Null without an update.
  const LoraRow* multiply_expert_a(bool is_partial);
  void route(const LayerWeights& weights);
  // The activations of the pairs of an expert, at the place of its first pair.
  ActTiles expert_tiles(const HugeBuffer& buffer, int expert, const CpuMatrix& matrix) const;
  // The input of an expert's down projection: f32 rows if its tiles are int8 or an adapter updates the projection.
  ActTiles gated_tiles(int expert, const CpuMatrix& down_proj) const;
  void pack_expert_inputs(const LayerWeights& weights);
  void run_expert_gate_up(const MoeWeights& moe);
  void run_expert_down(const MoeWeights& moe);
  void add_expert_sums(const LayerWeights& weights);
  void add_normed(const float* x, const Vector* norm, float scale, float* to) const;
  // Calls work(thread, expert, begin, end) for ranges of the panels of `matrix_of(expert)` of all experts with tokens.
  template <typename MatrixOf, typename Work>
  void for_expert_panels(MatrixOf matrix_of, Work work);

  const DType weight_dtype_;
  const bool has_int8_acts_;
  bool has_bf16_acts_;
  const CpuKernels& kernels_;
  const bool wants_prefetch_ = wants_prefetch();
  const std::unique_ptr<Comm> comm_;
  StepProfile* const profile_;  // null = no profile
  Team team_;
  BackendInfo info_;

  DeviceModel model_;
  DeviceLimits limits_;
  std::vector<KvLayout> kv_layouts_;  // by KV group
  int64_t hidden_stride_ = 0, qkv_stride_ = 0, pooled_stride_ = 0;

  std::vector<HugeBuffer> kv_;  // by KV group: (num_layers) K then V, layouts in kernels.h
  HugePool weight_pool_;
  HugeBuffer hidden_;    // (max_num_tokens, hidden_stride)
  HugeBuffer partial_;   // (max_num_tokens, hidden_stride) this rank's part of a sum; then t of the adapters
  HugeBuffer qkv_;       // (max_num_tokens, qkv_stride) q, k, v; attention replaces q by its result
  HugeBuffer acts_;      // ActTiles: results of the norms, the attention result
  HugeBuffer mlp_acts_;  // ActTiles: input of the down projection
  HugeBuffer logits_;    // (max_num_seqs, vocab_size), filled on rank 0
  HugeBuffer pooled_;    // (2, max_num_seqs, pooled_stride) inputs and results of the layers of a pooling head
  HugeBuffer biases_;    // (num_heads, bias_stride) added to the scores, by distance
  const Vector* biases_of_ = nullptr;  // the table that biases_ was filled from
  HugeBuffer squares_;           // (max_num_tokens, num_heads + num_kv_heads) sums of squares, for QkNorm::kAllHeads
  HugeBuffer inverse_rms_;       // (max_num_tokens, 2) of q and k over all heads
  HugeBuffer per_layer_inputs_;  // (max_num_tokens, per_layer_stride_)
  HugeBuffer per_layer_rows_;    // (threads, per_layer_stride_) rows of their table
  HugeBuffer per_layer_gate_;    // (max_num_tokens, per_layer_gate_stride_)
  int64_t per_layer_stride_ = 0, per_layer_gate_stride_ = 0;
  HugeBuffer router_logits_;   // (max_num_tokens, num_experts rounded up to 16)
  HugeBuffer expert_acts_;     // (max_pairs, expert_act_words) ActTiles: inputs of the experts
  HugeBuffer expert_mlp_;      // the same: inputs of their down projections
  HugeBuffer expert_mlp_f32_;  // the same: f32 rows before they are quantized, or stored a second time for adapters
  HugeBuffer expert_out_;      // (max_pairs, hidden_stride) this rank's part of the results; then t of the adapters
  HugeBuffer expert_sums_;     // (max_num_tokens, hidden_stride) of Moe::has_separate_norms: what has a norm next
  int64_t expert_act_words_ = 0;
  ExpertPlan expert_plan_;
  std::vector<int64_t> expert_panels_;  // scratch of for_expert_panels
  HugeBuffer scratch_;                  // (threads, scratch_floats) of attention, and decoded weights
  HugeBuffer states_;                   // (max_states, v_dim + 2) of chunks of attention that several items compute
  int64_t scratch_floats_ = 0;
  int64_t max_act_words_ = 0, max_decoded_floats_ = 0;  // over the quantized matrices
  int64_t max_plain_words_ = 0;                         // over the others

  StepInput step_;
  std::vector<AttentionShape> attention_shapes_;    // by KV group
  std::vector<AttentionPlan> attention_plans_;      // by KV group
  std::vector<std::atomic<int>> split_items_left_;  // by split of the current plan
  int64_t num_logit_rows_ = 0;
  std::optional<Sampler> sampler_;
  std::optional<RecurrentLayers> recurrent_;
  FloatRows mixer_rows_;  // result of the layer's mixer

  HugeBuffer kept_hidden_;    // (max_num_tokens, hidden_stride)
  HugeBuffer stored_hidden_;  // (num_blocks, hidden_stride) by block of the MTP head's KV group
  HugeBuffer mtp_rows_;       // (max_num_tokens, 2 * hidden_size rounded up to 16) embeddings, then hidden states

  int layer_ = 0;                              // whose ops run
  LoraPlan lora_plan_, head_plan_;             // of all rows, and of those of the LM head
  const LoraPlan* row_plan_ = &lora_plan_;     // of the current product
  bool has_update_ = false;                    // some rows have an update of the current matrix
  std::vector<const CpuLora*> lora_of_group_;  // by group: the update of the current matrix, or null
  std::vector<int64_t> lora_panels_;           // scratch of multiply_runs
  LoraBuffers lora_;                           // by place of the row
  LoraBuffers expert_lora_;                    // by pair
  bool updates_expert_down_ = false;           // some rows have an update of the layer's down projections
  int64_t lora_t_stride_ = 0, lora_lane_stride_ = 0;
};

template <typename OfAdapter>
void CpuBackend::begin_update(OfAdapter of_adapter) {
  has_update_ = false;
  for (size_t i = 0; i < row_plan_->groups.size(); ++i) {
    const LoraMatrix* update = of_adapter(*row_plan_->groups[i].adapter);
    lora_of_group_[i] = static_cast<const CpuLora*>(update);
    has_update_ = has_update_ || update != nullptr;
  }
}

}  // namespace capstan
