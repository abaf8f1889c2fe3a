// Kernels for AVX2 with integer dot products (AVX-VNNI).
#if defined(__x86_64__)
#include "native/backend/cpu/kernels.h"
#include "native/backend/cpu/vec_avx2.h"
#include "native/base/number.h"

#define CAPSTAN_KERNELS kAvxVnniKernels
#include "native/backend/cpu/kernels.inl"
#endif
