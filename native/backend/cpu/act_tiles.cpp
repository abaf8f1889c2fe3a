#include "native/backend/cpu/act_tiles.h"

#include <algorithm>

namespace capstan {

namespace {

// Returns the rows of a tile: as few tiles as possible, of equal height. 8 rows in tiles of at most 6 are 4 + 4. A tile
// of 2 rows would decode as many weights as a tile of 4, and its sums are too few to hide the latency of FMAs.
int even_tile_rows(int most, int64_t rows) {
  const int64_t num_tiles = std::max<int64_t>((rows + most - 1) / most, 1);
  return static_cast<int>(std::max<int64_t>((rows + num_tiles - 1) / num_tiles, 1));
}

}  // namespace

ActFormat bf16_act_format(const CpuKernels& kernels, int64_t rows) {
  if (kernels.bf16_act_format == ActFormat::kBf16Blocks && rows <= kMaxFewRows) return ActFormat::kBf16Rounded;
  return kernels.bf16_act_format;
}

ActTiles plain_act_tiles(const CpuKernels& kernels, ActFormat format, int64_t rows, int64_t padded_k, int num_parts) {
  ActTiles acts;
  acts.rows = rows;
  acts.words = padded_k;
  acts.tile_rows = even_tile_rows(kernels.tile_rows, rows);
  acts.format = format;
  if (format == ActFormat::kBf16Pairs) acts.words = padded_k / 2;
  if (format == ActFormat::kBf16Blocks) {
    const int64_t part_k = padded_k / num_parts;
    acts.part_k = part_k;
    acts.words = (part_k + kBlockK - 1) / kBlockK * kBlockWords * num_parts;
    acts.tile_rows = kBlockRows;
  }
  return acts;
}

namespace {

// With runs that fill less than half of their blocks, the products of tiles would cost more than they save.
bool may_have_blocks(const CpuKernels& kernels, const QuantWeights& quant) {
  return kernels.int8_act_format == ActFormat::kInt8Blocks && quant.num_block_words <= 2 * quant.num_words;
}

}  // namespace

ActTiles int8_act_tiles(const CpuKernels& kernels, int64_t rows, const QuantWeights& quant) {
  ActTiles acts;
  acts.rows = rows;
  const bool has_blocks = rows > kMaxFewInt8Rows && may_have_blocks(kernels, quant);
  acts.format = has_blocks ? ActFormat::kInt8Blocks : ActFormat::kInt8;
  acts.words = has_blocks ? quant.num_block_words : quant.num_words;
  acts.tile_rows = has_blocks ? kBlockRows : even_tile_rows(kernels.tile_rows, rows);
  acts.runs = quant.runs;
  acts.num_runs = quant.num_runs;
  return acts;
}

void place_int8_acts(uint32_t* data, ActTiles& acts) {
  const int64_t num_scales = acts.rows * acts.num_runs;
  acts.data = data;
  acts.scales = reinterpret_cast<float*>(data + acts.rows * acts.words);
  acts.sums = reinterpret_cast<int32_t*>(acts.scales + num_scales);
  acts.totals = acts.scales + 2 * num_scales;
}

int64_t int8_act_words(const CpuKernels& kernels, const QuantWeights& quant) {
  return (may_have_blocks(kernels, quant) ? quant.num_block_words : quant.num_words) + 3 * quant.num_runs;
}

int64_t int8_scratch_floats(const CpuKernels& kernels, const QuantWeights& quant) {
  return may_have_blocks(kernels, quant) ? decoded_floats(quant.num_words) : 0;
}

}  // namespace capstan
