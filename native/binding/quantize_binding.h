#pragma once
// Quantizes the weights of a checkpoint for another one.
#include <napi.h>

namespace capstan {

// `NativeAddon.quantizeRows(rows)`.
Napi::Value quantize_rows_binding(const Napi::CallbackInfo& info);

// `NativeAddon.defaultGroupSize(bits, cols)`.
Napi::Value default_group_size_binding(const Napi::CallbackInfo& info);

}  // namespace capstan
