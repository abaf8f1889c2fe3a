#pragma once
#include <memory>

#include "cuda/kernels.h"
#include "cuda/memory.h"
#include "native/backend/backend.h"

namespace capstan::cuda {

struct CudaMatrix final : Matrix {
  DeviceBuffer data, bias_data;
  DeviceMatrix device;
};

struct CudaVector final : Vector {
  DeviceBuffer data;
  const float* device() const { return data.as<float>(); }
};

// Two pinned buffers that weights go through: one is filled while the other is copied.
class Uploader {
 public:
  explicit Uploader(cudaStream_t stream) : stream_(stream) {}
  // Room for a piece, to be written before `send`; waits until the last piece but one has been sent.
  void* begin(size_t bytes);
  void send(void* to, size_t bytes);
  cudaStream_t stream() const { return stream_; }

 private:
  struct Half {
    PinnedBuffer data;
    Event sent;
    bool is_sent = false;
  };
  cudaStream_t stream_;
  Half halves_[2];
  int turn_ = 0;
};

// Reads, packs (layout.h) and uploads; returns when all is on the device.
std::unique_ptr<CudaMatrix> upload_matrix(const MatrixSource& source, DType dtype, Uploader& uploader,
                                          const LoadProgress& progress);
std::unique_ptr<CudaVector> upload_vector(const TensorSlice& slice, cudaStream_t stream, const LoadProgress& progress);

// How K of a matrix is cut on this rank.
DepthSplit split_of(const MatrixSource& source);

}  // namespace capstan::cuda
