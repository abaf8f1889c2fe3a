#pragma once
#include <memory>

#include "cuda/kernels.h"
#include "cuda/memory.h"
#include "native/backend/backend.h"
#include "native/backend/cuda_api.h"

namespace capstan::cuda {

struct CudaMatrix final : Matrix {
  DeviceBuffer data, bias_data;
  DeviceBuffer high, records, blocks;  // of codes
  DeviceMatrix device;
  bool is_gated = false;          // gates and ups alternate
  const float* floats = nullptr;  // (rows, cols) of WeightFormat::kF32, in place of `device`
};

struct CudaVector final : Vector {
  DeviceBuffer data;
  float first = 0;  // the first value, which the host needs of vectors with one
  const float* device() const { return data.as<float>(); }
};

// Two pinned buffers for uploading weights: one is filled while the other is copied.
class Uploader {
 public:
  explicit Uploader(cudaStream_t stream) : stream_(stream) {}
  // Returns memory for a piece that the caller fills before `send`. Waits until the piece before the last has been
  // copied.
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
  int half_idx_ = 0;
};

struct UploadOptions {
  DType dtype = DType::kBf16;
  bool keeps_codes = true;  // false: quantized weights are decoded, which changes no bit of their values
  GroupQuantizer quantize_group = nullptr;
};
// Reads, packs (layout.h, codes_layout.h) and uploads a matrix. Returns when it is on the device.
std::unique_ptr<CudaMatrix> upload_matrix(const MatrixSource& source, const UploadOptions& options, Uploader& uploader,
                                          const LoadProgress& progress);
std::unique_ptr<CudaVector> upload_vector(const TensorSlice& slice, float offset, cudaStream_t stream,
                                          const LoadProgress& progress);
// The weight of a layer norm and its bias, which is 0 unless it is given.
std::unique_ptr<CudaVector> upload_layer_norm(const TensorSlice& weight, const TensorSlice* bias, cudaStream_t stream,
                                              const LoadProgress& progress);
// Uploads the values of read_taps.
std::unique_ptr<CudaVector> upload_convolution(const MatrixSource& source, cudaStream_t stream,
                                               const LoadProgress& progress);

// How K of a matrix is split on this rank.
DepthSplit split_of(const MatrixSource& source);

}  // namespace capstan::cuda
