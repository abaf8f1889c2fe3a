// Kernels for Armv8-A with NEON.
#if defined(__aarch64__)
#include "native/backend/cpu/kernels.h"
#include "native/backend/cpu/vec_neon.h"
#include "native/base/number.h"

#define CAPSTAN_KERNELS kNeonKernels
#include "native/backend/cpu/kernels.inl"
#endif
