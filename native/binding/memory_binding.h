#pragma once
// Free memory of the machine, and memory management for other native libraries, which neither report the size of their
// objects to V8 nor return freed memory to the system.
#include <napi.h>

namespace capstan {

// `NativeAddon.adjustExternalMemory(change in bytes)`: reports native memory that JavaScript objects hold, so that V8
// collects them in time.
void adjust_external_memory_binding(const Napi::CallbackInfo& info);

// `NativeAddon.trimMemory()`: returns free memory to the system on a pool thread. Returns a promise.
Napi::Value trim_memory_binding(const Napi::CallbackInfo& info);

// `NativeAddon.availableMemoryBytes()`: returns the bytes that this process can still allocate.
Napi::Value available_memory_binding(const Napi::CallbackInfo& info);

}  // namespace capstan
