#pragma once
// Work recorded once and enqueued many times, with the arguments that it was recorded with.
#include <utility>

#include "cuda/launch.h"

namespace capstan::cuda {

class Graph {
 public:
  Graph() = default;
  explicit Graph(cudaGraphExec_t exec) : exec_(exec) {}
  Graph(Graph&& other) noexcept : exec_(std::exchange(other.exec_, nullptr)) {}
  Graph& operator=(Graph&& other) noexcept {
    std::swap(exec_, other.exec_);
    return *this;
  }
  ~Graph() {
    if (exec_ != nullptr && !is_device_lost()) cudaGraphExecDestroy(exec_);
  }
  explicit operator bool() const { return exec_ != nullptr; }
  void launch(cudaStream_t stream) const { check(cudaGraphLaunch(exec_, stream), "a step's graph"); }

 private:
  cudaGraphExec_t exec_ = nullptr;
};

// What is enqueued from here on is recorded and not run.
inline void begin_recording(cudaStream_t stream) {
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "recording a step");
}

// None where the device has no memory for one, which is no fault: what was recorded can be enqueued as it is. Later
// launches take no more of it.
inline Graph end_recording(cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream, &graph), "recording a step");
  cudaGraphExec_t exec = nullptr;
  cudaError_t error = cudaGraphInstantiate(&exec, graph, 0);
  cudaGraphDestroy(graph);
  Graph made(error == cudaSuccess ? exec : nullptr);
  if (error == cudaSuccess) error = cudaGraphUpload(exec, stream);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return Graph();
  }
  check(error, "a step's graph");
  return made;
}

// After a failure: nobody may wait for a stream that still records.
inline void drop_recording(cudaStream_t stream) {
  if (is_device_lost()) return;
  cudaGraph_t graph = nullptr;
  if (cudaStreamEndCapture(stream, &graph) == cudaSuccess && graph != nullptr) cudaGraphDestroy(graph);
  cudaGetLastError();
}

}  // namespace capstan::cuda
