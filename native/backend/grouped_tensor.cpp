#include "native/backend/grouped_tensor.h"

#include <iterator>
#include <numeric>
#include <string>

#include "native/backend/backend.h"
#include "native/base/error.h"

namespace capstan {

namespace {

// Columns that share a scale in packed weights, at most, because activations have one scale for the same columns. As
// for weights that are quantized at load.
constexpr int64_t kMaxKeptGroup8 = 128, kMaxKeptGroup = 64;
// Below this, padding and scales would take more memory than decoded weights.
constexpr int64_t kMinKeptGroup = 16;
// Keeps products of rows, columns and bytes within 64 bits.
constexpr int64_t kMaxSize = int64_t{1} << 30;

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

struct LayoutInfo {
  const char* name;
  bool is_by_column;  // the file holds the transpose, scales and zero points too
  bool has_bytes;     // a code takes a byte, otherwise codes lie in words
  int min_bits, max_bits;
  int row_unit, col_unit;  // the sizes are multiples of these
};

constexpr LayoutInfo kLayouts[] = {
    {"rows", false, false, 2, 8, 1, 1},    {"gptq", true, false, 2, 8, 1, 1},      {"gptq_v2", true, false, 2, 8, 1, 1},
    {"awq", true, false, 4, 4, 8, 1},      {"int8", false, true, 8, 8, 1, 1},      {"fp8", false, true, 8, 8, 1, 1},
    {"fp4", false, false, 4, 4, 1, 8},     {"fp4_e4m3", false, false, 4, 4, 1, 8}, {"table4", false, false, 4, 4, 1, 8},
    {"int8_max", false, true, 8, 8, 1, 1},
};

const LayoutInfo& info_of(const GroupedTensor& groups) {
  return kLayouts[static_cast<size_t>(groups.layout)];
}

}  // namespace

std::optional<CodeLayout> find_code_layout(std::string_view name) {
  for (size_t i = 0; i < std::size(kLayouts); ++i)
    if (name == kLayouts[i].name) return static_cast<CodeLayout>(i);
  return std::nullopt;
}

void check_groups(const FileTensor& tensor) {
  const GroupedTensor& groups = *tensor.groups;
  const LayoutInfo& layout = info_of(groups);
  const auto demand = [&](bool is_met, const std::string& expected) {
    if (!is_met)
      throw Error(ErrorCode::kInvalidModel, "tensor " + tensor.name + ": " + layout.name + ": expected " + expected);
  };
  const auto range = [](int64_t low, int64_t high) { return std::to_string(low) + " to " + std::to_string(high); };
  demand(tensor.rows <= kMaxSize && tensor.cols <= kMaxSize, range(1, kMaxSize) + " rows and columns");
  demand(groups.bits >= layout.min_bits && groups.bits <= layout.max_bits,
         range(layout.min_bits, layout.max_bits) + " bits, got " + std::to_string(groups.bits));
  demand(tensor.rows % layout.row_unit == 0,
         "a multiple of " + std::to_string(layout.row_unit) + " rows, got " + std::to_string(tensor.rows));
  demand(tensor.cols % layout.col_unit == 0,
         "a multiple of " + std::to_string(layout.col_unit) + " columns, got " + std::to_string(tensor.cols));
  demand(groups.group_rows >= 1 && groups.group_rows <= tensor.rows,
         "groups of " + range(1, tensor.rows) + " rows, got " + std::to_string(groups.group_rows));
  demand(groups.group_cols >= 1 && groups.group_cols <= tensor.cols,
         "groups of " + range(1, tensor.cols) + " columns, got " + std::to_string(groups.group_cols));
  const ArrayType scales = groups.scales.type, zeros = groups.zeros.type;
  const bool is_float = scales == ArrayType::kF32 || scales == ArrayType::kF16 || scales == ArrayType::kBf16;
  if (groups.layout == CodeLayout::kFp4)
    demand(scales == ArrayType::kE8m0, "scales in e8m0");
  else if (groups.layout == CodeLayout::kFp4E4m3)
    demand(scales == ArrayType::kE4m3, "scales in e4m3");
  else if (groups.layout == CodeLayout::kFp8)
    demand(is_float || scales == ArrayType::kE8m0, "scales in f32, f16, bf16 or e8m0");
  else if (groups.scale_codes)
    demand(groups.layout == CodeLayout::kTable4 && scales == ArrayType::kUint8, "scales in bytes");
  else
    demand(is_float, "scales in f32, f16 or bf16");
  demand(groups.layout != CodeLayout::kTable4 || groups.table.size() == 16, "a table of 16 values");
  if (groups.zeros.fd < 0) return;
  const bool is_float_code = groups.layout == CodeLayout::kFp8 || groups.layout == CodeLayout::kFp4 ||
                             groups.layout == CodeLayout::kFp4E4m3 || groups.layout == CodeLayout::kTable4;
  demand(!is_float_code, "no zero points");
  const bool has_words = zeros == ArrayType::kInt32 && !layout.has_bytes;
  const bool has_bytes = zeros == ArrayType::kInt8 && !layout.is_by_column;
  demand(has_words || has_bytes, layout.has_bytes ? "zero points in int8" : "zero points in int32");
}

bool is_by_column(const GroupedTensor& groups) {
  return info_of(groups).is_by_column;
}

bool has_byte_codes(const GroupedTensor& groups) {
  return info_of(groups).has_bytes;
}

QuantType code_type(const GroupedTensor& groups) {
  if (groups.layout == CodeLayout::kFp4) return find_block_format("mxfp4")->type;
  if (groups.layout == CodeLayout::kFp4E4m3) return find_block_format("nvfp4")->type;
  QuantType type;
  type.bits = groups.bits <= 4 ? 4 : groups.bits == 7 ? 8 : groups.bits;
  type.zero = 1 << (groups.bits - 1);
  type.scale = groups.scales.type == ArrayType::kF16 ? ScaleKind::kF16 : ScaleKind::kF32;
  type.offset = groups.zeros.fd < 0 ? OffsetKind::kNone : OffsetKind::kZeroPoint;
  return type;
}

int64_t num_words(int64_t count, int bits) {
  return ceil_div(count * bits, kWordBits);
}

int64_t array_type_size(ArrayType type) {
  switch (type) {
    case ArrayType::kF32:
    case ArrayType::kInt32:
      return 4;
    case ArrayType::kF16:
    case ArrayType::kBf16:
      return 2;
    case ArrayType::kE8m0:
    case ArrayType::kE4m3:
    case ArrayType::kInt8:
    case ArrayType::kUint8:
      return 1;
  }
  return 0;
}

int64_t num_column_groups(const FileTensor& tensor) {
  return ceil_div(tensor.cols, tensor.groups->group_cols);
}

int64_t num_row_groups(const FileTensor& tensor) {
  return ceil_div(tensor.rows, tensor.groups->group_rows);
}

GroupedBytes grouped_bytes(const FileTensor& tensor) {
  const GroupedTensor& groups = *tensor.groups;
  const int64_t row_groups = num_row_groups(tensor), column_groups = num_column_groups(tensor);
  GroupedBytes bytes;
  if (has_byte_codes(groups))
    bytes.codes = tensor.rows * tensor.cols;
  else if (groups.layout == CodeLayout::kAwq)
    bytes.codes = tensor.cols * num_words(tensor.rows, groups.bits) * 4;
  else
    bytes.codes = tensor.rows * num_words(tensor.cols, groups.bits) * 4;
  bytes.scales = row_groups * column_groups * array_type_size(groups.scales.type);
  if (groups.zeros.fd >= 0)
    bytes.zeros = groups.zeros.type == ArrayType::kInt8 ? row_groups * column_groups
                                                        : num_words(row_groups, groups.bits) * column_groups * 4;
  return bytes;
}

KeptGroups kept_groups(const FileTensor& tensor) {
  if (tensor.groups == nullptr) return {};
  const GroupedTensor& groups = *tensor.groups;
  const QuantType type = code_type(groups);
  const int64_t most = type.bits == 8 ? kMaxKeptGroup8 : kMaxKeptGroup;
  const int64_t size = groups.group_cols >= tensor.cols ? most
                       : groups.group_cols > most       ? std::gcd(groups.group_cols, most)
                                                        : groups.group_cols;
  const bool is_decoded = groups.layout == CodeLayout::kFp8 || groups.layout == CodeLayout::kTable4;
  if (is_decoded || !groups.group_index.empty() || size < kMinKeptGroup) return {};
  return {type, static_cast<int>(size)};
}

bool are_kept_alike(const FileTensor& a, const FileTensor& b) {
  return a.format == b.format && kept_groups(a) == kept_groups(b);
}

}  // namespace capstan
