#pragma once
// The groups of columns that share a scale, in a matrix that is kept in codes.
#include <cstdint>

#include "native/backend/backend.h"

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

}  // namespace capstan
