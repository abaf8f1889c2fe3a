#pragma once
#include <cstddef>
#include <cstdint>

namespace capstan {

enum class DType : uint8_t { kF32, kF16, kBf16 };

constexpr size_t dtype_size(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }
constexpr const char* dtype_name(DType dtype) {
  return dtype == DType::kF32 ? "f32" : dtype == DType::kF16 ? "f16" : "bf16";
}

}  // namespace capstan
