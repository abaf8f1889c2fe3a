#pragma once
// Records of `ts/addon-types.ts` to and from C++. Wrong types throw a JavaScript error with code invalid_argument that
// names the field.
#include <napi.h>

#include "native/engine/load.h"

namespace capstan {

LoadRequest to_load_request(const Napi::Object& load);
Request to_request(const Napi::Object& record);

Napi::Object from_info(Napi::Env env, const EngineInfo& info);
Napi::Object from_stats(Napi::Env env, const EngineStats& stats);
Napi::Object from_event(Napi::Env env, const Event& event);

// A JavaScript Error with `code`.
Napi::Error make_error(Napi::Env env, ErrorCode code, const std::string& message);
// The same from any C++ exception.
Napi::Error to_js_error(Napi::Env env, const std::exception& error);

}  // namespace capstan
