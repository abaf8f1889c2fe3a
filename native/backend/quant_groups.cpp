#include "native/backend/quant_groups.h"

#include <algorithm>

namespace capstan {

QuantGroups int8_groups() {
  return {{8, 128, nullptr, ScaleKind::kF16, OffsetKind::kNone}, 128};
}

QuantGroups int4_groups() {
  return {{4, 8, nullptr, ScaleKind::kF16, OffsetKind::kNone}, 64};
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

}  // namespace capstan
