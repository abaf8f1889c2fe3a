// Packing: every element is at its place in the layout, converted and checked, for any slices.
#include "native/backend/cpu/matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "native/backend/cpu/isa.h"
#include "native/backend/cpu/kernels.h"
#include "native/base/number.h"
#include "test/native/checkpoint.h"
#include "test/native/testing.h"

namespace capstan::testing {
namespace {

constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBf16};

float rounded(DType dtype, float value) {
  if (dtype == DType::kF16) return f16_to_float(float_to_f16(value));
  if (dtype == DType::kBf16) return bf16_to_float(float_to_bf16(value));
  return value;
}

// Returns element (lane, k) of a panel, by the layout in kernels.h.
float packed(const CpuMatrix& matrix, int64_t panel, int lane, int64_t k) {
  const int64_t panel_begin = panel * kPanelFeatures * matrix.padded_k;
  if (matrix.dtype == DType::kF32) return matrix.data.as<float>()[panel_begin + k * kPanelFeatures + lane];
  const uint16_t* data = matrix.data.as<uint16_t>() + panel_begin;
  if (matrix.dtype == DType::kF16) return f16_to_float(data[k * kPanelFeatures + lane]);
  return bf16_to_float(data[(k / 2 * kPanelFeatures + lane) * 2 + k % 2]);
}

TEST(matrix_packs_slices_of_any_type_and_size) {
  Team team({-1, -1}, false);
  HugePool pool;
  for (const DType file_dtype : kDTypes) {
    for (const DType dtype : kDTypes) {
      for (const auto& [heights, cols] : std::vector<std::pair<std::vector<int64_t>, int64_t>>{
               {{5}, 1}, {{16}, 2}, {{17, 3, 30}, 33}, {{40, 8, 8}, 64}}) {
        MemoryCheckpoint checkpoint;
        MatrixSource source;
        std::vector<std::vector<float>> wanted;
        for (size_t i = 0; i < heights.size(); ++i) {
          // Each slice is the interior of a larger tensor.
          std::vector<float> values = random_values(i + 1, (heights[i] + 3) * (cols + 5), 1.0f);
          const FileTensor& tensor =
              checkpoint.add("t" + std::to_string(i), file_dtype, heights[i] + 3, cols + 5, values);
          source.slices.push_back({&tensor, 2, heights[i], 4, cols});
          for (int64_t row = 2; row < 2 + heights[i]; ++row)
            wanted.emplace_back(values.begin() + row * (cols + 5) + 4, values.begin() + row * (cols + 5) + 4 + cols);
        }
        int64_t progress = 0;
        const auto matrix = pack_matrix(source, dtype, cpu_kernels(CpuIsa::kPortable), team, pool,
                                        [&](int64_t bytes) { progress += bytes; });
        EXPECT_EQ(matrix->rows, static_cast<int64_t>(wanted.size()));
        EXPECT_EQ(progress, matrix->rows * cols * static_cast<int64_t>(dtype_size(file_dtype)));
        EXPECT_EQ(matrix->num_panels, (matrix->rows + 15) / 16);
        std::vector<float> row(static_cast<size_t>(cols));
        for (int64_t n = 0; n < matrix->num_panels * 16; ++n) {
          if (n < matrix->rows) gather_row(*matrix, n, row.data());
          for (int64_t k = 0; k < matrix->padded_k; ++k) {
            const bool is_inside = n < matrix->rows && k < cols;
            EXPECT_EQ(packed(*matrix, n / 16, static_cast<int>(n % 16), k),
                      is_inside ? rounded(dtype, wanted[n][k]) : 0.0f);
            if (is_inside) EXPECT_EQ(row[k], rounded(dtype, wanted[n][k]));
          }
        }
      }
    }
  }
}

TEST(matrix_interleaves_gates_and_ups_in_groups_of_eight) {
  Team team({-1}, false);
  HugePool pool;
  MemoryCheckpoint checkpoint;
  constexpr int64_t kPairs = 21, kCols = 10;
  std::vector<float> gate = random_values(1, kPairs * kCols, 1.0f), up = random_values(2, kPairs * kCols, 1.0f),
                     bias = random_values(3, kPairs, 1.0f);
  MatrixSource source;
  source.slices = {whole(checkpoint.add("gate", DType::kF32, kPairs, kCols, gate)),
                   whole(checkpoint.add("up", DType::kF32, kPairs, kCols, up))};
  const FileTensor& biases = checkpoint.add("bias", DType::kF32, 1, kPairs, bias);
  source.bias = {whole(biases), whole(biases)};
  source.interleave_pairs = true;
  const auto matrix = pack_matrix(source, DType::kF32, cpu_kernels(CpuIsa::kPortable), team, pool, {});
  EXPECT_EQ(matrix->num_panels, int64_t{3});
  for (int64_t pair = 0; pair < 24; ++pair) {
    for (int64_t k = 0; k < kCols; ++k) {
      EXPECT_EQ(packed(*matrix, pair / 8, static_cast<int>(pair % 8), k),
                pair < kPairs ? gate[pair * kCols + k] : 0.0f);
      EXPECT_EQ(packed(*matrix, pair / 8, static_cast<int>(8 + pair % 8), k),
                pair < kPairs ? up[pair * kCols + k] : 0.0f);
    }
    EXPECT_EQ(matrix->bias[pair / 8 * 16 + pair % 8], pair < kPairs ? bias[pair] : 0.0f);
    EXPECT_EQ(matrix->bias[pair / 8 * 16 + 8 + pair % 8], pair < kPairs ? bias[pair] : 0.0f);
  }
}

// Loads a tensor that has `value` as one element. Returns the error message.
std::string message_with(float value, DType file_dtype, DType dtype, bool is_vector) {
  Team team({-1, -1}, false);
  HugePool pool;
  MemoryCheckpoint checkpoint;
  std::vector<float> values(50 * 20, 1.0f);
  values[777] = value;
  const FileTensor& tensor = checkpoint.add("layers.3.odd", file_dtype, 50, 20, values);
  MatrixSource source;
  source.slices = {whole(tensor)};
  try {
    if (is_vector)
      read_vector(whole(tensor), 0.0f, {});
    else
      pack_matrix(source, dtype, cpu_kernels(CpuIsa::kPortable), team, pool, {});
  } catch (const Error& error) {
    return std::string(error_code_name(error.code())) + ": " + error.what();
  }
  return "";
}

TEST(matrix_refuses_nan_and_inf_and_names_the_tensor) {
  const std::string non_finite =
      "invalid_model: tensor layers.3.odd: expected finite values, got NaN or Inf. The file is damaged: "
      "download the model again, or use another file or quantization of it";
  for (const DType file_dtype : kDTypes) {
    for (const DType dtype : kDTypes) {
      for (const float bad : {std::nanf(""), -std::nanf(""), std::numeric_limits<float>::infinity(),
                              -std::numeric_limits<float>::infinity()}) {
        EXPECT_EQ(message_with(bad, file_dtype, dtype, false), non_finite);
        EXPECT_EQ(message_with(bad, file_dtype, dtype, true), non_finite);
      }
      EXPECT_EQ(message_with(60000.0f, file_dtype, dtype, false), std::string());
    }
  }
  EXPECT_EQ(message_with(1e6f, DType::kBf16, DType::kF16, false),
            std::string("invalid_model: tensor layers.3.odd: expected values that f16 can hold, got a larger one. "
                        "Set dtype (--dtype) to bf16"));
  EXPECT_EQ(message_with(std::numeric_limits<float>::max(), DType::kF32, DType::kBf16, false),
            std::string("invalid_model: tensor layers.3.odd: expected values that bf16 can hold, got a larger one. "
                        "Set dtype (--dtype) to f32, on the CPU"));
}

TEST(matrix_refuses_a_truncated_file) {
  Team team({-1, -1}, false);
  HugePool pool;
  MemoryCheckpoint checkpoint;
  std::vector<float> values(50 * 20, 1.0f);
  MatrixSource source;
  source.slices = {whole(checkpoint.add("cut", DType::kF32, 50, 20, values))};
  checkpoint.truncate(checkpoint.bytes() - 10);
  EXPECT_ERROR("invalid_model", pack_matrix(source, DType::kF32, cpu_kernels(CpuIsa::kPortable), team, pool, {}));
  EXPECT_ERROR("invalid_model", read_vector(source.slices[0], 0.0f, {}));
}

TEST(matrix_loading_can_be_cancelled) {
  Team team({-1, -1}, false);
  HugePool pool;
  MemoryCheckpoint checkpoint;
  std::vector<float> values(500 * 20, 1.0f);
  MatrixSource source;
  source.slices = {whole(checkpoint.add("t", DType::kF32, 500, 20, values))};
  EXPECT_ERROR("aborted", pack_matrix(source, DType::kF32, cpu_kernels(CpuIsa::kPortable), team, pool,
                                      [](int64_t) { throw Error(ErrorCode::kAborted, "stop"); }));
}

TEST(matrix_shard_has_its_share_of_the_parts) {
  Team team({-1}, false);
  HugePool pool;
  MemoryCheckpoint checkpoint;
  std::vector<float> values(8 * 128, 1.0f);
  const FileTensor& tensor = checkpoint.add("t", DType::kF32, 8, 128, values);
  for (const auto& [cols, parts] : {std::pair{128, 8}, {64, 4}, {32, 2}, {16, 1}}) {
    MatrixSource source;
    source.kind = MatrixKind::kRow;
    source.total_cols = 128;
    source.slices = {{&tensor, 0, 8, 128 - cols, cols}};
    EXPECT_EQ(pack_matrix(source, DType::kF32, cpu_kernels(CpuIsa::kPortable), team, pool, {})->num_parts, parts);
  }
  MatrixSource source;
  source.kind = MatrixKind::kRow;
  source.total_cols = 128;
  source.slices = {{&tensor, 0, 8, 0, 24}};  // one and a half parts
  EXPECT_ERROR("internal_error", pack_matrix(source, DType::kF32, cpu_kernels(CpuIsa::kPortable), team, pool, {}));
}

TEST(buffers_of_a_pool_are_zeroed_and_do_not_overlap) {
  std::vector<HugeBuffer> buffers;
  const std::vector<size_t> sizes = {1, 100, 4096, size_t{5} << 20, size_t{9} << 20, 0, size_t{8} << 20};
  {
    HugePool pool;
    for (int round = 0; round < 4; ++round)
      for (const size_t size : sizes)
        buffers.push_back(pool.allocate(size, "a test"));
  }
  // They live longer than the pool.
  for (size_t i = 0; i < buffers.size(); ++i) {
    const auto* bytes = buffers[i].as<uint8_t>();
    EXPECT_EQ(buffers[i].bytes(), sizes[i % sizes.size()]);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes) % 64, uintptr_t{0});
    EXPECT(std::all_of(bytes, bytes + buffers[i].bytes(), [](uint8_t byte) { return byte == 0; }));
    std::memset(buffers[i].as<void>(), static_cast<int>(i + 1), buffers[i].bytes());
  }
  for (size_t i = 0; i < buffers.size(); ++i) {
    const auto* bytes = buffers[i].as<uint8_t>();
    EXPECT(std::all_of(bytes, bytes + buffers[i].bytes(), [&](uint8_t byte) { return byte == i + 1; }));
  }
}

}  // namespace
}  // namespace capstan::testing
