#pragma once
// For memory of other native libraries, which tell V8 nothing of what their objects hold and leave what they free with
// the allocator.
#include <napi.h>

namespace capstan {

// (change in bytes): tells V8 of native memory that garbage holds, so that it collects it in time.
void adjust_external_memory_binding(const Napi::CallbackInfo& info);

// () → Promise<void>: gives free memory back to the system, on a pool thread.
Napi::Value trim_memory_binding(const Napi::CallbackInfo& info);

}  // namespace capstan
