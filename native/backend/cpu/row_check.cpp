#include "native/backend/cpu/row_check.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "native/backend/cpu/act_tiles.h"
#include "native/backend/panel_reader.h"
#include "native/base/number.h"

namespace capstan {

namespace {

constexpr int64_t kRows = 3 * kMaxFewRows, kK = 3 * kBlockK;

// Values of mixed signs and magnitudes, so that another order of sums shows in their last bits.
std::vector<uint16_t> mixed_bf16(size_t count) {
  std::vector<uint16_t> values(count);
  uint32_t state = 1;
  for (uint16_t& value : values) {
    state = state * 1664525u + 1013904223u;  // Numerical Recipes
    const uint32_t exponent = 120 + (state >> 28);
    value = static_cast<uint16_t>((state >> 8 & 0x807fu) | exponent << 7);
  }
  return values;
}

std::vector<float> multiply(const CpuKernels& kernels, const uint16_t* weights, const float* x, int64_t rows) {
  ActTiles acts = plain_act_tiles(kernels, bf16_act_format(kernels, rows), rows, kK, 1);
  std::vector<uint32_t> memory(static_cast<size_t>(rows * acts.words));
  acts.data = memory.data();
  for (int64_t row = 0; row < rows; ++row)
    kernels.pack_rows(x + row * kK, kK, kK, acts, row, 1);
  std::vector<float> out(static_cast<size_t>(rows * kPanelFeatures));
  GemmArgs args;
  args.acts = acts;
  args.weights = weights;
  args.weight_dtype = DType::kBf16;
  args.panel_end = 1;
  args.num_features = args.out_stride = kPanelFeatures;
  args.out = out.data();
  kernels.gemm(args);
  return out;
}

}  // namespace

bool rows_give_the_same_bits(const CpuKernels& kernels) {
  const std::vector<uint16_t> values = mixed_bf16(static_cast<size_t>((kRows + kPanelFeatures) * kK));
  std::vector<float> x(static_cast<size_t>(kRows * kK));
  std::transform(values.begin(), values.begin() + kRows * kK, x.begin(), bf16_to_float);
  const uint16_t* weights = values.data() + kRows * kK;
  const std::vector<float> together = multiply(kernels, weights, x.data(), kRows);
  for (int64_t row = 0; row < kRows; ++row) {
    const std::vector<float> alone = multiply(kernels, weights, x.data() + row * kK, 1);
    if (std::memcmp(alone.data(), together.data() + row * kPanelFeatures, alone.size() * sizeof(float)) != 0)
      return false;
  }
  return true;
}

}  // namespace capstan
