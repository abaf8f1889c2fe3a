#pragma once
// e^x with the same bits for every compiler, C library and processor. The functions of C libraries differ in the last
// bit, and a package that brings a C library along would give other results than a build from source.
#include <bit>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>

namespace capstan {

// Correct to within one unit in the last place. Results below the smallest normal number are 0.
inline float portable_exp(float x) {
  if (std::isnan(x)) return x;
  if (x > 88.72283f) return std::numeric_limits<float>::infinity();
  if (x < -87.33654f) return 0;
  // x = power · ln 2 + rest, with |rest| <= ln 2 / 2. Doubles hold the products with enough digits.
  const double power = std::floor(x * 1.4426950408889634 + 0.5), rest = x - power * 0.6931471805599453;
  double sum = 1.0 / 362880;  // the Taylor series; what follows is below 1e-11
  for (const double term : {1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 1.0 / 2, 1.0, 1.0})
    sum = sum * rest + term;
  return static_cast<float>(sum * std::bit_cast<double>((static_cast<int64_t>(power) + 1023) << 52));
}

}  // namespace capstan
