// Sums of partial hidden states: the parts of a product on one rank, and the all-reduce over ranks.
#include "cuda/cuda_backend.h"
#include "native/base/check.h"

namespace capstan::cuda {

// The parts of this rank's last product.
AddPartialsArgs CudaBackend::parts_args() const {
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

// Tokens [begin, end) of all ranks' partial sums. `all` holds each rank's hidden_ buffer.
AddPartialsArgs CudaBackend::partials_args(std::span<void* const> all, int begin, int end) const {
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

// Enqueues NCCL's all-reduce, after which this rank's partial sums are the sums over all ranks.
AddPartialsArgs CudaBackend::nccl_sum_args() const {
  ranks_->all_reduce(partial(), step_.num_tokens * model_.hidden_size, stream_);
  void* const mine = hidden_.as<void>();
  return partials_args({&mine, 1}, 0, step_.num_tokens);
}

void CudaBackend::all_reduce_partials() {
  CAPSTAN_CHECK(all_reduce_method_ != AllReduceMethod::kTwoShot);
  if (all_reduce_method_ == AllReduceMethod::kNccl) return launch_add_partials(nccl_sum_args(), stream_);
  const auto all = ranks_->begin_exchange(hidden_.as<void>(), stream_);
  launch_add_partials(partials_args(std::span(all).first(static_cast<size_t>(world_size())), 0, step_.num_tokens),
                      stream_);
  ranks_->end_exchange(stream_);
}

// Adds the pending sum and applies `norm`. With norm.rows (the last norm of a step) every rank does this for those rows
// alone, and leaves the hidden states and the pending sum unchanged. The order of sums is always the same.
void CudaBackend::all_reduce_and_norm(const NormArgs& norm) {
  AddNormArgs args;
  args.norm = norm;
  if (world_size() == 1) {
    args.sum = parts_args();
    args.owners[0] = args.sum.hidden;
    args.tokens_per_owner = step_.num_tokens;
    if (norm.rows == nullptr) pending_ = {};
    return launch_add_norm(args, stream_);
  }
  if (all_reduce_method_ == AllReduceMethod::kNccl && norm.rows == nullptr) {
    args.sum = nccl_sum_args();
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
