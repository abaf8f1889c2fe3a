#pragma once
// Calls from native code into JavaScript that survive an environment which is being torn down (a worker terminated in
// mid-stream): there every call fails, and there is nobody left to tell.
#include <napi.h>

namespace capstan {

// An exception of the program's own callback becomes an uncaughtException, as from any other callback.
inline void report_exception(Napi::Env env) {
  napi_value error = nullptr;
  if (napi_get_and_clear_last_exception(env, &error) == napi_ok && error != nullptr) napi_fatal_exception(env, error);
}

// `work` makes the arguments and may throw Napi::Error.
template <typename Work>
void call_function(Napi::Env env, const Napi::Function& function, const Work& make_arguments) {
  const Napi::HandleScope scope(env);
  try {
    const std::vector<napi_value> arguments = make_arguments();
    // NOTE: not Function::Call, which wraps a termination in an Error and aborts the process when that fails.
    const napi_status status =
        napi_call_function(env, env.Undefined(), function, arguments.size(), arguments.data(), nullptr);
    if (status == napi_pending_exception) report_exception(env);
  } catch (const Napi::Error&) {
    // Records of plain numbers and strings fail to convert only where no JavaScript may run any more.
  }
}

}  // namespace capstan
