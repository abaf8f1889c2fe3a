#pragma once
// The ranks of a group: a host thread and a stream each, on several devices or sharing one. What a rank shows the
// others, their kernels read by its address; the hosts only put events between their streams, so that nothing spins on
// a device and a whole step of all ranks can be one graph.
#include <algorithm>
#include <array>
#include <memory>

#include "cuda/graph.h"
#include "cuda/layout.h"
#include "cuda/memory.h"
#include "cuda/nccl.h"
#include "native/comm/comm.h"

namespace capstan::cuda {

// How the ranks' partials of the hidden states are added up.
enum class SumWay : uint8_t {
  kOneShot,   // every rank adds all tokens
  kNccl,      // NCCL does, and every rank has all of the sum
  kTwoShots,  // each its share of them, which it alone has from then on; the others copy what the norm makes of it
};

// From where on two shots are better: bytes, by what others have measured on one machine's links. Tests take fewer.
inline int64_t& two_shot_bytes() {
  static int64_t bytes = 256 << 10;
  return bytes;
}
// And from where on NCCL is, where there is one: likewise.
inline int64_t& nccl_bytes() {
  static int64_t bytes = 16 << 20;
  return bytes;
}
// Two ranks read the same either way; few ranks wait longer for a second meeting than for the data; and shares are
// whole tiles of tokens.
inline SumWay choose_sum_way(int world_size, int num_tokens, int64_t bytes, bool has_nccl, bool has_one_shot = true) {
  if (has_nccl && bytes >= nccl_bytes()) return SumWay::kNccl;
  const bool takes_two = world_size > 2 && num_tokens > kTileTokens &&
                         (!has_one_shot || bytes >= (world_size <= 4 ? 2 : 1) * two_shot_bytes());
  return takes_two ? SumWay::kTwoShots : SumWay::kOneShot;
}

// The tokens that a rank adds in two shots: whole tiles, so that their activations lie together.
inline int share_size(int num_tokens, int world_size) {
  return static_cast<int>(round_up((num_tokens + world_size - 1) / world_size, kTileTokens));
}
inline int share_begin(int rank, int num_tokens, int world_size) {
  return std::min(num_tokens, rank * share_size(num_tokens, world_size));
}

class Ranks {
 public:
  static constexpr int kMost = 8;

  // `comm` null: there is one rank, and all of this does nothing.
  Ranks(std::unique_ptr<Comm> comm, int device, std::shared_ptr<CudaLinks> links)
      : comm_(std::move(comm)), device_(device), links_(std::move(links)) {}

  int size() const { return comm_ == nullptr ? 1 : comm_->world_size(); }
  int rank() const { return comm_ == nullptr ? 0 : comm_->rank(); }
  bool is_first() const { return rank() == 0; }

  // All ranks' data by rank, which this stream may read until it parts; nothing else may be shown until then.
  // (collective, as all below)
  std::array<void*, kMost> meet(void* data, cudaStream_t stream);
  // All may write again what they have shown.
  void part(cudaStream_t stream);

  bool has_nccl() const { return links_ != nullptr; }
  // data = the sum of all ranks', by NCCL. NOTE: nothing that is recorded.
  void add_up(float* data, int64_t count, cudaStream_t stream) const {
    static_cast<const Nccl&>(*links_).add_up(rank(), data, count, stream);
  }

  // Whether all ranks say so.
  bool all(bool mine);

  // What any rank enqueues between these two becomes one graph, which the first rank gets, if there is memory for it;
  // the others' is empty.
  void begin_recording(cudaStream_t stream);
  Graph end_recording(cudaStream_t stream);
  // Behind all that the ranks have enqueued, and before all that they will.
  void launch(const Graph& graph, cudaStream_t stream);

 private:
  struct Shown {
    void* data;
    int device;
    cudaEvent_t shown;  // written
    cudaEvent_t read;   // this rank has read the others'
  };
  std::array<Shown, kMost> show(void* data);
  void wait_for(cudaEvent_t event, cudaStream_t stream) const {
    const auto turn = turn_to_record();
    check(cudaStreamWaitEvent(stream, event, 0), "waiting for a rank");
  }
  void reach_peers(const std::array<Shown, kMost>& all);

  std::unique_ptr<Comm> comm_;
  int device_;
  std::shared_ptr<CudaLinks> links_;
  bool reaches_peers_ = false, has_met_ = false;
  Shown mine_{};  // to the other ranks, until they part
  std::array<Shown, kMost> all_{};
  Event shown_, read_;
};

}  // namespace capstan::cuda
