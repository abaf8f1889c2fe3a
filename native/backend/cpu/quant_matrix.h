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

// Quantizes rows (16, row_stride) into a zeroed panel. `name` is the tensor's, for errors.
void quantize_panel(const float* rows, int64_t row_stride, const CpuKernels& kernels, const QuantWeights& quant,
                    char* panel, const std::string& name);

// Packs a row into one lane of a zeroed panel, codes and scales unchanged.
void pack_quantized_row(const QuantRow& row, const QuantWeights& quant, int lane, char* panel);

// out = the values of one lane of a panel.
void gather_quantized(const QuantWeights& quant, const char* panel, int lane, float* out);

}  // namespace capstan
