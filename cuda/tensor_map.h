#pragma once
// Descriptors for the tensor memory accelerator (TMA): an array (rows, columns) of 16-bit elements, and the box that
// one copy transfers.
#include <cstdint>

#include "cuda/device.h"

#if defined(__CUDACC__)
#include <cuda.h>
#endif

namespace capstan::cuda {

#if defined(__CUDACC__)
using TensorMap = CUtensorMap;
#else
using TensorMap = cuda_host::TensorMap;
#endif

// Whether the driver can create tensor maps.
bool supports_tensor_maps();

// A map with boxes of (box_rows, 64 columns), which land as swizzled rows of 128 bytes (wgmma_layout.h). Returns false
// when the driver does not support tensor maps or rejects this one.
bool make_tensor_map(TensorMap& map, const void* data, int64_t rows, int64_t columns, int box_rows);

}  // namespace capstan::cuda
