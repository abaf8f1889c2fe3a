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
  void launch(cudaStream_t stream) const { check(cudaGraphLaunch(exec_, stream), "a step's graph"); }

 private:
  cudaGraphExec_t exec_ = nullptr;
};

// What is enqueued from here on is recorded and not run.
inline void begin_recording(cudaStream_t stream) { check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "recording a step"); }

inline Graph end_recording(cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream, &graph), "recording a step");
  cudaGraphExec_t exec = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&exec, graph, 0);
  cudaGraphDestroy(graph);
  check(error, "a step's graph");
  return Graph(exec);
}

// Whoever waits for the stream could not while it records.
inline void drop_recording(cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  if (cudaStreamEndCapture(stream, &graph) == cudaSuccess) cudaGraphDestroy(graph);
}

}  // namespace capstan::cuda
