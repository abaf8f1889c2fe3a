#pragma once
// The groups of columns that share a scale, in a matrix that is kept in codes, and the quantization of weights at load.
#include <algorithm>
#include <cstdint>
#include <string>

#include "native/backend/backend.h"
#include "native/base/error.h"

namespace capstan {

constexpr int kMaxQuantGroup = 128;
constexpr int kMinQuantGroup = 16;

// How a matrix is divided into groups and blocks of columns.
struct QuantGroups {
  QuantType type;
  int group_size = 0;
  int block_size = 0;           // a multiple of the group's
  int64_t first_block_col = 0;  // the first column's index in its block
};

// Returns the bits that a matrix is quantized to at load, or 0.
int quantized_bits(WeightFormat format);
// Returns the columns that share a scale when weights are quantized to `bits` (4 or 8): the largest of 128 (64 with 4
// bits) to 16 that divides `cols`, or 128 (64) with a shorter last group.
int default_group_size(int bits, int64_t cols);
// Returns how weights are quantized at load. Groups begin at the tensor's first column, so that every rank finds the
// same, and a file can hold them.
QuantGroups load_groups_of(int bits, const TensorSlice& slice);
// Returns bits = 0 for a tensor that is not kept quantized.
QuantGroups file_groups(const TensorSlice& slice);
// Returns the source with the columns of whole groups.
MatrixSource with_whole_groups(const MatrixSource& source, int group_size);

// Quantizes values (cols) in groups. Sets everything in `row` but first_col. Throws kInvalidModel with the
// tensor's `name` for a value that is too large. quantize_group(values, count, codes) returns the scale as f16 bits.
template <class QuantizeGroup>
void quantize_groups(const float* values, int64_t cols, int group_size, const std::string& name, QuantRow& row,
                     const QuantizeGroup& quantize_group) {
  row.group_size = group_size;
  row.codes.resize(static_cast<size_t>((cols + 15) / 16 * 16));  // quantize_group writes whole vectors
  row.scales.resize(static_cast<size_t>((cols + group_size - 1) / group_size));
  row.offsets.clear();
  row.block_scales.clear();
  row.block_offsets.clear();
  for (int64_t begin = 0; begin < cols; begin += group_size) {
    const int count = static_cast<int>(std::min<int64_t>(group_size, cols - begin));
    const uint16_t scale = quantize_group(values + begin, count, row.codes.data() + begin);
    if ((scale & 0x7c00) == 0x7c00)
      throw Error(ErrorCode::kInvalidModel, "tensor " + name +
                                                ": expected values whose scale f16 can hold, got a larger one. "
                                                "Load the model without quantization");
    row.scales[static_cast<size_t>(begin / group_size)] = scale;
  }
}

}  // namespace capstan
