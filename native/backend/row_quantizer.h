#pragma once
// Quantizes the rows of a matrix while they are loaded.
#include <cstdint>
#include <functional>
#include <utility>

#include "native/backend/panel_reader.h"
#include "native/backend/quant_groups.h"

namespace capstan {

class RowQuantizer {
 public:
  // As GroupQuantizer (cuda_api.h).
  using QuantizeGroup = std::function<uint16_t(const float* values, int count, int bits, uint8_t* codes)>;

  // `source` has the format kInt8 or kInt4.
  RowQuantizer(const MatrixSource& source, QuantizeGroup quantize_group)
      : quantize_group_(std::move(quantize_group)),
        bits_(quantized_bits(source.format)),
        num_cols_(source.slices[0].num_cols),
        groups_(load_groups_of(bits_, source.slices[0])),
        whole_(with_whole_groups(source, groups_.group_size)) {
    row_.first_col = groups_.first_block_col;
  }

  const QuantGroups& groups() const { return groups_; }

  // Calls use(lane, row) for each row of a panel. Returns the bytes of the source that it read.
  template <class Use>
  int64_t read(int64_t panel, const Use& use) {
    const int64_t cols = whole_.slices[0].num_cols;
    int64_t bytes_read = 0;
    const auto* values = reinterpret_cast<const float*>(reader_.read(whole_, panel, DType::kF32, cols, bytes_read));
    for (int lane = 0; lane < kPanelFeatures; ++lane) {
      quantize_groups(
          values + lane * cols, cols, groups_.group_size, whole_.slices[0].tensor->name, row_,
          [&](const float* group, int count, uint8_t* codes) { return quantize_group_(group, count, bits_, codes); });
      use(lane, row_);
    }
    return bytes_read * num_cols_ / cols;
  }

 private:
  QuantizeGroup quantize_group_;
  int bits_;
  int64_t num_cols_;
  QuantGroups groups_;
  MatrixSource whole_;  // a group that the end of a slice cuts has the scale of all its values
  PanelReader reader_;
  QuantRow row_;
};

}  // namespace capstan
