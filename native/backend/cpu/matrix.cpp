#include "native/backend/cpu/matrix.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <utility>

#include "native/backend/cpu/kernels.h"
#include "native/backend/cpu/quant_matrix.h"
#include "native/backend/panel_reader.h"
#include "native/backend/row_quantizer.h"
#include "native/base/check.h"
#include "native/base/number.h"

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

// Returns the groups of a matrix that is kept quantized.
std::optional<QuantGroups> quant_groups(const MatrixSource& source) {
  if (const int bits = quantized_bits(source.format); bits > 0) return load_groups_of(bits, source.slices[0]);
  if (source.format != WeightFormat::kFile) return std::nullopt;
  const QuantGroups groups = file_groups(source.slices[0]);
  return groups.type.bits == 0 ? std::nullopt : std::optional(groups);
}

// Packs panels, with the working memory of one thread.
class PanelPacker {
 public:
  PanelPacker(const MatrixSource& source, const CpuKernels& kernels, CpuMatrix& matrix)
      : source_(source), matrix_(matrix) {
    if (quantized_bits(source.format) == 0) return;
    quantizer_.emplace(source, [&kernels](const float* values, int count, int bits, uint8_t* codes) {
      return kernels.quantize_group({values, count, bits, codes});
    });
  }

  // Returns the bytes read from the files.
  int64_t pack(int64_t panel) {
    int64_t bytes = 0;
    const QuantWeights& quant = matrix_.quant;
    char* to = matrix_.data.as<char>() + panel * quant.panel_bytes;
    const auto pack_row = [&](int lane, const QuantRow& row) { pack_quantized_row(row, quant, lane, to); };
    if (quantizer_) return quantizer_->read(panel, pack_row);
    if (quant.type.bits == 0)
      pack_panel(reader_.read(source_, panel, matrix_.dtype, matrix_.padded_k, bytes), matrix_, panel);
    else
      reader_.read_quantized(source_, panel, pack_row, bytes);
    return bytes;
  }

 private:
  const MatrixSource& source_;
  CpuMatrix& matrix_;
  std::optional<RowQuantizer> quantizer_;  // for weights that are quantized at load
  PanelReader reader_;
};

// Splits a source whose slices are kept in different formats. Gate and up lie side by side in a panel, so that they
// cannot be split: they are decoded when their formats differ.
std::vector<MatrixSource> split_formats(const MatrixSource& source) {
  if (source.format != WeightFormat::kFile) return {source};
  std::vector<MatrixSource> parts;
  for (size_t i = 0; i < source.slices.size(); ++i) {
    if (parts.empty() || !are_kept_alike(*parts.back().slices[0].tensor, *source.slices[i].tensor)) {
      parts.push_back(source);
      parts.back().slices.clear();
      parts.back().bias.clear();
    }
    parts.back().slices.push_back(source.slices[i]);
    if (!source.bias.empty()) parts.back().bias.push_back(source.bias[i]);
  }
  if (parts.size() == 1 || !source.interleave_pairs) return parts;
  parts = {source};
  parts[0].format = WeightFormat::kDType;
  return parts;
}

std::unique_ptr<CpuMatrix> pack_part(const MatrixSource& source, DType dtype, const CpuKernels& kernels, Team& team,
                                     HugePool& pool, const LoadProgress& progress) {
  auto matrix = std::make_unique<CpuMatrix>();
  matrix->cols = source.slices[0].num_cols;
  matrix->rows = num_features(source);
  matrix->dtype = dtype;
  matrix->padded_k = (matrix->cols + 1) & ~int64_t{1};
  matrix->is_gated = source.interleave_pairs;
  matrix->num_panels = (matrix->rows + kPanelFeatures - 1) / kPanelFeatures;
  matrix->num_parts = num_local_parts(source);
  if (const std::optional<QuantGroups> groups = quant_groups(source)) {
    matrix->runs = make_runs(matrix->cols, matrix->num_parts, *groups);
    matrix->quant = make_quant(groups->type, matrix->runs);
  }
  matrix->bytes = matrix->num_panels * panel_bytes(*matrix);
  matrix->data = pool.allocate(static_cast<size_t>(matrix->bytes + kPanelSlackBytes),
                               "the weights of " + source.slices[0].tensor->name);

  std::atomic<int64_t> next_panel{0}, bytes_read{0};
  auto report = [&, reported = int64_t{0}](int64_t bytes) mutable {
    if (progress) progress(bytes - std::exchange(reported, bytes));
  };
  std::atomic<bool> is_stopped{false};
  team.run([&](int thread) {
    try {
      PanelPacker packer(source, kernels, *matrix);
      for (int64_t panel; !is_stopped && (panel = next_panel.fetch_add(1)) < matrix->num_panels;) {
        bytes_read += packer.pack(panel);
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

}  // namespace

std::unique_ptr<CpuMatrix> pack_matrix(const MatrixSource& source, DType dtype, const CpuKernels& kernels, Team& team,
                                       HugePool& pool, const LoadProgress& progress) {
  check_source(source);
  std::unique_ptr<CpuMatrix> first;
  std::unique_ptr<CpuMatrix>* to = &first;
  for (const MatrixSource& part : split_formats(source)) {
    *to = pack_part(part, dtype, kernels, team, pool, progress);
    if (to != &first) first->bytes += (*to)->bytes;
    to = &(*to)->rest;
  }
  return first;
}

std::unique_ptr<CpuVector> read_vector(const TensorSlice& slice, float offset, const LoadProgress& progress) {
  auto vector = std::make_unique<CpuVector>();
  vector->size = slice.num_rows * slice.num_cols;
  vector->values = read_floats(slice);
  for (float& value : vector->values)
    value += offset;
  // A row of a table is readable up to a multiple of 16 from its start.
  const size_t slack = slice.num_rows > 1 ? 16 : 0;
  vector->values.resize((vector->values.size() + slack + 15) / 16 * 16, 0.0f);
  if (progress) progress(file_bytes(*slice.tensor, vector->size));
  return vector;
}

std::unique_ptr<CpuVector> read_layer_norm(const TensorSlice& weight, const TensorSlice* bias,
                                           const LoadProgress& progress) {
  auto vector = read_vector(weight, 0.0f, progress);
  const size_t stride = vector->values.size();
  if (bias != nullptr) {
    const std::unique_ptr<CpuVector> biases = read_vector(*bias, 0.0f, progress);
    CAPSTAN_CHECK(biases->size == vector->size);
    vector->values.insert(vector->values.end(), biases->values.begin(), biases->values.end());
  }
  vector->values.resize(2 * stride, 0.0f);
  return vector;
}

std::unique_ptr<CpuVector> read_convolution(const MatrixSource& source, const LoadProgress& progress) {
  auto vector = std::make_unique<CpuVector>();
  vector->values = read_taps(source, progress);
  vector->size = static_cast<int64_t>(vector->values.size());
  return vector;
}

void gather_row(const CpuMatrix& matrix, int64_t row, float* out) {
  CAPSTAN_CHECK(!matrix.is_gated && matrix.rest == nullptr && row >= 0 && row < matrix.rows);
  const int64_t panel = row / kPanelFeatures;
  const int lane = static_cast<int>(row % kPanelFeatures);
  const char* data = matrix.data.as<char>() + panel * panel_bytes(matrix);
  if (matrix.quant.type.bits != 0) return gather_quantized(matrix.quant, data, lane, out);
  const bool has_pairs = matrix.dtype == DType::kBf16;
  for (int64_t k = 0; k < matrix.cols; ++k) {
    const int64_t i = has_pairs ? (k / 2 * kPanelFeatures + lane) * 2 + k % 2 : k * kPanelFeatures + lane;
    out[k] = element_at(matrix.dtype, data, i);
  }
}

}  // namespace capstan
