#include "native/engine/model_runner.h"

#include <algorithm>

#include "native/model/decoder.h"

namespace capstan {

ModelRunner::ModelRunner(std::vector<Rank> ranks, std::unique_ptr<Comm> control, int max_rows)
    : ranks_(std::move(ranks)), control_(std::move(control)), max_rows_(max_rows) {
  for (size_t rank = 1; rank < ranks_.size(); ++rank) threads_.emplace_back([this, rank] { rank_main(rank); });
}

ModelRunner::~ModelRunner() {
  is_closing_.store(true);
  step_.fetch_add(1);
  step_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ModelRunner::launch(Batch& batch) {
  batch_ = &batch;
  if (threads_.empty()) return;
  num_running_.store(static_cast<int>(threads_.size()));
  step_.fetch_add(1);
  step_.notify_all();
}

void ModelRunner::collect(Batch&) {
  run_rank(0);
  for (int left = num_running_.load(); left != 0; left = num_running_.load()) num_running_.wait(left);
  if (error_) std::rethrow_exception(error_);
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

// The first error is the cause; the others are ranks that were woken by it.
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
  decoder_forward(rank.weights, batch.input(), backend);
  const std::span<const int32_t> rows(batch.logits_rows);
  for (size_t begin = 0; begin < rows.size(); begin += static_cast<size_t>(max_rows_)) {
    const size_t count = std::min(rows.size() - begin, static_cast<size_t>(max_rows_));
    backend.lm_head(*rank.weights.norm, rank.weights.head(), rows.subspan(begin, count));
    if (!is_first) continue;
    const std::span<SampleRow> group(batch.sample_rows.data() + begin, count);
    for (size_t i = 0; i < count; ++i) group[i].logits_row = static_cast<int>(i);
    backend.sample(group, {batch.results.data() + begin, count});
  }
}

}  // namespace capstan
