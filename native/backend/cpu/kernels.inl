// Defines the table CAPSTAN_KERNELS over the Vec of the including file, and over its tile functions if it has them.
// clang-format off: each file uses the ones above it
#include "native/backend/cpu/elementwise.inl"
#include "native/backend/cpu/lora.inl"
#include "native/backend/cpu/gemm.inl"
#include "native/backend/cpu/quant.inl"
#include "native/backend/cpu/qkv.inl"
#include "native/backend/cpu/attention_steps.inl"
#include "native/backend/cpu/attention_tiles.inl"
#include "native/backend/cpu/attention_codes.inl"
#include "native/backend/cpu/attention.inl"
#include "native/backend/cpu/sampling.inl"
#include "native/backend/cpu/recurrent.inl"
#ifdef CAPSTAN_TILES
#include "native/backend/cpu/amx.inl"
#endif
// clang-format on

namespace capstan {

#if defined(CAPSTAN_TILES)
constexpr ActFormat kInt8ActFormat = ActFormat::kInt8Blocks;
#else
constexpr ActFormat kInt8ActFormat = ActFormat::kInt8;
#endif
#if defined(CAPSTAN_TILES)
constexpr ActFormat kBf16ActFormat = ActFormat::kBf16Blocks;
#elif defined(CAPSTAN_BF16_DOT)
constexpr ActFormat kBf16ActFormat = ActFormat::kBf16Pairs;
#else
constexpr ActFormat kBf16ActFormat = ActFormat::kBf16Rounded;
#endif

const CpuKernels CAPSTAN_KERNELS = {
    kTileRows,    kTilePanels,  kBf16ActFormat, kInt8ActFormat,   gemm_any,       rms_norm,
    pack_rows,    quantize_row, quantize_group, qkv_row,          attention,      combine_chunks,
    add_residual, layer_norm,   activate,       add_row,          weighted_sum,   lora_update,
    head_squares, scale_logits, gated_row,      per_layer_inputs, kSampleKernels, kRecurrentKernels,
};

}  // namespace capstan
