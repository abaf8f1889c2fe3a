#include "native/base/number.h"

#include <cmath>
#include <limits>
#include <random>

#include "test/native/testing.h"

namespace capstan::testing {
namespace {

// Returns floats of all exponents, and floats near the middle between two 16-bit values.
std::vector<float> interesting_floats() {
  std::vector<float> values = {0.0f,
                               -0.0f,
                               65504.0f,
                               65519.99f,
                               65520.0f,
                               -65536.0f,
                               0x1p-24f,
                               0x1p-25f,
                               0x1.000002p-25f,
                               0x1.8p-24f,
                               0x1p-14f,
                               std::numeric_limits<float>::max(),
                               std::numeric_limits<float>::infinity(),
                               -std::numeric_limits<float>::infinity()};
  std::mt19937 random(1);
  for (int i = 0; i < 300000; ++i) {
    uint32_t bits = random();
    if (i % 3 == 1) bits = (bits & ~0x1fffu) | 0x1000u;  // halfway for f16
    if (i % 3 == 2) bits = (bits & ~0xffffu) | 0x8000u;  // halfway for bf16
    if ((bits & 0x7f800000u) != 0x7f800000u) values.push_back(bits_float(bits));
  }
  return values;
}

// Returns the nearer of the two 16-bit neighbours, or the even one when both are equally near.
uint16_t nearest(double value, uint16_t below, double below_value, uint16_t above, double above_value) {
  const double down = value - below_value, up = above_value - value;
  if (down != up) return down < up ? below : above;
  return (below & 1) == 0 ? below : above;
}

TEST(number_every_16_bit_value_survives_the_round_trip) {
  for (uint32_t h = 0; h < 65536; ++h) {
    const auto bits = static_cast<uint16_t>(h);
    if ((h & 0x7fff) <= 0x7c00) EXPECT_EQ(float_to_f16(f16_to_float(bits)), bits);
    if ((h & 0x7fff) <= 0x7f80) EXPECT_EQ(float_to_bf16(bf16_to_float(bits)), bits);
    EXPECT_EQ(std::isnan(f16_to_float(bits)), (h & 0x7fff) > 0x7c00);
    if ((h & 0x7fff) > 0x7f80) EXPECT(std::isnan(bf16_to_float(float_to_bf16(bf16_to_float(bits)))));
  }
}

TEST(number_f16_values_match_the_format) {
  for (uint32_t h = 0; h < 0x7c00; ++h) {
    const int exponent = static_cast<int>(h >> 10);
    const double mantissa = (h & 0x3ff) / 1024.0;
    const double wanted = exponent == 0 ? std::ldexp(mantissa, -14) : std::ldexp(1 + mantissa, exponent - 15);
    EXPECT_EQ(static_cast<double>(f16_to_float(static_cast<uint16_t>(h))), wanted);
  }
}

TEST(number_rounds_to_nearest_even) {
  for (const float value : interesting_floats()) {
    const double magnitude = std::abs(static_cast<double>(value));
    const auto sign = static_cast<uint16_t>(std::signbit(value) ? 0x8000 : 0);
    const uint16_t half = float_to_f16(value);
    if (magnitude >= 65520) {
      EXPECT_EQ(half, static_cast<uint16_t>(sign | 0x7c00));
    } else {
      // The result must be the nearest of its neighbours.
      const uint16_t at = half & 0x7fff;
      const uint16_t below = f16_to_float(at) > magnitude ? static_cast<uint16_t>(at - 1) : at;
      const double above_value = below == 0x7bff ? 65536.0 : f16_to_float(static_cast<uint16_t>(below + 1));
      EXPECT_EQ(half, static_cast<uint16_t>(sign | nearest(magnitude, below, f16_to_float(below),
                                                           static_cast<uint16_t>(below + 1), above_value)));
    }
    const uint32_t bits = float_bits(value) & 0x7fffffffu;
    if (bits >= 0x7f800000u) continue;
    const auto low = static_cast<uint16_t>(bits >> 16);
    const double low_value = bf16_to_float(low);
    const double high_value = low == 0x7f7f ? std::ldexp(1.0, 128) : bf16_to_float(static_cast<uint16_t>(low + 1));
    EXPECT_EQ(float_to_bf16(value), static_cast<uint16_t>(sign | nearest(magnitude, low, low_value,
                                                                         static_cast<uint16_t>(low + 1), high_value)));
  }
  EXPECT(std::isnan(f16_to_float(float_to_f16(std::nanf("")))));
  EXPECT(std::isnan(bf16_to_float(float_to_bf16(std::nanf("")))));
}

}  // namespace
}  // namespace capstan::testing
