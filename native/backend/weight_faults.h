#pragma once
// Refuses weights that cannot be computed with. Throws kInvalidModel: what was expected, what came, what to do.
#include <string>

#include "native/backend/dtype.h"
#include "native/base/error.h"

namespace capstan {

constexpr const char* kDamagedFile =
    "The file is damaged: download the model again, or use another file or quantization of it";

[[noreturn]] inline void refuse_non_finite(const std::string& tensor) {
  throw Error(ErrorCode::kInvalidModel,
              "tensor " + tensor + ": expected finite values, got NaN or Inf. " + kDamagedFile);
}

// `faults` says what the scale is.
[[noreturn]] inline void refuse_scale(const std::string& tensor, const std::string& faults) {
  throw Error(ErrorCode::kInvalidModel,
              "tensor " + tensor + ": expected finite scales, got one that is " + faults + ". " + kDamagedFile);
}

// The file has a value that `dtype`, the type of the weights in memory, cannot hold.
[[noreturn]] inline void refuse_too_large(const std::string& tensor, DType dtype) {
  throw Error(ErrorCode::kInvalidModel,
              "tensor " + tensor + ": expected values that " + dtype_name(dtype) + " can hold, got a larger one. " +
                  (dtype == DType::kF16 ? "Set dtype (--dtype) to bf16" : "Set dtype (--dtype) to f32, on the CPU"));
}

}  // namespace capstan
