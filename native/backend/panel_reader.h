#pragma once
// Reading weights from their files in the order in which backends pack them: panels of 16 output features. NaN or Inf
// in a tensor throws kInvalidModel with its name.
#include <cstdint>
#include <memory>
#include <vector>

#include "native/backend/backend.h"

namespace capstan {

constexpr int kPanelFeatures = 16;

// Working memory of one packing thread.
class PanelReader {
 public:
  // Features [panel * 16, panel * 16 + 16) as (16, row_elements) of `dtype`, zeros behind the columns and for features
  // that are not there; valid until the next call. With `interleave_pairs`: 8 gates, then their ups. Adds the bytes
  // read from the files to `bytes`.
  const char* read(const MatrixSource& source, int64_t panel, DType dtype, int64_t row_elements, int64_t& bytes);

 private:
  std::vector<char> raw_;   // as in the file
  std::vector<char> read_;  // neighbours in the target type
  std::vector<char> rows_;
};

// Throws if the slices do not fit each other or their tensors.
void check_source(const MatrixSource& source);
int64_t num_features(const MatrixSource& source);
// Parts of K that this rank holds: 1 for column-parallel layers.
int num_local_parts(const MatrixSource& source);
// In the order of the panels' features, padded with zeros to whole panels; empty without a bias.
std::vector<float> read_bias(const MatrixSource& source);
std::vector<float> read_floats(const TensorSlice& slice);
// Element i of an array of `dtype`.
float element_at(DType dtype, const char* data, int64_t i);

}  // namespace capstan
