#pragma once
#include "native/backend/cpu/cpu_backend.h"
#include "native/backend/cpu/kernels.h"

namespace capstan {

// Returns the kernels of an instruction set that this machine can run.
const CpuKernels& cpu_kernels(CpuIsa isa);

// Returns whether the software should prefetch the weights of one row. On some processors, the hardware does it better.
bool wants_prefetch();

}  // namespace capstan
