#pragma once
#include "native/backend/cpu/kernels.h"

namespace capstan {

// Multiplies a few rows of bf16 together and one by one. Returns whether they have the same bits.
bool rows_give_the_same_bits(const CpuKernels& kernels);

}  // namespace capstan
