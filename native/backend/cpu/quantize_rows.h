#pragma once
// Quantizes rows of a tensor for a file, as pack_matrix quantizes them at load.
#include <cstdint>
#include <vector>

#include "native/backend/backend.h"
#include "native/backend/cpu/kernels.h"
#include "native/backend/cpu/team.h"

namespace capstan {

struct QuantizedRows {
  std::vector<uint32_t> words;   // (rows, num_words(cols, bits)): codes as in CodeLayout::kRows
  std::vector<uint16_t> scales;  // (rows, cols / group_size) bits of an f16
};

// `bits` is 4 or 8. `group_size` is 16, 32, 64 or 128, and divides the columns of the slice. Throws kInvalidModel for
// NaN, Inf and values that are too large.
QuantizedRows quantize_rows(const TensorSlice& slice, int bits, int group_size, const CpuKernels& kernels, Team& team);

}  // namespace capstan
