#pragma once
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "native/base/error.h"

namespace capstan {

// Starts a thread. Throws kOutOfMemory when the system has none left. NOTE: reserve the container of the threads
// before: a running thread that is lost to an exception ends the process.
template <class Function>
std::thread start_thread(Function&& function) {
  try {
    return std::thread(std::forward<Function>(function));
  } catch (const std::system_error& error) {
    throw Error(ErrorCode::kOutOfMemory,
                "a thread could not be started: " + error.code().message() +
                    "; raise the limit of threads (ulimit -u, or the pids limit of the container) or lower threads");
  }
}

}  // namespace capstan
