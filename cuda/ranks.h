#pragma once
// The ranks of a group: a host thread and a stream each, on several devices or sharing one. What a rank shows the others, their kernels read by its address; the
// hosts only put events between their streams, so that nothing spins on a device and a whole step of all ranks can be one graph.
#include <array>
#include <memory>

#include "cuda/graph.h"
#include "cuda/memory.h"
#include "native/comm/comm.h"

namespace capstan::cuda {

// From where on adding up all ranks' data is better done in two shots: bytes, by what others have measured on one machine's links. Tests take fewer.
inline int64_t& two_shot_bytes() {
  static int64_t bytes = 256 << 10;
  return bytes;
}
// Two ranks read the same either way; few ranks wait longer for a second meeting than for the data.
inline bool takes_two_shots(int world_size, int64_t bytes) { return world_size > 2 && bytes >= (world_size <= 4 ? 2 : 1) * two_shot_bytes(); }

class Ranks {
 public:
  static constexpr int kMost = 8;

  // `comm` null: there is one rank, and all of this does nothing.
  Ranks(std::unique_ptr<Comm> comm, int device) : comm_(std::move(comm)), device_(device) {}

  int size() const { return comm_ == nullptr ? 1 : comm_->world_size(); }
  int rank() const { return comm_ == nullptr ? 0 : comm_->rank(); }
  bool is_first() const { return rank() == 0; }

  // All ranks' data by rank, which this stream may read until it parts. (collective, as all below)
  std::array<void*, kMost> meet(void* data, cudaStream_t stream);
  // All may write again what they have shown.
  void part(cudaStream_t stream);

  // What any rank enqueues between these two becomes one graph, which the first rank gets; the others' is empty.
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
  void wait_for(cudaEvent_t event, cudaStream_t stream) const { check(cudaStreamWaitEvent(stream, event, 0), "waiting for a rank"); }
  void reach_peers(const std::array<Shown, kMost>& all);

  std::unique_ptr<Comm> comm_;
  int device_;
  bool reaches_peers_ = false;
  Shown mine_{};  // to the other ranks, until they part
  std::array<Shown, kMost> all_{};
  Event shown_, read_;
};

}  // namespace capstan::cuda
