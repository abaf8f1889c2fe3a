#pragma once
// Packing of quantized weights (layout in kernels.h).
#include <cstdint>
#include <string>
#include <vector>

#include "native/backend/cpu/kernels.h"
#include "native/backend/quant_groups.h"

namespace capstan {

std::vector<QuantRun> make_runs(int64_t cols, int num_parts, const QuantGroups& groups);
// `runs` must outlive the result.
QuantWeights make_quant(const QuantType& type, const std::vector<QuantRun>& runs);

// Quantizes values (cols) to `bits` in groups. Sets everything in `row` but first_col. Throws kInvalidModel with the
// tensor's `name` for a value that is too large.
void quantize_values(const float* values, int64_t cols, int bits, int group_size, const CpuKernels& kernels,
                     const std::string& name, QuantRow& row);

// Packs a row into one lane of a zeroed panel, codes and scales unchanged.
void pack_quantized_row(const QuantRow& row, const QuantWeights& quant, int lane, char* panel);

// out = the values of one lane of a panel.
void gather_quantized(const QuantWeights& quant, const char* panel, int lane, float* out);

}  // namespace capstan
