#include "cuda/weights.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "cuda/codes.h"
#include "native/backend/panel_reader.h"
#include "native/backend/row_quantizer.h"
#include "native/backend/weight_faults.h"
#include "native/base/check.h"
#include "native/base/number.h"

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

std::unique_ptr<CudaVector> upload_values(const std::vector<float>& values, const char* purpose, cudaStream_t stream) {
  auto vector = std::make_unique<CudaVector>();
  vector->size = static_cast<int64_t>(values.size());
  vector->first = values.at(0);
  vector->data = DeviceBuffer(values.size() * sizeof(float), purpose);
  upload(values.data(), values.size() * sizeof(float), vector->data, stream);
  return vector;
}

FloatType float_type(DType dtype) {
  return dtype == DType::kBf16 ? FloatType::kBf16 : FloatType::kF16;
}

// Fills the buffer of a matrix in pieces: pack(panel, to) packs a panel of `panel_bytes` and returns the bytes read.
template <class Pack>
void upload_panels(CudaMatrix& matrix, size_t panel_bytes, Uploader& uploader, const LoadProgress& progress,
                   const Pack& pack) {
  const int64_t num_panels = (matrix.rows + kPanelFeatures - 1) / kPanelFeatures;
  matrix.bytes = num_panels * static_cast<int64_t>(panel_bytes);
  matrix.data = DeviceBuffer(static_cast<size_t>(matrix.bytes), "the weights");
  const int64_t per_piece = std::clamp<int64_t>(static_cast<int64_t>(kPieceBytes / panel_bytes), 1, num_panels);
  for (int64_t first = 0; first < num_panels; first += per_piece) {
    const int64_t count = std::min(per_piece, num_panels - first);
    auto* piece = static_cast<char*>(uploader.begin(static_cast<size_t>(count) * panel_bytes));
    int64_t bytes_read = 0;
    for (int64_t i = 0; i < count; ++i)
      bytes_read += pack(first + i, piece + static_cast<size_t>(i) * panel_bytes);
    uploader.send(matrix.data.as<char>() + static_cast<size_t>(first) * panel_bytes,
                  static_cast<size_t>(count) * panel_bytes);
    if (progress) progress(bytes_read);
  }
}

// Weights as 16-bit floats.
void upload_floats(const MatrixSource& source, const UploadOptions& options, CudaMatrix& matrix, Uploader& uploader,
                   const LoadProgress& progress) {
  const DepthSplit& split = matrix.device.split;
  PanelReader reader;
  upload_panels(matrix, static_cast<size_t>(kPanelFeatures * split.padded()) * 2, uploader, progress,
                [&](int64_t panel, char* to) {
                  int64_t bytes_read = 0;
                  const char* rows = reader.read(source, panel, options.dtype, matrix.cols, bytes_read);
                  pack_tile(reinterpret_cast<const uint16_t*>(rows), split, reinterpret_cast<uint16_t*>(to));
                  return bytes_read;
                });
  matrix.device.data = matrix.data.as<uint16_t>();
}

// Weights in f32, row-major, rounded up to whole panels of rows.
void upload_f32(const MatrixSource& source, CudaMatrix& matrix, Uploader& uploader, const LoadProgress& progress) {
  PanelReader reader;
  const auto panel_bytes = static_cast<size_t>(kPanelFeatures * matrix.cols) * sizeof(float);
  upload_panels(matrix, panel_bytes, uploader, progress, [&](int64_t panel, char* to) {
    int64_t bytes_read = 0;
    std::memcpy(to, reader.read(source, panel, DType::kF32, matrix.cols, bytes_read), panel_bytes);
    return bytes_read;
  });
  matrix.floats = matrix.data.as<float>();
}

// Weights that are quantized, and whose codes are not kept: their values as 16-bit floats.
void upload_quantized_floats(const MatrixSource& source, const UploadOptions& options, CudaMatrix& matrix,
                             Uploader& uploader, const LoadProgress& progress) {
  const DepthSplit& split = matrix.device.split;
  const int64_t cols = matrix.cols;
  RowQuantizer quantizer(source, options.quantize_group);
  const QuantType& type = quantizer.groups().type;
  std::vector<uint16_t> rows(static_cast<size_t>(kPanelFeatures * cols));
  upload_panels(matrix, static_cast<size_t>(kPanelFeatures * split.padded()) * 2, uploader, progress,
                [&](int64_t panel, char* to) {
                  const int64_t bytes_read = quantizer.read(panel, [&](int lane, const QuantRow& row) {
                    for (int64_t k = 0; k < cols; ++k) {
                      const int64_t col = row.first_col + k;
                      const float scale = block_scale(type, row.scales[static_cast<size_t>(col / row.group_size)], 0);
                      const float value = code_value(type, row.codes[static_cast<size_t>(col)], scale, 0);
                      uint16_t& bits = rows[static_cast<size_t>(lane * cols + k)];
                      bits = options.dtype == DType::kBf16 ? float_to_bf16(value) : float_to_f16(value);
                      if (options.dtype == DType::kF16 && (bits & 0x7c00) == 0x7c00)
                        refuse_too_large(source.slices[0].tensor->name, DType::kF16);
                    }
                  });
                  pack_tile(rows.data(), split, reinterpret_cast<uint16_t*>(to));
                  return bytes_read;
                });
  matrix.device.data = matrix.data.as<uint16_t>();
}

void upload_codes(const MatrixSource& source, const UploadOptions& options, CudaMatrix& matrix, Uploader& uploader,
                  const LoadProgress& progress) {
  DeviceCodes& codes = matrix.device.codes;
  const DepthSplit& split = matrix.device.split;
  PanelReader reader;
  std::optional<RowQuantizer> quantizer;
  if (quantized_bits(source.format) > 0) quantizer.emplace(source, options.quantize_group);
  HostCodes host;
  resize(host, codes, (matrix.rows + kPanelFeatures - 1) / kPanelFeatures, split);
  const auto panel_bytes = static_cast<size_t>(code_tile_bytes(codes, split));
  upload_panels(matrix, panel_bytes, uploader, progress, [&](int64_t panel, char* to) {
    std::fill(to, to + panel_bytes, char{0});
    host.codes = reinterpret_cast<uint8_t*>(to);
    host.first_tile = panel;
    const auto pack = [&](int lane, const QuantRow& row) {
      pack_row(codes_of_row(row, codes, split), codes, split, float_type(options.dtype), panel * kPanelFeatures + lane,
               source.slices[0].tensor->name, host);
    };
    if (quantizer) return quantizer->read(panel, pack);
    int64_t bytes_read = 0;
    reader.read_quantized(source, panel, pack, bytes_read);
    return bytes_read;
  });
  const auto upload_array = [&](const void* from, size_t bytes, DeviceBuffer& to, const char* purpose) {
    to = DeviceBuffer(bytes, purpose);
    upload(from, bytes, to, uploader.stream());
    matrix.bytes += static_cast<int64_t>(bytes);
  };
  upload_array(host.high.data(), host.high.size(), matrix.high, "the high bits of weights");
  upload_array(host.records.data(), host.records.size(), matrix.records, "the scales of weights");
  upload_array(host.blocks.data(), host.blocks.size() * 2, matrix.blocks, "the scales of weights");
  codes.codes = matrix.data.as<uint8_t>();
  codes.high = matrix.high.as<uint8_t>();
  codes.records = matrix.records.as<uint8_t>();
  codes.blocks = matrix.blocks.as<uint16_t>();
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

std::unique_ptr<CudaMatrix> upload_matrix(const MatrixSource& source, const UploadOptions& options, Uploader& uploader,
                                          const LoadProgress& progress) {
  check_source(source);
  CAPSTAN_CHECK(options.dtype != DType::kF32);
  auto matrix = std::make_unique<CudaMatrix>();
  matrix->rows = num_features(source);
  matrix->cols = source.slices[0].num_cols;
  const int64_t num_panels = (matrix->rows + kPanelFeatures - 1) / kPanelFeatures;
  // Gates and ups alternate within tiles, so that the last tile may contain padding features. Kernels do not store
  // their results.
  DeviceMatrix& device = matrix->device;
  matrix->is_gated = source.interleave_pairs;
  device.rows = source.interleave_pairs ? num_panels * kPanelFeatures : matrix->rows;
  device.split = split_of(source);
  const std::optional<DeviceCodes> codes = codes_of(source, device.split, float_type(options.dtype));
  if (source.format == WeightFormat::kF32) {
    upload_f32(source, *matrix, uploader, progress);
  } else if (codes && options.keeps_codes) {
    device.codes = *codes;
    upload_codes(source, options, *matrix, uploader, progress);
  } else if (quantized_bits(source.format) > 0) {
    upload_quantized_floats(source, options, *matrix, uploader, progress);
  } else {
    upload_floats(source, options, *matrix, uploader, progress);
  }
  wait_for(uploader.stream());
  const std::vector<float> bias = read_bias(source);
  if (!bias.empty()) {
    matrix->bias_data = DeviceBuffer(bias.size() * sizeof(float), "a bias");
    upload(bias.data(), bias.size() * sizeof(float), matrix->bias_data, uploader.stream());
    device.bias = matrix->bias_data.as<float>();
  }
  return matrix;
}

std::unique_ptr<CudaVector> upload_vector(const TensorSlice& slice, float offset, cudaStream_t stream,
                                          const LoadProgress& progress) {
  std::vector<float> values = read_floats(slice);
  for (float& value : values)
    value += offset;
  auto vector = upload_values(values, "a norm", stream);
  if (progress) progress(file_bytes(*slice.tensor, vector->size));
  return vector;
}

std::unique_ptr<CudaVector> upload_layer_norm(const TensorSlice& weight, const TensorSlice* bias, cudaStream_t stream,
                                              const LoadProgress& progress) {
  std::vector<float> values = read_floats(weight);
  const auto size = static_cast<int64_t>(values.size());
  const std::vector<float> added = bias == nullptr ? std::vector<float>(values.size()) : read_floats(*bias);
  values.insert(values.end(), added.begin(), added.end());
  auto vector = upload_values(values, "a norm", stream);
  vector->size = size;
  if (progress) {
    progress(file_bytes(*weight.tensor, size));
    if (bias != nullptr) progress(file_bytes(*bias->tensor, size));
  }
  return vector;
}

std::unique_ptr<CudaVector> upload_convolution(const MatrixSource& source, cudaStream_t stream,
                                               const LoadProgress& progress) {
  return upload_values(read_taps(source, progress), "a convolution", stream);
}

}  // namespace capstan::cuda
