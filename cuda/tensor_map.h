#pragma once
// What the copy engine knows of an array (rows, columns) of 16-bit numbers: where it lies, and the box that one copy
// takes of it.
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

// Whether the driver makes any.
bool knows_tensor_maps();

// Boxes of (box_rows, 64 columns), which land as rows of 128 bytes, swizzled (wgmma_layout.h). False where the driver
// has no such maps, or takes not this one.
bool make_tensor_map(TensorMap& map, const void* data, int64_t rows, int64_t columns, int box_rows);

}  // namespace capstan::cuda
