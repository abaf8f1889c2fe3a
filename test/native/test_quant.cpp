// Quantized weights: packing, and the products of every instruction set, bit for bit with the order of sums that
// kernels.h states.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>

#include "native/backend/cpu/act_tiles.h"
#include "native/backend/cpu/isa.h"
#include "native/backend/cpu/matrix.h"
#include "native/base/number.h"
#include "test/native/block_values.h"
#include "test/native/checkpoint.h"
#include "test/native/group_values.h"
#include "test/native/testing.h"

#ifdef CAPSTAN_AMX_TWIN
#include "test/native/amx/amx_scope.h"
#endif

namespace capstan::testing {
namespace {

constexpr WeightFormat kFormats[] = {WeightFormat::kInt8, WeightFormat::kInt4};

std::unique_ptr<CpuMatrix> pack(const std::vector<float>& weights, int64_t n, int64_t k, WeightFormat format,
                                MatrixKind kind = MatrixKind::kColumn, CpuIsa isa = CpuIsa::kPortable) {
  Team team({-1, -1}, false);
  HugePool pool;
  MemoryCheckpoint checkpoint;
  std::vector<float> values = weights;
  MatrixSource source;
  source.slices = {whole(checkpoint.add("w", DType::kF32, n, k, values))};
  source.kind = kind;
  source.total_cols = k;
  source.format = format;
  return pack_matrix(source, DType::kBf16, cpu_kernels(isa), team, pool, {});
}

std::vector<float> decoded(const CpuMatrix& matrix) {
  std::vector<float> values(static_cast<size_t>(matrix.rows * matrix.cols));
  for (int64_t row = 0; row < matrix.rows; ++row)
    gather_row(matrix, row, values.data() + row * matrix.cols);
  return values;
}

// Weights as kernels.h states them: value = number * scale - offset, each (rows, cols).
struct QuantReference {
  std::vector<int> numbers;
  std::vector<float> scales, offsets;
};

struct QuantCase {
  std::unique_ptr<CpuMatrix> matrix;
  QuantReference reference;
};

// Quantized at load.
QuantCase make_case(WeightFormat format, int64_t n, int64_t k, MatrixKind kind) {
  QuantCase result{pack(random_values(1, n * k, 0.1f), n, k, format, kind), {}};
  const CpuMatrix& matrix = *result.matrix;
  const std::vector<float> values = decoded(matrix);
  for (int64_t row = 0; row < n; ++row)
    for (size_t r = 0; r < matrix.runs.size(); ++r) {
      uint16_t bits;
      std::memcpy(
          &bits,
          matrix.data.as<char>() + row / 16 * matrix.quant.panel_bytes + (static_cast<int64_t>(r) * 16 + row % 16) * 2,
          sizeof bits);
      const float scale = f16_to_float(bits);
      for (int i = 0; i < matrix.runs[r].count; ++i) {
        const double value = values[row * k + matrix.runs[r].begin + i];
        result.reference.numbers.push_back(scale == 0 ? 0 : static_cast<int>(std::lround(value / scale)));
        result.reference.scales.push_back(scale);
        result.reference.offsets.push_back(0);
      }
    }
  return result;
}

// Stored in blocks. The matrix is columns [col_begin, col_begin + k) of the tensor.
QuantCase make_case(const BlockValues& values, int64_t n, int64_t k, MatrixKind kind, int64_t col_begin = 0) {
  const BlockFormat& format = *values.format;
  const int64_t num_blocks = (col_begin + k + format.block_size - 1) / format.block_size;
  MemoryCheckpoint checkpoint;
  const FileTensor& tensor = checkpoint.add_blocks("w", format, n, num_blocks * format.block_size, values.bytes);
  MatrixSource source;
  source.slices = {{&tensor, 0, n, col_begin, k}};
  source.kind = kind;
  source.total_cols = k;
  source.format = WeightFormat::kFile;
  Team team({-1, -1}, false);
  HugePool pool;
  QuantCase result{pack_matrix(source, DType::kBf16, cpu_kernels(CpuIsa::kPortable), team, pool, {}), {}};
  const int64_t given = static_cast<int64_t>(values.bytes.size()) / format.block_bytes;
  QuantBlock block;
  for (int64_t row = 0; row < n; ++row)
    for (int64_t col = col_begin; col < col_begin + k; ++col) {
      const int64_t i = (row + col / format.block_size) % given, in_block = col % format.block_size;
      format.unpack(values.bytes.data() + i * format.block_bytes, block);
      const auto group = static_cast<size_t>(in_block / format.group_size);
      const int code = block.codes[in_block];
      const int number = format.type.table == nullptr ? code : format.type.table[code];
      result.reference.numbers.push_back(number - format.type.zero);
      result.reference.scales.push_back(block_scale(format.type, block.scales[group], block.block_scale));
      result.reference.offsets.push_back(block_offset(format.type, block.offsets[group], block.block_offset));
    }
  return result;
}

// Stored in groups.
QuantCase make_case(const GroupValues& values, MatrixKind kind, int64_t col_begin, int64_t k) {
  GroupFile file(values);
  file.open();
  MatrixSource source;
  source.slices = {file.slice(col_begin, k)};
  source.kind = kind;
  source.total_cols = k;
  source.format = WeightFormat::kFile;
  Team team({-1, -1}, false);
  HugePool pool;
  QuantCase result{pack_matrix(source, DType::kBf16, cpu_kernels(CpuIsa::kPortable), team, pool, {}), {}};
  const QuantType& type = result.matrix->quant.type;
  QuantRow stored;
  for (int64_t row = 0; type.bits > 0 && row < values.rows; ++row) {
    source.slices[0].groups->unpack_row(row, stored);
    for (int64_t col = col_begin; col < col_begin + k; ++col) {
      const auto group = static_cast<size_t>(col / stored.group_size);
      const int code = stored.codes[static_cast<size_t>(col)];
      const float scale = block_scale(type, stored.scales[group], 0, stored.factor.value_or(ScaleFactor()));
      const float zero = block_offset(type, stored.offsets[group], 0);
      result.reference.numbers.push_back((type.table == nullptr ? code : type.table[code]) - type.zero);
      result.reference.scales.push_back(scale);
      result.reference.offsets.push_back(zero * scale);
    }
  }
  return result;
}

// Activations of several rows, in 8 bits, with every word and scale written by quantize_row.
struct Int8Acts {
  std::vector<uint32_t> memory;
  ActTiles tiles;

  Int8Acts(const CpuKernels& kernels, const CpuMatrix& matrix, const float* x, int64_t rows)
      : memory(static_cast<size_t>(rows * int8_act_words(kernels, matrix.quant)), 0x7fffffffu),  // NaN
        tiles(int8_act_tiles(kernels, rows, matrix.quant)) {
    place_int8_acts(memory.data(), tiles);
    for (int64_t row = 0; row < rows; ++row)
      kernels.quantize_row(x + row * matrix.cols, nullptr, matrix.cols, 0, tiles, row);
  }
};

std::vector<float> multiply(const CpuKernels& kernels, const CpuMatrix& matrix, const ActTiles& acts) {
  // Codes behind the decoded ones are multiplied with zeros.
  const int64_t floats =
      is_int8(acts.format) ? int8_scratch_floats(kernels, matrix.quant) : dequantized_floats(matrix.padded_k);
  std::vector<float> memory(static_cast<size_t>(floats), std::numeric_limits<float>::quiet_NaN());
  std::vector<float> out(static_cast<size_t>(acts.rows * matrix.rows));
  GemmArgs args;
  args.acts = acts;
  args.weights = matrix.data.as<void>();
  args.quant = matrix.quant;
  args.scratch = memory.data();
  args.num_parts = matrix.num_parts;
  args.panel_end = matrix.num_panels;
  args.num_features = matrix.rows;
  args.out = out.data();
  args.out_stride = matrix.rows;
  kernels.gemm(args);
  const std::vector<float> with_prefetch = out;
  args.prefetches = false;
  kernels.gemm(args);
  EXPECT(std::memcmp(out.data(), with_prefetch.data(), out.size() * sizeof(float)) == 0);
  return out;
}

std::vector<float> multiply_as_f32(const CpuKernels& kernels, const CpuMatrix& matrix, const std::vector<float>& x,
                                   int64_t rows) {
  std::vector<uint32_t> words(static_cast<size_t>(rows * matrix.padded_k));
  ActTiles acts;
  acts.data = words.data();
  acts.rows = rows;
  acts.words = matrix.padded_k;
  acts.tile_rows = kernels.tile_rows;
  for (int64_t row = 0; row < rows; ++row)
    kernels.pack_rows(x.data() + row * matrix.cols, matrix.cols, matrix.cols, acts, row, 1);
  return multiply(kernels, matrix, acts);
}

// Returns one element as kernels.h states it: exact integer sums per run, FMAs over the runs of a part, the tree over
// the parts.
float expected_sum(const QuantCase& test, const float* x, int64_t feature) {
  const CpuMatrix& matrix = *test.matrix;
  std::vector<float> sums;
  float sum = 0, magnitude = 0;
  for (size_t r = 0; r < matrix.runs.size(); ++r) {
    const QuantRun& run = matrix.runs[r];
    if (run.span_runs > 0) {
      magnitude = 0;
      const QuantRun& last = matrix.runs[r + static_cast<size_t>(run.span_runs) - 1];
      for (int i = run.begin; i < last.begin + last.count; ++i)
        magnitude = std::max(magnitude, std::abs(x[i]));
    }
    const float inverse = magnitude > 1e-30f ? 127.0f / magnitude : 0.0f;
    const float act_scale = magnitude > 1e-30f ? magnitude / 127.0f : 0.0f;
    const auto at = static_cast<size_t>(feature * matrix.cols + run.begin);
    int64_t products = 0, total = 0;
    for (int i = 0; i < run.count; ++i) {
      const auto code = static_cast<int64_t>(std::nearbyint(x[run.begin + i] * inverse));
      products += test.reference.numbers[at + static_cast<size_t>(i)] * code;
      total += code;
    }
    sum = std::fma(static_cast<float>(products), test.reference.scales[at] * act_scale, sum);
    if (matrix.quant.type.offset != OffsetKind::kNone)
      sum = std::fma(-(act_scale * static_cast<float>(total)), test.reference.offsets[at], sum);
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
  // The scales of 6,208 columns are too large to be copied.
  static const std::vector<std::pair<int64_t, int64_t>> all = {{1, 1},    {16, 8},   {50, 33},   {64, 128}, {70, 80},
                                                               {33, 608}, {49, 300}, {20, 1216}, {2, 6208}};
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

void expect_stated_order(const CpuKernels& kernels, const QuantCase& test, std::initializer_list<int64_t> all_rows) {
  const int64_t n = test.matrix->rows, k = test.matrix->cols;
  for (const int64_t rows : all_rows) {
    const std::vector<float> x = random_values(3, rows * k, 2.0f);
    const Int8Acts acts(kernels, *test.matrix, x.data(), rows);
    const std::vector<float> out = multiply(kernels, *test.matrix, acts.tiles);
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t feature = 0; feature < n; ++feature)
        EXPECT_EQ(out[row * n + feature], expected_sum(test, x.data() + row * k, feature));
  }
}

TEST(quant_products_add_in_the_stated_order) {
  for (const CpuIsa isa : available_cpu_isas())
    for (const WeightFormat format : kFormats)
      for (const MatrixKind kind : {MatrixKind::kColumn, MatrixKind::kRow})
        for (const auto& [n, k] : sizes())
          expect_stated_order(cpu_kernels(isa), make_case(format, n, k, kind), {1, 2, 3, 5, 8, 9, 17, 40});
}

TEST(quant_blocks_are_multiplied_in_the_stated_order) {
  for (const BlockValues& values : read_block_values())
    for (const MatrixKind kind : {MatrixKind::kColumn, MatrixKind::kRow})
      for (const auto& [n, k, col_begin] : {std::tuple{17, 256, 0}, std::tuple{50, 448, 0}, std::tuple{3, 72, 24},
                                            std::tuple{33, 304, 304}, std::tuple{20, 33, 100}}) {
        const QuantCase test = make_case(values, n, k, kind, col_begin);
        for (const CpuIsa isa : available_cpu_isas())
          expect_stated_order(cpu_kernels(isa), test, {1, 3, 10});
      }
}

// The largest codes and activations, whose products some instruction sets add in 16 bits.
TEST(quant_sums_of_the_largest_codes_do_not_overflow) {
  for (const char* name : {"q4_0", "q5_0", "q8_0"}) {
    BlockValues values;
    values.format = find_block_format(name);
    values.bytes.assign(static_cast<size_t>(values.format->block_bytes), values.format->type.bits == 8 ? 0x7f : 0xff);
    values.bytes[0] = 0, values.bytes[1] = 0x3c;  // a scale of 1
    const QuantCase test = make_case(values, 16, 96, MatrixKind::kColumn);
    for (const CpuIsa isa : available_cpu_isas())
      for (const int64_t rows : {1, 3, 6, 8}) {
        const std::vector<float> x(rows * 96, 1.0f);
        const Int8Acts acts(cpu_kernels(isa), *test.matrix, x.data(), rows);
        for (const float sum : multiply(cpu_kernels(isa), *test.matrix, acts.tiles))
          EXPECT_EQ(sum, expected_sum(test, x.data(), 0));
      }
  }
}

TEST(quant_groups_are_multiplied_in_the_stated_order) {
  for (const GroupValues& values : read_group_values())
    for (const MatrixKind kind : {MatrixKind::kColumn, MatrixKind::kRow})
      for (const auto& [col_begin, k] : {std::pair{0, 64}, std::pair{32, 32}, std::pair{20, 33}}) {
        const QuantCase test = make_case(values, kind, col_begin, k);
        if (test.matrix->quant.type.bits == 0) continue;  // decoded
        for (const CpuIsa isa : available_cpu_isas())
          expect_stated_order(cpu_kernels(isa), test, {1, 3, 10});
      }
}

#ifdef CAPSTAN_AMX_TWIN
std::vector<float> multiply(const CpuKernels& kernels, const CpuMatrix& matrix, const std::vector<float>& x,
                            int64_t rows) {
  const Int8Acts acts(kernels, matrix, x.data(), rows);
  return multiply(kernels, matrix, acts.tiles);
}

// The machine code of the AMX kernels. It must run on a processor with AMX, and in the emulator elsewhere.
TEST(quant_products_on_amx_give_the_bits_of_the_twin) {
  if (!has_isa(CpuIsa::kAmxTwin)) return;
  const AmxScope amx;
  for (const WeightFormat format : kFormats) {
    const auto matrix = pack(random_values(1, 49 * 300, 0.1f), 49, 300, format, MatrixKind::kRow);
    for (const int64_t rows : {9, 16, 33}) {
      const std::vector<float> x = random_values(3, rows * 300, 2.0f);
      EXPECT(multiply(kAmxKernels, *matrix, x, rows) == multiply(kAmxTwinKernels, *matrix, x, rows));
    }
  }
}

TEST(quant_rows_that_do_not_fit_in_the_cache_give_the_same_bits_on_tile_registers) {
  if (!has_isa(CpuIsa::kAmxTwin)) return;
  const int64_t n = 40, k = 1216, rows = 1300;
  const std::vector<float> x = random_values(3, rows * k, 2.0f);
  for (const WeightFormat format : kFormats) {
    const auto matrix = pack(random_values(1, n * k, 0.1f), n, k, format);
    EXPECT(multiply(kAmxTwinKernels, *matrix, x, rows) == multiply(kPortableKernels, *matrix, x, rows));
  }
}
#endif

TEST(quant_groups_with_f32_activations_are_close_to_double_precision) {
  const int64_t k = 64, rows = 9;
  for (const CpuIsa isa : available_cpu_isas())
    for (const GroupValues& values : read_group_values()) {
      const QuantCase test = make_case(values, MatrixKind::kRow, 0, k);
      if (test.matrix->quant.type.bits == 0) continue;  // decoded
      const std::vector<float> x = random_values(3, rows * k, 2.0f);
      const std::vector<float> out = multiply_as_f32(cpu_kernels(isa), *test.matrix, x, rows);
      for (int64_t row = 0; row < rows; ++row)
        for (int64_t feature = 0; feature < values.rows; ++feature) {
          double sum = 0, magnitude = 0;
          for (int64_t i = 0; i < k; ++i) {
            const double product = static_cast<double>(x[row * k + i]) * values.values[feature * k + i];
            sum += product;
            magnitude += std::abs(product);
          }
          EXPECT_NEAR(out[row * values.rows + feature], sum, 1e-6 * magnitude);
        }
    }
}

TEST(quant_blocks_keep_the_bits_of_the_file_in_at_most_five_percent_more_memory) {
  for (const BlockValues& values : read_block_values()) {
    const BlockFormat& format = *values.format;
    for (const auto& [n, k, col_begin] : {std::tuple{16, 2048, 0}, std::tuple{40, 512, 0}, std::tuple{18, 90, 70}}) {
      const QuantCase test = make_case(values, n, k, MatrixKind::kColumn, col_begin);
      const std::vector<float> got = decoded(*test.matrix);
      const auto num_values = static_cast<int64_t>(values.values.size());
      for (int64_t row = 0; row < n; ++row)
        for (int64_t col = 0; col < k; ++col) {
          const float wanted = values.values[(row * format.block_size + col_begin + col) % num_values];
          EXPECT_EQ(float_bits(got[row * k + col]), float_bits(wanted));
        }
      EXPECT_NEAR(static_cast<double>(test.matrix->bytes) * 8 / (test.matrix->num_panels * 16 * k),
                  packed_bits_per_weight(format.type, format.group_size, format.block_size), k == 2048 ? 0.04 : 2);
      // Codes of 2 and 3 bits take 4, and the scales and offsets of q2_k take 8 bits instead of 4.
      const int file_bits = format.name == std::string("q2_k") ? 2 : format.name == std::string("q3_k") ? 3 : 0;
      const double grown = file_bits == 0 ? 0 : (4.0 - file_bits) / 8 + (file_bits == 2 ? 1.0 / 16 : 0);
      const double file_bytes = static_cast<double>(format.block_bytes) / format.block_size;
      if (k == 2048) EXPECT(static_cast<double>(test.matrix->bytes) <= n * k * (file_bytes + grown) * 1.05);
    }
  }
}

TEST(quant_blocks_with_f32_activations_are_close_to_double_precision) {
  const int64_t n = 40, k = 512, rows = 9;
  for (const CpuIsa isa : available_cpu_isas())
    for (const BlockValues& values : read_block_values()) {
      if (values.format->name == std::string("mxfp4")) continue;  // values from 1e-38 to 1e38
      const QuantCase test = make_case(values, n, k, MatrixKind::kRow);
      const std::vector<float> weights = decoded(*test.matrix), x = random_values(3, rows * k, 2.0f);
      const std::vector<float> out = multiply_as_f32(cpu_kernels(isa), *test.matrix, x, rows);
      for (int64_t row = 0; row < rows; ++row)
        for (int64_t feature = 0; feature < n; ++feature) {
          double sum = 0, magnitude = 0;
          for (int64_t i = 0; i < k; ++i) {
            const double product = static_cast<double>(x[row * k + i]) * weights[feature * k + i];
            sum += product;
            magnitude += std::abs(product);
          }
          EXPECT_NEAR(out[row * n + feature], sum, 1e-6 * magnitude);
        }
    }
}

TEST(quant_slices_of_different_formats_are_packed_apart) {
  const std::vector<BlockValues> all = read_block_values();
  MemoryCheckpoint checkpoint;
  std::vector<float> plain = random_values(5, 24 * 512, 1.0f), biases = random_values(6, 24, 1.0f);
  const FileTensor& q = checkpoint.add_blocks("q", *all[7].format, 40, 512, all[7].bytes);
  const FileTensor& k = checkpoint.add("k", DType::kBf16, 24, 512, plain);
  const FileTensor& v = checkpoint.add_blocks("v", *all[9].format, 24, 512, all[9].bytes);
  const FileTensor& k_bias = checkpoint.add("k.bias", DType::kF32, 1, 24, biases);
  std::vector<float> zeros(40, 0.0f);
  const FileTensor& q_bias = checkpoint.add("q.bias", DType::kF32, 1, 40, zeros);
  MatrixSource source;
  source.slices = {whole(q), whole(v), whole(k)};
  source.bias = {whole(q_bias), whole(k_bias), whole(k_bias)};
  source.format = WeightFormat::kFile;
  Team team({-1, -1}, false);
  HugePool pool;
  const auto matrix = pack_matrix(source, DType::kBf16, cpu_kernels(CpuIsa::kPortable), team, pool, {});
  EXPECT_EQ(matrix->rows, 40);
  EXPECT_EQ(matrix->rest->rows, 24);
  EXPECT_EQ(matrix->rest->quant.type.bits, 6);
  EXPECT_EQ(matrix->rest->bias[5], biases[5]);
  EXPECT_EQ(matrix->rest->rest->rows, 24);
  EXPECT_EQ(matrix->rest->rest->quant.type.bits, 0);
  EXPECT(decoded(*matrix->rest->rest) == plain);
  // Gate and up are decoded when their formats differ.
  const FileTensor& up = checkpoint.add_blocks("up", *all[0].format, 40, 512, all[0].bytes);
  source.slices = {whole(q), whole(up)};
  source.bias.clear();
  source.interleave_pairs = true;
  const auto gated = pack_matrix(source, DType::kBf16, cpu_kernels(CpuIsa::kPortable), team, pool, {});
  EXPECT_EQ(gated->quant.type.bits, 0);
  EXPECT_EQ(gated->rows, 80);
}

TEST(quant_products_are_close_to_double_precision) {
  const int64_t n = 40, k = 1216, rows = 9;
  for (const CpuIsa isa : available_cpu_isas()) {
    const CpuKernels& kernels = cpu_kernels(isa);
    for (const WeightFormat format : kFormats) {
      const auto matrix = pack(random_values(1, n * k, 0.1f), n, k, format, MatrixKind::kRow);
      const std::vector<float> weights = decoded(*matrix), x = random_values(3, rows * k, 2.0f);
      const Int8Acts acts(kernels, *matrix, x.data(), rows);
      const std::vector<float> int8_out = multiply(kernels, *matrix, acts.tiles);
      const std::vector<float> f32_out = multiply_as_f32(kernels, *matrix, x, rows);
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
