#pragma once
// Converts the records of `ts/addon-types.ts` to and from C++. A field of the wrong type throws a JavaScript error with
// code invalid_argument that names the field.
#include <napi.h>

#include "native/engine/load.h"

namespace capstan {

LoadRequest to_load_request(const Napi::Object& load);
TokenizerTables to_tokenizer_tables(const Napi::Object& tokenizer);
Request to_request(const Napi::Object& record);
// A request of NativeEngine.pool.
Request to_pooled_request(const Napi::Object& record);
AdapterSource to_adapter_source(const Napi::Object& record);

Napi::Object from_info(Napi::Env env, const EngineInfo& info);
Napi::Object from_stats(Napi::Env env, const EngineStats& stats);
// The fields that most events leave null.
Napi::Object from_event_details(Napi::Env env, const Event& event);

// Returns a JavaScript Error with the property `code`.
Napi::Error make_error(Napi::Env env, ErrorCode code, const std::string& message);
// Converts a C++ exception. Any other than capstan::Error and std::bad_alloc becomes internal_error.
Napi::Error to_js_error(Napi::Env env, const std::exception_ptr& error);

}  // namespace capstan
