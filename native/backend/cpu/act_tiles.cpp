#include "native/backend/cpu/act_tiles.h"

namespace capstan {

ActFormat bf16_act_format(const CpuKernels& kernels, int64_t rows) {
  if (kernels.bf16_act_format == ActFormat::kBf16Blocks && rows <= kMaxFewRows) return ActFormat::kBf16Rounded;
  return kernels.bf16_act_format;
}

ActTiles plain_act_tiles(const CpuKernels& kernels, ActFormat format, int64_t rows, int64_t padded_k, int num_parts) {
  ActTiles acts;
  acts.rows = rows;
  acts.words = padded_k;
  acts.tile_rows = kernels.tile_rows;
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

}  // namespace capstan
