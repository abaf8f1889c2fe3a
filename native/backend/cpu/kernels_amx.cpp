// Kernels for AVX-512 with bf16 products on the tile registers of AMX.
#if defined(__x86_64__)
// GCC 12 warns about the deliberately undefined operands in its own intrinsics.
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#pragma GCC diagnostic ignored "-Wuninitialized"
#include "native/backend/cpu/kernels.h"
#include "native/backend/cpu/tiles_amx.h"
#include "native/backend/cpu/vec_avx512.h"
#include "native/base/number.h"

#define CAPSTAN_KERNELS kAmxKernels
#include "native/backend/cpu/kernels.inl"
#endif
