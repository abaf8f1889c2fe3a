#pragma once
// The registers in which a lane holds a K tile of weights, for each kind of weights: `load` starts the loads, and
// `operands` returns the operands of two matrix instructions. Operands of quantized weights are rounded to 16-bit
// floats as decoded weights are, so that a product has the same bits with either.
#include <type_traits>

#include "cuda/kernels.h"

namespace capstan::cuda {

// The two halves of a K tile, as the A operands of two instructions.
struct TileOperands {
  uint32_t low[4], high[4];
};

template <class T>
struct FloatTile {
  // A lane's place in one part of a tile of rows. Null: no tile.
  struct Source {
    const uint4* at = nullptr;
    __device__ __forceinline__ explicit operator bool() const { return at != nullptr; }
    __device__ __forceinline__ Source next_part(const DeviceMatrix&, int steps) const {
      return {at + steps * 2 * kWarpSize};
    }
  };
  uint4 halves[2];

  __device__ static __forceinline__ Source source(const DeviceMatrix& matrix, int64_t tile, int part) {
    const DepthSplit& split = matrix.split;
    return {reinterpret_cast<const uint4*>(matrix.data +
                                           weight_index(tile * kTileRows, part * split.padded_part, split.padded())) +
            lane_id()};
  }
  __device__ __forceinline__ void load(const DeviceMatrix&, const Source& from, int step) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      halves[half] = ld_global_nc_no_allocate(from.at + (step * 2 + half) * kWarpSize);
  }
  __device__ __forceinline__ TileOperands operands(const DeviceMatrix&) const {
    return {{halves[0].x, halves[0].y, halves[0].z, halves[0].w}, {halves[1].x, halves[1].y, halves[1].z, halves[1].w}};
  }
};

// A lane's place in one part of a tile of quantized weights.
struct CodeSource {
  const uint8_t* codes = nullptr;    // in the first K tile
  const uint8_t* records = nullptr;  // of the first group
  const uint16_t* blocks = nullptr;  // of the first block
  int first_col = 0;                 // of the part
  __device__ __forceinline__ explicit operator bool() const { return codes != nullptr; }
  __device__ __forceinline__ CodeSource next_part(const DeviceMatrix& matrix, int steps) const {
    const DeviceCodes& all = matrix.codes;
    return {codes + int64_t{steps} * kWarpSize * 2 * low_bits(all.kind), records, blocks, first_col + all.part_cols};
  }
  __device__ __forceinline__ const uint8_t* record(const DeviceCodes& all, int col) const {
    return records + ((first_col + col) >> all.group_shift) * 16 * all.record_bytes;
  }
};

template <int kBits>
__device__ __forceinline__ CodeSource code_source(const DeviceMatrix& matrix, int64_t tile, int part) {
  const DeviceCodes& all = matrix.codes;
  const DepthSplit& split = matrix.split;
  const int64_t k_tile = (tile * split.padded() + part * split.padded_part) / kTileDepth;
  const int row = lane_id() / 4;
  return {all.codes + (k_tile * kWarpSize + lane_id()) * 2 * kBits,
          all.records + (tile * all.num_groups * 8 + row) * 2 * all.record_bytes,
          all.blocks + (tile * all.num_blocks * 8 + row) * 4, all.part_begin(part)};
}

// Two equal T.
template <class T>
__device__ __forceinline__ uint32_t pair_of(float value) {
  return to_bits_pair<T>(value, value);
}

// Turns four codes in bytes into operands of one row: of instruction registers `i` and `i + 2`.
template <class T>
__device__ __forceinline__ void convert_bytes(uint32_t bytes, float minus_zero, float scale, float offset,
                                              uint32_t& first, uint32_t& second) {
  float values[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    // 2^23 + byte
    const float biased = as_float(choose_bytes(bytes, 0x4b000000u, 0x7440u + static_cast<uint32_t>(i)));
    values[i] = (biased + minus_zero) * scale - offset;
  }
  first = to_bits_pair<T>(values[0], values[2]);
  second = to_bits_pair<T>(values[1], values[3]);
}

// The value of byte `i`, read as e4m3. In these bits of an f32 it reads as itself times 2^-120.
__device__ __forceinline__ float fp8_number(uint32_t bytes, int i) {
  const uint32_t top = bytes << (24 - i * 8);
  return as_float((top & 0x80000000u) | (top & 0x7f000000u) >> 4) * 0x1p120f;
}
template <class T>
__device__ __forceinline__ void convert_fp8(uint32_t bytes, float scale, uint32_t& first, uint32_t& second) {
  first = to_bits_pair<T>(fp8_number(bytes, 0) * scale, fp8_number(bytes, 2) * scale);
  second = to_bits_pair<T>(fp8_number(bytes, 1) * scale, fp8_number(bytes, 3) * scale);
}

// CodeKind::kPlain4 and kPlain8.
template <class T, int kBits>
struct PlainTile {
  using Source = CodeSource;
  using Word = std::conditional_t<kBits == 8, uint4, uint2>;
  Word codes;
  uint32_t scales;  // f16 of rows r and r + 8

  __device__ static __forceinline__ Source source(const DeviceMatrix& matrix, int64_t tile, int part) {
    return code_source<kBits>(matrix, tile, part);
  }
  __device__ __forceinline__ void load(const DeviceMatrix& matrix, const Source& from, int step) {
    const DeviceCodes& all = matrix.codes;
    codes = ld_global_nc_no_allocate(reinterpret_cast<const Word*>(from.codes) + step * kWarpSize);
    const int group = (from.first_col + step * kTileDepth) >> all.group_shift;
    scales = ld_global_nc(reinterpret_cast<const uint32_t*>(from.records) + group * 8);
  }
  __device__ __forceinline__ TileOperands operands(const DeviceMatrix& matrix) const {
    const uint32_t minus_zero = matrix.codes.minus_zero;
    const float row_scales[2] = {to_float<F16>(static_cast<uint16_t>(scales)),
                                 to_float<F16>(static_cast<uint16_t>(scales >> 16))};
    TileOperands to;
    if constexpr (kBits == 8 && T::kIsBf16) {
      const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        convert_bytes<T>(words[row], as_float(minus_zero), row_scales[row], 0.0f, to.low[row], to.low[row + 2]);
        convert_bytes<T>(words[row + 2], as_float(minus_zero), row_scales[row], 0.0f, to.high[row], to.high[row + 2]);
      }
      return to;
    } else {
      // In bf16 a scale is the sum of two numbers. Their products with a number of 4 bits, and the sum before its
      // rounding, are exact.
      uint32_t scale[2], rest[2];
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        scale[row] = pair_of<T>(row_scales[row]);
        if constexpr (T::kIsBf16) rest[row] = pair_of<T>(row_scales[row] - as_float(scale[row] & 0xffff0000u));
      }
      const auto scaled = [&](uint32_t biased, int row) {
        constexpr uint32_t kOnes = T::kIsBf16 ? 0x3f803f80u : 0x3c003c00u;
        const uint32_t number = fma_pairs<T>(biased, kOnes, minus_zero);
        if constexpr (T::kIsBf16) return fma_pairs<T>(number, scale[row], multiply_pairs<T>(number, rest[row]));
        return multiply_pairs<T>(number, scale[row]);
      };
      if constexpr (kBits == 8) {
        const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          to.low[row] = scaled(choose_bytes(words[row], 0x64646464u, 0x4240), row);
          to.low[row + 2] = scaled(choose_bytes(words[row], 0x64646464u, 0x4341), row);
          to.high[row] = scaled(choose_bytes(words[row + 2], 0x64646464u, 0x4240), row);
          to.high[row + 2] = scaled(choose_bytes(words[row + 2], 0x64646464u, 0x4341), row);
        }
      } else {
        // 2^7 + code, or 2^10 + code in f16
        constexpr uint32_t kBias = T::kIsBf16 ? 0x43004300u : 0x64006400u;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          to.low[i] = scaled((codes.x >> i * 4 & 0x000f000fu) | kBias, i % 2);
          to.high[i] = scaled((codes.y >> i * 4 & 0x000f000fu) | kBias, i % 2);
        }
      }
      return to;
    }
  }
};

// The scales and offsets of one instruction's 16 columns: those of rows r and r + 8.
struct RowScales {
  float scale[2], offset[2];
  float minus_zero[2];  // what turns 2^23 + code into the number
};

__device__ __forceinline__ float e8m0_value(uint32_t byte) {
  return as_float(byte < 2 ? 0x00200000u << byte : (byte - 1) << 23);
}

// `records`: those of both rows, from bit 0 on. The branches are the same for all lanes.
__device__ __forceinline__ RowScales row_scales(const DeviceCodes& all, uint2 records, uint2 blocks) {
  const uint32_t of_row[2] = {records.x, all.record_bytes == 4   ? records.y
                                         : all.record_bytes == 2 ? records.x >> 16
                                                                 : records.x >> 8};
  RowScales to;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const uint32_t record = of_row[row];
    const auto block_factor = [&](uint32_t pair) {
      return to_float<F16>(static_cast<uint16_t>(row == 0 ? pair : pair >> 16));
    };
    switch (all.scale) {
      case DeviceScale::kF16:
        to.scale[row] = to_float<F16>(static_cast<uint16_t>(record));
        break;
      case DeviceScale::kBf16:
        to.scale[row] = as_float(record << 16);
        break;
      case DeviceScale::kF32:
        to.scale[row] = as_float(record);
        break;
      case DeviceScale::kE8m0:
        to.scale[row] = e8m0_value(record & 0xff);
        break;
      case DeviceScale::kTimesF16:
        to.scale[row] = static_cast<float>(static_cast<int8_t>(record)) * block_factor(blocks.x);
        break;
    }
    to.offset[row] = 0;
    int zero = all.zero;
    if (all.offset == OffsetKind::kF16)
      to.offset[row] = to_float<F16>(static_cast<uint16_t>(record >> 16));
    else if (all.offset == OffsetKind::kTimesF16)
      to.offset[row] = static_cast<float>(record >> 8 & 0xff) * block_factor(blocks.y);
    else if (all.offset == OffsetKind::kZeroPoint)
      zero += static_cast<int8_t>(record >> 16);
    to.minus_zero[row] = -8388608.0f - static_cast<float>(zero);
  }
  return to;
}

// Entry i of a table for each byte i of `bytes`, which are below 16.
__device__ __forceinline__ uint32_t look_up(const uint32_t (&table)[4], uint32_t bytes) {
  const uint32_t choice = (bytes | bytes >> 4) & 0x00ff00ffu;
  const uint32_t by_three_bits = (choice | choice >> 8) & 0x7777u;  // one nibble per byte
  const uint32_t low = choose_bytes(table[0], table[1], by_three_bits),
                 high = choose_bytes(table[2], table[3], by_three_bits);
  const uint32_t is_high = (bytes >> 3 & 0x01010101u) * 0xffu;
  return (low & ~is_high) | (high & is_high);
}

// CodeKind::kAny4, kAny6 (kHasHigh) and kAny8.
template <class T, int kBits, bool kHasHigh>
struct AnyTile {
  using Source = CodeSource;
  using Word = std::conditional_t<kBits == 8, uint4, uint2>;
  Word codes;
  uint32_t high;
  uint2 records[2];  // eight bytes that contain the records, for each half
  uint2 blocks;
  uint32_t record_shifts;

  __device__ static __forceinline__ Source source(const DeviceMatrix& matrix, int64_t tile, int part) {
    return code_source<kBits>(matrix, tile, part);
  }
  __device__ __forceinline__ void load(const DeviceMatrix& matrix, const Source& from, int step) {
    const DeviceCodes& all = matrix.codes;
    codes = ld_global_nc_no_allocate(reinterpret_cast<const Word*>(from.codes) + step * kWarpSize);
    record_shifts = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint8_t* const record = from.record(all, step * kTileDepth + half * 16);
      const auto in_word = reinterpret_cast<uintptr_t>(record) % 8;
      records[half] = ld_global_nc(reinterpret_cast<const uint2*>(record - in_word));
      record_shifts |= static_cast<uint32_t>(in_word * 8) << half * 16;
    }
    const int block = all.num_blocks == 0 ? 0 : (from.first_col + step * kTileDepth) >> DeviceCodes::kBlockShift;
    blocks = ld_global_nc(reinterpret_cast<const uint2*>(from.blocks) + block * 8);
    if constexpr (kHasHigh) {
      // Words of 16 bits lie in pairs.
      const int64_t k_tile = (from.codes - all.codes) / (2 * kBits) + int64_t{step} * kWarpSize;
      high = ld_global_nc(reinterpret_cast<const uint32_t*>(all.high) + (all.high_bits == 1 ? k_tile / 2 : k_tile));
      if (all.high_bits == 1) high >>= k_tile % 2 * 16;
    }
  }
  __device__ __forceinline__ TileOperands operands(const DeviceMatrix& matrix) const {
    const DeviceCodes& all = matrix.codes;
    uint32_t words[4];  // rows r and r + 8 of the first half, then of the second
    if constexpr (kBits == 8) {
      words[0] = codes.x, words[1] = codes.y, words[2] = codes.z, words[3] = codes.w;
    } else {
      words[0] = codes.x & 0x0f0f0f0fu, words[1] = codes.x >> 4 & 0x0f0f0f0fu;
      words[2] = codes.y & 0x0f0f0f0fu, words[3] = codes.y >> 4 & 0x0f0f0f0fu;
    }
    TileOperands to;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint64_t both =
          (records[half].x | uint64_t{records[half].y} << 32) >> (record_shifts >> half * 16 & 0xffff);
      const RowScales scales =
          row_scales(all, uint2{static_cast<uint32_t>(both), static_cast<uint32_t>(both >> 32)}, blocks);
      uint32_t (&operands)[4] = half == 0 ? to.low : to.high;
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const int word = half * 2 + row;
        uint32_t bytes = words[word];
        if constexpr (kHasHigh)
          bytes |=
              all.high_bits == 1 ? spread_nibbles(high >> word & 0x1111u) << 4 : (high >> word * 2 & 0x03030303u) << 4;
        if (kBits == 4 && !kHasHigh && all.has_table) bytes = look_up(all.table, bytes);
        if (kBits == 8 && all.is_fp8)
          convert_fp8<T>(bytes, scales.scale[row], operands[row], operands[row + 2]);
        else
          convert_bytes<T>(bytes, scales.minus_zero[row], scales.scale[row], scales.offset[row], operands[row],
                           operands[row + 2]);
      }
    }
    return to;
  }

 private:
  // Moves nibble i to byte i.
  __device__ static __forceinline__ uint32_t spread_nibbles(uint32_t nibbles) {
    const uint32_t halves = (nibbles | nibbles << 8) & 0x00ff00ffu;
    return (halves | halves << 4) & 0x0f0f0f0fu;
  }
};

template <class T, CodeKind kKind>
struct TileOf;
template <class T>
struct TileOf<T, CodeKind::kNone> {
  using Type = FloatTile<T>;
};
template <class T>
struct TileOf<T, CodeKind::kPlain4> {
  using Type = PlainTile<T, 4>;
};
template <class T>
struct TileOf<T, CodeKind::kPlain8> {
  using Type = PlainTile<T, 8>;
};
template <class T>
struct TileOf<T, CodeKind::kAny4> {
  using Type = AnyTile<T, 4, false>;
};
template <class T>
struct TileOf<T, CodeKind::kAny6> {
  using Type = AnyTile<T, 4, true>;
};
template <class T>
struct TileOf<T, CodeKind::kAny8> {
  using Type = AnyTile<T, 8, false>;
};

// The value of one weight, rounded to a T. For the embedding.
template <class T>
__device__ __forceinline__ float weight_value(const DeviceMatrix& matrix, int64_t row, int64_t col) {
  const DepthSplit& split = matrix.split;
  const int64_t padded = split.padded(), place = split.place(col);
  const DeviceCodes& all = matrix.codes;
  if (all.kind == CodeKind::kNone) return to_float<T>(matrix.data[weight_index(row, place, padded)]);
  uint32_t code;
  if (low_bits(all.kind) == 8) {
    code = all.codes[code8_index(row, place, padded)];
  } else {
    code = all.codes[code4_index(row, place, padded)] >> (row % kTileRows / 8 * 4) & 15;
    if (all.high_bits > 0) {
      const int bit = high_bit(row, place, all.high_bits);
      const int64_t byte = k_tile_lane(row, place, padded) * 2 * all.high_bits + bit / 8;
      code |= (all.high[byte] >> bit % 8 & ((1 << all.high_bits) - 1)) << 4;
    }
    if (all.has_table) code = all.table[code / 4] >> code % 4 * 8 & 0xff;
  }
  const int part = static_cast<int>(place / split.padded_part), k = static_cast<int>(place % split.padded_part);
  const uint8_t* record = all.records + all.record(row, all.group(part, k));
  uint32_t bits = 0;
  for (int i = 0; i < all.record_bytes; ++i)
    bits |= uint32_t{record[i]} << i * 8;
  uint2 blocks = {0, 0};
  if (all.num_blocks > 0) {
    const int block = all.block(part, k);
    blocks.x = all.blocks[all.block_factor(row, block, false)],
    blocks.y = all.blocks[all.block_factor(row, block, true)];
  }
  // As row r, which the first fields are of.
  const RowScales scales = row_scales(all, uint2{bits, 0}, blocks);
  const float number =
      all.is_fp8 ? fp8_number(code, 0) : static_cast<float>(code) + (8388608.0f + scales.minus_zero[0]);
  return to_float<T>(to_bits<T>(number * scales.scale[0] - scales.offset[0]));
}

}  // namespace capstan::cuda
