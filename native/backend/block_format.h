#pragma once
// The quantized number types, and the blocks of GGUF files. There, a row of a tensor is a sequence of blocks. A block
// holds codes, and a scale and possibly an offset for each group of columns. Source: the layouts of
// github.com/ggml-org/llama.cpp, gguf-py/gguf/quants.py, which the tests compare with.
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace capstan {

enum class ScaleKind : uint8_t {
  kF16,
  kF32,
  kE8m0,      // a power of two: 2^(byte - 128)
  kTimesF16,  // a signed integer in 8 bits times the block's f16
  kE4m3,      // an e4m3 without a sign times the tensor's factor
};

enum class OffsetKind : uint8_t {
  kNone,
  kF16,
  kTimesF16,   // an unsigned integer in 8 bits times the block's f16
  kZeroPoint,  // a signed integer in 8 bits times the scale
};

// What codes mean: value = scale * (number - zero) - offset. The number is the code, or table[code]. With kZeroPoint,
// the value is scale * (number - zero - integer), rounded once.
// The product is exact in f32 before the offset is subtracted, except for iq4_xs and scales in f32, whose product is
// rounded once.
struct QuantType {
  int bits = 0;  // of a code in packed weights: 4, 5, 6 or 8; 0 = not quantized
  int zero = 0;
  const uint8_t* table = nullptr;  // (16), for codes in 4 bits, or null
  ScaleKind scale = ScaleKind::kF16;
  OffsetKind offset = OffsetKind::kNone;
  bool operator==(const QuantType&) const = default;
};

// The factor of scales in e4m3: half of the file's, because tables of FP4 hold twice the values. It is the sum of two
// numbers: with the inverse of a divisor in this precision, nearly every scale has the bits of the quotient.
struct ScaleFactor {
  float high = 0.5f, low = 0;
  bool operator==(const ScaleFactor&) const = default;
};

constexpr int kMaxBlockSize = 256, kMaxBlockGroups = 16;

// One block: codes by column, scales and offsets by group. Scales and offsets are bits of an f16, the byte of an e8m0
// or e4m3, or integers.
struct QuantBlock {
  uint8_t codes[kMaxBlockSize];
  uint16_t scales[kMaxBlockGroups];
  uint16_t offsets[kMaxBlockGroups];
  uint16_t block_scale, block_offset;  // bits of an f16, for kTimesF16
};

// A row of a quantized tensor, or the part of it that a slice needs.
struct QuantRow {
  int64_t first_col = 0;          // where the slice begins
  int group_size = 0;             // columns
  std::vector<uint8_t> codes;     // by column
  std::vector<uint32_t> scales;   // by group: bits of an f16 or f32, byte of an e8m0 or e4m3, or integer
  std::vector<uint16_t> offsets;  // by group: bits of an f16, or integer
  std::vector<uint16_t> block_scales, block_offsets;  // by block
  std::optional<ScaleFactor> factor;                  // for kE4m3
  std::vector<uint32_t> words;                        // working memory of the reader
};

struct BlockFormat {
  const char* name;  // GGUF's name in lower case
  int block_size;    // columns
  int block_bytes;
  int group_size;
  QuantType type;
  void (*unpack)(const uint8_t* bytes, QuantBlock& block);
};

// Returns null when there is no such format. The pointer stays valid.
const BlockFormat* find_block_format(std::string_view name);

// Returns the bits that a weight takes in packed memory, with its share of scales and offsets. `block_size` 0 = no
// blocks.
double packed_bits_per_weight(const QuantType& type, int group_size, int block_size);

// Return the bytes of the scale or the offset of a group in packed memory.
int scale_bytes(const QuantType& type);
int offset_bytes(const QuantType& type);

// Returns NaN for NaN and for a number below 0.
float e4m3_scale(uint32_t byte, const ScaleFactor& factor);

// Returns the scale of a group, or the offset, in f32; with kZeroPoint the integer. NaN or Inf when the file holds such
// a value.
float block_scale(const QuantType& type, uint32_t scale, uint16_t block_scale, const ScaleFactor& factor = {});
float block_offset(const QuantType& type, uint16_t offset, uint16_t block_offset);

// Returns the value of a code. block_scale and block_offset return the scale and the offset.
inline float code_value(const QuantType& type, int code, float scale, float offset) {
  const float number = static_cast<float>((type.table == nullptr ? code : type.table[code]) - type.zero);
  if (type.offset == OffsetKind::kZeroPoint) return scale * (number - offset);
  const float value = scale * number;
  return type.offset == OffsetKind::kNone ? value : value - offset;
}

// out (num_blocks * block_size) = the values of `num_blocks` blocks. `factor` is for kE4m3.
void decode_blocks(const BlockFormat& format, const uint8_t* bytes, int64_t num_blocks, const ScaleFactor& factor,
                   float* out);

// Sets everything in `row` but first_col. Returns false if a scale or an offset is NaN, Inf or too large.
bool unpack_blocks(const BlockFormat& format, const uint8_t* bytes, int64_t num_blocks, const ScaleFactor& factor,
                   QuantRow& row);

}  // namespace capstan
