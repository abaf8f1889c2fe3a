#pragma once
// Reads quantized tensors whose scales are separate arrays of a file (grouped_tensor.h).
#include <cstdint>
#include <memory>
#include <vector>

#include "native/backend/backend.h"

namespace capstan {

// A grouped tensor while it is packed. Scales and zero points are in memory, and codes too if a column of the file
// holds those of a row. Several threads may read at once.
class LoadedGroups {
 public:
  // Throws kInvalidModel for a scale that is NaN, Inf or too large.
  explicit LoadedGroups(const FileTensor& tensor);

  // For a type that is kept: `row` by column and by kept group. For others by group of the file.
  void unpack_row(int64_t row, QuantRow& out) const;
  // out (cols) = the values of a row. `memory` is working memory.
  void decode_row(int64_t row, QuantRow& memory, float* out) const;

 private:
  void load_scales();
  void load_zeros();
  void load_codes();
  void unpack_codes(int64_t row, QuantRow& out) const;
  size_t first_group(int64_t row) const;
  size_t group_cols() const;

  const FileTensor& tensor_;
  const GroupedTensor& groups_;
  KeptGroups kept_;
  QuantType type_;                // as kept_.type, also for types that are not kept
  std::vector<uint32_t> codes_;   // words by row; empty: rows are read one by one
  std::vector<uint32_t> scales_;  // (row groups, column groups), as type_.scale says
  std::vector<float> scale_values_;
  std::vector<int8_t> zeros_;   // (row groups, column groups), less type_.zero
  std::vector<float> numbers_;  // (2^bits) by code, less type_.zero
};

// Returns null for a tensor without groups, which needs nothing in memory.
std::shared_ptr<const LoadedGroups> load_groups(const FileTensor& tensor);

}  // namespace capstan
