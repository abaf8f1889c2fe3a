#pragma once
#include <napi.h>

namespace capstan {

// `NativeAddon.load`: loads on a thread of its own and resolves with the engine's object.
Napi::Value load_engine_binding(const Napi::CallbackInfo& info);

}  // namespace capstan
