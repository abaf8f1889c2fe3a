// Weights in 4 and 8 bits: packing, and the products of every instruction set, bit for bit with the order of sums that
// kernels.h states.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "native/backend/cpu/isa.h"
#include "native/backend/cpu/matrix.h"
#include "native/base/number.h"
#include "test/native/checkpoint.h"
#include "test/native/testing.h"

namespace capstan::testing {
namespace {

constexpr WeightFormat kFormats[] = {WeightFormat::kInt8, WeightFormat::kInt4};

std::unique_ptr<CpuMatrix> pack(const std::vector<float>& weights, int64_t n, int64_t k, WeightFormat format,
                                MatrixKind kind = MatrixKind::kColumn, CpuIsa isa = CpuIsa::kPortable) {
  Team team({-1, -1}, false);
  MemoryCheckpoint checkpoint;
  std::vector<float> values = weights;
  MatrixSource source;
  source.slices = {whole(checkpoint.add("w", DType::kF32, n, k, values))};
  source.kind = kind;
  source.total_cols = k;
  source.format = format;
  return pack_matrix(source, DType::kBf16, cpu_kernels(isa), team, {});
}

std::vector<float> decoded(const CpuMatrix& matrix) {
  std::vector<float> values(static_cast<size_t>(matrix.rows * matrix.cols));
  for (int64_t row = 0; row < matrix.rows; ++row)
    gather_row(matrix, row, values.data() + row * matrix.cols);
  return values;
}

// Activations of several rows, in 8 bits, with every word and scale written by quantize_row.
struct Int8Acts {
  std::vector<uint32_t> words;
  std::vector<float> scales;
  std::vector<int32_t> sums;
  ActTiles tiles;

  Int8Acts(const CpuKernels& kernels, const CpuMatrix& matrix, const float* x, int64_t rows) {
    const QuantWeights& quant = matrix.quant;
    words.assign(static_cast<size_t>(rows * quant.num_words), 0x7f7f7f7fu);
    scales.assign(static_cast<size_t>(rows * quant.num_runs), std::numeric_limits<float>::quiet_NaN());
    sums.assign(scales.size(), 1 << 20);
    tiles.data = words.data();
    tiles.rows = rows;
    tiles.words = quant.num_words;
    tiles.tile_rows = kernels.tile_rows;
    tiles.format = ActFormat::kInt8;
    tiles.runs = quant.runs;
    tiles.num_runs = quant.num_runs;
    tiles.scales = scales.data();
    tiles.sums = sums.data();
    for (int64_t row = 0; row < rows; ++row)
      kernels.quantize_row(x + row * matrix.cols, nullptr, matrix.cols, 0, tiles, row);
  }
};

std::vector<float> multiply(const CpuKernels& kernels, const CpuMatrix& matrix, const ActTiles& acts,
                            float* dequantized = nullptr) {
  std::vector<float> out(static_cast<size_t>(acts.rows * matrix.rows));
  GemmArgs args;
  args.acts = acts;
  args.weights = matrix.data.as<void>();
  args.quant = matrix.quant;
  args.dequantized = dequantized;
  args.num_parts = matrix.num_parts;
  args.panel_end = matrix.num_panels;
  args.num_features = matrix.rows;
  args.out = out.data();
  args.out_stride = matrix.rows;
  kernels.gemm(args);
  return out;
}

// Returns one element as kernels.h states it: exact integer sums per run, FMAs over the runs of a part, the tree over
// the parts.
float expected_sum(const CpuMatrix& matrix, const std::vector<float>& weights, const float* x, int64_t feature) {
  std::vector<float> sums;
  float sum = 0;
  for (size_t r = 0; r < matrix.runs.size(); ++r) {
    const QuantRun& run = matrix.runs[r];
    float magnitude = 0;
    for (int i = 0; i < run.count; ++i)
      magnitude = std::max(magnitude, std::abs(x[run.begin + i]));
    const float inverse = magnitude > 1e-30f ? 127.0f / magnitude : 0.0f;
    uint16_t bits;
    std::memcpy(&bits,
                matrix.data.as<char>() + feature / 16 * matrix.quant.panel_bytes +
                    (static_cast<int64_t>(r) * 16 + feature % 16) * 2,
                sizeof bits);
    const float scale = f16_to_float(bits);
    int64_t products = 0;
    for (int i = 0; i < run.count; ++i) {
      const float weight = weights[feature * matrix.cols + run.begin + i];
      const auto code = scale == 0 ? 0 : std::lround(static_cast<double>(weight) / scale);
      products += code * static_cast<int64_t>(std::nearbyint(x[run.begin + i] * inverse));
    }
    const float act_scale = magnitude > 1e-30f ? magnitude / 127.0f : 0.0f;
    sum = std::fma(static_cast<float>(products), scale * act_scale, sum);
    if (!run.ends_part) continue;
    sums.push_back(sum);
    sum = 0;
  }
  for (size_t width = sums.size(); width > 1; width /= 2)
    for (size_t i = 0; i < width / 2; ++i)
      sums[i] = sums[2 * i] + sums[2 * i + 1];
  return sums[0];
}

const std::vector<std::pair<int64_t, int64_t>>& sizes() {
  static const std::vector<std::pair<int64_t, int64_t>> all = {{1, 1},   {16, 8},   {50, 33},  {64, 128},
                                                               {70, 80}, {33, 608}, {49, 300}, {20, 1216}};
  return all;
}

TEST(quant_codes_are_near_the_weights) {
  for (const WeightFormat format : kFormats) {
    for (const auto& [n, k] : sizes()) {
      const std::vector<float> weights = random_values(1, n * k, 0.05f);
      const std::unique_ptr<CpuMatrix> matrix = pack(weights, n, k, format);
      const std::vector<float> values = decoded(*matrix);
      const double steps = format == WeightFormat::kInt8 ? 127 : 7;
      double total = 0, plain_total = 0;
      for (int64_t row = 0; row < n; ++row)
        for (const QuantRun& run : matrix->runs) {
          double largest = 0, error = 0, plain_error = 0;
          for (int i = 0; i < run.count; ++i)
            largest = std::max<double>(largest, std::abs(weights[row * k + run.begin + i]));
          for (int i = 0; i < run.count; ++i) {
            const double weight = weights[row * k + run.begin + i], step = largest / steps;
            const double difference = values[row * k + run.begin + i] - weight;
            const double plain = std::nearbyint(weight / step) * step - weight;
            error += difference * difference;
            plain_error += plain * plain;
            EXPECT(std::abs(difference) <= 1.01 * largest / (format == WeightFormat::kInt8 ? 254 : 4));
          }
          total += error;
          plain_total += plain_error + run.count * (largest / 2000) * (largest / 2000);  // the scale is rounded to f16
        }
      // The search in 4 bits beats the scale of the largest value.
      EXPECT(k < 64 || total <= plain_total * (format == WeightFormat::kInt8 ? 1.05 : 0.9));
    }
  }
}

TEST(quant_uses_at_most_five_percent_more_than_its_bits) {
  const std::vector<float> weights = random_values(1, 160 * 896, 0.05f);
  EXPECT(pack(weights, 160, 896, WeightFormat::kInt8)->bytes <= 160 * 896 * 8.125 / 8 * 1.05);
  EXPECT(pack(weights, 160, 896, WeightFormat::kInt4)->bytes <= 160 * 896 * 4.25 / 8 * 1.05);
}

TEST(quant_packs_the_same_bits_on_every_instruction_set) {
  for (const WeightFormat format : kFormats)
    for (const CpuIsa isa : available_cpu_isas()) {
      const std::vector<float> weights = random_values(2, 50 * 300, 1.0f);
      const auto wanted = pack(weights, 50, 300, format, MatrixKind::kRow);
      const auto got = pack(weights, 50, 300, format, MatrixKind::kRow, isa);
      EXPECT_EQ(got->bytes, wanted->bytes);
      EXPECT(std::memcmp(got->data.as<char>(), wanted->data.as<char>(), static_cast<size_t>(got->bytes)) == 0);
    }
}

TEST(quant_products_add_in_the_stated_order) {
  for (const CpuIsa isa : available_cpu_isas()) {
    const CpuKernels& kernels = cpu_kernels(isa);
    for (const WeightFormat format : kFormats) {
      for (const MatrixKind kind : {MatrixKind::kColumn, MatrixKind::kRow}) {
        for (const auto& [n, k] : sizes()) {
          const std::unique_ptr<CpuMatrix> matrix = pack(random_values(1, n * k, 0.1f), n, k, format, kind);
          const std::vector<float> weights = decoded(*matrix);
          for (const int64_t rows : {1, 2, 3, 5, 8, 9, 17}) {
            const std::vector<float> x = random_values(3, rows * k, 2.0f);
            const Int8Acts acts(kernels, *matrix, x.data(), rows);
            const std::vector<float> out = multiply(kernels, *matrix, acts.tiles);
            for (int64_t row = 0; row < rows; ++row)
              for (int64_t feature = 0; feature < n; ++feature)
                EXPECT_EQ(out[row * n + feature], expected_sum(*matrix, weights, x.data() + row * k, feature));
          }
        }
      }
    }
  }
}

TEST(quant_products_are_close_to_double_precision) {
  const int64_t n = 40, k = 1216, rows = 9;
  for (const CpuIsa isa : available_cpu_isas()) {
    const CpuKernels& kernels = cpu_kernels(isa);
    for (const WeightFormat format : kFormats) {
      const auto matrix = pack(random_values(1, n * k, 0.1f), n, k, format, MatrixKind::kRow);
      const std::vector<float> weights = decoded(*matrix), x = random_values(3, rows * k, 2.0f);
      const Int8Acts acts(kernels, *matrix, x.data(), rows);
      ActTiles plain;
      std::vector<uint32_t> words(static_cast<size_t>(rows * matrix->padded_k));
      plain.data = words.data();
      plain.rows = rows;
      plain.words = matrix->padded_k;
      plain.tile_rows = kernels.tile_rows;
      for (int64_t row = 0; row < rows; ++row)
        kernels.pack_row(x.data() + row * k, k, plain, row);
      std::vector<float> memory(static_cast<size_t>(dequantized_floats(matrix->padded_k)));
      const std::vector<float> int8_out = multiply(kernels, *matrix, acts.tiles);
      const std::vector<float> f32_out = multiply(kernels, *matrix, plain, memory.data());
      for (int64_t row = 0; row < rows; ++row)
        for (int64_t feature = 0; feature < n; ++feature) {
          double sum = 0, magnitude = 0, squares = 0;
          for (int64_t i = 0; i < k; ++i) {
            const double product = static_cast<double>(x[row * k + i]) * weights[feature * k + i];
            sum += product;
            magnitude += std::abs(product);
            squares += static_cast<double>(weights[feature * k + i]) * weights[feature * k + i];
          }
          EXPECT_NEAR(f32_out[row * n + feature], sum, 1e-6 * magnitude);
          // Rounding errors of the activations are uniform with a step of about 8 / 127.
          EXPECT_NEAR(int8_out[row * n + feature], sum, 6 * std::sqrt(squares / 12) * 10 / 127);
        }
    }
  }
}

TEST(quant_rows_with_nan_or_inf_stay_nan_and_leave_others_alone) {
  const int64_t n = 20, k = 300;
  for (const CpuIsa isa : available_cpu_isas()) {
    const CpuKernels& kernels = cpu_kernels(isa);
    const auto matrix = pack(random_values(1, n * k, 0.1f), n, k, WeightFormat::kInt4);
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      std::vector<float> x = random_values(3, 3 * k, 2.0f);
      const Int8Acts clean_acts(kernels, *matrix, x.data(), 3);
      const std::vector<float> clean = multiply(kernels, *matrix, clean_acts.tiles);
      x[static_cast<size_t>(k + 77)] = bad;
      const Int8Acts acts(kernels, *matrix, x.data(), 3);
      const std::vector<float> out = multiply(kernels, *matrix, acts.tiles);
      for (int64_t feature = 0; feature < n; ++feature) {
        EXPECT_EQ(out[feature], clean[feature]);
        EXPECT(std::isnan(out[n + feature]));
        EXPECT_EQ(out[2 * n + feature], clean[2 * n + feature]);
      }
    }
  }
}

TEST(quant_takes_zeros_tiny_and_large_weights) {
  for (const WeightFormat format : kFormats) {
    const int64_t k = 256;
    std::vector<float> weights(static_cast<size_t>(4 * k), 0.0f);
    for (int64_t i = 0; i < k; ++i) {
      weights[static_cast<size_t>(k + i)] = 1e-38f;               // below the smallest scale
      weights[static_cast<size_t>(2 * k + i)] = 3e-6f * (i % 3);  // a scale below the normal numbers of f16
      weights[static_cast<size_t>(3 * k + i)] = i % 2 == 0 ? 60000.0f : -60000.0f;
    }
    const std::vector<float> values = decoded(*pack(weights, 4, k, format));
    for (int64_t i = 0; i < 4 * k; ++i)
      EXPECT_NEAR(values[static_cast<size_t>(i)], weights[static_cast<size_t>(i)],
                  std::abs(weights[static_cast<size_t>(i)]) * 0.15 + 1e-6);
    weights[7] = 1e9f;
    EXPECT_ERROR("invalid_model", pack(weights, 4, k, format));
  }
}

}  // namespace
}  // namespace capstan::testing
