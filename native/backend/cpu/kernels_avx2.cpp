// Kernels for AVX2, FMA and F16C.
#if defined(__x86_64__)
#include "native/backend/cpu/kernels.h"
#include "native/backend/cpu/vec_avx2.h"
#include "native/base/number.h"

#define CAPSTAN_KERNELS kAvx2Kernels
#include "native/backend/cpu/kernels.inl"
#endif
