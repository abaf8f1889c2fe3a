#include "cuda/backend.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cuda/graph.h"
#include "cuda/kernels.h"
#include "cuda/memory.h"
#include "cuda/ranks.h"
#include "cuda/sampling.h"
#include "cuda/step.h"
#include "cuda/weights.h"
#include "cuda/wgmma_layout.h"
#include "native/base/check.h"

namespace capstan::cuda {
namespace {

constexpr int kBlockSize = 64;  // preferred, and what others are multiples of: tiles of keys lie in one block
constexpr int kSkinnyTokens =
    64;  // at most, that launch_gemm multiplies where there is wgmma, and whose parts of sums are kept
constexpr int kTokenPad = 64;     // activations are read in tiles of up to this many tokens
constexpr int kMarkedLayers = 8;  // with up to 40 operations each. The driver takes some 1,000 that have not run;
                                  // whoever then enqueues waits within it, with no deadline
constexpr int64_t kGraphBytes =
    int64_t{512}
    << 20;  // of the device's memory, at most: what graphs, and code that is loaded when they are recorded, may take

// Parts of the backend to do without, so that a fault on a device can be told to be of one of them:
// CAPSTAN_CUDA_WITHOUT is a list of these, with commas.
struct Parts {
  bool graphs = true, early = true, wgmma = true, one_shot = true;
};
Parts parts_wanted() {
  Parts parts;
  const char* without = std::getenv("CAPSTAN_CUDA_WITHOUT");
  std::istringstream names(without == nullptr ? "" : without);
  for (std::string name; std::getline(names, name, ',');) {
    bool* const part = name == "graphs"     ? &parts.graphs
                       : name == "early"    ? &parts.early
                       : name == "wgmma"    ? &parts.wgmma
                       : name == "one_shot" ? &parts.one_shot
                                            : nullptr;
    if (part == nullptr)
      throw Error(
          ErrorCode::kInvalidArgument,
          "CAPSTAN_CUDA_WITHOUT: expected some of graphs, early, wgmma and one_shot, with commas between them, got " +
              name);
    *part = false;
  }
  return parts;
}

// One token of each sequence.
bool is_decode(const StepInput& step) {
  return step.input_ids.size() == step.context_lens.size();
}

class CudaBackend final : public Backend {
 public:
  CudaBackend(const CudaBackendOptions& options, std::unique_ptr<Comm> comm)
      : device_(options.device), num_sharing_(options.num_sharing), dtype_(options.weight_dtype) {
    if (dtype_ == DType::kF32) throw Error(ErrorCode::kInvalidArgument, "dtype: expected bf16 or f16 on CUDA, got f32");
    const Parts wanted = parts_wanted();
    ranks_ = std::make_unique<Ranks>(std::move(comm), device_, options.links);
    graph_budget_ = std::min(kGraphBytes, memory().total / 64);
    room_ = {attribute_of(device_, cudaDevAttrMultiProcessorCount),
             static_cast<size_t>(attribute_of(device_, cudaDevAttrMaxSharedMemoryPerBlockOptin))};
    has_graphs_ = wanted.graphs;
    has_one_shot_ = wanted.one_shot;
    begins_early_ = wanted.early && world_size() == 1 && can_begin_early();  // between ranks' kernels there are events
    info_.name = "cuda";
    has_wgmma_ = wanted.wgmma && !options.is_deterministic && can_gemm_by_wgmma() && can_attend_by_wgmma();
    info_.isa = has_wgmma_ ? "wgmma" : "mma";
    info_.depth = 2;
    info_.preferred_block_size = info_.block_size_multiple = kBlockSize;
    info_.compute_dtype = dtype_;
    info_.has_fp8_cache = true;
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream");
  }
  ~CudaBackend() override {
    if (is_device_lost()) return;
    try {
      check(cudaSetDevice(device_), "choosing the device");
      wait_for(stream_);
    } catch (const Error&) {
      return;  // lost only now
    }
    graphs_.clear();
    cudaStreamDestroy(stream_);
  }

  const BackendInfo& info() const override { return info_; }

  std::unique_ptr<Matrix> load_matrix(const MatrixSource& source, const LoadProgress& progress) override {
    return guarded([&] {
      if (uploader_ == nullptr) uploader_ = std::make_unique<Uploader>(stream_);
      return upload_matrix(source, dtype_, *uploader_, progress);
    });
  }
  std::unique_ptr<Vector> load_vector(const TensorSlice& slice, const LoadProgress& progress) override {
    return guarded([&] { return upload_vector(slice, stream_, progress); });
  }
  int64_t kv_block_bytes(const DeviceModel& model, int block_size, DType kv_cache_dtype) const override {
    return model.num_layers *
           make_kv_layout(block_size, model.num_kv_heads, model.head_dim, kv_cache_dtype == DType::kFp8E4m3)
               .block_bytes();
  }
  void check_model(const DeviceModel& model, int64_t weight_bytes) const override;
  int64_t available_bytes() const override { return memory().free; }
  void reserve(const DeviceModel& model, const DeviceLimits& limits) override {
    DeviceLimits smallest = limits;
    smallest.num_blocks = 1;
    prepare(model, smallest);
    may_record_ = false;  // graphs would know where that block lies
  }
  int64_t kv_budget_bytes(double utilization) const override;
  std::vector<std::string> notes() const override;
  void prepare(const DeviceModel& model, const DeviceLimits& limits) override;
  void begin_serving() override { is_serving_ = true; }

  void begin_step(const StepInput& step) override;
  void embed(const Matrix& table) override;
  void norm_qkv(int layer, const LayerWeights& weights) override;
  void attention(int layer) override;
  void output_residual(const LayerWeights& weights) override {
    row_parallel_residual(*weights.o_proj, attention_acts_);
  }
  void norm_gate_up(const LayerWeights& weights) override;
  void down_residual(const LayerWeights& weights) override { row_parallel_residual(*weights.down_proj, mlp_acts_); }
  void lm_head(const Vector& norm, const Matrix& head, std::span<const int32_t> rows) override;
  void sample(std::span<const SampleRow> rows, std::span<SampleResult> results) override;
  void collect() override;

 private:
  // Activations, as operands of products or in rows, cut as the weights' K. What is never written stays zero: the two
  // share memory where there is no such gap.
  struct Acts {
    DeviceBuffer buffer, gapped_rows;
    DepthSplit split;
    ActMaps maps{};  // of the rows
    uint16_t* at(bool in_rows) const {
      return in_rows && gapped_rows.bytes() > 0 ? gapped_rows.as<uint16_t>() : buffer.as<uint16_t>();
    }
  };
  template <class Work>
  auto guarded(const Work& work) const -> decltype(work()) {
    refuse_lost_device();
    try {
      check(cudaSetDevice(device_), "choosing the device");
      return work();
    } catch (const std::exception& error) {
      shares_recording = false;  // nothing goes on with the recording, but this thread may
      // With NCCL, other ranks may have enqueued a sum that waits for this rank's for ever.
      if (is_serving_ && (ranks_->has_nccl() || dynamic_cast<const RuntimeError*>(&error) != nullptr))
        lose_device(error.what());
      throw;
    }
  }

  struct Memory {
    int64_t free, total;
  };
  Memory memory() const {
    return guarded([] {
      size_t free = 0, total = 0;
      check(cudaMemGetInfo(&free, &total), "asking for the memory left");
      return Memory{static_cast<int64_t>(free), static_cast<int64_t>(total)};
    });
  }

  void allocate(const DeviceModel& model, const DeviceLimits& limits);
  Acts make_acts(int64_t rows, const DepthSplit& split, const char* purpose);
  int world_size() const { return ranks_->size(); }
  bool in_rows(int num_tokens) const { return has_wgmma_ && num_tokens > kSkinnyTokens; }
  // With many tokens it would gain nothing.
  bool begins_early(int num_tokens) const { return begins_early_ && num_tokens <= kSkinnyTokens; }
  FloatType type() const { return dtype_ == DType::kBf16 ? FloatType::kBf16 : FloatType::kF16; }
  static const CudaMatrix& of(const Matrix& matrix) { return static_cast<const CudaMatrix&>(matrix); }
  static const float* of(const std::unique_ptr<Vector>& vector) {
    return vector == nullptr ? nullptr : static_cast<const CudaVector&>(*vector).device();
  }

  // Of a decode nothing is enqueued before it is known what is to be drawn: ops up to there are kept, for a graph to be
  // made of them, or left to the graph that there is.
  enum class StepMode : uint8_t { kEager, kKeeping, kReplaying };

  // What `op` refers to must last until the next step begins.
  template <class Op>
  void enqueue(Op op) {
    if (mode_ == StepMode::kReplaying) return;
    guarded([&] {
      if (mode_ == StepMode::kEager) return op();
      ops_.push_back(std::move(op));
    });
  }
  void head_rows(const Vector& norm, const Matrix& head, const int32_t* rows, int num_rows);
  void record();
  void run_kept();
  void keep_near();

  NormArgs norm_of(const float* weight, const int32_t* rows, int num_rows) const;
  GemmArgs product_of(const Matrix& weights, const Acts& acts, int num_tokens) const;
  bool is_gemv(const GemvArgs& args) const {
    return args.product.num_tokens <= kGemvTokens && gemv_shared_bytes(args) <= room_.shared_bytes;
  }
  void project(GemmArgs product, const NormArgs* norm = nullptr, const QkvArgs* heads = nullptr);
  void row_parallel_residual(const Matrix& weights, const Acts& acts);
  void add_all_partials();
  void add_and_norm_all(const NormArgs& norm);
  void share_acts(const NormArgs& norm);
  AddPartialsArgs sum_of_parts() const;
  AddPartialsArgs sum_of(std::span<void* const> all, int begin, int end) const;
  AddPartialsArgs sum_by_nccl() const;
  int share_begin(int rank) const { return cuda::share_begin(rank, step_.num_tokens, world_size()); }
  int share_size() const { return cuda::share_size(step_.num_tokens, world_size()); }
  int64_t layer_bytes() const { return limits_.num_blocks * layout_.block_bytes(); }
  // (max_num_tokens, hidden_size) what this rank alone has of the sum of all.
  float* partial() const { return hidden_.as<float>() + partial_offset(); }
  int64_t partial_offset() const { return limits_.max_num_tokens * model_.hidden_size; }
  // Rows begin at multiples of 16 bytes, so that all are read and summed in one order.
  int64_t logits_stride() const { return round_up(model_.vocab_size, 4); }
  void* cache_of(int layer) const { return kv_.as<char>() + layer * layer_bytes(); }

  const int device_, num_sharing_;
  const DType dtype_;
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<Ranks> ranks_;
  DeviceRoom room_;
  bool has_wgmma_ = false;     // and uses it
  bool has_graphs_ = true;     // of decodes
  bool may_record_ = false;    // the cache has its place
  bool has_one_shot_ = true;   // sums of ranks also where two could do
  bool begins_early_ = false;  // kernels, before the one in front has ended
  BackendInfo info_;
  DeviceModel model_;
  DeviceLimits limits_;
  KvLayout layout_;
  int64_t qkv_stride_ = 0;

  DeviceBuffer kv_;          // (num_layers, num_blocks) of layout_
  DeviceBuffer hidden_;      // (max_num_tokens, hidden_size); with several ranks behind it `partial()`
  DeviceBuffer qkv_;         // (max_num_tokens, qkv_stride)
  DeviceBuffer q_;           // (max_num_tokens, num_heads, k_dim)
  DeviceBuffer rope_;        // (max_model_len, 2, rotary_dim / 2)
  DeviceBuffer logits_;      // (max_num_seqs, logits_stride); rank 0's holds all columns
  DeviceBuffer scratch_;     // of attention
  DeviceBuffer rows_done_;   // (heads of q, k and v) zeros between products
  DeviceBuffer tile_flags_;  // of row-parallel products, zeros between them; where they are by wgmma
  DeviceBuffer parts_;       // (kMaxParts, kSkinnyTokens, hidden_size or qkv_stride) of a product
  Acts norm_acts_, attention_acts_, mlp_acts_;
  std::unique_ptr<Uploader> uploader_;  // until all weights are there
  Staging rows_staging_{"the rows of a step"};
  std::unique_ptr<DeviceSampler> sampler_;

  std::unique_ptr<StepArrays> arrays_;
  DeviceStep step_;
  bool asks_first_rank_ = false;  // for ids that the step before has drawn
  SumWay sum_way_ = SumWay::kOneShot;
  // What the partials are, of the ranks or of one rank's last product, which nobody adds up before somebody needs the
  // sum: the norm behind them then does it.
  struct {
    const float* bias;
    bool replaces;  // the hidden states
    int parts = 0;  // of the product
  } pending_{};
  int num_logit_rows_ = 0;

  bool is_serving_ = false;
  StepMode mode_ = StepMode::kEager;
  bool is_recording_ = false;
  std::array<std::optional<Event>, 2>
      marks_;  // in what is enqueued, the older of which has been passed before there is more
  int num_layers_enqueued_ = 0;
  DecodePlan plan_;
  std::vector<std::function<void()>> ops_;  // that are kept
  std::map<DecodePlan, Graph> graphs_;
  std::set<DecodePlan> plans_without_;          // a graph, as there was no room for one
  int64_t graph_budget_ = 0, graph_bytes_ = 0;  // of the device's memory, at most and as yet
};

CudaBackend::Acts CudaBackend::make_acts(int64_t rows, const DepthSplit& split, const char* purpose) {
  const auto zeros = [&] {
    DeviceBuffer buffer(static_cast<size_t>(round_up(rows, kTokenPad) * split.padded()) * 2, purpose);
    check(cudaMemsetAsync(buffer.as<void>(), 0, buffer.bytes(), stream_), purpose);
    return buffer;
  };
  Acts acts;
  acts.buffer = zeros();
  acts.split = split;
  if (!in_rows(static_cast<int>(rows))) return acts;
  if (split.part_cols != split.padded_part) acts.gapped_rows = zeros();
  if (!make_act_maps(acts.maps, acts.at(true), round_up(rows, kTokenPad), split.padded()))
    throw Error(ErrorCode::kInternal, std::string("CUDA: the driver makes no map of ") + purpose);
  return acts;
}

void CudaBackend::check_model(const DeviceModel& model, int64_t weight_bytes) const {
  if (model.head_dim > 128)
    throw Error(ErrorCode::kUnsupportedModel,
                "CUDA: head size: expected at most 128, got " + std::to_string(model.head_dim));
  if (model.vocab_size > kMaxVocab)
    throw Error(ErrorCode::kUnsupportedModel, "CUDA: vocabulary: expected at most " + std::to_string(kMaxVocab) +
                                                  " tokens, got " + std::to_string(model.vocab_size));
  const int64_t needed = weight_bytes * num_sharing_, left = available_bytes();
  if (needed > left)
    throw Error(ErrorCode::kOutOfMemory, "the weights need " + std::to_string(needed >> 20) + " MiB as " +
                                             dtype_name(dtype_) + " on device " + std::to_string(device_) + ", and " +
                                             std::to_string(left >> 20) + " MiB of its memory are left");
}

void CudaBackend::allocate(const DeviceModel& model, const DeviceLimits& limits) {
  if (limits.kv_cache_dtype != dtype_ && limits.kv_cache_dtype != DType::kFp8E4m3)
    throw Error(ErrorCode::kInvalidArgument, std::string("kvCacheDtype: expected fp8 or ") + dtype_name(dtype_) +
                                                 ", the type computed in, on CUDA, got " +
                                                 dtype_name(limits.kv_cache_dtype));
  model_ = model;
  limits_ = limits;
  layout_ =
      make_kv_layout(limits.block_size, model.num_kv_heads, model.head_dim, limits.kv_cache_dtype == DType::kFp8E4m3);
  const int64_t rows = limits.max_num_tokens, seqs = limits.max_num_seqs;
  const int64_t q_size = int64_t{model.num_heads} * model.head_dim,
                kv_size = int64_t{model.num_kv_heads} * model.head_dim;
  qkv_stride_ = q_size + 2 * kv_size;
  const auto floats = [](int64_t count, const char* purpose) {
    return DeviceBuffer(static_cast<size_t>(count) * sizeof(float), purpose);
  };
  hidden_ = floats(rows * model.hidden_size * (world_size() > 1 ? 2 : 1), "the hidden states");
  qkv_ = floats(rows * qkv_stride_, "queries, keys and values");
  q_ = DeviceBuffer(static_cast<size_t>(rows * model.num_heads * layout_.k_dim) * 2, "the queries");
  logits_ = floats(seqs * logits_stride(), "the logits");
  if (ranks_->is_first())
    sampler_ =
        std::make_unique<DeviceSampler>(model.vocab_size, logits_stride(), model.num_token_ids, limits.max_num_seqs,
                                        limits.max_num_tokens + limits.max_num_seqs, stream_);
  norm_acts_ = make_acts(std::max(rows, seqs),
                         split_depth(model.hidden_size, model.hidden_size, row_parallel_parts(model.hidden_size)),
                         "the activations");
  // The parts of a row-parallel layer are those of the whole model.
  attention_acts_ =
      make_acts(rows, split_depth(q_size, q_size * world_size(), row_parallel_parts(q_size * world_size())),
                "the activations of attention");
  mlp_acts_ = make_acts(rows,
                        split_depth(model.intermediate_size, model.intermediate_size * world_size(),
                                    row_parallel_parts(model.intermediate_size * world_size())),
                        "the activations of the MLP");
  rope_ = floats(int64_t{model.max_model_len} * model.rotary_dim, "the rotations");
  check(cudaMemsetAsync(rope_.as<void>(), 0, rope_.bytes(), stream_),
        "the rotations");  // numbers, until there are others
  scratch_ = floats(attention_scratch_floats(most_cuts(model, limits), layout_), "the scratch of attention");
  rows_done_ = DeviceBuffer(static_cast<size_t>(model.num_heads + 2 * model.num_kv_heads) * sizeof(int32_t),
                            "the heads of a product");
  check(cudaMemsetAsync(rows_done_.as<void>(), 0, rows_done_.bytes(), stream_), "the heads of a product");
  if (in_rows(static_cast<int>(rows))) {
    tile_flags_ = DeviceBuffer(static_cast<size_t>(num_tile_flags(model.hidden_size, rows)) * sizeof(int32_t),
                               "the tiles of a product");
    check(cudaMemsetAsync(tile_flags_.as<void>(), 0, tile_flags_.bytes(), stream_), "the tiles of a product");
  }
  parts_ = floats(kMaxParts * std::min<int64_t>(rows, kSkinnyTokens) * std::max(model.hidden_size, qkv_stride_),
                  "the parts of a product");
  arrays_ = std::make_unique<StepArrays>(model, limits);
  rows_staging_.make_room(static_cast<size_t>(seqs) * sizeof(int32_t) + 16);
  wait_for(stream_);
}

// What is left of the share, evenly among the ranks that have the device. NOTE: every rank of the device has reserved
// its own before any asks.
int64_t CudaBackend::kv_budget_bytes(double utilization) const {
  const auto [free, total] = memory();
  const int64_t usable =
      static_cast<int64_t>(static_cast<double>(total) * utilization) - (total - free) - graph_budget_;
  return std::max<int64_t>(usable, 1) / num_sharing_ + 1;
}

std::vector<std::string> CudaBackend::notes() const {
  if (!has_graphs_) return {};
  const std::string most = std::to_string(graph_budget_ >> 20) + " MiB";
  if (graphs_.empty())
    return {"the largest steps run without a CUDA graph, which would take more than the " + most +
            " of memory that graphs may"};
  return {"CUDA graphs have taken " + std::to_string((graph_bytes_ + (1 << 20) - 1) >> 20) +
          " MiB of memory and may take " + most + "; steps of sizes for which nothing is left run without"};
}

void CudaBackend::prepare(const DeviceModel& model, const DeviceLimits& limits) {
  guarded([&] {
    if (hidden_.bytes() == 0) allocate(model, limits);
    CAPSTAN_CHECK(limits.max_num_tokens == limits_.max_num_tokens && limits.max_num_seqs == limits_.max_num_seqs &&
                  model.max_model_len <= model_.max_model_len);
    const int longest = model_.max_model_len;
    model_ = model;
    model_.max_model_len = longest;  // that buffers are made for
    limits_ = limits;
    CAPSTAN_CHECK(model.rope_table.size() * sizeof(float) <= rope_.bytes());
    if (!model.rope_table.empty())
      check(cudaMemcpyAsync(rope_.as<void>(), model.rope_table.data(), model.rope_table.size() * sizeof(float),
                            cudaMemcpyHostToDevice, stream_),
            "the rotations");
    graphs_.clear();
    may_record_ = has_graphs_;
    kv_ = {};
    kv_ = DeviceBuffer(static_cast<size_t>(model.num_layers * layer_bytes()), "the KV cache");
    wait_for(stream_);
    uploader_ = nullptr;
  });
}

void CudaBackend::begin_step(const StepInput& step) {
  check_step(step, model_, limits_);
  guarded([&] {
    run_kept();
    if (sampler_ != nullptr) sampler_->begin_step();
    // A graph serves steps of both kinds.
    asks_first_rank_ =
        world_size() > 1 && (is_decode(step) || std::ranges::any_of(step.input_ids, [](int32_t id) { return id < 0; }));
    if (!is_decode(step) || !has_graphs_) {
      mode_ = StepMode::kEager;
      // Attention by wgmma is for caches in 16 bits, which it copies as they are, and for outputs in rows, as products
      // by wgmma take them; others stay with launch_attention.
      const bool is_wgmma_wanted = in_rows(static_cast<int>(step.input_ids.size())) && !layout_.is_fp8;
      step_ = arrays_->send(step, is_wgmma_wanted ? room_.multiprocessors : 0, stream_);
    } else {
      plan_ = arrays_->plan(step);
      step_ = arrays_->place(step, plan_);
      mode_ = graphs_.contains(plan_) ? StepMode::kReplaying : StepMode::kKeeping;
    }
    const int64_t bytes = step_.num_tokens * model_.hidden_size * static_cast<int64_t>(sizeof(float));
    sum_way_ = choose_sum_way(world_size(), step_.num_tokens, bytes, ranks_->has_nccl() && mode_ == StepMode::kEager,
                              has_one_shot_);
  });
}

// Makes a graph of what is kept, once: steps like one for which there is no room run without.
void CudaBackend::record() {
  const int64_t before = memory().free;
  Graph graph;
  is_recording_ = true;
  try {
    ranks_->begin_recording(stream_);
    for (const auto& op : ops_)
      op();
    graph = ranks_->end_recording(stream_);
  } catch (...) {
    is_recording_ = false;
    if (ranks_->is_first()) drop_recording(stream_);  // of all ranks
    throw;
  }
  is_recording_ = false;
  const int64_t taken = std::max<int64_t>(
      before - memory().free, 0);  // NOTE: by others, too, at the time: that may cost this plan its graph, but no other
  if (!ranks_->all((graph || !ranks_->is_first()) && graph_bytes_ + taken <= graph_budget_)) {
    plans_without_.insert(plan_);
    return;
  }
  graph_bytes_ += taken;
  graphs_[plan_] = std::move(graph);
  mode_ = StepMode::kReplaying;
}

// The step's arrays, then what they are for. Of a step of which no logits were wanted a graph has some that nobody
// reads; what is kept of it has none.
void CudaBackend::run_kept() {
  const StepMode mode = std::exchange(mode_, StepMode::kEager);
  if (mode == StepMode::kEager) return;
  arrays_->send_placed(stream_);
  if (mode == StepMode::kReplaying)
    ranks_->launch(graphs_[plan_], stream_);
  else
    for (const auto& op : ops_)
      op();
  ops_.clear();
}

// NOTE: a step without logits has nothing to wait for; it runs when the next begins, on all ranks.
void CudaBackend::collect() {
  guarded([&] {
    if (sampler_ != nullptr) sampler_->collect();
  });
}

void CudaBackend::embed(const Matrix& table) {
  enqueue([this, &table] {
    // The first rank's, where other ranks ask for them.
    const void* drawn_ids = sampler_ == nullptr ? nullptr : sampler_->drawn_ids();
    if (asks_first_rank_) drawn_ids = ranks_->meet(const_cast<void*>(drawn_ids), stream_)[0];
    EmbedArgs args;
    args.type = type();
    args.table = of(table).device;
    args.vocab_begin = model_.vocab_begin;
    args.ids = step_.ids;
    args.drawn_ids =
        drawn_ids == nullptr ? step_.ids : static_cast<const int32_t*>(drawn_ids);  // never read without drawn ids
    args.num_tokens = step_.num_tokens;
    args.hidden_size = model_.hidden_size;
    args.hidden = world_size() > 1 ? partial() : hidden_.as<float>();
    launch_embed(args, stream_);
    if (asks_first_rank_) ranks_->part(stream_);
    pending_ = {nullptr, true};
  });
}

NormArgs CudaBackend::norm_of(const float* weight, const int32_t* rows, int num_rows) const {
  NormArgs args;
  args.type = type();
  args.hidden = hidden_.as<float>();
  args.rows = rows;
  args.num_rows = num_rows;
  args.hidden_size = model_.hidden_size;
  args.weight = weight;
  args.eps = model_.rms_norm_eps;
  args.split = norm_acts_.split;
  args.in_rows = in_rows(num_rows);
  args.acts = norm_acts_.at(args.in_rows);
  args.begins_early = begins_early(num_rows);
  return args;
}

GemmArgs CudaBackend::product_of(const Matrix& weights, const Acts& acts, int num_tokens) const {
  GemmArgs args;
  args.type = type();
  args.weights = of(weights).device;
  args.num_tokens = num_tokens;
  args.begins_early = begins_early(num_tokens);
  if (in_rows(num_tokens))
    args.act_maps = &acts.maps;
  else
    args.acts = acts.at(false);
  return args;
}

// A product, with the norm before it and what follows for q, k and v: in one kernel where the tokens are few, which
// gives the same bits; by wgmma where they are many, which does not. Partials are added up first: in one kernel with
// the norm, unless the norm is the product's. Between, q, k and v stay in parts until their heads are made.
void CudaBackend::project(GemmArgs product, const NormArgs* norm, const QkvArgs* heads) {
  GemvArgs fused;
  fused.product = product;
  if (heads != nullptr) fused.has_heads = true, fused.heads = *heads;
  if (norm != nullptr && (world_size() > 1 || pending_.parts > 0)) {
    if (is_gemv(fused) && world_size() > 1) {
      add_all_partials();
    } else {
      add_and_norm_all(*norm);
      norm = nullptr;
    }
  }
  if (is_gemv(fused)) {
    if (norm != nullptr) fused.is_normed = true, fused.norm = *norm;
    fused.rows_done = rows_done_.as<int32_t>();
    fused.max_blocks = 2 * room_.multiprocessors;
    return launch_gemv(fused, stream_);
  }
  if (norm != nullptr) launch_norm(*norm, stream_);
  QkvArgs of_parts;
  if (heads != nullptr && product.num_tokens <= kSkinnyTokens) {
    of_parts = *heads;
    of_parts.qkv = parts_.as<float>();
    of_parts.parts = product.weights.split.parts;
    of_parts.bias = product.weights.bias;
    product.output = GemmOutput::kParts;
    product.out = parts_.as<float>();
    heads = &of_parts;
  }
  if (product.act_maps != nullptr)
    launch_gemm_wgmma(product, room_.multiprocessors, stream_);
  else
    launch_gemm(product, room_, stream_);
  if (heads != nullptr) launch_qkv(*heads, stream_);
}

// Enqueues no more than a few layers ahead of the device.
void CudaBackend::keep_near() {
  if (is_recording_ || ++num_layers_enqueued_ % kMarkedLayers != 0) return;
  std::optional<Event>& mark = marks_[static_cast<size_t>(num_layers_enqueued_ / kMarkedLayers % 2)];
  if (mark)
    mark->wait();
  else
    mark.emplace();
  mark->record(stream_);
}

void CudaBackend::norm_qkv(int layer, const LayerWeights& weights) {
  enqueue([this, layer, &weights] {
    keep_near();
    const NormArgs norm = norm_of(of(weights.input_norm), nullptr, step_.num_tokens);
    GemmArgs product = product_of(*weights.qkv_proj, norm_acts_, step_.num_tokens);
    product.out = qkv_.as<float>();
    product.out_stride = qkv_stride_;
    QkvArgs heads;
    heads.type = type();
    heads.qkv = qkv_.as<float>();
    heads.qkv_stride = qkv_stride_;
    heads.num_tokens = step_.num_tokens;
    heads.num_heads = model_.num_heads;
    heads.q_norm = of(weights.q_norm);
    heads.k_norm = of(weights.k_norm);
    heads.eps = model_.rms_norm_eps;
    heads.rope = rope_.as<float>();
    heads.rotary_dim = model_.rotary_dim;
    heads.positions = step_.positions;
    heads.slots = step_.slots;
    heads.layout = layout_;
    heads.cache = cache_of(layer);
    heads.q = q_.as<uint16_t>();
    heads.begins_early = begins_early(step_.num_tokens);
    project(product, &norm, &heads);
  });
}

void CudaBackend::attention(int layer) {
  enqueue([this, layer] {
    AttentionArgs args;
    args.type = type();
    args.q = q_.as<uint16_t>();
    args.num_heads = model_.num_heads;
    args.layout = layout_;
    args.cache = cache_of(layer);
    args.cu_seqlens_q = step_.cu_seqlens;
    args.context_lens = step_.context_lens;
    args.block_tables = step_.block_tables;
    args.max_blocks_per_seq = step_.max_blocks_per_seq;
    args.window = model_.sliding_windows.empty() ? 0 : model_.sliding_windows[static_cast<size_t>(layer)];
    args.scale = model_.attention_scale;
    args.split = attention_acts_.split;
    args.in_rows = in_rows(step_.num_tokens);
    args.acts = attention_acts_.at(args.in_rows);
    if (step_.num_wide_tiles > 0) {
      args.tiles = step_.wide_tiles;
      args.num_tiles = step_.num_wide_tiles;
      launch_attention_wgmma(args, stream_);
    }
    if (step_.num_tiles == 0) return;
    args.tiles = step_.tiles;
    args.num_tiles = step_.num_tiles;
    args.num_chunks = step_.num_chunks;
    args.is_many = is_many_rows(args.num_tiles, model_.num_kv_heads, args.num_chunks);
    args.begins_early = begins_early_;
    args.scratch = scratch_.as<float>();
    launch_attention(args, stream_);
  });
}

void CudaBackend::row_parallel_residual(const Matrix& weights, const Acts& acts) {
  enqueue([this, &weights, &acts] {
    GemmArgs product = product_of(weights, acts, step_.num_tokens);
    product.out_stride = model_.hidden_size;
    product.tile_flags = tile_flags_.as<int32_t>();
    const float* bias = product.weights.bias;
    GemvArgs alone;
    alone.product = product;
    if (product.num_tokens <= kSkinnyTokens && !is_gemv(alone)) {
      product.output = GemmOutput::kParts;
      product.out = parts_.as<float>();
      launch_gemm(product, room_, stream_);
      pending_ = {bias, false, product.weights.split.parts};
      if (world_size() > 1) {
        AddPartialsArgs sum = sum_of_parts();
        sum.hidden = partial();
        sum.bias = nullptr;
        sum.replaces = true;
        launch_add_partials(sum, stream_);
      }
      return;
    }
    if (world_size() == 1) {
      product.output = GemmOutput::kResidual;
      product.out = hidden_.as<float>();
      return project(product);
    }
    product.weights.bias = nullptr;
    product.out = partial();
    project(product);
    pending_ = {bias, false};
  });
}

AddPartialsArgs CudaBackend::sum_of_parts() const {
  AddPartialsArgs args;
  args.hidden = hidden_.as<float>();
  args.world_size = pending_.parts;
  args.bias = pending_.bias;
  args.num_tokens = step_.num_tokens;
  args.hidden_size = model_.hidden_size;
  for (int part = 0; part < pending_.parts; ++part)
    args.partials[part] = parts_.as<float>() + part * step_.num_tokens * model_.hidden_size;
  return args;
}

// Of tokens [begin, end), from what ranks show: where their hidden states begin.
AddPartialsArgs CudaBackend::sum_of(std::span<void* const> all, int begin, int end) const {
  const int64_t skipped = begin * model_.hidden_size;
  AddPartialsArgs args;
  args.hidden = hidden_.as<float>() + skipped;
  args.world_size = static_cast<int>(all.size());
  args.bias = pending_.bias;
  args.num_tokens = end - begin;
  args.hidden_size = model_.hidden_size;
  args.replaces = pending_.replaces;
  for (int rank = 0; rank < args.world_size; ++rank)
    args.partials[rank] = static_cast<const float*>(all[static_cast<size_t>(rank)]) + partial_offset() + skipped;
  return args;
}

// Where this rank's partials are already what all have.
AddPartialsArgs CudaBackend::sum_by_nccl() const {
  ranks_->add_up(partial(), step_.num_tokens * model_.hidden_size, stream_);
  void* const mine = hidden_.as<void>();
  return sum_of({&mine, 1}, 0, step_.num_tokens);
}

void CudaBackend::add_all_partials() {
  CAPSTAN_CHECK(sum_way_ != SumWay::kTwoShots);
  if (sum_way_ == SumWay::kNccl) return launch_add_partials(sum_by_nccl(), stream_);
  const auto all = ranks_->meet(hidden_.as<void>(), stream_);
  launch_add_partials(sum_of(std::span(all).first(static_cast<size_t>(world_size())), 0, step_.num_tokens), stream_);
  ranks_->part(stream_);
}

// The norm of given rows is the last of the step: of those alone, by every rank, which leaves the hidden states and
// what is pending as they are. The order of sums is the same.
void CudaBackend::add_and_norm_all(const NormArgs& norm) {
  AddNormArgs args;
  args.norm = norm;
  if (world_size() == 1) {
    args.sum = sum_of_parts();
    args.owners[0] = args.sum.hidden;
    args.tokens_per_owner = step_.num_tokens;
    if (norm.rows == nullptr) pending_ = {};
    return launch_add_norm(args, stream_);
  }
  if (sum_way_ == SumWay::kNccl && norm.rows == nullptr) {
    args.sum = sum_by_nccl();
    return launch_add_norm(args, stream_);
  }
  const bool takes_two = sum_way_ == SumWay::kTwoShots, is_share = takes_two && norm.rows == nullptr;
  const int begin = is_share ? share_begin(ranks_->rank()) : 0,
            end = is_share ? share_begin(ranks_->rank() + 1) : step_.num_tokens;
  const auto all = ranks_->meet(hidden_.as<void>(), stream_);
  args.sum = sum_of(std::span(all).first(static_cast<size_t>(world_size())), begin, end);
  args.norm.hidden = args.sum.hidden;
  if (norm.rows == nullptr) args.norm.num_rows = end - begin;
  args.norm.acts += begin * norm.split.padded();
  args.tokens_per_owner = takes_two ? share_size() : step_.num_tokens;
  for (int rank = 0; rank < world_size(); ++rank)
    args.owners[rank] = takes_two ? static_cast<const float*>(all[static_cast<size_t>(rank)]) : hidden_.as<float>();
  if (begin < end) launch_add_norm(args, stream_);
  ranks_->part(stream_);
  if (is_share) share_acts(norm);
}

// Every rank copies the activations that the others have made.
void CudaBackend::share_acts(const NormArgs& norm) {
  const auto all = ranks_->meet(norm.acts, stream_);
  for (int rank = 0; rank < world_size(); ++rank) {
    const int begin = share_begin(rank), end = share_begin(rank + 1);
    if (rank == ranks_->rank() || begin == end) continue;
    const int64_t first = begin * norm.split.padded(), count = round_up(end - begin, kTileTokens) * norm.split.padded();
    const auto turn = turn_to_record();
    check(cudaMemcpyAsync(norm.acts + first, static_cast<const uint16_t*>(all[static_cast<size_t>(rank)]) + first,
                          static_cast<size_t>(count) * sizeof(uint16_t), cudaMemcpyDeviceToDevice, stream_),
          "a rank's share");
  }
  ranks_->part(stream_);
}

void CudaBackend::norm_gate_up(const LayerWeights& weights) {
  enqueue([this, &weights] {
    const NormArgs norm = norm_of(of(weights.post_attention_norm), nullptr, step_.num_tokens);
    GemmArgs product = product_of(*weights.gate_up_proj, norm_acts_, step_.num_tokens);
    product.output = GemmOutput::kGated;
    product.gated = mlp_acts_.at(in_rows(step_.num_tokens));
    product.gated_split = mlp_acts_.split;
    product.activation = model_.activation;
    project(product, &norm);
  });
}

// Logits of rows that the device knows.
void CudaBackend::head_rows(const Vector& norm_weight, const Matrix& head, const int32_t* rows, int num_rows) {
  const NormArgs norm = norm_of(static_cast<const CudaVector&>(norm_weight).device(), rows, num_rows);
  if (world_size() > 1) add_and_norm_all(norm);
  // Every rank writes its columns of rank 0's array, which rank 0 reads only then.
  float* logits = static_cast<float*>(ranks_->meet(logits_.as<void>(), stream_)[0]);
  GemmArgs product = product_of(head, norm_acts_, num_rows);
  product.out = logits + model_.vocab_begin;
  product.out_stride = logits_stride();
  project(product, world_size() > 1 ? nullptr : &norm);
  ranks_->part(stream_);
}

void CudaBackend::lm_head(const Vector& norm, const Matrix& head, std::span<const int32_t> rows) {
  guarded([&] {
    num_logit_rows_ = static_cast<int>(rows.size());
    CAPSTAN_CHECK(num_logit_rows_ > 0 && num_logit_rows_ <= limits_.max_num_seqs);
    for (const int32_t row : rows)
      CAPSTAN_CHECK(row >= 0 && row < step_.num_tokens);
    if (mode_ != StepMode::kEager) {
      CAPSTAN_CHECK(num_logit_rows_ <= plan_.rows);
      std::ranges::copy(rows, arrays_->head_rows().begin());
      enqueue([this, &norm, &head] {
        head_rows(norm, head, arrays_->device_head_rows(), plan_.rows);
        if (sampler_ != nullptr) sampler_->draw(logits_.as<float>(), arrays_->device_samples(), plan_.rows, stream_);
      });
      if (mode_ == StepMode::kKeeping && may_record_ && !plans_without_.contains(plan_)) record();
      // The first rank goes on when it knows what is to be drawn.
      if (sampler_ == nullptr) run_kept();
      return;
    }
    rows_staging_.begin(rows.size_bytes() + 16);
    const int32_t* device_rows = rows_staging_.add(rows.data(), rows.size());
    rows_staging_.send(stream_);
    head_rows(norm, head, device_rows, num_logit_rows_);
  });
}

void CudaBackend::sample(std::span<const SampleRow> rows, std::span<SampleResult> results) {
  for (const SampleRow& row : rows)
    CAPSTAN_CHECK(row.logits_row >= 0 && row.logits_row < num_logit_rows_);
  CAPSTAN_CHECK(sampler_ != nullptr);
  guarded([&] {
    if (mode_ == StepMode::kEager) return sampler_->sample(logits_.as<float>(), rows, results, stream_);
    CAPSTAN_CHECK(rows.size() <= static_cast<size_t>(plan_.rows));
    sampler_->place(rows, arrays_->samples(), stream_);
    run_kept();
    sampler_->fetch(logits_.as<float>(), rows, results, stream_);
  });
}

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(const CudaBackendOptions& options, std::unique_ptr<Comm> comm) {
  refuse_lost_device();
  const int major = attribute_of(options.device, cudaDevAttrComputeCapabilityMajor),
            minor = attribute_of(options.device, cudaDevAttrComputeCapabilityMinor);
  if (major < 8)
    throw Error(ErrorCode::kInvalidArgument, "device: expected compute capability 8.0 or newer, device " +
                                                 std::to_string(options.device) + " has " + std::to_string(major) +
                                                 "." + std::to_string(minor));
  // NOTE: what a backend is made of belongs to the device that is current when it is made.
  check(cudaSetDevice(options.device), "choosing the device");
  return std::make_unique<CudaBackend>(options, std::move(comm));
}

}  // namespace capstan::cuda
