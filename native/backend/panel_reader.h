#pragma once
// Reads weights from their files in the order in which the backends pack them: panels of 16 output features.
// Throws kInvalidModel with the tensor's name when a tensor holds NaN or Inf.
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "native/backend/backend.h"

namespace capstan {

constexpr int kPanelFeatures = 16;

// Holds the working memory of one packing thread.
class PanelReader {
 public:
  // Returns features [panel * 16, panel * 16 + 16) as (16, row_elements) of `dtype`, valid until the next call. Missing
  // features and the columns after K are zeros. With `interleave_pairs` a panel is 8 gates, then their 8 ups.
  // Adds the bytes read from the files to `bytes`.
  const char* read(const MatrixSource& source, int64_t panel, DType dtype, int64_t row_elements, int64_t& bytes);
  using UseRow = std::function<void(int lane, const QuantRow& row)>;
  // For slices whose codes are kept: calls `use` for each of the same features that is not missing.
  void read_quantized(const MatrixSource& source, int64_t panel, const UseRow& use, int64_t& bytes);

 private:
  std::vector<char> raw_;       // rows in the file's type
  std::vector<float> decoded_;  // a row of a quantized tensor, with all columns or those of whole blocks
  QuantRow row_;
  std::vector<char> read_;  // the rows of a slice, for panels with padding
  std::vector<char> rows_;  // the panel
};

// Returns the values of a transposed tensor as (rows, cols), or null for one that is stored so.
std::shared_ptr<const std::vector<char>> load_ordered(const FileTensor& tensor);

// Throws kInternal when the slices do not fit each other or their tensors.
void check_source(const MatrixSource& source);
// Returns the number of output features of all slices.
int64_t num_features(const MatrixSource& source);
// Returns the number of parts of K that this rank holds; 1 for column-parallel layers.
int num_local_parts(const MatrixSource& source);
// Returns the bias in the order of the panels' features, padded with zeros to whole panels; empty without a bias.
std::vector<float> read_bias(const MatrixSource& source);
// The blocks of a row that hold a slice's columns.
struct BlockRange {
  int64_t begin = 0, count = 0;
};
BlockRange block_range(const TensorSlice& slice);
// Returns the slice in f32, row-major.
std::vector<float> read_floats(const TensorSlice& slice);
// Returns the weights of a convolution, (taps + 1, channels rounded up to 16): the weights of each tap, oldest input
// first, then the bias.
std::vector<float> read_taps(const MatrixSource& source, const LoadProgress& progress);
// Returns element i of an array of `dtype`.
float element_at(DType dtype, const char* data, int64_t i);

}  // namespace capstan
