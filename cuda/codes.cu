#include "cuda/codes.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "native/backend/panel_reader.h"
#include "native/backend/weight_faults.h"
#include "native/base/check.h"
#include "native/base/number.h"

namespace capstan::cuda {
namespace {

constexpr int kRecordCols = 16;  // columns of one instruction
constexpr int64_t kMaxFp8Group = 1 << 20;
constexpr int kWholeRow = 30;  // group_shift of a group with all columns
constexpr float kMaxF16 = 65504;
constexpr float kMaxNumber = 448;  // of e4m3; others are at most 383

int64_t records_per_part(const DepthSplit& split) {
  return (split.part_cols + kRecordCols - 1) / kRecordCols;
}

int record_bytes(DeviceScale scale, OffsetKind offset) {
  if (scale == DeviceScale::kF32 || offset == OffsetKind::kF16 || offset == OffsetKind::kZeroPoint) return 4;
  const bool has_byte = scale == DeviceScale::kE8m0 || scale == DeviceScale::kTimesF16;
  return has_byte && offset == OffsetKind::kNone ? 1 : 2;
}

DeviceScale device_scale(const MatrixSource& source, ScaleKind kind) {
  const auto& groups = source.slices[0].tensor->groups;
  switch (kind) {
    case ScaleKind::kF16:
      return DeviceScale::kF16;
    case ScaleKind::kE8m0:
      return DeviceScale::kE8m0;
    case ScaleKind::kTimesF16:
      return DeviceScale::kTimesF16;
    case ScaleKind::kF32:
    case ScaleKind::kE4m3:
      break;
  }
  return groups != nullptr && groups->scales.type == ArrayType::kBf16 ? DeviceScale::kBf16 : DeviceScale::kF32;
}

bool is_fp8(const TensorSlice& slice) {
  return slice.tensor->groups != nullptr && slice.tensor->groups->layout == CodeLayout::kFp8;
}
QuantGroups fp8_groups(const FileTensor& tensor) {
  QuantGroups groups;
  groups.type = code_type(*tensor.groups);
  groups.type.zero = 0;
  groups.group_size = static_cast<int>(std::min(tensor.groups->group_cols, kMaxFp8Group));
  return groups;
}

bool are_alike(const MatrixSource& source) {
  const TensorSlice& first = source.slices[0];
  return std::ranges::all_of(source.slices, [&](const TensorSlice& slice) {
    const auto &a = first.tensor->groups, &b = slice.tensor->groups;
    return are_kept_alike(*first.tensor, *slice.tensor) && is_fp8(first) == is_fp8(slice) &&
           slice.col_begin == first.col_begin &&
           (a == nullptr || (a->group_cols == b->group_cols && a->scales.type == b->scales.type));
  });
}

struct DeviceGroups {
  int shift, first_col;
};
// A tensor with groups keeps those of the file, which packed weights of the CPU may divide.
DeviceGroups device_groups(const MatrixSource& source, const QuantGroups& groups) {
  const TensorSlice& slice = source.slices[0];
  const auto log2 = [](int64_t size) { return std::countr_zero(static_cast<uint64_t>(size)); };
  if (source.format == WeightFormat::kFile && slice.tensor->groups != nullptr) {
    const int64_t cols = slice.tensor->groups->group_cols;
    if (cols >= slice.tensor->cols) return {kWholeRow, 0};
    if (std::has_single_bit(static_cast<uint64_t>(cols))) return {log2(cols), static_cast<int>(slice.col_begin % cols)};
  }
  return {log2(groups.group_size), static_cast<int>(groups.first_block_col)};
}

CodeKind code_kind(const DeviceCodes& codes, int bits, bool can_be_plain) {
  const bool is_simple = !codes.is_fp8 && codes.scale == DeviceScale::kF16 && codes.offset == OffsetKind::kNone &&
                         !codes.has_table && can_be_plain;
  if (bits == 8) return is_simple ? CodeKind::kPlain8 : CodeKind::kAny8;
  if (bits == 4) return is_simple ? CodeKind::kPlain4 : CodeKind::kAny4;
  return CodeKind::kAny6;
}

// Calls use(part, first, count, index) for each 16 columns of each part: their first column in the row, their number,
// and the index of their record.
template <class Use>
void for_each_record(const DepthSplit& split, const Use& use) {
  const int64_t per_part = records_per_part(split);
  for (int part = 0; part < split.parts; ++part)
    for (int64_t i = 0; i < per_part; ++i)
      use(part, part * split.part_cols + i * kRecordCols,
          std::min<int64_t>(kRecordCols, split.part_cols - i * kRecordCols), part * per_part + i);
}

// The scale and the offset of a record in the meaning of QuantType. `record` is as in memory.
struct Scales {
  float scale = 0, offset = 0;
  int zero = 0;
};
Scales scales_of(const DeviceCodes& codes, uint32_t record, uint16_t block_scale, uint16_t block_offset) {
  Scales to;
  to.zero = codes.zero;
  const QuantType by_byte{8, 0, nullptr, codes.scale == DeviceScale::kE8m0 ? ScaleKind::kE8m0 : ScaleKind::kTimesF16};
  switch (codes.scale) {
    case DeviceScale::kF16:
      to.scale = f16_to_float(static_cast<uint16_t>(record));
      break;
    case DeviceScale::kBf16:
      to.scale = bf16_to_float(static_cast<uint16_t>(record));
      break;
    case DeviceScale::kF32:
      to.scale = bits_float(record);
      break;
    case DeviceScale::kE8m0:
    case DeviceScale::kTimesF16:
      to.scale = capstan::block_scale(by_byte, record & 0xff, block_scale);
      break;
  }
  if (codes.offset == OffsetKind::kF16) to.offset = f16_to_float(static_cast<uint16_t>(record >> 16));
  if (codes.offset == OffsetKind::kTimesF16)
    to.offset = static_cast<float>(record >> 8 & 0xff) * f16_to_float(block_offset);
  if (codes.offset == OffsetKind::kZeroPoint) to.zero += static_cast<int8_t>(record >> 16);
  return to;
}

float e4m3_value(int code) {
  const float size = bits_float(static_cast<uint32_t>(code & 0x7f) << 20) * 0x1p120f;
  return code < 128 ? size : -size;
}

float value_of(const DeviceCodes& codes, int code, const Scales& scales) {
  if (codes.is_fp8) return scales.scale * e4m3_value(code);
  const int number = codes.has_table ? static_cast<int>(codes.table[code / 4] >> code % 4 * 8 & 0xff) : code;
  return scales.scale * static_cast<float>(number - scales.zero) - scales.offset;
}

Scales scales_of_record(const RowCodes& row, const DeviceCodes& codes, const DepthSplit& split, int part, int64_t first,
                        int64_t index) {
  const auto block = static_cast<size_t>(codes.num_blocks == 0 ? 0 : codes.block(part, first - part * split.part_cols));
  return scales_of(codes, row.records[static_cast<size_t>(index)],
                   row.block_scales.empty() ? uint16_t{0} : row.block_scales[block],
                   row.block_offsets.empty() ? uint16_t{0} : row.block_offsets[block]);
}

}  // namespace

uint32_t minus_zero_bits(FloatType type, int bits, int zero) {
  if (type == FloatType::kBf16 && bits == 8) return float_bits(-8388608.0f - static_cast<float>(zero));
  const uint16_t value = type == FloatType::kBf16 ? float_to_bf16(-128.0f - static_cast<float>(zero))
                                                  : float_to_f16(-1024.0f - static_cast<float>(zero));
  return value | uint32_t{value} << 16;
}

std::optional<DeviceCodes> codes_of(const MatrixSource& source, const DepthSplit& split, FloatType type) {
  const bool is_file = source.format == WeightFormat::kFile;
  QuantGroups groups;
  if (const int bits = quantized_bits(source.format); bits > 0) groups = load_groups_of(bits, source.slices[0]);
  if (is_file) groups = is_fp8(source.slices[0]) ? fp8_groups(*source.slices[0].tensor) : file_groups(source.slices[0]);
  if (groups.type.bits == 0 || (is_file && !are_alike(source))) return std::nullopt;
  const bool has_one_group = is_file && source.slices[0].tensor->groups &&
                             source.slices[0].tensor->groups->group_cols >= source.slices[0].tensor->cols;
  if (!has_one_group &&
      (groups.group_size % kRecordCols != 0 || !std::has_single_bit(static_cast<unsigned>(groups.group_size))))
    return std::nullopt;
  DeviceCodes codes;
  codes.scale = device_scale(source, groups.type.scale);
  codes.offset = groups.type.offset;
  if (codes.scale == DeviceScale::kF32 && codes.offset != OffsetKind::kNone) return std::nullopt;
  codes.zero = groups.type.zero;
  codes.high_bits = groups.type.bits == 8 ? 0 : groups.type.bits - 4;
  codes.is_fp8 = is_file && is_fp8(source.slices[0]);
  codes.has_table = groups.type.table != nullptr;
  if (codes.has_table) std::memcpy(codes.table, groups.type.table, sizeof codes.table);
  codes.record_bytes = record_bytes(codes.scale, codes.offset);
  const DeviceGroups device = device_groups(source, groups);
  codes.group_shift = device.shift;
  codes.first_col = device.first_col;
  codes.part_cols = static_cast<int>(split.part_cols);
  const bool has_blocks = codes.scale == DeviceScale::kTimesF16;
  const int unit = has_blocks ? kTileDepth : kRecordCols;
  bool can_be_plain = groups.group_size >= kTileDepth;
  for (int part = 0; part < split.parts && codes.group_shift != kWholeRow; ++part) {
    if (codes.part_begin(part) % unit != 0) return std::nullopt;
    can_be_plain = can_be_plain && codes.part_begin(part) % kTileDepth == 0;
  }
  codes.kind = code_kind(codes, groups.type.bits, can_be_plain);
  if (is_plain(codes.kind)) codes.minus_zero = minus_zero_bits(type, groups.type.bits, codes.zero);
  // Kernels read records and blocks for padding too.
  codes.num_groups = codes.group(split.parts - 1, split.padded_part - 1) + 1;
  codes.num_blocks = has_blocks ? codes.block(split.parts - 1, split.padded_part - 1) + 1 : 0;
  return codes;
}

int64_t code_tile_bytes(const DeviceCodes& codes, const DepthSplit& split) {
  return kTileRows * split.padded() * low_bits(codes.kind) / 8;
}

void resize(HostCodes& host, const DeviceCodes& codes, int64_t num_tiles, const DepthSplit& split) {
  const auto size = [&](int64_t per_tile) { return static_cast<size_t>(num_tiles * per_tile); };
  host.high.assign(size(kTileRows * split.padded() * codes.high_bits / 8), 0);
  host.records.assign(size(int64_t{kTileRows} * codes.num_groups * codes.record_bytes), 0);
  // Without blocks the kernels read the first 64 bytes.
  host.blocks.assign(std::max<size_t>(size(int64_t{kTileRows} * 2 * codes.num_blocks), 32), 0);
}

RowCodes codes_of_row(const QuantRow& row, const DeviceCodes& codes, const DepthSplit& split) {
  RowCodes to;
  to.codes.assign(row.codes.begin() + row.first_col, row.codes.begin() + row.first_col + split.parts * split.part_cols);
  to.records.resize(static_cast<size_t>(split.parts * records_per_part(split)));
  for_each_record(split, [&](int, int64_t first, int64_t, int64_t index) {
    const auto group = static_cast<size_t>((row.first_col + first) / row.group_size);
    uint32_t record = row.scales[group];
    if (row.factor) record = float_bits(e4m3_scale(record, *row.factor));
    if (codes.scale == DeviceScale::kBf16) record >>= 16;
    if (codes.scale == DeviceScale::kTimesF16) record &= 0xff;
    if (codes.offset == OffsetKind::kF16 || codes.offset == OffsetKind::kZeroPoint)
      record |= static_cast<uint32_t>(row.offsets[group]) << 16;
    if (codes.offset == OffsetKind::kTimesF16) record |= static_cast<uint32_t>(row.offsets[group]) << 8;
    to.records[static_cast<size_t>(index)] = record;
  });
  to.block_scales = row.block_scales;
  to.block_offsets = row.block_offsets;
  return to;
}

void pack_row(const RowCodes& from, const DeviceCodes& codes, const DepthSplit& split, FloatType type, int64_t row,
              const std::string& name, HostCodes& to) {
  const int64_t padded = split.padded(), code_row = row - to.first_tile * kTileRows;
  for_each_record(split, [&](int part, int64_t first, int64_t count, int64_t index) {
    const int64_t in_part = first - part * split.part_cols, place = part * split.padded_part + in_part;
    const uint32_t record = from.records[static_cast<size_t>(index)];
    uint8_t* const to_record = to.records.data() + codes.record(row, codes.group(part, in_part));
    for (int byte = 0; byte < codes.record_bytes; ++byte)
      to_record[byte] = static_cast<uint8_t>(record >> byte * 8);
    const Scales scales = scales_of_record(from, codes, split, part, first, index);
    const bool may_overflow =
        type == FloatType::kF16 && std::abs(scales.scale) * kMaxNumber + std::abs(scales.offset) > kMaxF16;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t k = place + i;
      const uint8_t code = from.codes[static_cast<size_t>(first + i)];
      if (low_bits(codes.kind) == 8) {
        to.codes[code8_index(code_row, k, padded)] = code;
      } else {
        to.codes[code4_index(code_row, k, padded)] |= static_cast<uint8_t>((code & 15) << (row % kTileRows / 8 * 4));
        if (codes.high_bits > 0) {
          const int bit = high_bit(row, k, codes.high_bits);
          to.high[static_cast<size_t>(k_tile_lane(row, k, padded) * 2 * codes.high_bits + bit / 8)] |=
              static_cast<uint8_t>(code >> 4 << bit % 8);
        }
      }
      if (codes.is_fp8 && (code & 0x7f) == 0x7f) refuse_non_finite(name);
      if (!may_overflow) continue;
      const float value = value_of(codes, code, scales);
      if (!(std::abs(f16_to_float(float_to_f16(value))) <= kMaxF16)) refuse_too_large(name, DType::kF16);
    }
  });
  for (int block = 0; block < std::min(codes.num_blocks, static_cast<int>(from.block_scales.size())); ++block) {
    to.blocks[static_cast<size_t>(codes.block_factor(row, block, false))] =
        from.block_scales[static_cast<size_t>(block)];
    if (!from.block_offsets.empty())
      to.blocks[static_cast<size_t>(codes.block_factor(row, block, true))] =
          from.block_offsets[static_cast<size_t>(block)];
  }
}

std::vector<float> decode_row(const RowCodes& row, const DeviceCodes& codes, const DepthSplit& split) {
  std::vector<float> values(static_cast<size_t>(split.parts * split.part_cols));
  for_each_record(split, [&](int part, int64_t first, int64_t count, int64_t index) {
    const Scales scales = scales_of_record(row, codes, split, part, first, index);
    for (int64_t i = first; i < first + count; ++i)
      values[static_cast<size_t>(i)] = value_of(codes, row.codes[static_cast<size_t>(i)], scales);
  });
  return values;
}

}  // namespace capstan::cuda
