#pragma once
#include <cstddef>
#include <cstdint>

namespace capstan {

// kFp8E4m3: of the KV cache alone.
enum class DType : uint8_t { kF32, kF16, kBf16, kFp8E4m3 };

constexpr size_t dtype_size(DType dtype) {
  return dtype == DType::kF32 ? 4 : dtype == DType::kFp8E4m3 ? 1 : 2;
}
constexpr const char* dtype_name(DType dtype) {
  return dtype == DType::kF32 ? "f32" : dtype == DType::kF16 ? "f16" : dtype == DType::kBf16 ? "bf16" : "fp8";
}

}  // namespace capstan
