// Kernels for NEON with products of bf16 and of 8-bit integers (Armv8.6 bf16 and i8mm).
#if defined(__aarch64__)
#include "native/backend/cpu/kernels.h"
#include "native/backend/cpu/vec_neon.h"
#include "native/base/number.h"

#define CAPSTAN_KERNELS kNeonBf16Kernels
#include "native/backend/cpu/kernels.inl"
#endif
