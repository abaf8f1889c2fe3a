#include "cuda/ranks.h"

#include <string>
#include <utility>

#include "native/base/check.h"

namespace capstan::cuda {

// Ends with a barrier of the hosts: all have enqueued what the others are about to wait for.
std::array<Ranks::Shown, Ranks::kMost> Ranks::show(void* data) {
  mine_ = {data, device_, shown_.get(), read_.get()};
  void* const* published = comm_->exchange(&mine_);
  std::array<Shown, kMost> all{};
  for (int rank = 0; rank < size(); ++rank)
    all[static_cast<size_t>(rank)] = *static_cast<const Shown*>(published[rank]);
  if (!reaches_peers_) reach_peers(all);
  return all;
}

// Kernels read other devices' memory by its address.
void Ranks::reach_peers(const std::array<Shown, kMost>& all) {
  for (int rank = 0; rank < size(); ++rank) {
    const int peer = all[static_cast<size_t>(rank)].device;
    if (peer == device_) continue;
    int can_reach = 0;
    check(cudaDeviceCanAccessPeer(&can_reach, device_, peer), "asking for a peer");
    if (can_reach == 0)
      throw Error(ErrorCode::kInvalidArgument, "device: expected devices that can read each other's memory, but " +
                                                   std::to_string(device_) + " cannot read that of " +
                                                   std::to_string(peer));
    const cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
    if (error == cudaErrorPeerAccessAlreadyEnabled)
      cudaGetLastError();
    else
      check(error, "reaching a peer");
  }
  reaches_peers_ = true;
}

std::array<void*, Ranks::kMost> Ranks::meet(void* data, cudaStream_t stream) {
  std::array<void*, kMost> shown{data};
  if (size() == 1) return shown;
  CAPSTAN_CHECK(!std::exchange(has_met_, true));
  shown_.record(stream);
  all_ = show(data);
  for (int rank = 0; rank < size(); ++rank) {
    wait_for(all_[static_cast<size_t>(rank)].shown, stream);
    shown[static_cast<size_t>(rank)] = all_[static_cast<size_t>(rank)].data;
  }
  return shown;
}

void Ranks::part(cudaStream_t stream) {
  if (size() == 1) return;
  CAPSTAN_CHECK(std::exchange(has_met_, false));
  read_.record(stream);
  comm_->barrier();
  for (int rank = 0; rank < size(); ++rank)
    wait_for(all_[static_cast<size_t>(rank)].read, stream);
  comm_->barrier();  // nobody records an event again before all wait for it
}

bool Ranks::all(bool mine) {
  if (size() == 1) return mine;
  void* const* said = comm_->exchange(&mine);
  bool all = true;
  for (int rank = 0; rank < size(); ++rank)
    all = all && *static_cast<const bool*>(said[rank]);
  comm_->barrier();
  return all;
}

// The others' streams record from where they first wait for one that does.
void Ranks::begin_recording(cudaStream_t stream) {
  if (size() == 1) return cuda::begin_recording(stream);
  if (!reaches_peers_) {
    show(nullptr);
    comm_->barrier();
  }
  shares_recording = true;
  if (is_first()) {
    cuda::begin_recording(stream);
    shown_.record(stream);
  }
  const auto all = show(nullptr);
  if (!is_first()) wait_for(all[0].shown, stream);
  comm_->barrier();
}

Graph Ranks::end_recording(cudaStream_t stream) {
  if (size() == 1) return cuda::end_recording(stream);
  if (!is_first()) shown_.record(stream);
  const auto all = show(nullptr);
  Graph graph;
  if (is_first()) {
    for (int rank = 1; rank < size(); ++rank)
      wait_for(all[static_cast<size_t>(rank)].shown, stream);
    graph = cuda::end_recording(stream);
  }
  comm_->barrier();
  shares_recording = false;
  return graph;
}

void Ranks::launch(const Graph& graph, cudaStream_t stream) {
  if (size() == 1) return graph.launch(stream);
  if (!is_first()) shown_.record(stream);
  const auto all = show(nullptr);
  if (is_first()) {
    for (int rank = 1; rank < size(); ++rank)
      wait_for(all[static_cast<size_t>(rank)].shown, stream);
    graph.launch(stream);
    read_.record(stream);
  }
  comm_->barrier();
  if (!is_first()) wait_for(all[0].read, stream);
}

}  // namespace capstan::cuda
