#pragma once
// Packing of quantized weights (layout in kernels.h).
#include <cstdint>
#include <string>
#include <vector>

#include "native/backend/cpu/kernels.h"

namespace capstan {

// How a matrix is divided into groups and blocks of columns.
struct QuantGroups {
  QuantType type;
  int group_size = 0;
  int block_size = 0;           // 0 = no blocks: groups begin anew at each part of K, so that every rank finds the same
  int64_t first_block_col = 0;  // with blocks: the first column's index in its block
};

QuantGroups int8_groups();
QuantGroups int4_groups();
// Returns bits = 0 for a tensor that is not kept quantized.
QuantGroups file_groups(const TensorSlice& slice);

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
