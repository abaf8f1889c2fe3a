#include "native/engine/model_runner.h"

#include <algorithm>
#include <utility>

#include "native/base/thread.h"
#include "native/engine/adapter_loader.h"
#include "native/model/decoder.h"

namespace capstan {

ModelRunner::ModelRunner(std::vector<Rank> ranks, std::unique_ptr<Comm> control, int max_rows,
                         const PooledModel& pooled)
    : ranks_(std::move(ranks)),
      control_(std::move(control)),
      pooled_(pooled),
      depth_(pooled.pooling == Pooling::kNone ? ranks_[0].backend->info().depth : 1),
      max_rows_(max_rows) {
  threads_.reserve(ranks_.size() - 1);
  try {
    for (size_t rank = 1; rank < ranks_.size(); ++rank)
      threads_.push_back(start_thread([this, rank] { rank_main(rank); }));
  } catch (...) {
    stop();
    throw;
  }
}

ModelRunner::~ModelRunner() {
  abandon();
  stop();
}

void ModelRunner::stop() {
  is_closing_.store(true);
  step_.fetch_add(1);
  step_.notify_all();
  for (std::thread& thread : threads_)
    thread.join();
}

namespace {

// `num_seqs` sequences of `tokens_per_seq` tokens of id 0. All their blocks are block 0.
Batch make_warm_up_batch(int num_seqs, int tokens_per_seq, const DeviceLimits& limits, bool is_pooled) {
  const int block_size = limits.block_size;
  Batch batch;
  Batch::KvArrays kv;
  batch.cu_seqlens_q.push_back(0);
  batch.max_blocks_per_seq = (tokens_per_seq + block_size - 1) / block_size;
  for (int seq = 0; seq < num_seqs; ++seq) {
    for (int position = 0; position < tokens_per_seq; ++position) {
      batch.input_ids.push_back(0);
      batch.positions.push_back(position);
      kv.slot_mapping.push_back(position % block_size);
    }
    batch.cu_seqlens_q.push_back(static_cast<int32_t>(batch.input_ids.size()));
    batch.context_lens.push_back(tokens_per_seq);
    if (!is_pooled) batch.logits_rows.push_back(batch.cu_seqlens_q.back() - 1);
  }
  batch.sample_rows.resize(batch.logits_rows.size());
  kv.block_tables.resize(static_cast<size_t>(num_seqs * batch.max_blocks_per_seq));
  batch.kv_arrays.assign(limits.num_blocks.size(), kv);
  batch.set_kv_groups();
  // No state is kept.
  if (limits.num_state_slots > 0) {
    batch.state_reads.assign(batch.context_lens.size(), -1);
    batch.state_writes.assign(batch.input_ids.size(), -1);
  }
  batch.results.resize(batch.sample_rows.size());
  return batch;
}

}  // namespace

void ModelRunner::warm_up_prefill(const DeviceLimits& limits, int max_model_len) {
  warm_up(1, std::min(limits.max_num_tokens, max_model_len), limits);
}
void ModelRunner::warm_up_decode(const DeviceLimits& limits) {
  warm_up(limits.max_num_seqs, 1, limits);
}

void ModelRunner::warm_up(int num_seqs, int tokens_per_seq, const DeviceLimits& limits) {
  if (ranks_[0].backend->info().depth == 1) return;
  const bool is_pooled = pooled_.pooling != Pooling::kNone;
  Batch batch = make_warm_up_batch(num_seqs, tokens_per_seq, limits, is_pooled);
  if (pooled_.num_token_types > 0) batch.token_types.assign(batch.input_ids.size(), 0);
  std::vector<float> sums(static_cast<size_t>(num_seqs * pooled_.hidden_size)),
      results(static_cast<size_t>(num_seqs * pooled_.result_size));
  for (int seq = 0; is_pooled && seq < num_seqs; ++seq) {
    PoolRow& row = batch.pool_rows.emplace_back();
    row.first_row = batch.cu_seqlens_q[static_cast<size_t>(seq)];
    row.num_rows = tokens_per_seq;
    row.sum = std::span(sums).subspan(static_cast<size_t>(seq * pooled_.hidden_size),
                                      static_cast<size_t>(pooled_.hidden_size));
    row.result = std::span(results).subspan(static_cast<size_t>(seq * pooled_.result_size),
                                            static_cast<size_t>(pooled_.result_size));
  }
  launch(batch);
  collect(batch);
}

void ModelRunner::launch(Batch& batch) {
  batch_ = &batch;
  if (!threads_.empty()) {
    num_running_.store(static_cast<int>(threads_.size()));
    step_.fetch_add(1);
    step_.notify_all();
  }
  if (depth_ > 1) run_first_rank();
}

void ModelRunner::collect(Batch&) {
  if (depth_ > 1)
    ranks_[0].backend->collect();
  else
    run_first_rank();
}

void ModelRunner::run_first_rank() {
  run_rank(0);
  wait_for_other_ranks();
  if (error_) std::rethrow_exception(error_);
}

void ModelRunner::wait_for_other_ranks() {
  for (int left = num_running_.load(); left != 0; left = num_running_.load())
    num_running_.wait(left);
}

// The other ranks may wait for rank 0, which will not come.
void ModelRunner::abandon() {
  if (control_ && num_running_.load() != 0) control_->abandon();
  wait_for_other_ranks();
}

void ModelRunner::rank_main(size_t rank) {
  for (uint32_t seen = 0;;) {
    step_.wait(seen);
    seen = step_.load();
    if (is_closing_.load()) return;
    run_rank(rank);
    num_running_.fetch_sub(1);
    num_running_.notify_all();
  }
}

void ModelRunner::run_rank(size_t rank) {
  try {
    forward(ranks_[rank], rank == 0);
  } catch (...) {
    fail(std::current_exception());
  }
}

// Keeps the first error, which is the cause. Later ones come from ranks that it woke.
void ModelRunner::fail(std::exception_ptr error) {
  {
    const std::lock_guard lock(error_mutex_);
    if (!error_) error_ = std::move(error);
  }
  if (control_) control_->abandon();
}

void ModelRunner::forward(Rank& rank, bool is_first) {
  Batch& batch = *batch_;
  Backend& backend = *rank.backend;
  StepInput input = batch.input();
  if (!batch.adapters.empty()) {
    rank.adapters.clear();
    for (const Adapter* adapter : batch.adapters)
      rank.adapters.push_back(&adapter->ranks[static_cast<size_t>(&rank - ranks_.data())]);
    input.adapters = rank.adapters;
    input.adapter_indices = batch.adapter_indices;
  }
  const bool has_mtp = rank.weights.has_mtp();
  if (has_mtp) backend.store_hidden(batch.stored_before);
  if (batch.is_of_head)
    mtp_forward(rank.weights, input, batch.hidden_before, backend);
  else
    decoder_forward(rank.weights, input, backend);
  if (!batch.pool_rows.empty())
    backend.pool(rank.weights.norm.get(), rank.weights.pooling_head,
                 is_first ? std::span<const PoolRow>(batch.pool_rows) : std::span<const PoolRow>());
  const std::span<const int32_t> rows(batch.logits_rows);
  const Vector* norm = batch.is_of_head ? rank.weights.mtp.norm.get() : rank.weights.norm.get();
  for (size_t begin = 0; begin < rows.size(); begin += static_cast<size_t>(max_rows_)) {
    const size_t count = std::min(rows.size() - begin, static_cast<size_t>(max_rows_));
    backend.lm_head(*norm, rank.weights.head(), rows.subspan(begin, count));
    if (!is_first) continue;
    const std::span<SampleRow> group(batch.sample_rows.data() + begin, count);
    for (size_t i = 0; i < count; ++i)
      group[i].logits_row = static_cast<int>(i);
    backend.sample(group, {batch.results.data() + begin, count});
  }
  if (batch.is_of_head)
    backend.keep_hidden(*norm);
  else if (has_mtp)
    mtp_follow(rank.weights, batch.hidden_before, batch.stored, backend);
}

}  // namespace capstan
