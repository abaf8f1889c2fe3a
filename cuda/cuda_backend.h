#pragma once
// The Backend of one rank on one CUDA device. The sources share this class by role: backend.cu (construction and
// weights), backend_memory.cu (buffers), backend_step.cu (steps and CUDA graphs), backend_ops.cu (the ops of a layer),
// backend_recurrent.cu (recurrent layers), backend_experts.cu (mixtures of experts), backend_per_layer.cu (inputs per
// layer), backend_pooling.cu (encoders and models that pool), backend_adapters.cu (LoRA) and backend_all_reduce.cu
// (sums over parts and ranks).
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cuda/adapters.h"
#include "cuda/backend.h"
#include "cuda/experts.h"
#include "cuda/graph.h"
#include "cuda/kernels.h"
#include "cuda/memory.h"
#include "cuda/pooling.h"
#include "cuda/ranks.h"
#include "cuda/sampling.h"
#include "cuda/step.h"
#include "cuda/weights.h"

namespace capstan::cuda {

// The preferred block size. Block sizes are multiples of it, so that a tile of keys lies within one block.
constexpr int kBlockSize = 64;
// Most tokens that launch_gemm multiplies where wgmma is available. Also the most tokens whose parts of sums are kept.
constexpr int kSkinnyTokens = 64;
constexpr int kTokenPad = 64;  // kernels read activations in tiles of up to this many tokens

// What CAPSTAN_CUDA_WITHOUT can switch off, so that a fault on a device can be traced to one of them.
struct Features {
  bool graphs = true;           // decode steps run as CUDA graphs
  bool early = true;            // programmatic dependent launch
  bool gemv = true;             // launch_gemv for few tokens
  bool fused_heads = true;      // launch_gemv computes the heads' norm, RoPE and cache entries as well
  bool k_splits = true;         // several blocks share a product by splitting K
  bool wgmma = true;            // launch_gemm_wgmma, which needs TMA, and launch_attention_wgmma
  bool wgmma_attention = true;  // launch_attention_wgmma
  bool codes = true;            // quantized weights stay in codes; otherwise they are decoded at load
  bool one_shot = true;         // one-shot all-reduce where two-shot is possible
};

class CudaBackend final : public Backend {
 public:
  CudaBackend(const CudaBackendOptions& options, std::unique_ptr<Comm> comm);
  ~CudaBackend() override;

  const BackendInfo& info() const override { return info_; }

  std::unique_ptr<Matrix> load_matrix(const MatrixSource& source, const LoadProgress& progress) override;
  std::unique_ptr<Vector> load_vector(const TensorSlice& slice, float offset, const LoadProgress& progress) override;
  std::unique_ptr<Vector> load_layer_norm(const TensorSlice& weight, const TensorSlice* bias,
                                          const LoadProgress& progress) override;
  std::unique_ptr<Vector> load_convolution(const MatrixSource& source, const LoadProgress& progress) override;
  std::unique_ptr<LoraMatrix> load_lora(const LoraSource& source, const Matrix& matrix) const override;

  void check_model(const DeviceModel& model, int64_t weight_bytes) const override;
  int64_t kv_block_bytes(const DeviceModel& model, int kv_group, int block_size, DType kv_cache_dtype) const override;
  int64_t state_slot_bytes(const DeviceModel& model) const override;
  int64_t available_bytes() const override { return memory().free; }
  void reserve(const DeviceModel& model, const DeviceLimits& limits) override;
  int64_t kv_budget_bytes(double utilization) const override;
  std::vector<std::string> notes() const override;
  void prepare(const DeviceModel& model, const DeviceLimits& limits) override;
  void begin_serving() override { is_serving_ = true; }

  void begin_step(const StepInput& step) override;
  void embed(const Matrix& table) override;
  void add_embeddings(const EmbeddingWeights& weights) override;
  void per_layer_inputs(const PerLayerInputWeights& weights) override;
  void norm_qkv(int layer, const LayerWeights& weights) override;
  void attention(int layer, const LayerWeights& weights) override;
  void recurrent(int layer, const LayerWeights& weights) override;
  void output_residual(const LayerWeights& weights) override {
    add_result(*weights.o_proj, *mixer_acts_, &LayerAdapter::o_proj, device_vector(weights.attention_out_norm));
  }
  void norm_gate_up(const LayerWeights& weights) override;
  void moe_residual(const LayerWeights& weights) override;
  void down_residual(const LayerWeights& weights) override {
    add_result(*weights.down_proj, mlp_acts_.at(weights.down_proj->cols), &LayerAdapter::down_proj,
               device_vector(weights.mlp_out_norm));
  }
  void end_layer(int layer, const LayerWeights& weights) override;
  void lm_head(const Vector& norm, const Matrix& head, std::span<const int32_t> rows) override;
  void sample(std::span<const SampleRow> rows, std::span<SampleResult> results) override;
  void pool(const Vector* norm, std::span<const HeadLayer> head, std::span<const PoolRow> rows) override;
  void collect() override;

 private:
  // Activations (tokens, K), in operand layout or row-major, with K split as the weights' is. Padding is never written
  // and stays zero. The two layouts share one buffer unless the parts have padding between them.
  struct Acts {
    DeviceBuffer buffer, row_major;
    DepthSplit split;
    ActMaps maps{};  // of the row-major layout
    uint16_t* data(bool is_row_major) const {
      return is_row_major && row_major.bytes() > 0 ? row_major.as<uint16_t>() : buffer.as<uint16_t>();
    }
  };

  // Of a model with recurrent layers.
  struct RecurrentBuffers {
    int64_t projection_stride = 0;
    DeviceBuffer projections, mixed, gates;  // as in RecurrentArgs
    DeviceBuffer states;                     // (num_state_slots, recurrent layers) of layer_state_floats
    Acts acts;
  };

  // Of a model with inputs per layer.
  struct LayerInputBuffers {
    DeviceBuffer inputs;  // (max_num_tokens, num_layers, per_layer_input_size)
    Acts acts;
  };

  // Of a model that pools.
  struct PoolBuffers {
    DeviceBuffer sums;             // (max_num_seqs, hidden_size)
    DeviceBuffer rows[2];          // (max_num_seqs, …) inputs and results of the layers of the head, in turn
    PinnedBuffer host;             // sums, then results
    std::map<int64_t, Acts> acts;  // by the inputs of a layer of the head, unless they are as many as hidden_size
  };

  // Of a model that adds biases to the scores, for the distances from -max_model_len to max_model_len.
  struct DistanceBuffers {
    DeviceBuffer rows;    // (distances) of the table
    DeviceBuffer biases;  // (num_heads, distances)
  };

  // Of a model with experts. The choice, the rows and the tiles are those of experts.h.
  struct ExpertBuffers {
    DeviceBuffer chosen, weights, pair_rows, row_tokens, first_rows, tile_experts;
    // (rows, hidden_size), then (tokens, hidden_size) of the shared expert. With adapters, t of these rows follows.
    DeviceBuffer results;
    Acts acts, mlp_acts;  // by row
    Acts shared_acts;     // by token
    // Of adapters: the updates of the rows, and then of each token's shared expert; and RouterArgs::updates.
    DeviceBuffer gate_up_loras, down_loras, router_updates;
  };
  // (num_experts) of DeviceMatrix each
  struct ExpertArrays {
    DeviceBuffer gate_ups, downs;
  };

  // A decode step enqueues nothing until the rows to sample are known: its ops are deferred, then captured in a graph
  // or run. In replay mode an existing graph replaces the ops.
  enum class StepMode : uint8_t { kEager, kDeferred, kReplay };

  // Partial sums that no kernel has added to the hidden states yet. The kernel of the next norm adds them, as
  // AddPartialsArgs says.
  struct PendingSum {
    const float* bias = nullptr;
    bool replaces = false;
    const float* norm = nullptr;
    float scale = 1;
    const float* local = nullptr;  // (parts, tokens, hidden_size) of this rank; null: the partial() of all ranks
    int parts = 0;
    float factor = 1;
  };

  struct Memory {
    int64_t free, total;
  };

  // Runs `work` with this rank's device current, and decides whether a failure loses the device.
  template <class Work>
  auto guarded(const Work& work) const -> decltype(work()) {
    throw_if_device_lost();
    try {
      check(cudaSetDevice(device_), "selecting the device");
      return work();
    } catch (const std::exception& error) {
      is_shared_capture = false;  // the capture has failed, but the thread lives on
      // With NCCL, other ranks may have enqueued an all-reduce that waits for this rank forever.
      if (is_serving_ && (ranks_->has_nccl() || dynamic_cast<const RuntimeError*>(&error) != nullptr))
        lose_device(error.what());
      throw;
    }
  }

  // Enqueues `op` now or with the deferred ops. What it refers to must live until the next step begins.
  template <class Op>
  void enqueue(Op op) {
    if (mode_ == StepMode::kReplay) return;
    guarded([&] {
      if (mode_ == StepMode::kEager) return op();
      deferred_ops_.push_back(std::move(op));
    });
  }

  Memory memory() const;
  std::string graph_note() const;
  void allocate(const DeviceModel& model, const DeviceLimits& limits);
  Acts make_acts(int64_t rows, const DepthSplit& split, const char* purpose, bool may_be_row_major = true);
  void allocate_experts(int64_t num_tokens);
  void allocate_recurrent(int64_t num_tokens);
  void allocate_layer_inputs(int64_t num_tokens);
  void allocate_states();
  void allocate_pooling(int64_t num_seqs);
  void allocate_distances();

  void capture_step();
  void flush_step();
  void limit_run_ahead();
  void head_rows(const Vector& norm, const Matrix& head, const int32_t* rows, int num_rows, const LoraRows& updated);

  NormArgs norm_args(const float* weight, const int32_t* rows, int num_rows) const;
  GemmArgs gemm_args(const Matrix& weights, const Acts& acts, int num_tokens) const;
  void project(GemmArgs product, const NormArgs* norm = nullptr, const QkvArgs* heads = nullptr);
  void row_parallel_residual(const Matrix& weights, const Acts& acts, StepAdapters::Member adapter, const float* norm);
  void add_result(const Matrix& weights, const Acts& acts, StepAdapters::Member adapter, const float* norm);

  void allocate_adapters();
  void norm_alone(const NormArgs& norm);
  void multiply_a(const LoraRows& rows, const Acts& acts, float* t, int t_stride);
  void multiply_a(const LoraRows& rows, const Acts& acts) {
    multiply_a(rows, acts, lora_values_.as<float>(), lora_stride_);
  }
  LoraUpdateArgs update_args(const LoraRows& rows, const GemmArgs& product) const;
  void updated_embeddings(const LoraRows& rows);
  void updated_product(const LoraRows& rows, const GemmArgs& product, const Acts& acts);
  void updated_residual(const LoraRows& rows, GemmArgs product, const Acts& acts, const float* norm);
  // Multiplies tokens from `first_token` on.
  using Multiply = std::function<void(const GemmArgs& product, int first_token)>;
  void updated_gates(const LoraRows& rows, GemmArgs product, const Acts& acts, const Multiply& multiply);

  void finish_heads(QkvArgs heads);
  void gate_attention(int layer);
  // Calls `work` with the ids that the previous step has sampled.
  template <class Work>
  void read_drawn_ids(const Work& work) {
    // Only rank 0 samples. The other ranks read its ids.
    const void* drawn_ids = sampler_ == nullptr ? nullptr : sampler_->drawn_ids();
    if (reads_rank_0_ids_) drawn_ids = ranks_->begin_exchange(const_cast<void*>(drawn_ids), stream_)[0];
    // Without sampled ids in the step this pointer is never read.
    work(drawn_ids == nullptr ? step_.ids : static_cast<const int32_t*>(drawn_ids));
    if (reads_rank_0_ids_) ranks_->end_exchange(stream_);
  }

  const ExpertArrays& arrays_of(const MoeWeights& moe);
  // The updates of the rows, and of the shared expert, whose rows follow. Null without an update.
  struct ExpertLoras {
    StepAdapters::Loras gate_ups = nullptr, downs = nullptr;
  };
  ExpertLoras look_up_expert_loras(const ExpertRowsArgs& rows);
  void multiply_experts(const MoeWeights& weights, const ExpertArrays& arrays, const ExpertRowsArgs& rows,
                        const ExpertLoras& loras);
  void multiply_shared_expert(const ExpertWeights& shared, int64_t first_row, const ExpertLoras& loras);
  void multiply_expert_a(StepAdapters::Loras loras, const Acts& acts, int64_t first_row, int num_rows);
  int64_t expert_t_begin() const;  // in ExpertBuffers::results

  RowNormArgs row_norm_args(float* rows, int num_rows, int64_t size, const float* weight) const;
  void norm_hidden(const float* weight);
  const float* run_head(std::span<const HeadLayer> head, int num_rows);

  void finish_sum();
  void all_reduce_partials(float* hidden);
  void all_reduce_and_norm(const NormArgs& norm);
  void all_gather_acts(const NormArgs& norm);
  AddPartialsArgs sum_args() const;
  AddPartialsArgs local_sum_args() const;
  AddPartialsArgs partials_args(std::span<void* const> all, int begin, int end) const;
  AddPartialsArgs nccl_sum_args() const;

  int world_size() const { return ranks_->size(); }
  FloatType type() const { return dtype_ == DType::kBf16 ? FloatType::kBf16 : FloatType::kF16; }
  bool is_row_major(int num_tokens) const { return has_wgmma_ && adapters_.is_empty() && num_tokens > kSkinnyTokens; }
  // Programmatic dependent launch gains nothing with many tokens.
  bool uses_pdl(int num_tokens) const { return uses_pdl_ && num_tokens <= kSkinnyTokens; }
  bool is_gemv(const GemvArgs& args) const {
    return features_.gemv && args.product.num_tokens <= kGemvTokens && supports_gemv(args.product.weights) &&
           gemv_shared_bytes(args) <= resources_.shared_bytes;
  }
  static const CudaMatrix& cuda_matrix(const Matrix& matrix) { return static_cast<const CudaMatrix&>(matrix); }
  static const float* device_vector(const std::unique_ptr<Vector>& vector) {
    return vector == nullptr ? nullptr : static_cast<const CudaVector&>(*vector).device();
  }
  static float first_value(const std::unique_ptr<Vector>& vector) {
    return static_cast<const CudaVector&>(*vector).first;
  }

  int num_distances() const { return 2 * model_.max_model_len + 1; }

  int share_begin(int rank) const { return cuda::share_begin(rank, step_.num_tokens, world_size()); }
  int share_size() const { return cuda::share_size(step_.num_tokens, world_size()); }
  size_t kv_group(int layer) const { return static_cast<size_t>(model_.layer(layer).kv_group); }
  int64_t layer_bytes(size_t kv_group) const { return limits_.num_blocks[kv_group] * layouts_[kv_group].block_bytes(); }
  void* cache_of(int layer) const {
    return kv_[kv_group(layer)].as<char>() + model_.layer(layer).kv_layer * layer_bytes(kv_group(layer));
  }
  // (max_num_tokens, hidden_size) this rank's partial sums. With several ranks, or norms of results.
  float* partial() const { return hidden_.as<float>() + partial_offset(); }
  int64_t partial_offset() const { return limits_.max_num_tokens * model_.hidden_size; }
  // Rows begin at multiples of 16 bytes, so that every row is read and summed in the same order.
  int64_t logits_stride() const { return round_up(model_.vocab_size, 4); }

  const int device_, num_sharing_;  // num_sharing_: ranks on this device
  const DType dtype_;
  const Features features_;
  const GroupQuantizer quantize_group_;
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<Ranks> ranks_;
  DeviceResources resources_;
  bool has_wgmma_ = false;    // available and enabled
  bool can_capture_ = false;  // the KV cache has its final address
  bool uses_pdl_ = false;     // programmatic dependent launch
  BackendInfo info_;
  DeviceModel model_;
  DeviceLimits limits_;
  std::vector<KvLayout> layouts_;  // by KV group
  int64_t qkv_stride_ = 0;

  std::vector<DeviceBuffer> kv_;  // by KV group: (layers that store, num_blocks) of the layout
  DeviceBuffer hidden_;           // (max_num_tokens, hidden_size), followed by partial()
  DeviceBuffer sums_;             // (max_num_tokens, hidden_size) over the ranks, for norms of updated results
  DeviceBuffer qkv_;              // (max_num_tokens, qkv_stride)
  DeviceBuffer q_;                // (max_num_tokens, num_heads, k_dim), with the largest k_dim
  DeviceBuffer rope_;             // per table (max_model_len, 2, rotary_dim / 2)
  std::vector<int64_t> rope_offsets_;
  DeviceBuffer query_scales_;  // per table (max_model_len)
  DeviceBuffer squares_;       // (max_num_tokens, heads of q and k) for norms over all heads
  DeviceBuffer logits_;        // (max_num_seqs, logits_stride); rank 0's holds the columns of all ranks
  DeviceBuffer scratch_;       // of attention
  DeviceBuffer rows_done_;     // (heads of q, k and v) zeros between products
  DeviceBuffer tile_flags_;    // of row-parallel products by wgmma, zeros between products
  DeviceBuffer parts_;         // (kMaxParts, kSkinnyTokens, hidden_size or qkv_stride) of one product
  Acts norm_acts_;
  std::vector<Acts> attention_acts_;  // by KV group
  std::map<int64_t, Acts> mlp_acts_;  // by the inputs of down_proj
  const Acts* mixer_acts_ = nullptr;  // of the layer that is called
  StepAdapters adapters_;
  cudaStream_t adapter_stream_ = nullptr;  // uploads adapters beside the steps
  int lora_stride_ = 0;                    // max_lora_values
  DeviceBuffer lora_values_;               // (tokens or rows of experts, lora_stride) of one product
  DeviceBuffer gates_ups_;                 // of some tokens or rows of experts, before the activation
  int layer_ = 0;                          // of the ops that follow
  RecurrentBuffers recurrent_;
  LayerInputBuffers layer_inputs_;
  PoolBuffers pool_;
  DistanceBuffers distances_;
  ExpertBuffers experts_;
  std::map<const MoeWeights*, ExpertArrays> expert_arrays_;
  int num_decoded_ = 0;                 // matrices whose codes the kernels do not support
  std::unique_ptr<Uploader> uploader_;  // until all weights are loaded
  Staging rows_staging_{"the rows of a step"};
  std::unique_ptr<DeviceSampler> sampler_;  // on rank 0 alone, of a model that generates text

  std::unique_ptr<StepArrays> arrays_;
  DeviceStep step_;
  bool reads_rank_0_ids_ = false;  // the step embeds ids that the previous step sampled, which lie on rank 0
  AllReduceMethod all_reduce_method_ = AllReduceMethod::kOneShot;
  std::optional<PendingSum> pending_;
  int num_logit_rows_ = 0;

  bool is_serving_ = false;
  StepMode mode_ = StepMode::kEager;
  bool is_capturing_ = false;
  // Two events among the enqueued layers and groups of updated rows. The host waits for the older one before it
  // enqueues more.
  std::array<std::optional<Event>, 2> run_ahead_events_;
  int num_layers_enqueued_ = 0;
  DecodePlan plan_;
  std::vector<std::function<void()>> deferred_ops_;
  std::map<DecodePlan, Graph> graphs_;
  std::set<DecodePlan> plans_without_graph_;    // there was no memory for a graph, or the driver made none
  std::string graph_failure_;                   // why the driver made no graph, the first time
  int64_t graph_budget_ = 0, graph_bytes_ = 0;  // device memory that graphs may take, and have taken
};

}  // namespace capstan::cuda
