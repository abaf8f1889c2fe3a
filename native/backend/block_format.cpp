#include "native/backend/block_format.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "native/base/number.h"

namespace capstan {

namespace {

// Values plus 128.
constexpr uint8_t kIq4Table[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
// Twice the values of FP4 (E2M1), plus 128.
constexpr uint8_t kFp4Table[16] = {128, 129, 130, 131, 132, 134, 136, 140, 128, 127, 126, 125, 124, 122, 120, 116};

uint16_t read_u16(const uint8_t* bytes) {
  return static_cast<uint16_t>(bytes[0] | bytes[1] << 8);
}

uint32_t read_u32(const uint8_t* bytes) {
  return static_cast<uint32_t>(read_u16(bytes)) | static_cast<uint32_t>(read_u16(bytes + 2)) << 16;
}

uint16_t negated_f16(uint16_t bits) {
  return bits ^ 0x8000;
}

uint16_t int8_bits(int value) {
  return static_cast<uint8_t>(value);
}

// The low nibbles of `count` bytes, then their high nibbles.
void split_nibbles(const uint8_t* __restrict bytes, int count, uint8_t* __restrict codes) {
  for (int i = 0; i < count; ++i) {
    codes[i] = bytes[i] & 15;
    codes[i + count] = bytes[i] >> 4;
  }
}

void unpack_q4_0(const uint8_t* bytes, QuantBlock& block) {
  block.scales[0] = read_u16(bytes);
  split_nibbles(bytes + 2, 16, block.codes);
}

void unpack_q4_1(const uint8_t* bytes, QuantBlock& block) {
  block.scales[0] = read_u16(bytes);
  block.offsets[0] = negated_f16(read_u16(bytes + 2));
  split_nibbles(bytes + 4, 16, block.codes);
}

void add_fifth_bits(uint32_t bits, uint8_t* codes) {
  for (int i = 0; i < 32; ++i)
    codes[i] = static_cast<uint8_t>(codes[i] | (bits >> i & 1) << 4);
}

void unpack_q5_0(const uint8_t* bytes, QuantBlock& block) {
  block.scales[0] = read_u16(bytes);
  split_nibbles(bytes + 6, 16, block.codes);
  add_fifth_bits(read_u32(bytes + 2), block.codes);
}

void unpack_q5_1(const uint8_t* bytes, QuantBlock& block) {
  block.scales[0] = read_u16(bytes);
  block.offsets[0] = negated_f16(read_u16(bytes + 2));
  split_nibbles(bytes + 8, 16, block.codes);
  add_fifth_bits(read_u32(bytes + 4), block.codes);
}

void unpack_q8_0(const uint8_t* bytes, QuantBlock& block) {
  block.scales[0] = read_u16(bytes);
  for (int i = 0; i < 32; ++i)
    block.codes[i] = bytes[2 + i] ^ 128;
}

// Codes in 2 bits: each 32 bytes hold four runs of 32 codes.
void split_pairs_of_bits(const uint8_t* __restrict bytes, uint8_t* __restrict codes) {
  for (int run = 0; run < 8; ++run)
    for (int i = 0; i < 32; ++i)
      codes[run * 32 + i] = bytes[run / 4 * 32 + i] >> (run % 4 * 2) & 3;
}

// Adds bit `place` of 256 codes: bit r of 32 bytes is that of run r of 32 codes.
void add_bits(const uint8_t* __restrict bytes, int place, uint8_t* __restrict codes) {
  for (int run = 0; run < 8; ++run)
    for (int i = 0; i < 32; ++i)
      codes[run * 32 + i] = static_cast<uint8_t>(codes[run * 32 + i] | (bytes[i] >> run & 1) << place);
}

void unpack_q2_k(const uint8_t* bytes, QuantBlock& block) {
  split_pairs_of_bits(bytes + 16, block.codes);
  for (int group = 0; group < 16; ++group) {
    block.scales[group] = bytes[group] & 15;
    block.offsets[group] = bytes[group] >> 4;
  }
  block.block_scale = read_u16(bytes + 80);
  block.block_offset = read_u16(bytes + 82);
}

void unpack_q3_k(const uint8_t* bytes, QuantBlock& block) {
  split_pairs_of_bits(bytes + 32, block.codes);
  add_bits(bytes, 2, block.codes);
  const uint8_t* scales = bytes + 96;
  for (int group = 0; group < 16; ++group) {
    const int low = scales[group % 8] >> (group / 8 * 4) & 15, high = scales[8 + group % 4] >> (group / 4 * 2) & 3;
    block.scales[group] = int8_bits((low | high << 4) - 32);
  }
  block.block_scale = read_u16(bytes + 108);
}

// The block's scale and offset, and eight scales and offsets of 6 bits in 12 bytes, as q4_k and q5_k hold them.
void unpack_k_scales(const uint8_t* bytes, QuantBlock& block) {
  block.block_scale = read_u16(bytes);
  block.block_offset = read_u16(bytes + 2);
  const uint8_t* packed = bytes + 4;
  for (int group = 0; group < 4; ++group) {
    block.scales[group] = packed[group] & 63;
    block.offsets[group] = packed[group + 4] & 63;
    block.scales[group + 4] = static_cast<uint16_t>((packed[group + 8] & 15) | packed[group] >> 6 << 4);
    block.offsets[group + 4] = static_cast<uint16_t>(packed[group + 8] >> 4 | packed[group + 4] >> 6 << 4);
  }
}

void unpack_q4_k(const uint8_t* bytes, QuantBlock& block) {
  unpack_k_scales(bytes, block);
  for (int i = 0; i < 4; ++i)
    split_nibbles(bytes + 16 + i * 32, 32, block.codes + i * 64);
}

void unpack_q5_k(const uint8_t* bytes, QuantBlock& block) {
  unpack_k_scales(bytes, block);
  for (int i = 0; i < 4; ++i)
    split_nibbles(bytes + 48 + i * 32, 32, block.codes + i * 64);
  add_bits(bytes + 16, 4, block.codes);
}

// Codes in 6 bits: 64 bytes hold the low four bits of 128 codes, and 32 bytes the others.
void join_six_bits(const uint8_t* __restrict low, const uint8_t* __restrict high, uint8_t* __restrict codes) {
  for (int i = 0; i < 32; ++i) {
    const int a = low[i], b = low[32 + i], bits = high[i];
    codes[i] = static_cast<uint8_t>((a & 15) | (bits & 3) << 4);
    codes[32 + i] = static_cast<uint8_t>((b & 15) | (bits >> 2 & 3) << 4);
    codes[64 + i] = static_cast<uint8_t>(a >> 4 | (bits >> 4 & 3) << 4);
    codes[96 + i] = static_cast<uint8_t>(b >> 4 | bits >> 6 << 4);
  }
}

void unpack_q6_k(const uint8_t* bytes, QuantBlock& block) {
  for (int half = 0; half < 2; ++half)
    join_six_bits(bytes + half * 64, bytes + 128 + half * 32, block.codes + half * 128);
  for (int group = 0; group < 16; ++group)
    block.scales[group] = bytes[192 + group];
  block.block_scale = read_u16(bytes + 208);
}

void unpack_iq4_xs(const uint8_t* bytes, QuantBlock& block) {
  block.block_scale = read_u16(bytes);
  const int high_bits = read_u16(bytes + 2);
  for (int group = 0; group < 8; ++group) {
    const int low = bytes[4 + group / 2] >> (group % 2 * 4) & 15, high = high_bits >> (2 * group) & 3;
    block.scales[group] = int8_bits((low | high << 4) - 32);
    split_nibbles(bytes + 8 + group * 16, 16, block.codes + group * 32);
  }
}

void unpack_mxfp4(const uint8_t* bytes, QuantBlock& block) {
  block.scales[0] = bytes[0];
  split_nibbles(bytes + 1, 16, block.codes);
}

void unpack_nvfp4(const uint8_t* bytes, QuantBlock& block) {
  for (int group = 0; group < 4; ++group) {
    block.scales[group] = bytes[group];
    split_nibbles(bytes + 4 + group * 8, 8, block.codes + group * 16);
  }
}

constexpr auto kF16 = ScaleKind::kF16, kE8m0 = ScaleKind::kE8m0, kTimesF16 = ScaleKind::kTimesF16,
               kE4m3 = ScaleKind::kE4m3;
constexpr auto kNoOffset = OffsetKind::kNone, kOffsetF16 = OffsetKind::kF16, kOffsetTimesF16 = OffsetKind::kTimesF16;

// name, columns and bytes of a block, columns of a group, type (bits, zero, table, scale, offset)
constexpr BlockFormat kFormats[] = {
    {"q4_0", 32, 18, 32, {4, 8, nullptr, kF16, kNoOffset}, unpack_q4_0},
    {"q4_1", 32, 20, 32, {4, 0, nullptr, kF16, kOffsetF16}, unpack_q4_1},
    {"q5_0", 32, 22, 32, {5, 16, nullptr, kF16, kNoOffset}, unpack_q5_0},
    {"q5_1", 32, 24, 32, {5, 0, nullptr, kF16, kOffsetF16}, unpack_q5_1},
    {"q8_0", 32, 34, 32, {8, 128, nullptr, kF16, kNoOffset}, unpack_q8_0},
    {"q2_k", 256, 84, 16, {4, 0, nullptr, kTimesF16, kOffsetTimesF16}, unpack_q2_k},
    {"q3_k", 256, 110, 16, {4, 4, nullptr, kTimesF16, kNoOffset}, unpack_q3_k},
    {"q4_k", 256, 144, 32, {4, 0, nullptr, kTimesF16, kOffsetTimesF16}, unpack_q4_k},
    {"q5_k", 256, 176, 32, {5, 0, nullptr, kTimesF16, kOffsetTimesF16}, unpack_q5_k},
    {"q6_k", 256, 210, 16, {6, 32, nullptr, kTimesF16, kNoOffset}, unpack_q6_k},
    {"iq4_nl", 32, 18, 32, {4, 128, kIq4Table, kF16, kNoOffset}, unpack_q4_0},
    {"iq4_xs", 256, 136, 32, {4, 128, kIq4Table, kTimesF16, kNoOffset}, unpack_iq4_xs},
    {"mxfp4", 32, 17, 32, {4, 128, kFp4Table, kE8m0, kNoOffset}, unpack_mxfp4},
    {"nvfp4", 64, 36, 16, {4, 128, kFp4Table, kE4m3, kNoOffset}, unpack_nvfp4},
};

constexpr float kMaxScale = 0x1p124f;  // with a larger one, values of FP4 may exceed f32

float e8m0_to_float(int byte) {
  if (byte == 255) return bits_float(0x7fc00000u);
  return bits_float(byte < 2 ? 0x00200000u << byte : static_cast<uint32_t>(byte - 1) << 23);
}

}  // namespace

const BlockFormat* find_block_format(std::string_view name) {
  for (const BlockFormat& format : kFormats)
    if (name == format.name) return &format;
  return nullptr;
}

double packed_bits_per_weight(const QuantType& type, int group_size, int block_size) {
  const double group_bits = 8.0 * (scale_bytes(type) + offset_bytes(type)) / group_size;
  const int num_block_values = (type.scale == ScaleKind::kTimesF16) + (type.offset == OffsetKind::kTimesF16);
  return type.bits + group_bits + (num_block_values == 0 ? 0 : 16.0 * num_block_values / block_size);
}

int scale_bytes(const QuantType& type) {
  if (type.scale == ScaleKind::kF32) return 4;
  return type.scale == ScaleKind::kF16 ? 2 : 1;
}

int offset_bytes(const QuantType& type) {
  if (type.offset == OffsetKind::kNone) return 0;
  return type.offset == OffsetKind::kF16 ? 2 : 1;
}

float e4m3_scale(uint32_t byte, const ScaleFactor& factor) {
  constexpr uint32_t kLargest = 0x7e;
  if (byte > kLargest) return bits_float(0x7fc00000u);
  const float value = f16_to_float(static_cast<uint16_t>(byte << 7)) * 256;
  return std::fma(value, factor.high, value * factor.low);
}

float block_scale(const QuantType& type, uint32_t scale, uint16_t block_scale, const ScaleFactor& factor) {
  if (type.scale == ScaleKind::kF16) return f16_to_float(static_cast<uint16_t>(scale));
  if (type.scale == ScaleKind::kF32) return bits_float(scale);
  if (type.scale == ScaleKind::kE8m0) return e8m0_to_float(static_cast<int>(scale));
  if (type.scale == ScaleKind::kE4m3) return e4m3_scale(scale, factor);
  return f16_to_float(block_scale) * static_cast<float>(static_cast<int8_t>(scale));
}

float block_offset(const QuantType& type, uint16_t offset, uint16_t block_offset) {
  if (type.offset == OffsetKind::kNone) return 0;
  if (type.offset == OffsetKind::kZeroPoint) return static_cast<int8_t>(offset);
  return type.offset == OffsetKind::kF16 ? f16_to_float(offset)
                                         : f16_to_float(block_offset) * static_cast<float>(offset);
}

bool unpack_blocks(const BlockFormat& format, const uint8_t* bytes, int64_t num_blocks, const ScaleFactor& factor,
                   QuantRow& row) {
  const QuantType& type = format.type;
  const int num_groups = format.block_size / format.group_size;
  row.group_size = format.group_size;
  const auto num_row_groups = static_cast<size_t>(num_blocks * num_groups),
             num_row_blocks = static_cast<size_t>(num_blocks);
  row.codes.resize(static_cast<size_t>(num_blocks * format.block_size));
  row.scales.resize(num_row_groups);
  row.offsets.resize(type.offset != OffsetKind::kNone ? num_row_groups : 0);
  row.block_scales.resize(type.scale == ScaleKind::kTimesF16 ? num_row_blocks : 0);
  row.block_offsets.resize(type.offset == OffsetKind::kTimesF16 ? num_row_blocks : 0);
  row.factor.reset();
  if (type.scale == ScaleKind::kE4m3) row.factor = factor;
  // Where the f16 of the block is finite, so are its products with small integers.
  const int num_checked = type.scale == ScaleKind::kTimesF16 ? 1 : num_groups;
  QuantBlock block;
  bool is_finite = true;
  for (int64_t i = 0; i < num_blocks; ++i) {
    format.unpack(bytes + i * format.block_bytes, block);
    std::memcpy(row.codes.data() + i * format.block_size, block.codes, static_cast<size_t>(format.block_size));
    std::copy(block.scales, block.scales + num_groups, row.scales.data() + i * num_groups);
    if (!row.offsets.empty()) std::copy(block.offsets, block.offsets + num_groups, row.offsets.data() + i * num_groups);
    if (!row.block_scales.empty()) row.block_scales[static_cast<size_t>(i)] = block.block_scale;
    if (!row.block_offsets.empty()) row.block_offsets[static_cast<size_t>(i)] = block.block_offset;
    for (int group = 0; group < num_checked; ++group) {
      const float scale = block_scale(type, block.scales[group], block.block_scale, factor);
      const float offset = block_offset(type, block.offsets[group], block.block_offset);
      is_finite = is_finite && std::isfinite(scale) && std::abs(scale) <= kMaxScale && std::isfinite(offset);
    }
  }
  return is_finite;
}

void decode_blocks(const BlockFormat& format, const uint8_t* bytes, int64_t num_blocks, const ScaleFactor& factor,
                   float* out) {
  const QuantType& type = format.type;
  QuantBlock block;
  for (int64_t i = 0; i < num_blocks; ++i) {
    format.unpack(bytes + i * format.block_bytes, block);
    for (int begin = 0; begin < format.block_size; begin += format.group_size) {
      const int group = begin / format.group_size;
      const float scale = block_scale(type, block.scales[group], block.block_scale, factor);
      const float offset = block_offset(type, block.offsets[group], block.block_offset);
      for (int j = begin; j < begin + format.group_size; ++j)
        *out++ = code_value(type, block.codes[j], scale, offset);
    }
  }
}

}  // namespace capstan
