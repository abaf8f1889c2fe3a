#pragma once
// Packing of quantized weights (layout in kernels.h).
#include <cstdint>
#include <string>
#include <vector>

#include "native/backend/cpu/kernels.h"

namespace capstan {

constexpr int kMinQuantGroup = 16;

// How a matrix is divided into groups and blocks of columns.
struct QuantGroups {
  QuantType type;
  int group_size = 0;
  int block_size = 0;           // a multiple of the group's
  int64_t first_block_col = 0;  // the first column's index in its block
};

// Returns the columns that share a scale when weights are quantized to `bits` (4 or 8): the largest of 128 (64 with 4
// bits) to 16 that divides `cols`, or 128 (64) with a shorter last group.
int default_group_size(int bits, int64_t cols);
// Returns how weights are quantized at load. Groups begin at the tensor's first column, so that every rank finds the
// same, and a file can hold them.
QuantGroups load_groups_of(int bits, const TensorSlice& slice);
// Returns bits = 0 for a tensor that is not kept quantized.
QuantGroups file_groups(const TensorSlice& slice);

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
