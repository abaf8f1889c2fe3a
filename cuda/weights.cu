#include "cuda/weights.h"

#include <algorithm>
#include <vector>

#include "native/backend/panel_reader.h"
#include "native/base/check.h"

namespace capstan::cuda {
namespace {

// Weights are uploaded in pieces of about this size.
constexpr size_t kPieceBytes = 8 << 20;

// Packs one tile: `to` = rows (16, cols) in the order of weight_index.
void pack_tile(const uint16_t* rows, const DepthSplit& split, uint16_t* to) {
  const int64_t padded = split.padded();
  std::fill(to, to + kTileRows * padded, uint16_t{0});
  for (int part = 0; part < split.parts; ++part) {
    const int64_t first = part * split.part_cols, place = part * split.padded_part;
    for (int row = 0; row < kTileRows; ++row)
      for (int64_t k = 0; k < split.part_cols; ++k)
        to[weight_index(row, place + k, padded)] = rows[row * split.parts * split.part_cols + first + k];
  }
}

void upload(const void* from, size_t bytes, const DeviceBuffer& to, cudaStream_t stream) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(to.as<void>(), from, bytes, cudaMemcpyHostToDevice, stream), "copying to the device");
  wait_for(stream);
}

}  // namespace

void* Uploader::begin(size_t bytes) {
  half_idx_ ^= 1;
  Half& half = halves_[half_idx_];
  if (half.is_sent) half.sent.wait();
  if (bytes > half.data.bytes())
    half.data = PinnedBuffer(std::max(bytes, kPieceBytes), "the pinned memory of the upload");
  return half.data.as<void>();
}

void Uploader::send(void* to, size_t bytes) {
  Half& half = halves_[half_idx_];
  check(cudaMemcpyAsync(to, half.data.as<void>(), bytes, cudaMemcpyHostToDevice, stream_),
        "copying weights to the device");
  half.sent.record(stream_);
  half.is_sent = true;
}

DepthSplit split_of(const MatrixSource& source) {
  const int64_t cols = source.slices[0].num_cols;
  if (source.kind == MatrixKind::kColumn) return split_depth(cols, cols, row_parallel_parts(cols));
  CAPSTAN_CHECK(num_local_parts(source) > 0);
  return split_depth(cols, source.total_cols, row_parallel_parts(source.total_cols));
}

std::unique_ptr<CudaMatrix> upload_matrix(const MatrixSource& source, DType dtype, Uploader& uploader,
                                          const LoadProgress& progress) {
  check_source(source);
  CAPSTAN_CHECK(dtype != DType::kF32);
  auto matrix = std::make_unique<CudaMatrix>();
  matrix->rows = num_features(source);
  matrix->cols = source.slices[0].num_cols;
  const DepthSplit split = split_of(source);
  const int64_t num_panels = (matrix->rows + kPanelFeatures - 1) / kPanelFeatures;
  const size_t panel_bytes = static_cast<size_t>(kPanelFeatures * split.padded()) * 2;
  matrix->bytes = num_panels * static_cast<int64_t>(panel_bytes);
  matrix->data = DeviceBuffer(static_cast<size_t>(matrix->bytes), "the weights");

  const int64_t per_piece = std::clamp<int64_t>(static_cast<int64_t>(kPieceBytes / panel_bytes), 1, num_panels);
  PanelReader reader;
  for (int64_t first = 0; first < num_panels; first += per_piece) {
    const int64_t count = std::min(per_piece, num_panels - first);
    auto* piece = static_cast<uint16_t*>(uploader.begin(static_cast<size_t>(count) * panel_bytes));
    int64_t bytes_read = 0;
    for (int64_t i = 0; i < count; ++i)
      pack_tile(reinterpret_cast<const uint16_t*>(reader.read(source, first + i, dtype, matrix->cols, bytes_read)),
                split, piece + i * kPanelFeatures * split.padded());
    uploader.send(matrix->data.as<char>() + static_cast<size_t>(first) * panel_bytes,
                  static_cast<size_t>(count) * panel_bytes);
    if (progress) progress(bytes_read);
  }
  wait_for(uploader.stream());
  const std::vector<float> bias = read_bias(source);
  if (!bias.empty()) {
    matrix->bias_data = DeviceBuffer(bias.size() * sizeof(float), "a bias");
    upload(bias.data(), bias.size() * sizeof(float), matrix->bias_data, uploader.stream());
  }
  // Gates and ups alternate within tiles, so that the last tile may contain padding features. Kernels do not store
  // their results.
  matrix->device = {matrix->data.as<uint16_t>(), matrix->bias_data.as<float>(),
                    source.interleave_pairs ? num_panels * kPanelFeatures : matrix->rows, split};
  return matrix;
}

std::unique_ptr<CudaVector> upload_vector(const TensorSlice& slice, float offset, cudaStream_t stream,
                                          const LoadProgress& progress) {
  std::vector<float> values = read_floats(slice);
  for (float& value : values)
    value += offset;
  auto vector = std::make_unique<CudaVector>();
  vector->size = static_cast<int64_t>(values.size());
  vector->data = DeviceBuffer(values.size() * sizeof(float), "a norm");
  upload(values.data(), values.size() * sizeof(float), vector->data, stream);
  if (progress) progress(file_bytes(*slice.tensor, vector->size));
  return vector;
}

}  // namespace capstan::cuda
