// Packing of quantized weights for the CUDA backend.
#include <cstring>
#include <tuple>

#include "cuda/codes.h"
#include "native/backend/panel_reader.h"
#include "test/native/block_values.h"
#include "test/native/checkpoint.h"
#include "test/native/group_values.h"
#include "test/native/testing.h"

namespace capstan::testing {
namespace {

using cuda::CodeKind;
using cuda::DeviceCodes;
using cuda::FloatType;

MatrixSource file_source(const TensorSlice& slice, MatrixKind kind, int64_t total_cols) {
  MatrixSource source;
  source.slices = {slice};
  source.kind = kind;
  source.total_cols = total_cols;
  source.format = WeightFormat::kFile;
  return source;
}

cuda::DepthSplit split_of_source(const MatrixSource& source) {
  return cuda::split_depth(source.slices[0].num_cols, source.total_cols, row_parallel_parts(source.total_cols));
}

// Compares each value of the packed codes with the value that the file holds. Returns whether the codes are kept.
bool expect_values_of_file(const MatrixSource& source, const std::string& name) {
  const cuda::DepthSplit split = split_of_source(source);
  const std::optional<DeviceCodes> codes = codes_of(source, split, FloatType::kBf16);
  if (!codes) return false;
  PanelReader reader;
  int64_t bytes = 0;
  const int64_t cols = source.slices[0].num_cols;
  for (int64_t panel = 0; panel * kPanelFeatures < num_features(source); ++panel) {
    const auto* first = reinterpret_cast<const float*>(reader.read(source, panel, DType::kF32, cols, bytes));
    const std::vector<float> wanted(first, first + kPanelFeatures * cols);
    reader.read_quantized(
        source, panel,
        [&](int lane, const QuantRow& row) {
          const std::vector<float> got = decode_row(codes_of_row(row, *codes, split), *codes, split);
          for (int64_t k = 0; k < cols; ++k)
            if (float_bits(got[static_cast<size_t>(k)] + 0.0f) !=
                float_bits(wanted[static_cast<size_t>(lane * cols + k)] + 0.0f))
              fail(__FILE__, __LINE__, name + ", column " + std::to_string(k));
        },
        bytes);
  }
  return true;
}

TEST(cuda_codes_have_the_values_of_the_file) {
  for (const BlockValues& values : read_block_values()) {
    const BlockFormat& format = *values.format;
    if (std::strcmp(format.name, "mxfp4") == 0) continue;  // its values exceed f32 sums
    MemoryCheckpoint checkpoint;
    const FileTensor& tensor = checkpoint.add_blocks("w", format, 20, 1024, values.bytes);
    for (const auto& [begin, cols] : {std::pair<int64_t, int64_t>{0, 1024}, {256, 512}, {512, 128}})
      EXPECT(expect_values_of_file(file_source({&tensor, 0, 20, begin, cols}, MatrixKind::kRow, 1024), format.name));
  }
  int num_kept = 0, num_fp8 = 0;
  for (const GroupValues& values : read_group_values()) {
    GroupFile file(values);
    file.open();
    const MatrixSource source = file_source(file.whole(), MatrixKind::kColumn, values.cols);
    const bool is_kept = expect_values_of_file(source, values.name);
    num_kept += is_kept;
    num_fp8 += is_kept && values.layout == "fp8";
  }
  EXPECT(num_kept >= 4);
  EXPECT(num_fp8 > 0);
}

// The bits per weight of a matrix of codes.
double bits_of_matrix(const DeviceCodes& codes, const cuda::DepthSplit& split) {
  cuda::HostCodes host;
  resize(host, codes, 4, split);
  const auto bytes = static_cast<double>(4 * code_tile_bytes(codes, split)) +
                     static_cast<double>(host.high.size() + host.records.size() + host.blocks.size() * 2);
  return bytes * 8 / static_cast<double>(4 * 16 * split.parts * split.part_cols);
}

TEST(cuda_codes_take_at_most_five_percent_more_than_the_file) {
  constexpr int64_t kCols = 2048;
  const auto check = [](MatrixSource source, FileTensor tensor, double file_bits, double limit,
                        const std::string& name) {
    tensor.rows = 64, tensor.cols = kCols;
    source.slices = {{&tensor, 0, 64, 0, kCols}};
    source.total_cols = kCols;
    const cuda::DepthSplit split = split_of_source(source);
    const std::optional<DeviceCodes> codes = codes_of(source, split, FloatType::kBf16);
    EXPECT(codes.has_value());
    const double bits = bits_of_matrix(*codes, split);
    if (!(bits <= file_bits * limit)) fail(__FILE__, __LINE__, name + ": " + show(bits) + " bits per weight");
  };
  MatrixSource own;
  own.format = WeightFormat::kInt8;
  check(own, {}, 8.125, 1.05, "int8");
  own.format = WeightFormat::kInt4;
  check(own, {}, 4.25, 1.05, "int4");
  for (const char* name :
       {"q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs", "mxfp4"}) {
    MatrixSource source;
    source.format = WeightFormat::kFile;
    FileTensor tensor;
    tensor.format = find_block_format(name);
    check(source, tensor, 8.0 * tensor.format->block_bytes / tensor.format->block_size, 1.05, name);
  }
  for (const bool has_zeros : {false, true}) {
    MatrixSource source;
    source.format = WeightFormat::kFile;
    FileTensor tensor;
    auto groups = std::make_shared<GroupedTensor>();
    groups->group_cols = 128;
    groups->scales.type = ArrayType::kF16;
    if (has_zeros) groups->zeros = {3, 0, ArrayType::kInt32};
    tensor.groups = groups;
    check(source, tensor, has_zeros ? 4 + 20.0 / 128 : 4 + 16.0 / 128, 1.05, "groups of 128");
  }
}

// Values that are too large for the compute type are refused at load, as decoded weights are.
TEST(cuda_codes_that_exceed_f16_are_refused) {
  MatrixSource source;
  source.format = WeightFormat::kFile;
  FileTensor tensor;
  tensor.format = find_block_format("q8_0");
  tensor.rows = 16, tensor.cols = 32;
  source.slices = {{&tensor, 0, 16, 0, 32}};
  source.total_cols = 32;
  const cuda::DepthSplit split = split_of_source(source);
  for (const FloatType type : {FloatType::kBf16, FloatType::kF16}) {
    const DeviceCodes codes = codes_of(source, split, type).value();
    std::vector<uint8_t> packed(static_cast<size_t>(code_tile_bytes(codes, split)), 0);
    cuda::HostCodes host;
    host.codes = packed.data();
    resize(host, codes, 1, split);
    cuda::RowCodes row;
    row.codes.assign(32, 128);
    row.records.assign(static_cast<size_t>(split.parts) * ((static_cast<size_t>(split.part_cols) + 15) / 16),
                       float_to_f16(1000));
    pack_row(row, codes, split, type, 0, "w", host);
    row.codes[9] = 255;
    if (type == FloatType::kBf16)
      pack_row(row, codes, split, type, 0, "w", host);
    else
      EXPECT_ERROR("invalid_model", pack_row(row, codes, split, type, 0, "w", host));
  }
}

// Codes that the kernels refuse, and weights that are missing.
TEST(cuda_launchers_refuse_incomplete_codes) {
  const auto expect = [](const cuda::DeviceMatrix& matrix, bool is_complete) {
    EXPECT_EQ(has_weights(matrix), is_complete);
  };
  cuda::DeviceMatrix matrix;
  expect(matrix, false);
  const uint8_t byte = 0;
  const uint16_t word = 0;
  matrix.codes.kind = CodeKind::kAny6;
  matrix.codes.codes = matrix.codes.records = matrix.codes.high = &byte;
  matrix.codes.blocks = &word;
  matrix.codes.record_bytes = 2;
  matrix.codes.num_groups = 1;
  matrix.codes.high_bits = 2;
  expect(matrix, true);
  cuda::DeviceMatrix bad = matrix;
  bad.codes.high = nullptr;
  expect(bad, false);
  bad = matrix;
  bad.codes.records = nullptr;
  expect(bad, false);
  bad = matrix;
  bad.codes.blocks = nullptr;
  expect(bad, false);
  bad = matrix;
  bad.codes.high_bits = 0;
  expect(bad, false);
  EXPECT(!supports_gemv(matrix));
}

}  // namespace
}  // namespace capstan::testing
