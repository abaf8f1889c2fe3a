#pragma once
// Calls from native code into JavaScript. They tolerate an environment that is being torn down, such as a terminated
// worker thread: there every call fails, and the failure is ignored.
#include <napi.h>

namespace capstan {

// Turns an exception of the user's callback into an uncaughtException, as Node does for its own callbacks.
inline void report_exception(Napi::Env env) {
  napi_value error = nullptr;
  if (napi_get_and_clear_last_exception(env, &error) == napi_ok && error != nullptr) napi_fatal_exception(env, error);
}

// `make_arguments` may throw Napi::Error.
template <typename MakeArguments>
void call_function(Napi::Env env, const Napi::Function& function, const MakeArguments& make_arguments) {
  const Napi::HandleScope scope(env);
  try {
    const std::vector<napi_value> arguments = make_arguments();
    // NOTE: Function::Call wraps a termination in an Error, and aborts the process when that fails.
    const napi_status status =
        napi_call_function(env, env.Undefined(), function, arguments.size(), arguments.data(), nullptr);
    if (status == napi_pending_exception) report_exception(env);
  } catch (const Napi::Error&) {
    // Plain numbers and strings fail to convert only in an environment where no JavaScript can run any more.
  }
}

}  // namespace capstan
