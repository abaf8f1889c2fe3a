// Kernels for AVX-512 with integer dot products.
#if defined(__x86_64__)
// GCC 12 warns about the deliberately undefined operands in its own intrinsics.
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#pragma GCC diagnostic ignored "-Wuninitialized"
#include "native/backend/cpu/kernels.h"
#include "native/backend/cpu/vec_avx512.h"
#include "native/base/number.h"

// clang-format off: each file uses the ones above it
#include "native/backend/cpu/elementwise.inl"
#include "native/backend/cpu/gemm.inl"
#include "native/backend/cpu/quant.inl"
#include "native/backend/cpu/attention.inl"
#include "native/backend/cpu/sampling.inl"
// clang-format on

namespace capstan {

const CpuKernels kAvx512VnniKernels = {
    kTileRows,      ActFormat::kBf16Rounded, gemm_any, rms_norm,  pack_row,
    quantize_row,   quantize_group,          qkv_row,  attention, add_partials,
    kSampleKernels,
};

}  // namespace capstan
#endif
