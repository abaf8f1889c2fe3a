// Kernels for NEON with integer dot products (Armv8.2 dotprod).
#if defined(__aarch64__)
#include "native/backend/cpu/kernels.h"
#include "native/backend/cpu/vec_neon.h"
#include "native/base/number.h"

#define CAPSTAN_KERNELS kNeonDotKernels
#include "native/backend/cpu/kernels.inl"
#endif
