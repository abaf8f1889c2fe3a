// Defines the table CAPSTAN_KERNELS over the Vec of the including file.
// clang-format off: each file uses the ones above it
#include "native/backend/cpu/elementwise.inl"
#include "native/backend/cpu/gemm.inl"
#include "native/backend/cpu/quant.inl"
#include "native/backend/cpu/attention_steps.inl"
#include "native/backend/cpu/attention.inl"
#include "native/backend/cpu/sampling.inl"
// clang-format on

namespace capstan {

#ifdef CAPSTAN_BF16_DOT
constexpr ActFormat kBf16ActFormat = ActFormat::kBf16Pairs;
#else
constexpr ActFormat kBf16ActFormat = ActFormat::kBf16Rounded;
#endif

const CpuKernels CAPSTAN_KERNELS = {
    kTileRows,      kBf16ActFormat, gemm_any,  rms_norm,       pack_row,     quantize_row,
    quantize_group, qkv_row,        attention, combine_chunks, add_partials, kSampleKernels,
};

}  // namespace capstan
