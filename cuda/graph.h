#pragma once
// A CUDA graph: work that is captured once and launched many times, with the arguments of the capture.
#include <string>
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
  void launch(cudaStream_t stream) const { check(cudaGraphLaunch(exec_, stream), "launching a step's graph"); }

 private:
  cudaGraphExec_t exec_ = nullptr;
};

// From here on, work on `stream` is captured instead of run.
inline void begin_capture(cudaStream_t stream) {
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "capturing a step");
}

// Returns an empty graph when the driver makes none, for example because the device has no memory for it, and says why
// in `failure`. The caller then enqueues the work itself. An error that has broken the device is returned by the next
// call as well. Later launches of a graph allocate nothing.
inline Graph end_capture(cudaStream_t stream, std::string& failure) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  cudaError_t error = cudaStreamEndCapture(stream, &graph);
  if (error == cudaSuccess) error = cudaGraphInstantiate(&exec, graph, 0);
  if (graph != nullptr) cudaGraphDestroy(graph);
  Graph made(error == cudaSuccess ? exec : nullptr);
  if (error == cudaSuccess) error = cudaGraphUpload(exec, stream);
  if (error == cudaSuccess) return made;
  failure = cudaGetErrorString(error);
  cudaGetLastError();
  return Graph();
}

// Ends a capture after a failure. A stream must not be waited for while it captures.
inline void abort_capture(cudaStream_t stream) {
  if (is_device_lost()) return;
  cudaGraph_t graph = nullptr;
  if (cudaStreamEndCapture(stream, &graph) == cudaSuccess && graph != nullptr) cudaGraphDestroy(graph);
  cudaGetLastError();
}

}  // namespace capstan::cuda
