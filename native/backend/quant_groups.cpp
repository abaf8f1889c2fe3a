#include "native/backend/quant_groups.h"

#include <algorithm>

namespace capstan {

int quantized_bits(WeightFormat format) {
  return format == WeightFormat::kInt8 ? 8 : format == WeightFormat::kInt4 ? 4 : 0;
}

int default_group_size(int bits, int64_t cols) {
  const int largest = bits == 8 ? kMaxQuantGroup : kMaxQuantGroup / 2;
  for (int size = largest; size >= kMinQuantGroup; size /= 2)
    if (cols % size == 0) return size;
  return largest;
}

QuantGroups load_groups_of(int bits, const TensorSlice& slice) {
  const int size = default_group_size(bits, slice.tensor->cols);
  return {{bits, 1 << (bits - 1), nullptr, ScaleKind::kF16, OffsetKind::kNone}, size, size, slice.col_begin % size};
}

QuantGroups file_groups(const TensorSlice& slice) {
  if (slice.tensor->groups != nullptr) {
    const auto [type, size] = kept_groups(*slice.tensor);
    return {type, size, size, slice.col_begin % std::max(1, size)};
  }
  if (slice.tensor->format == nullptr) return {};
  const BlockFormat& format = *slice.tensor->format;
  return {format.type, format.group_size, format.block_size, slice.col_begin % format.block_size};
}

MatrixSource with_whole_groups(const MatrixSource& source, int group_size) {
  MatrixSource whole = source;
  for (TensorSlice& slice : whole.slices) {
    const int64_t end = slice.col_begin + slice.num_cols;
    slice.col_begin -= slice.col_begin % group_size;
    slice.num_cols = std::min(slice.tensor->cols, (end + group_size - 1) / group_size * group_size) - slice.col_begin;
  }
  return whole;
}

}  // namespace capstan
