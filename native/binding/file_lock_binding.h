#pragma once
// Locks on files, which Node has no call for.
#include <napi.h>

namespace capstan {

// `NativeAddon.tryLockFile(descriptor)`: takes flock(2)'s exclusive lock on an open file. Returns false if another
// open file has it. The lock ends when the file is closed, so also when the process ends. Throws 'io_error'.
Napi::Value try_lock_file_binding(const Napi::CallbackInfo& info);

}  // namespace capstan
