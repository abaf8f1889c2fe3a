#include "native/binding/file_lock_binding.h"

#include <sys/file.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "native/binding/records.h"

namespace capstan {

Napi::Value try_lock_file_binding(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  if (!info[0].IsNumber()) throw make_error(env, ErrorCode::kInvalidArgument, "descriptor: expected a number");
  const int descriptor = info[0].As<Napi::Number>().Int32Value();
  while (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return Napi::Boolean::New(env, false);
    if (errno != EINTR)
      throw make_error(env, ErrorCode::kIo, std::string("the file cannot be locked: ") + std::strerror(errno));
  }
  return Napi::Boolean::New(env, true);
}

}  // namespace capstan
