// Kernels for AVX2 with integer dot products (AVX-VNNI).
#if defined(__x86_64__)
#include "native/backend/cpu/kernels.h"
#include "native/backend/cpu/vec_avx2.h"
#include "native/base/number.h"

// clang-format off: each file uses the ones above it
#include "native/backend/cpu/elementwise.inl"
#include "native/backend/cpu/gemm.inl"
#include "native/backend/cpu/quant.inl"
#include "native/backend/cpu/attention.inl"
#include "native/backend/cpu/sampling.inl"
// clang-format on

namespace capstan {

const CpuKernels kAvxVnniKernels = {
    kTileRows,      ActFormat::kBf16Rounded, gemm_any, rms_norm,  pack_row,
    quantize_row,   quantize_group,          qkv_row,  attention, add_partials,
    kSampleKernels,
};

}  // namespace capstan
#endif
