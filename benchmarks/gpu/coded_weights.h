#pragma once
// Random weights in the codes of `--quantization int8` and `int4`, for benchmarks. Several copies, so that they exceed
// any cache.
#include "benchmarks/gpu/inputs.h"
#include "cuda/codes.h"
#include "native/base/check.h"

namespace capstan::benchmarks {

class CodedWeights {
 public:
  CodedWeights(int bits, int64_t rows, const cuda::DepthSplit& split, int64_t copies, cudaStream_t stream) {
    FileTensor tensor;
    tensor.rows = rows, tensor.cols = split.parts * split.part_cols;
    MatrixSource source;
    source.format = bits == 8 ? WeightFormat::kInt8 : WeightFormat::kInt4;
    source.slices = {{&tensor, 0, rows, 0, tensor.cols}};
    const std::optional<cuda::DeviceCodes> layout = codes_of(source, split, cuda::FloatType::kBf16);
    CAPSTAN_CHECK(layout.has_value());
    matrix_.rows = rows;
    matrix_.split = split;
    matrix_.codes = *layout;
    const int64_t tiles = (rows + cuda::kTileRows - 1) / cuda::kTileRows;
    code_bytes_ = tiles * code_tile_bytes(*layout, split);
    record_bytes_ = tiles * cuda::kTileRows * layout->num_groups * layout->record_bytes;
    codes_ = filled_words(copies * code_bytes_ / 4, {1, 0u, 0xffffffffu}, stream);
    records_ = filled_words((copies * record_bytes_ + 3) / 4, {2, 0x10001000u, 0x03ff03ffu}, stream);  // f16 of 2^-11
  }
  cuda::DeviceMatrix matrix(int64_t copy) const {
    cuda::DeviceMatrix matrix = matrix_;
    matrix.codes.codes = codes_.as<uint8_t>() + copy * code_bytes_;
    matrix.codes.records = records_.as<uint8_t>() + copy * record_bytes_;
    return matrix;
  }

 private:
  cuda::DeviceMatrix matrix_;
  cuda::DeviceBuffer codes_, records_;
  int64_t code_bytes_ = 0, record_bytes_ = 0;
};

}  // namespace capstan::benchmarks
