#include "native/backend/cpu/matrix.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "native/backend/cpu/kernels.h"
#include "native/backend/panel_reader.h"
#include "native/base/check.h"

namespace capstan {

namespace {

// panel (units, 16) = the transpose of rows (16, units). A unit is an f32, an f16 or a pair of bf16.
template <class Unit>
void transpose_panel(const char* rows, int64_t row_bytes, int64_t units, char* panel) {
  for (int64_t k = 0; k < units; ++k) {
    for (int lane = 0; lane < kPanelFeatures; ++lane)
      std::memcpy(panel + (k * kPanelFeatures + lane) * static_cast<int64_t>(sizeof(Unit)),
                  rows + lane * row_bytes + k * static_cast<int64_t>(sizeof(Unit)), sizeof(Unit));
  }
}

void pack_panel(const char* rows, CpuMatrix& matrix, int64_t panel) {
  const int64_t row_bytes = matrix.padded_k * static_cast<int64_t>(dtype_size(matrix.dtype));
  char* to = matrix.data.as<char>() + panel * kPanelFeatures * row_bytes;
  if (matrix.dtype == DType::kF16)
    transpose_panel<uint16_t>(rows, row_bytes, matrix.padded_k, to);
  else
    transpose_panel<uint32_t>(rows, row_bytes, row_bytes / 4, to);
}

}  // namespace

std::unique_ptr<CpuMatrix> pack_matrix(const MatrixSource& source, DType dtype, Team& team,
                                       const LoadProgress& progress) {
  check_source(source);
  auto matrix = std::make_unique<CpuMatrix>();
  matrix->cols = source.slices[0].num_cols;
  matrix->rows = num_features(source);
  matrix->dtype = dtype;
  matrix->padded_k = (matrix->cols + 1) & ~int64_t{1};
  matrix->is_gated = source.interleave_pairs;
  matrix->num_panels = (matrix->rows + kPanelFeatures - 1) / kPanelFeatures;
  matrix->num_parts = num_local_parts(source);
  matrix->bytes = matrix->num_panels * kPanelFeatures * matrix->padded_k * static_cast<int64_t>(dtype_size(dtype));
  matrix->data = HugeBuffer(static_cast<size_t>(matrix->bytes), "the weights of " + source.slices[0].tensor->name);

  std::atomic<int64_t> next_panel{0}, bytes_read{0};
  auto report = [&, reported = int64_t{0}](int64_t bytes) mutable {
    if (progress) progress(bytes - std::exchange(reported, bytes));
  };
  std::atomic<bool> is_stopped{false};
  team.run([&](int thread) {
    try {
      PanelReader reader;
      for (int64_t panel; !is_stopped && (panel = next_panel.fetch_add(1)) < matrix->num_panels;) {
        int64_t bytes = 0;
        pack_panel(reader.read(source, panel, dtype, matrix->padded_k, bytes), *matrix, panel);
        bytes_read += bytes;
        if (thread == 0) report(bytes_read);
      }
    } catch (...) {
      is_stopped = true;
      throw;
    }
  });
  matrix->bias = read_bias(source);
  report(bytes_read);
  return matrix;
}

std::unique_ptr<CpuVector> read_vector(const TensorSlice& slice, const LoadProgress& progress) {
  auto vector = std::make_unique<CpuVector>();
  vector->size = slice.num_rows * slice.num_cols;
  vector->values = read_floats(slice);
  vector->values.resize((vector->values.size() + 15) / 16 * 16, 0.0f);
  if (progress) progress(vector->size * static_cast<int64_t>(dtype_size(slice.tensor->dtype)));
  return vector;
}

void gather_row(const CpuMatrix& matrix, int64_t row, float* out) {
  CAPSTAN_CHECK(!matrix.is_gated && row >= 0 && row < matrix.rows);
  const int64_t panel = row / kPanelFeatures, lane = row % kPanelFeatures;
  const int64_t panel_bytes = kPanelFeatures * matrix.padded_k * static_cast<int64_t>(dtype_size(matrix.dtype));
  const char* data = matrix.data.as<char>() + panel * panel_bytes;
  const bool has_pairs = matrix.dtype == DType::kBf16;
  for (int64_t k = 0; k < matrix.cols; ++k) {
    const int64_t i = has_pairs ? (k / 2 * kPanelFeatures + lane) * 2 + k % 2 : k * kPanelFeatures + lane;
    out[k] = element_at(matrix.dtype, data, i);
  }
}

}  // namespace capstan
