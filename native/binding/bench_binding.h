#pragma once
// Benchmarks of the CPU backend and the machine. They run on the calling thread, which waits.
#include <napi.h>

namespace capstan {

// `NativeAddon.benchmarkLimits(options)`.
Napi::Value benchmark_limits_binding(const Napi::CallbackInfo& info);

// `NativeAddon.benchmarkOps(options, onResult)`: calls `onResult` after each number of rows.
Napi::Value benchmark_ops_binding(const Napi::CallbackInfo& info);

}  // namespace capstan
