// The kernels of AMX over the twin of its instructions, for tests. No program that is shipped has them.
#include "native/backend/cpu/kernels.h"
#include "native/base/number.h"
#include "test/native/amx/tiles_twin.h"
// After the twin, which turns off false warnings of GCC 12.
#include "native/backend/cpu/vec_avx512.h"

#define CAPSTAN_KERNELS kAmxTwinKernels
#include "native/backend/cpu/kernels.inl"
