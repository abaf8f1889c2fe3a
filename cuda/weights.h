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

// Reads, packs (layout.h) and uploads through two pinned buffers; returns when all is on the device.
std::unique_ptr<CudaMatrix> upload_matrix(const MatrixSource& source, DType dtype, cudaStream_t stream, const LoadProgress& progress);
std::unique_ptr<CudaVector> upload_vector(const TensorSlice& slice, cudaStream_t stream, const LoadProgress& progress);

// How K of a matrix is cut on this rank.
DepthSplit split_of(const MatrixSource& source);

}  // namespace capstan::cuda
