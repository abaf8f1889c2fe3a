#pragma once
#include <napi.h>

namespace capstan {

// `NativeAddon.load`: loads on a separate thread. Returns a promise of the engine's object.
Napi::Value load_engine_binding(const Napi::CallbackInfo& info);

}  // namespace capstan
