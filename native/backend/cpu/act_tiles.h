#pragma once
// The layout of activations.
#include "native/backend/cpu/kernels.h"

namespace capstan {

// Returns the format in which these kernels read bf16 activations of a bf16 matrix.
ActFormat bf16_act_format(const CpuKernels& kernels, int64_t rows);

// Returns tiles without memory. padded_k: columns, rounded up to even. num_parts: as in CpuMatrix.
ActTiles plain_act_tiles(const CpuKernels& kernels, ActFormat format, int64_t rows, int64_t padded_k, int num_parts);

// Returns tiles for quantized weights, without memory.
ActTiles int8_act_tiles(const CpuKernels& kernels, int64_t rows, const QuantWeights& quant);

// Sets the memory of int8_act_tiles: int8_act_words(…) for each row.
void place_int8_acts(uint32_t* data, ActTiles& acts);

// Returns the words of a row in the larger format of these kernels, with its scales and sums.
int64_t int8_act_words(const CpuKernels& kernels, const QuantWeights& quant);

// Returns the floats of GemmArgs::scratch for such activations.
int64_t int8_scratch_floats(const CpuKernels& kernels, const QuantWeights& quant);

}  // namespace capstan
