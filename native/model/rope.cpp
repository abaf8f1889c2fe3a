#include "native/model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace capstan {
namespace {

double base_frequency(double theta, int i, int rotary_dim) {
  return std::pow(theta, -2.0 * i / rotary_dim);
}

// Llama 3.1: stretches long wavelengths by `factor`, keeps short ones, and blends those between linearly in
// original_max_positions / wavelength.
double llama3_frequency(const RopeSpec& rope, double frequency) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  const double low_wavelength = rope.original_max_positions / rope.low_freq_factor;
  const double high_wavelength = rope.original_max_positions / rope.high_freq_factor;
  if (wavelength > low_wavelength) return frequency / rope.factor;
  if (wavelength < high_wavelength) return frequency;
  const double smooth = (rope.original_max_positions / wavelength - rope.low_freq_factor) /
                        (rope.high_freq_factor - rope.low_freq_factor);
  return (1 - smooth) * frequency / rope.factor + smooth * frequency;
}

// YaRN (arXiv 2309.00071): keeps dimensions that rotate more than beta_fast times over the trained length, interpolates
// those that rotate less than beta_slow times, and blends the dimensions between linearly.
struct YarnRange {
  double low, high;
};

YarnRange yarn_correction_range(const RopeSpec& rope) {
  const auto correction_dim = [&](double num_rotations) {
    return rope.rotary_dim * std::log(rope.original_max_positions / (num_rotations * 2 * std::numbers::pi)) /
           (2 * std::log(rope.theta));
  };
  double low = correction_dim(rope.beta_fast), high = correction_dim(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, rope.rotary_dim - 1.0);
  // An empty range would divide by zero.
  return {low, low == high ? high + 0.001 : high};
}

double yarn_frequency(const RopeSpec& rope, YarnRange range, double frequency, int i) {
  const double ramp = std::clamp((i - range.low) / (range.high - range.low), 0.0, 1.0);
  return frequency / rope.factor * ramp + frequency * (1 - ramp);
}

// The base of dynamic NTK scaling for a context of `length`.
double dynamic_theta(const RopeSpec& rope, int length) {
  if (length <= rope.original_max_positions) return rope.theta;
  const double stretch = rope.factor * length / rope.original_max_positions - (rope.factor - 1);
  return rope.theta * std::pow(stretch, static_cast<double>(rope.rotary_dim) / (rope.rotary_dim - 2));
}

}  // namespace

std::vector<float> rope_frequencies(const RopeSpec& rope, int max_model_len) {
  const double theta = rope.type == RopeType::kDynamic ? dynamic_theta(rope, max_model_len) : rope.theta;
  const YarnRange range = rope.type == RopeType::kYarn ? yarn_correction_range(rope) : YarnRange{};
  const bool is_long = !rope.long_frequency_divisors.empty() && max_model_len > rope.original_max_positions;
  const std::vector<float>& divisors = is_long ? rope.long_frequency_divisors : rope.frequency_divisors;
  std::vector<float> frequencies(static_cast<size_t>(rope.rotary_dim / 2));
  for (int i = 0; i < rope.rotary_dim / 2; ++i) {
    double frequency = base_frequency(theta, i, rope.rotary_dim);
    switch (rope.type) {
      case RopeType::kDefault:
      case RopeType::kDynamic:
      case RopeType::kLongRope:  // has divisors
        break;
      case RopeType::kLinear:
        frequency /= rope.factor;
        break;
      case RopeType::kLlama3:
        frequency = llama3_frequency(rope, frequency);
        break;
      case RopeType::kYarn:
        frequency = yarn_frequency(rope, range, frequency, i);
        break;
    }
    if (!divisors.empty()) frequency /= divisors[static_cast<size_t>(i)];
    frequencies[static_cast<size_t>(i)] = static_cast<float>(frequency);
  }
  return frequencies;
}

std::vector<float> make_query_scales(const RopeSpec& rope, int max_model_len) {
  std::vector<float> scales;
  if (rope.query_scale_growth == 0) return scales;
  for (int position = 0; position < max_model_len; ++position)
    scales.push_back(static_cast<float>(
        1 + rope.query_scale_growth * std::log1p(static_cast<double>(position / rope.original_max_positions))));
  return scales;
}

std::vector<float> make_rope_table(const RopeSpec& rope, int max_model_len) {
  const std::vector<float> frequencies = rope_frequencies(rope, max_model_len);
  const size_t half = frequencies.size();
  std::vector<float> table(static_cast<size_t>(max_model_len) * 2 * half);
  for (int position = 0; position < max_model_len; ++position) {
    float* cos_row = table.data() + static_cast<size_t>(position) * 2 * half;
    for (size_t i = 0; i < half; ++i) {
      // Rounds the angle to f32, as the training code of the models does.
      const double angle = static_cast<float>(position) * frequencies[i];
      cos_row[i] = static_cast<float>(std::cos(angle) * rope.attention_factor);
      cos_row[half + i] = static_cast<float>(std::sin(angle) * rope.attention_factor);
    }
  }
  return table;
}

}  // namespace capstan
