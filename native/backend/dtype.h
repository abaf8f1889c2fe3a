#pragma once
#include <cstddef>
#include <cstdint>

namespace capstan {

// kFp8E4m3 and kInt8 are types of the KV cache only. kInt8 is a code; value = code * scale of the token and KV head.
enum class DType : uint8_t { kF32, kF16, kBf16, kFp8E4m3, kInt8 };

// Returns the size of one element in bytes.
constexpr size_t dtype_size(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 4;
    case DType::kF16:
    case DType::kBf16:
      return 2;
    case DType::kFp8E4m3:
    case DType::kInt8:
      return 1;
  }
  return 0;
}

constexpr const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kF16:
      return "f16";
    case DType::kBf16:
      return "bf16";
    case DType::kFp8E4m3:
      return "fp8";
    case DType::kInt8:
      return "int8";
  }
  return "unknown";
}

}  // namespace capstan
