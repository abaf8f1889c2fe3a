#include "cuda/ranks.h"

#include <string>
#include <utility>

#include "native/base/check.h"

namespace capstan::cuda {

// Ends with a barrier of the host threads: afterwards every rank has enqueued what the other ranks wait for.
std::array<Ranks::PublishedBuffer, Ranks::kMaxRanks> Ranks::publish(void* data) {
  mine_ = {data, device_, ready_.get(), read_.get()};
  void* const* published = comm_->exchange(&mine_);
  std::array<PublishedBuffer, kMaxRanks> all{};
  for (int rank = 0; rank < size(); ++rank)
    all[static_cast<size_t>(rank)] = *static_cast<const PublishedBuffer*>(published[rank]);
  if (!has_peer_access_) enable_peer_access(all);
  return all;
}

// Lets this device's kernels read the other devices' memory.
void Ranks::enable_peer_access(const std::array<PublishedBuffer, kMaxRanks>& all) {
  for (int rank = 0; rank < size(); ++rank) {
    const int peer = all[static_cast<size_t>(rank)].device;
    if (peer == device_) continue;
    int can_reach = 0;
    check(cudaDeviceCanAccessPeer(&can_reach, device_, peer), "querying peer access");
    if (can_reach == 0)
      throw Error(ErrorCode::kInvalidArgument, "device: expected devices with peer access to each other, but device " +
                                                   std::to_string(device_) + " cannot access the memory of device " +
                                                   std::to_string(peer));
    const cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
    if (error == cudaErrorPeerAccessAlreadyEnabled)
      cudaGetLastError();
    else
      check(error, "enabling peer access");
  }
  has_peer_access_ = true;
}

std::array<void*, Ranks::kMaxRanks> Ranks::begin_exchange(void* data, cudaStream_t stream) {
  std::array<void*, kMaxRanks> pointers{data};
  if (size() == 1) return pointers;
  CAPSTAN_CHECK(!std::exchange(is_exchanging_, true));
  ready_.record(stream);
  all_ = publish(data);
  for (int rank = 0; rank < size(); ++rank) {
    wait_for(all_[static_cast<size_t>(rank)].ready, stream);
    pointers[static_cast<size_t>(rank)] = all_[static_cast<size_t>(rank)].data;
  }
  return pointers;
}

void Ranks::end_exchange(cudaStream_t stream) {
  if (size() == 1) return;
  CAPSTAN_CHECK(std::exchange(is_exchanging_, false));
  read_.record(stream);
  comm_->barrier();
  for (int rank = 0; rank < size(); ++rank)
    wait_for(all_[static_cast<size_t>(rank)].read, stream);
  comm_->barrier();  // a rank may record its event again only after every rank waits for this recording
}

bool Ranks::all_agree(bool mine) {
  if (size() == 1) return mine;
  void* const* votes = comm_->exchange(&mine);
  bool all = true;
  for (int rank = 0; rank < size(); ++rank)
    all = all && *static_cast<const bool*>(votes[rank]);
  comm_->barrier();
  return all;
}

// The other ranks' streams join the capture when they wait for an event of the capturing stream.
void Ranks::begin_capture(cudaStream_t stream) {
  if (size() == 1) return cuda::begin_capture(stream);
  if (!has_peer_access_) {
    publish(nullptr);
    comm_->barrier();
  }
  is_shared_capture = true;
  if (is_first()) {
    cuda::begin_capture(stream);
    ready_.record(stream);
  }
  const auto all = publish(nullptr);
  if (!is_first()) wait_for(all[0].ready, stream);
  comm_->barrier();
}

Graph Ranks::end_capture(cudaStream_t stream, std::string& failure) {
  if (size() == 1) return cuda::end_capture(stream, failure);
  if (!is_first()) ready_.record(stream);
  const auto all = publish(nullptr);
  Graph graph;
  if (is_first()) {
    for (int rank = 1; rank < size(); ++rank)
      wait_for(all[static_cast<size_t>(rank)].ready, stream);
    graph = cuda::end_capture(stream, failure);
  }
  comm_->barrier();
  is_shared_capture = false;
  return graph;
}

void Ranks::launch(const Graph& graph, cudaStream_t stream) {
  if (size() == 1) return graph.launch(stream);
  if (!is_first()) ready_.record(stream);
  const auto all = publish(nullptr);
  if (is_first()) {
    for (int rank = 1; rank < size(); ++rank)
      wait_for(all[static_cast<size_t>(rank)].ready, stream);
    graph.launch(stream);
    read_.record(stream);
  }
  comm_->barrier();
  if (!is_first()) wait_for(all[0].read, stream);
}

}  // namespace capstan::cuda
