#pragma once
// Updates of adapters for the kernel tests.
#include <algorithm>

#include "cuda/lora.h"
#include "test/native/gpu/kernel_testing.h"

namespace capstan::testing {

// An adapter of a matrix with two factors. The second one has no update for the last rows.
struct Update {
  int r[2];
  int64_t rows, cols;
  std::vector<float> a, scales, b;  // b (rows, most values)
  std::vector<LoraRange> ranges;
  int width() const { return std::max(r[0], r[1]); }
  int num_values() const { return r[0] + r[1]; }

  Update(FloatType type, uint64_t seed, int r0, int r1, int64_t num_rows, int64_t num_cols)
      : r{r0, r1},
        rows(num_rows),
        cols(num_cols),
        a(rounded(type, noise(seed, (r0 + r1) * num_cols, 0.1f))),
        scales(static_cast<size_t>(r0 + r1), 0.5f),
        b(rounded(type, noise(seed + 1, num_rows * std::max(r0, r1), 0.5f))) {
    std::fill(scales.begin() + r0, scales.end(), 2.0f);
    for (int64_t row = 0; row < rows; ++row)
      ranges.push_back(row < rows / 2 ? LoraRange{0, r0} : row < rows - 3 ? LoraRange{r0, r1} : LoraRange{});
  }
};

struct UpdateOnDevice {
  DeviceLora lora;
  OnDevice<uint16_t> a, b;
  OnDevice<float> scales;
  OnDevice<LoraRange> ranges;
  OnDevice<DeviceLora> self;

  UpdateOnDevice(FloatType type, const Update& update)
      : a(bits(type, update.a)),
        b(transposed(type, update)),
        scales(update.scales),
        ranges(update.ranges),
        self(std::vector<DeviceLora>{
            {a.get(), scales.get(), b.get(), ranges.get(), update.num_values(), update.rows, update.cols}}) {}

  static std::vector<uint16_t> bits(FloatType type, const std::vector<float>& values) {
    std::vector<uint16_t> all;
    for (const float value : values)
      all.push_back(bits_of(type, value));
    return all;
  }
  static std::vector<uint16_t> transposed(FloatType type, const Update& update) {
    std::vector<uint16_t> all(update.b.size());
    for (int64_t row = 0; row < update.rows; ++row)
      for (int j = 0; j < update.width(); ++j)
        all[static_cast<size_t>(j * update.rows + row)] =
            bits_of(type, update.b[static_cast<size_t>(row * update.width() + j)]);
    return all;
  }
};

}  // namespace capstan::testing
