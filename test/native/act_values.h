#pragma once
// Reads activations in any format that is not quantized.
#include <algorithm>

#include "native/backend/cpu/kernels.h"
#include "native/base/number.h"

namespace capstan::testing {

inline float bf16_half(uint32_t word, int64_t i) {
  return bf16_to_float(static_cast<uint16_t>(word >> (i % 2 * 16)));
}

// Element i (0 or 1) of word `word` of a row in kBf16Blocks.
inline float block_value(const ActTiles& acts, int64_t row, int64_t word, int64_t i) {
  const int64_t first = row - row % acts.tile_rows, rows = std::min<int64_t>(acts.tile_rows, acts.rows - first);
  const int64_t block = word / kBlockWords * rows + row - first;
  return bf16_half(acts.data[first * acts.words + block * kBlockWords + word % kBlockWords], i);
}

// Column k of a row.
inline float act_value(const ActTiles& acts, int64_t row, int64_t k) {
  if (acts.format == ActFormat::kBf16Blocks) {
    const int64_t part = k / acts.part_k, part_words = (acts.part_k + kBlockK - 1) / kBlockK * kBlockWords;
    return block_value(acts, row, part * part_words + (k - part * acts.part_k) / 2, k % 2);
  }
  const int64_t first = row - row % acts.tile_rows, rows = std::min<int64_t>(acts.tile_rows, acts.rows - first);
  const bool is_pairs = acts.format == ActFormat::kBf16Pairs;
  const uint32_t word = acts.data[first * acts.words + (is_pairs ? k / 2 : k) * rows + row - first];
  return is_pairs ? bf16_half(word, k) : bits_float(word);
}

}  // namespace capstan::testing
