#pragma once
// The ranks of a tensor-parallel group. Each has a host thread and a stream, on a separate device or a shared one.
// Ranks publish buffers, and the other ranks' kernels read them by address. The hosts order the streams by events only:
// nothing spins on a device, and a whole step of all ranks can be one graph.
#include <algorithm>
#include <array>
#include <memory>

#include "cuda/graph.h"
#include "cuda/layout.h"
#include "cuda/memory.h"
#include "cuda/nccl.h"
#include "native/comm/comm.h"

namespace capstan::cuda {

// How the ranks' partial sums of the hidden states are added.
enum class AllReduceMethod : uint8_t {
  kOneShot,  // every rank adds all tokens
  kNccl,     // NCCL adds; every rank has the whole sum
  kTwoShot,  // every rank adds its share of the tokens and keeps their hidden states; the others copy its activations
};

// Two-shot pays off from this many bytes, according to published measurements on one machine. Tests lower it.
inline int64_t& two_shot_bytes() {
  static int64_t bytes = 256 << 10;
  return bytes;
}
// NCCL pays off from this many bytes, from the same source.
inline int64_t& nccl_bytes() {
  static int64_t bytes = 16 << 20;
  return bytes;
}
// Two ranks read the same amount with either method. With few ranks a second exchange costs more than the data. Shares
// consist of full tiles of tokens.
inline AllReduceMethod choose_all_reduce_method(int world_size, int num_tokens, int64_t bytes, bool has_nccl,
                                                bool has_one_shot = true) {
  if (has_nccl && bytes >= nccl_bytes()) return AllReduceMethod::kNccl;
  const bool is_two_shot = world_size > 2 && num_tokens > kTileTokens &&
                           (!has_one_shot || bytes >= (world_size <= 4 ? 2 : 1) * two_shot_bytes());
  return is_two_shot ? AllReduceMethod::kTwoShot : AllReduceMethod::kOneShot;
}

// Tokens per rank in a two-shot all-reduce: whole tiles, so that their activations are contiguous.
inline int share_size(int num_tokens, int world_size) {
  return static_cast<int>(round_up((num_tokens + world_size - 1) / world_size, kTileTokens));
}
inline int share_begin(int rank, int num_tokens, int world_size) {
  return std::min(num_tokens, rank * share_size(num_tokens, world_size));
}

// With one rank (`comm` null) the collective methods do nothing.
class Ranks {
 public:
  static constexpr int kMaxRanks = 8;

  Ranks(std::unique_ptr<Comm> comm, int device, std::shared_ptr<CudaLinks> links)
      : comm_(std::move(comm)), device_(device), links_(std::move(links)) {}

  int size() const { return comm_ == nullptr ? 1 : comm_->world_size(); }
  int rank() const { return comm_ == nullptr ? 0 : comm_->rank(); }
  bool is_first() const { return rank() == 0; }

  // All methods below are collective.

  // Publishes `data` and returns every rank's pointer, by rank. Work enqueued on `stream` until `end_exchange` may read
  // the published buffers. Exchanges do not nest.
  std::array<void*, kMaxRanks> begin_exchange(void* data, cudaStream_t stream);
  // Afterwards every rank may overwrite the buffer it has published.
  void end_exchange(cudaStream_t stream);

  bool has_nccl() const { return links_ != nullptr; }
  // data = sum over ranks, by NCCL. NOTE: not within a capture.
  void all_reduce(float* data, int64_t count, cudaStream_t stream) const {
    static_cast<const Nccl&>(*links_).all_reduce(rank(), data, count, stream);
  }

  // Whether `mine` is true on all ranks.
  bool all_agree(bool mine);

  // Captures what all ranks enqueue between these two calls. The first rank gets the graph, or an empty one and the
  // reason in `failure`; the other ranks get an empty graph.
  void begin_capture(cudaStream_t stream);
  Graph end_capture(cudaStream_t stream, std::string& failure);
  // Runs the graph after everything that the ranks have enqueued, and before everything that they enqueue later.
  void launch(const Graph& graph, cudaStream_t stream);

 private:
  struct PublishedBuffer {
    void* data;
    int device;
    cudaEvent_t ready;  // the data is written
    cudaEvent_t read;   // this rank has read the other ranks' data
  };
  std::array<PublishedBuffer, kMaxRanks> publish(void* data);
  void wait_for(cudaEvent_t event, cudaStream_t stream) const {
    const auto capture_lock = lock_capture();
    check(cudaStreamWaitEvent(stream, event, 0), "waiting for a rank");
  }
  void enable_peer_access(const std::array<PublishedBuffer, kMaxRanks>& all);

  std::unique_ptr<Comm> comm_;
  int device_;
  std::shared_ptr<CudaLinks> links_;
  bool has_peer_access_ = false, is_exchanging_ = false;
  PublishedBuffer mine_{};  // the other ranks read it during an exchange
  std::array<PublishedBuffer, kMaxRanks> all_{};
  Event ready_, read_;
};

}  // namespace capstan::cuda
