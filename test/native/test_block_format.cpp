// The quantized types of GGUF files: decoded values, bit for bit with the gguf package, and reading from a file.
#include <cmath>
#include <cstring>
#include <fstream>
#include <string>

#include "native/backend/block_format.h"
#include "native/backend/panel_reader.h"
#include "native/base/number.h"
#include "test/native/block_values.h"
#include "test/native/checkpoint.h"
#include "test/native/testing.h"

namespace capstan::testing {
namespace {

TEST(blocks_decode_to_the_bits_of_the_gguf_package) {
  const std::vector<BlockValues> all = read_block_values();
  EXPECT_EQ(all.size(), size_t{14});
  for (const BlockValues& values : all) {
    const BlockFormat& format = *values.format;
    const int64_t num_blocks = static_cast<int64_t>(values.bytes.size()) / format.block_bytes;
    EXPECT_EQ(static_cast<int64_t>(values.bytes.size()), num_blocks * format.block_bytes);
    std::vector<float> out(values.values.size());
    EXPECT_EQ(static_cast<int64_t>(out.size()), num_blocks * format.block_size);
    decode_blocks(format, values.bytes.data(), num_blocks, {}, out.data());
    for (size_t i = 0; i < out.size(); ++i)
      EXPECT_EQ(float_bits(out[i]), float_bits(values.values[i]));
  }
}

TEST(blocks_are_read_from_any_column_in_every_number_type) {
  for (const BlockValues& values : read_block_values()) {
    const int64_t cols = static_cast<int64_t>(values.values.size()), size = values.format->block_size;
    MemoryCheckpoint checkpoint;
    const FileTensor& tensor = checkpoint.add_blocks("w", *values.format, 1, cols, values.bytes);
    for (const int64_t begin : {int64_t{0}, size / 2, size, size + 8}) {
      const int64_t count = cols - begin - (begin == 0 ? 0 : 8);
      const std::vector<float> read = read_floats({&tensor, 0, 1, begin, count});
      for (int64_t i = 0; i < count; ++i)
        EXPECT_EQ(float_bits(read[i]), float_bits(values.values[begin + i]));
      PanelReader reader;
      MatrixSource source;
      source.slices = {{&tensor, 0, 1, begin, count}};
      int64_t bytes = 0;
      if (std::string_view(values.format->name) == "mxfp4") continue;  // holds values beyond f16
      const char* panel = reader.read(source, 0, DType::kF16, count, bytes);
      for (int64_t i = 0; i < count; ++i)
        EXPECT_EQ(element_at(DType::kF16, panel, i), f16_to_float(float_to_f16(values.values[begin + i])));
    }
  }
}

TEST(rows_of_heads_stored_as_pairs_are_read_in_order) {
  constexpr int64_t kRows = 16, kCols = 4, kHeadDim = 8;
  for (const int64_t paired : {kHeadDim, int64_t{4}}) {
    std::vector<float> values, bias;
    for (int64_t row = 0; row < kRows; ++row)
      bias.push_back(static_cast<float>(row));
    for (int64_t i = 0; i < kRows * kCols; ++i)
      values.push_back(static_cast<float>(i));
    MemoryCheckpoint checkpoint;
    FileTensor tensor = checkpoint.add("w", DType::kF32, kRows, kCols, values);
    FileTensor bias_tensor = checkpoint.add("b", DType::kF32, 1, kRows, bias);
    tensor.paired_head_dim = bias_tensor.paired_head_dim = kHeadDim;
    tensor.paired_rows = bias_tensor.paired_rows = static_cast<int>(paired);
    const auto file_row = [&](int64_t row) {
      const int64_t head = row / kHeadDim, i = row % kHeadDim;
      return i >= paired ? row : head * kHeadDim + 2 * (i % (paired / 2)) + i / (paired / 2);
    };
    for (const int64_t begin : {int64_t{0}, kHeadDim}) {
      const std::vector<float> read = read_floats({&tensor, begin, kRows - begin, 1, 2});
      const std::vector<float> read_biases = read_floats({&bias_tensor, 0, 1, begin, kRows - begin});
      for (int64_t row = begin; row < kRows; ++row) {
        for (int64_t col = 0; col < 2; ++col)
          EXPECT_EQ(read[(row - begin) * 2 + col], static_cast<float>(file_row(row) * kCols + 1 + col));
        EXPECT_EQ(read_biases[row - begin], static_cast<float>(file_row(row)));
      }
    }
  }
}

TEST(the_exponent_of_a_decay_is_read) {
  MemoryCheckpoint checkpoint;
  std::vector<float> exponents{-1, -std::exp(2.0f), -0.5f}, not_negative{-1, 0};
  FileTensor decay = checkpoint.add("decay", DType::kF32, 1, 3, exponents);
  FileTensor wrong = checkpoint.add("wrong", DType::kF32, 1, 2, not_negative);
  decay.is_negated_exp = wrong.is_negated_exp = true;
  const std::vector<float> read = read_floats({&decay, 0, 1, 1, 2});
  EXPECT_NEAR(read[0], 2, 1e-6);
  EXPECT_NEAR(read[1], std::log(0.5), 1e-6);
  EXPECT_ERROR("invalid_model", read_floats(whole(wrong)));
}

TEST(blocks_of_nvfp4_have_a_factor_for_the_tensor) {
  const BlockFormat& format = *find_block_format("nvfp4");
  std::vector<uint8_t> bytes(static_cast<size_t>(format.block_bytes), 0x33);
  MemoryCheckpoint checkpoint;
  FileTensor tensor = checkpoint.add_blocks("w", format, 1, 64, bytes);
  const float value = read_floats(whole(tensor))[5];
  tensor.factor = {0.5f * 3, 0};
  EXPECT_EQ(read_floats(whole(tensor))[5], 3 * value);
  for (const uint8_t byte : {0x7f, 0x80, 0xff}) {  // NaN, below 0, NaN
    bytes[2] = byte;
    const FileTensor& bad = checkpoint.add_blocks("bad" + std::to_string(byte), format, 1, 64, bytes);
    EXPECT_ERROR("invalid_model", read_floats(whole(bad)));
  }
}

TEST(blocks_with_a_scale_that_is_not_finite_are_refused) {
  const BlockFormat& format = *find_block_format("q4_0");
  std::vector<uint8_t> bytes(static_cast<size_t>(2 * format.block_bytes), 0x11);
  MemoryCheckpoint checkpoint;
  const FileTensor& good = checkpoint.add_blocks("good", format, 1, 64, bytes);
  bytes[18] = 0x00;
  bytes[19] = 0x7c;  // Inf
  const FileTensor& bad = checkpoint.add_blocks("bad", format, 1, 64, bytes);
  read_floats(whole(good));
  EXPECT_ERROR("invalid_model", read_floats(whole(bad)));
}

}  // namespace
}  // namespace capstan::testing
