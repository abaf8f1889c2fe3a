#pragma once
// Shared by the kernel tests: exact-size device arrays that start as NaN, 16-bit floats, and packed operands.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/memory.h"
#include "native/base/number.h"
#include "test/native/testing.h"

namespace capstan::testing {

using namespace cuda;
using cuda::round_up;  // the CPU backend has a function of this name too

inline bool is_full() {
  return std::getenv("CAPSTAN_TEST_FULL") != nullptr;
}

inline cudaStream_t stream() {
  static cudaStream_t made = [] {
    cudaStream_t created = nullptr;
    check(cudaStreamCreateWithFlags(&created, cudaStreamNonBlocking), "creating a stream");
    return created;
  }();
  return made;
}
inline void synchronize() {
  check(cudaStreamSynchronize(stream()), "a test");
}

// A device array of exactly this size.
template <class T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& values) : OnDevice(values.size()) {
    check(cudaMemcpyAsync(buffer_.as<void>(), values.data(), buffer_.bytes(), cudaMemcpyHostToDevice, stream()),
          "an array");
    synchronize();
  }
  // All elements are NaN.
  explicit OnDevice(size_t size) : buffer_(size * sizeof(T), "an array"), size_(size) {
    check(cudaMemsetAsync(buffer_.template as<void>(), 0xff, buffer_.bytes(), stream()), "an array");
  }
  T* get() const { return buffer_.as<T>(); }
  std::vector<T> read() const {
    std::vector<T> values(size_);
    check(cudaMemcpyAsync(values.data(), buffer_.as<void>(), buffer_.bytes(), cudaMemcpyDeviceToHost, stream()),
          "an array");
    synchronize();
    return values;
  }

 private:
  DeviceBuffer buffer_;
  size_t size_;
};

inline DeviceResources device_resources() {
  return {attribute_of(0, cudaDevAttrMultiProcessorCount),
          static_cast<size_t>(attribute_of(0, cudaDevAttrMaxSharedMemoryPerBlockOptin))};
}

// Whether the device and the compiled code support the instructions of cuda/hopper.h.
inline bool has_wgmma() {
#if defined(__CUDACC__)
  const bool has = supports_gemm_wgmma() && supports_attention_wgmma();
  if (!has && attribute_of(0, cudaDevAttrComputeCapabilityMajor) == 9)
    fail(__FILE__, __LINE__, "the device has compute capability 9.0, but the wgmma kernels cannot run");
  return has;
#else
  return true;
#endif
}

constexpr FloatType kTypes[] = {FloatType::kBf16, FloatType::kF16};
inline uint16_t bits_of(FloatType type, float value) {
  return type == FloatType::kBf16 ? float_to_bf16(value) : float_to_f16(value);
}
inline float value_of(FloatType type, uint16_t bits) {
  return type == FloatType::kBf16 ? bf16_to_float(bits) : f16_to_float(bits);
}
// Half a unit in the last place, plus some error of f32 sums.
inline double rounding_of(FloatType type) {
  return type == FloatType::kBf16 ? 0.004 : 0.0006;
}
// Rounds to values of the type.
inline std::vector<float> rounded(FloatType type, std::vector<float> values) {
  for (float& value : values)
    value = value_of(type, bits_of(type, value));
  return values;
}
constexpr uint16_t kUnwritten = 0xffff;
inline bool is_unwritten(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits == 0xffffffffu;
}

// The value of an e4m3 code, by the definition of the format.
inline float fp8_value(uint8_t code) {
  const int exponent = code >> 3 & 15, fraction = code & 7;
  const float size = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                                   : std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
  return code >> 7 == 0 ? size : -size;
}

// `i` and `j` locate the element in the message: the pattern of wrong elements helps more than their error.
inline void expect_close(double got, double wanted, double tolerance, const std::string& what, int64_t i = -1,
                         int64_t j = -1) {
  if (!(std::abs(got - wanted) <= tolerance))
    fail(__FILE__, __LINE__,
         what + (i < 0 ? "" : " [" + std::to_string(i) + (j < 0 ? "" : ", " + std::to_string(j)) + "]") + ": " +
             show(got) + ", expected " + show(wanted));
}

// Packs weights (rows, cols).
inline std::vector<uint16_t> packed_weights(FloatType type, const std::vector<float>& weights, int64_t rows,
                                            const DepthSplit& split) {
  const int64_t cols = split.parts * split.part_cols;
  std::vector<uint16_t> packed(static_cast<size_t>(round_up(rows, kTileRows) * split.padded()), 0);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t k = 0; k < cols; ++k)
      packed[static_cast<size_t>(weight_index(row, split.place(k), split.padded()))] =
          bits_of(type, weights[static_cast<size_t>(row * cols + k)]);
  return packed;
}
inline std::vector<uint16_t> packed_acts(FloatType type, const std::vector<float>& acts, int64_t tokens,
                                         const DepthSplit& split) {
  const int64_t cols = split.parts * split.part_cols;
  std::vector<uint16_t> packed(static_cast<size_t>(round_up(tokens, 64) * split.padded()), 0);
  for (int64_t token = 0; token < tokens; ++token)
    for (int64_t k = 0; k < cols; ++k)
      packed[static_cast<size_t>(operand_index(token, split.place(k), split.padded()))] =
          bits_of(type, acts[static_cast<size_t>(token * cols + k)]);
  return packed;
}

// Random factors of GemmOutput::kActivated.
class Factors {
 public:
  Factors(int64_t tokens, int64_t rows) : stride_(rows + 5), values_(noise(5, tokens * stride_, 1)) {}
  void set(cuda::GemmArgs& args) const { args.factors = device_.get(), args.factor_stride = stride_; }
  float at(int64_t token, int64_t row) const { return values_[static_cast<size_t>(token * stride_ + row)]; }

 private:
  int64_t stride_;
  std::vector<float> values_;
  OnDevice<float> device_{values_};
};

constexpr Xielu kXielu{0.7f, 0.4f, 0.9f};
inline double activated(Activation kind, double x) {
  switch (kind) {
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kGelu:
      return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    case Activation::kGeluTanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / 3.141592653589793) * (x + 0.044715 * x * x * x)));
    case Activation::kRelu:
      return std::max(x, 0.0);
    case Activation::kTanh:
      return std::tanh(x);
    case Activation::kXielu:
      return kXielu.linear * x + (x > 0 ? kXielu.square * x * x : kXielu.exponential * (std::expm1(x) - x));
    case Activation::kClampedSwish:  // has another argument: see gated_in_doubles
    case Activation::kIdentity:
      break;
  }
  return x;
}
// Those of MLPs without gates.
constexpr Activation kUngated[] = {Activation::kSilu, Activation::kGelu,  Activation::kGeluTanh, Activation::kRelu,
                                   Activation::kTanh, Activation::kXielu, Activation::kIdentity};

inline double gated_in_doubles(Activation kind, double gate, double up) {
  if (kind != Activation::kClampedSwish) return activated(kind, gate) * up;
  const double low = std::min(gate, 7.0);
  return low / (1 + std::exp(-1.702 * low)) * (std::clamp(up, -7.0, 7.0) + 1);
}
constexpr float kResidualScale = 0.75f;  // of products that are added to residuals

}  // namespace capstan::testing
