#pragma once
// The layout of activations that are not quantized.
#include "native/backend/cpu/kernels.h"

namespace capstan {

// Returns the format in which these kernels read bf16 activations of a bf16 matrix.
ActFormat bf16_act_format(const CpuKernels& kernels, int64_t rows);

// Returns tiles without memory. padded_k: columns, rounded up to even. num_parts: as in CpuMatrix.
ActTiles plain_act_tiles(const CpuKernels& kernels, ActFormat format, int64_t rows, int64_t padded_k, int num_parts);

}  // namespace capstan
