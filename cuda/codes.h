#pragma once
// Packs quantized weights for the device (codes_layout.h).
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cuda/kernels.h"
#include "native/backend/cuda_api.h"
#include "native/backend/quant_groups.h"

namespace capstan::cuda {

// Returns the layout of a matrix that is kept in codes, without the arrays. Nothing: it is decoded, because it is not
// quantized, its tensors are not alike, or its groups do not lie at multiples of 16 columns of each part.
std::optional<DeviceCodes> codes_of(const MatrixSource& source, const DepthSplit& split, FloatType type);

// The host arrays of a matrix. `codes` has the tiles of rows from `first_tile` on.
struct HostCodes {
  uint8_t* codes = nullptr;
  int64_t first_tile = 0;
  std::vector<uint8_t> high, records;
  std::vector<uint16_t> blocks;
};
int64_t code_tile_bytes(const DeviceCodes& codes, const DepthSplit& split);
// Sets the arrays but for `codes` to zeros.
void resize(HostCodes& host, const DeviceCodes& codes, int64_t num_tiles, const DepthSplit& split);

// A row in codes: by column, and a record for each 16 columns of each part. `blocks` as QuantRow.
struct RowCodes {
  std::vector<uint8_t> codes;
  std::vector<uint32_t> records;
  std::vector<uint16_t> block_scales, block_offsets;
};
RowCodes codes_of_row(const QuantRow& row, const DeviceCodes& codes, const DepthSplit& split);
// Throws kInvalidModel with the tensor's name when a value is too large for `type`.
void pack_row(const RowCodes& from, const DeviceCodes& codes, const DepthSplit& split, FloatType type, int64_t row,
              const std::string& name, HostCodes& to);
// The values of a row in codes, by column.
std::vector<float> decode_row(const RowCodes& row, const DeviceCodes& codes, const DepthSplit& split);

// A pair of `type`, or an f32: what turns the biased codes of the kernels for plain codes into numbers.
uint32_t minus_zero_bits(FloatType type, int bits, int zero);

}  // namespace capstan::cuda
