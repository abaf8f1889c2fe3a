#pragma once
// The only error that native code throws: a code from the closed list in `ts/addon-types.ts`, and a message with what
// was expected, what was received and what to do.
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

namespace capstan {

enum class ErrorCode {
  kInvalidArgument,
  kInvalidModel,
  kUnsupportedModel,
  kIo,
  kOutOfMemory,
  kContextLengthExceeded,
  kQueueFull,
  kEngineClosed,
  kNumeric,
  kDeviceLost,
  kAborted,
  kInternal,
};

// The name in JavaScript.
constexpr const char* error_code_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid_argument";
    case ErrorCode::kInvalidModel:
      return "invalid_model";
    case ErrorCode::kUnsupportedModel:
      return "unsupported_model";
    case ErrorCode::kIo:
      return "io_error";
    case ErrorCode::kOutOfMemory:
      return "out_of_memory";
    case ErrorCode::kContextLengthExceeded:
      return "context_length_exceeded";
    case ErrorCode::kQueueFull:
      return "queue_full";
    case ErrorCode::kEngineClosed:
      return "engine_closed";
    case ErrorCode::kNumeric:
      return "numeric_error";
    case ErrorCode::kDeviceLost:
      return "device_lost";
    case ErrorCode::kAborted:
      return "aborted";
    case ErrorCode::kInternal:
      return "internal_error";
  }
  return "internal_error";
}

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

// Returns the code and the message of any exception.
inline std::pair<ErrorCode, std::string> describe(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& known) {
    return {known.code(), known.what()};
  } catch (const std::bad_alloc&) {
    return {ErrorCode::kOutOfMemory, "out of memory"};
  } catch (const std::exception& other) {
    return {ErrorCode::kInternal, other.what()};
  } catch (...) {
    return {ErrorCode::kInternal, "unknown error"};
  }
}

}  // namespace capstan
