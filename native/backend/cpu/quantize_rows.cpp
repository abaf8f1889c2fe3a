#include "native/backend/cpu/quantize_rows.h"

#include <algorithm>

#include "native/backend/cpu/quant_matrix.h"
#include "native/backend/panel_reader.h"
#include "native/base/check.h"

namespace capstan {

QuantizedRows quantize_rows(const TensorSlice& slice, int bits, int group_size, const CpuKernels& kernels, Team& team) {
  constexpr int64_t kGrain = 16;  // rows that a thread reads at once
  const int64_t cols = slice.num_cols;
  CAPSTAN_CHECK((bits == 4 || bits == 8) && group_size >= kMinQuantGroup && group_size <= kMaxQuantGroup);
  CAPSTAN_CHECK(group_size % kMinQuantGroup == 0 && cols % group_size == 0);
  const int64_t row_words = num_words(cols, bits), row_groups = cols / group_size;
  const int codes_per_word = kWordBits / bits;
  QuantizedRows result;
  result.words.resize(static_cast<size_t>(slice.num_rows * row_words));
  result.scales.resize(static_cast<size_t>(slice.num_rows * row_groups));
  std::vector<QuantRow> memory(static_cast<size_t>(team.size()));
  const auto quantize = [&](QuantRow& row, int64_t begin, int64_t end) {
    TensorSlice part = slice;
    part.row_begin += begin;
    part.num_rows = end - begin;
    const std::vector<float> values = read_floats(part);
    for (int64_t i = begin; i < end; ++i) {
      quantize_values(values.data() + (i - begin) * cols, cols, bits, group_size, kernels, slice.tensor->name, row);
      uint32_t* words = result.words.data() + i * row_words;
      for (int64_t col = 0; col < cols; ++col)
        words[col / codes_per_word] |= uint32_t{row.codes[static_cast<size_t>(col)]} << (col % codes_per_word * bits);
      std::copy(row.scales.begin(), row.scales.end(), result.scales.begin() + i * row_groups);
    }
  };
  team.for_pieces(slice.num_rows, kGrain, [&](int thread, int64_t begin, int64_t end) {
    quantize(memory[static_cast<size_t>(thread)], begin, end);
  });
  return result;
}

}  // namespace capstan
