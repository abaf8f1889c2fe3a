// Sums of partial hidden states: the parts of a product on one rank, and the all-reduce over ranks.
#include "cuda/cuda_backend.h"
#include "native/base/check.h"

namespace capstan::cuda {

AddPartialsArgs CudaBackend::sum_args() const {
  AddPartialsArgs args;
  args.hidden = hidden_.as<float>();
  args.bias = pending_->bias;
  args.num_tokens = step_.num_tokens;
  args.hidden_size = model_.hidden_size;
  args.replaces = pending_->replaces;
  args.norm = pending_->norm;
  args.eps = model_.rms_norm_eps;
  args.scale = pending_->scale;
  args.factor = pending_->factor;
  return args;
}

AddPartialsArgs CudaBackend::local_sum_args() const {
  AddPartialsArgs args = sum_args();
  args.world_size = pending_->parts;
  for (int part = 0; part < pending_->parts; ++part)
    args.partials[part] = pending_->local + part * step_.num_tokens * model_.hidden_size;
  return args;
}

// Tokens [begin, end) of all ranks' partial sums. `all` holds each rank's hidden_ buffer.
AddPartialsArgs CudaBackend::partials_args(std::span<void* const> all, int begin, int end) const {
  const int64_t skipped = begin * model_.hidden_size;
  AddPartialsArgs args = sum_args();
  args.hidden += skipped;
  args.world_size = static_cast<int>(all.size());
  args.num_tokens = end - begin;
  for (int rank = 0; rank < args.world_size; ++rank)
    args.partials[rank] = static_cast<const float*>(all[static_cast<size_t>(rank)]) + partial_offset() + skipped;
  return args;
}

// Enqueues NCCL's all-reduce, after which this rank's partial sums are the sums over all ranks.
AddPartialsArgs CudaBackend::nccl_sum_args() const {
  ranks_->all_reduce(partial(), step_.num_tokens * model_.hidden_size, stream_);
  void* const mine = hidden_.as<void>();
  return partials_args({&mine, 1}, 0, step_.num_tokens);
}

// Adds the pending sum, if any, to the hidden states of this rank.
void CudaBackend::finish_sum() {
  if (!pending_) return;
  if (pending_->norm != nullptr) return all_reduce_and_norm(norm_args(nullptr, nullptr, step_.num_tokens));
  if (pending_->local == nullptr) return all_reduce_partials(hidden_.as<float>());
  launch_add_partials(local_sum_args(), stream_);
  pending_.reset();
}

// Adds the pending sum to `hidden` (num_tokens, hidden_size), or stores it there if it replaces.
void CudaBackend::all_reduce_partials(float* hidden) {
  CAPSTAN_CHECK(all_reduce_method_ != AllReduceMethod::kTwoShot);
  const auto add = [&](AddPartialsArgs args) {
    args.hidden = hidden;
    pending_.reset();
    launch_add_partials(args, stream_);
  };
  if (all_reduce_method_ == AllReduceMethod::kNccl) return add(nccl_sum_args());
  const auto all = ranks_->begin_exchange(hidden_.as<void>(), stream_);
  add(partials_args(std::span(all).first(static_cast<size_t>(world_size())), 0, step_.num_tokens));
  ranks_->end_exchange(stream_);
}

// Adds the pending sum and applies `norm`. With norm.rows (the last norm of a step) every rank does this for those rows
// alone, and leaves the hidden states and the pending sum unchanged. The order of sums is always the same.
void CudaBackend::all_reduce_and_norm(const NormArgs& norm) {
  AddNormArgs args;
  args.norm = norm;
  if (pending_->local != nullptr) {
    args.sum = local_sum_args();
    args.owners[0] = args.sum.hidden;
    args.tokens_per_owner = step_.num_tokens;
    if (norm.rows == nullptr) pending_.reset();
    return launch_add_norm(args, stream_);
  }
  if (all_reduce_method_ == AllReduceMethod::kNccl && norm.rows == nullptr) {
    args.sum = nccl_sum_args();
    pending_.reset();
    return launch_add_norm(args, stream_);
  }
  const bool is_two_shot = all_reduce_method_ == AllReduceMethod::kTwoShot;
  const bool is_share = is_two_shot && norm.rows == nullptr;
  const int begin = is_share ? share_begin(ranks_->rank()) : 0;
  const int end = is_share ? share_begin(ranks_->rank() + 1) : step_.num_tokens;
  const auto all = ranks_->begin_exchange(hidden_.as<void>(), stream_);
  args.sum = partials_args(std::span(all).first(static_cast<size_t>(world_size())), begin, end);
  args.norm.hidden = args.sum.hidden;
  if (norm.rows == nullptr) args.norm.num_rows = end - begin;
  args.norm.acts += begin * norm.split.padded();
  args.tokens_per_owner = is_two_shot ? share_size() : step_.num_tokens;
  for (int rank = 0; rank < world_size(); ++rank)
    args.owners[rank] = is_two_shot ? static_cast<const float*>(all[static_cast<size_t>(rank)]) : hidden_.as<float>();
  if (begin < end) launch_add_norm(args, stream_);
  ranks_->end_exchange(stream_);
  if (norm.rows == nullptr) pending_.reset();
  if (is_share) all_gather_acts(norm);
}

// All-gather: every rank copies the activations that the other ranks' norms have written.
void CudaBackend::all_gather_acts(const NormArgs& norm) {
  const auto all = ranks_->begin_exchange(norm.acts, stream_);
  for (int rank = 0; rank < world_size(); ++rank) {
    const int begin = share_begin(rank), end = share_begin(rank + 1);
    if (rank == ranks_->rank() || begin == end) continue;
    const int64_t first = begin * norm.split.padded(), count = round_up(end - begin, kTileTokens) * norm.split.padded();
    const auto capture_lock = lock_capture();
    check(cudaMemcpyAsync(norm.acts + first, static_cast<const uint16_t*>(all[static_cast<size_t>(rank)]) + first,
                          static_cast<size_t>(count) * sizeof(uint16_t), cudaMemcpyDeviceToDevice, stream_),
          "copying another rank's activations");
  }
  ranks_->end_exchange(stream_);
}

}  // namespace capstan::cuda
