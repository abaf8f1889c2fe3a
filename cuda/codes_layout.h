#pragma once
// Quantized weights in device memory: codes in the order of the operands of mma_m16n8k16, and a record with the scale
// and the offset of each group of columns. The kernels turn codes into the 16-bit floats that `weight_index` would
// hold, so that products have the same bits as with decoded weights.
#include <cstdint>

#include "cuda/layout.h"
#include "native/backend/block_format.h"

namespace capstan::cuda {

// Which kernels a quantized matrix needs.
enum class CodeKind : uint8_t {
  kNone,    // 16-bit floats
  kPlain4,  // 4 bits, scales in f16, no offsets or tables, groups that K tiles do not cut
  kPlain8,  // the same in 8 bits
  kAny4,    // 4 bits, all scales, offsets and tables
  kAny6,    // 5 or 6 bits: 4 bits as kAny4, and the high bits
  kAny8,    // 8 bits, also e4m3
};

// Like capstan::ScaleKind. A file's scales in bf16 take 16 bits.
enum class DeviceScale : uint8_t { kF16, kBf16, kF32, kE8m0, kTimesF16 };

// A K tile (kTileDepth columns of 16 rows) has 32 lanes with 16 codes each. A lane has rows r and r + 8. The codes of
// one instruction (16 columns) are two words of four bytes: row r, then row r + 8. With 4 bits they are one word: row r
// in the low nibbles, row r + 8 in the high ones. Byte 2 i + j of a word is column 2 t + i + 8 j of the instruction.
CAPSTAN_BOTH int code_byte(int k) {
  return k % 2 * 2 + k % 16 / 8;
}
CAPSTAN_BOTH int code_lane(int64_t row, int64_t k) {
  return static_cast<int>(row % 8) * 4 + static_cast<int>(k % 8) / 2;
}
CAPSTAN_BOTH int64_t k_tile_lane(int64_t row, int64_t k, int64_t padded_k) {
  return (row / kTileRows * (padded_k / kTileDepth) + k / kTileDepth) * 32 + code_lane(row, k);
}
// The byte of a code in 8 bits, and the byte that holds a code in 4 bits: in its low nibble if row % 16 < 8.
CAPSTAN_BOTH int64_t code8_index(int64_t row, int64_t k, int64_t padded_k) {
  return k_tile_lane(row, k, padded_k) * 16 + k % kTileDepth / 16 * 8 + row % kTileRows / 8 * 4 +
         code_byte(static_cast<int>(k % 16));
}
CAPSTAN_BOTH int64_t code4_index(int64_t row, int64_t k, int64_t padded_k) {
  return k_tile_lane(row, k, padded_k) * 8 + k % kTileDepth / 16 * 4 + code_byte(static_cast<int>(k % 16));
}
// Bits 4 and above of codes in 5 or 6 bits: a lane of a K tile has a word of 16 or 32 bits. Of each byte of codes, in
// the order of the words above, the word holds `high_bits` bits. Returns the number of the first.
CAPSTAN_BOTH int high_bit(int64_t row, int64_t k, int high_bits) {
  const int word = static_cast<int>(k % kTileDepth) / 16 * 2 + static_cast<int>(row % kTileRows) / 8;
  return high_bits == 1 ? code_byte(static_cast<int>(k % 16)) * 4 + word
                        : code_byte(static_cast<int>(k % 16)) * 8 + word * 2;
}

// The codes of a matrix. Records lie by (tile of rows, group, row % 8): that of row r, then that of row r + 8. A record
// of 1, 2 or 4 bytes holds the scale, and from bit 8 (after a scale in 8 bits) or 16 on the offset.
struct DeviceCodes {
  CodeKind kind = CodeKind::kNone;
  DeviceScale scale = DeviceScale::kF16;
  OffsetKind offset = OffsetKind::kNone;
  int zero = 0;             // value = scale * (number - zero) - offset; the number is the code, or table[code]
  uint32_t minus_zero = 0;  // for kPlain4 and kPlain8 (minus_zero_bits)
  int high_bits = 0;
  bool has_table = false;
  bool is_fp8 = false;     // the number is the code, read as e4m3
  uint32_t table[4] = {};  // 16 bytes
  int record_bytes = 0;
  int group_shift = 0;  // log2 of the columns of a group
  int first_col = 0;    // of this rank, within its block or group
  int part_cols = 0;    // columns from one part of K to the next
  int num_groups = 0;   // in a row, with those of padding
  int num_blocks = 0;   // of 256 columns, for kTimesF16
  const uint8_t* codes = nullptr;
  const uint8_t* high = nullptr;
  const uint8_t* records = nullptr;
  // By (tile of rows, block, row % 8): the f16 factors of the scales of rows r and r + 8, then those of their offsets.
  const uint16_t* blocks = nullptr;

  CAPSTAN_BOTH int part_begin(int part) const { return first_col + part * part_cols; }
  // The group and the block of column `k` of a part.
  CAPSTAN_BOTH int group(int part, int64_t k) const { return static_cast<int>((part_begin(part) + k) >> group_shift); }
  CAPSTAN_BOTH int block(int part, int64_t k) const { return static_cast<int>((part_begin(part) + k) >> kBlockShift); }
  CAPSTAN_BOTH int64_t record(int64_t row, int group_of_row) const {
    return (((row / kTileRows * num_groups + group_of_row) * 8 + row % 8) * 2 + row % kTileRows / 8) * record_bytes;
  }
  CAPSTAN_BOTH int64_t block_factor(int64_t row, int block_of_row, bool is_offset) const {
    return ((row / kTileRows * num_blocks + block_of_row) * 8 + row % 8) * 4 + (is_offset ? 2 : 0) +
           row % kTileRows / 8;
  }

  static constexpr int kBlockShift = 8;
};

CAPSTAN_BOTH constexpr bool is_plain(CodeKind kind) {
  return kind == CodeKind::kPlain4 || kind == CodeKind::kPlain8;
}
CAPSTAN_BOTH constexpr int low_bits(CodeKind kind) {
  return kind == CodeKind::kPlain8 || kind == CodeKind::kAny8 ? 8 : 4;
}

}  // namespace capstan::cuda
