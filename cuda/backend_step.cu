// Steps: eager, or deferred and replayed as a CUDA graph; logits and sampling.
#include <algorithm>
#include <cstdio>

#include "cuda/cuda_backend.h"
#include "native/base/check.h"

namespace capstan::cuda {
namespace {

// A layer enqueues up to 40 operations.
constexpr int kLayersPerEvent = 8;

// Whether the step has one token per sequence.
bool is_decode(const StepInput& step) {
  return step.input_ids.size() == step.context_lens.size();
}

}  // namespace

void CudaBackend::begin_step(const StepInput& step) {
  check_step(step, model_, limits_);
  guarded([&] {
    flush_step();
    adapters_.send(step, stream_);
    if (sampler_ != nullptr) sampler_->begin_step();
    // A graph of decodes serves steps with sampled ids and steps without.
    reads_rank_0_ids_ =
        world_size() > 1 && (is_decode(step) || std::ranges::any_of(step.input_ids, [](int32_t id) { return id < 0; }));
    if (!is_decode(step) || !features_.graphs || !adapters_.is_empty() || model_.pooling != Pooling::kNone) {
      mode_ = StepMode::kEager;
      // launch_attention_wgmma copies 16-bit caches as they are, adds no biases, and writes row-major outputs for
      // launch_gemm_wgmma.
      const bool can_use_wgmma = features_.wgmma_attention && is_row_major(static_cast<int>(step.input_ids.size())) &&
                                 !layouts_[0].is_fp8 && model_.embedding.num_distances == 0;
      step_ = arrays_->send(step, can_use_wgmma ? resources_.multiprocessors : 0, stream_);
    } else {
      plan_ = arrays_->plan(step);
      step_ = arrays_->place(step, plan_);
      mode_ = graphs_.contains(plan_) ? StepMode::kReplay : StepMode::kDeferred;
    }
    const int64_t bytes = step_.num_tokens * model_.hidden_size * static_cast<int64_t>(sizeof(float));
    all_reduce_method_ = choose_all_reduce_method(world_size(), step_.num_tokens, bytes,
                                                  ranks_->has_nccl() && mode_ == StepMode::kEager, features_.one_shot);
    // Every rank's router reads all hidden states, as the norm of an MLP beside attention does, and updates change
    // them. Rank 0 pools them.
    if ((model_.moe.num_experts > 0 || model_.is_parallel || model_.pooling != Pooling::kNone ||
         !adapters_.is_empty()) &&
        all_reduce_method_ == AllReduceMethod::kTwoShot)
      all_reduce_method_ = AllReduceMethod::kOneShot;
  });
}

// Captures the deferred ops in a graph. When the driver makes none, or there is no memory for it, steps of this plan
// never use a graph.
void CudaBackend::capture_step() {
  const int64_t before = memory().free;
  Graph graph;
  std::string failure;
  is_capturing_ = true;
  try {
    ranks_->begin_capture(stream_);
    for (const auto& op : deferred_ops_)
      op();
    graph = ranks_->end_capture(stream_, failure);
  } catch (...) {
    is_capturing_ = false;
    if (ranks_->is_first()) abort_capture(stream_);  // the capture of all ranks
    throw;
  }
  is_capturing_ = false;
  if (!failure.empty() && graph_failure_.empty()) {
    graph_failure_ = failure;
    if (is_serving_)
      std::fprintf(stderr, "capstan: CUDA: a step runs without a CUDA graph, which could not be made: %s\n",
                   failure.c_str());
  }
  // NOTE: this includes what other processes, and loads of adapters, allocate meanwhile. That may cost a plan its
  // graph.
  const int64_t taken = std::max<int64_t>(before - memory().free, 0);
  if (!ranks_->all_agree((graph || !ranks_->is_first()) && graph_bytes_ + taken <= graph_budget_)) {
    plans_without_graph_.insert(plan_);
    return;
  }
  graph_bytes_ += taken;
  graphs_[plan_] = std::move(graph);
  mode_ = StepMode::kReplay;
}

// Sends the step's arrays, then launches its graph or runs its deferred ops. For a step without logits the graph still
// computes logits, which are ignored.
void CudaBackend::flush_step() {
  const StepMode mode = std::exchange(mode_, StepMode::kEager);
  if (mode == StepMode::kEager) return;
  arrays_->send_staged(stream_);
  if (mode == StepMode::kReplay)
    ranks_->launch(graphs_[plan_], stream_);
  else
    for (const auto& op : deferred_ops_)
      op();
  deferred_ops_.clear();
}

// NOTE: a step without logits has no results to wait for. It runs when the next step begins, on all ranks.
void CudaBackend::collect() {
  guarded([&] {
    if (sampler_ != nullptr) sampler_->collect();
  });
}

// Lets the host enqueue only a few layers ahead of the device. The driver queues about 1,000 operations; one more
// launch would block inside the driver, without a deadline.
void CudaBackend::limit_run_ahead() {
  if (is_capturing_ || ++num_layers_enqueued_ % kLayersPerEvent != 0) return;
  std::optional<Event>& event = run_ahead_events_[static_cast<size_t>(num_layers_enqueued_ / kLayersPerEvent % 2)];
  if (event)
    event->wait();
  else
    event.emplace();
  event->record(stream_);
}

// Computes the logits of `rows`, which lie in device memory.
void CudaBackend::head_rows(const Vector& norm_weight, const Matrix& head, const int32_t* rows, int num_rows,
                            const LoraRows& updated) {
  const NormArgs norm = norm_args(static_cast<const CudaVector&>(norm_weight).device(), rows, num_rows);
  const bool is_normed = updated.num_rows > 0 || (world_size() > 1 && pending_.has_value());
  if (is_normed) norm_alone(norm);
  // Every rank writes its columns of rank 0's array. Rank 0 reads it after the exchange.
  float* logits = static_cast<float*>(ranks_->begin_exchange(logits_.as<void>(), stream_)[0]);
  GemmArgs product = gemm_args(head, norm_acts_, num_rows);
  product.out = logits + model_.vocab_begin;
  product.out_stride = logits_stride();
  if (updated.num_rows > 0)
    updated_product(updated, product, norm_acts_);
  else
    project(product, is_normed ? nullptr : &norm);
  if (model_.logit_scale != 1 || model_.logit_soft_cap != 0) {
    LogitsArgs args;
    args.logits = product.out;
    args.num_rows = num_rows;
    args.num_ids = model_.vocab_end - model_.vocab_begin;
    args.stride = product.out_stride;
    args.scale = model_.logit_scale;
    args.soft_cap = model_.logit_soft_cap;
    launch_logits(args, stream_);
  }
  ranks_->end_exchange(stream_);
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
        head_rows(norm, head, arrays_->device_head_rows(), plan_.rows, {});
        if (sampler_ != nullptr) sampler_->draw(logits_.as<float>(), arrays_->device_samples(), plan_.rows, stream_);
      });
      if (mode_ == StepMode::kDeferred && can_capture_ && !plans_without_graph_.contains(plan_)) capture_step();
      // Rank 0 flushes in `sample`, once the sampling parameters are known.
      if (sampler_ == nullptr) flush_step();
      return;
    }
    rows_staging_.begin(3 * (rows.size_bytes() + 16));
    const int32_t* device_rows = rows_staging_.add(rows.data(), rows.size());
    const LoraRows updated = adapters_.rows_of(&AdapterWeights::lm_head, rows, rows_staging_);
    rows_staging_.send(stream_);
    head_rows(norm, head, device_rows, num_logit_rows_, updated);
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
    flush_step();
    sampler_->fetch(logits_.as<float>(), rows, results, stream_);
  });
}

}  // namespace capstan::cuda
