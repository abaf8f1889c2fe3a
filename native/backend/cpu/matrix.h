#pragma once
// Weights in memory: packed panels (layout in kernels.h) and small vectors, streamed from the checkpoint files.
#include <cstdint>
#include <memory>

#include "native/backend/backend.h"
#include "native/backend/cpu/kernels.h"
#include "native/backend/cpu/memory.h"
#include "native/backend/cpu/team.h"

namespace capstan {

struct CpuMatrix final : Matrix {  // rows are without those of `rest`; bytes are those of all
  DType dtype = DType::kF32;       // without meaning when quantized
  QuantWeights quant;              // its runs are those below
  std::vector<QuantRun> runs;
  HugeBuffer data;       // the panels and kPanelSlackBytes of zeros
  int64_t padded_k = 0;  // cols rounded up to even
  int64_t num_panels = 0;
  int num_parts = 1;                // chains over K on this rank
  bool is_gated = false;            // a panel is 8 gates, then their 8 ups
  std::vector<float> bias;          // (num_panels * 16) in panel order; empty = no bias
  std::unique_ptr<CpuMatrix> rest;  // the output features after these, which the file stores in another format
};

// Returns the bytes of 16 output features, without those of `rest`.
inline int64_t panel_bytes(const CpuMatrix& matrix) {
  if (matrix.quant.type.bits != 0) return matrix.quant.panel_bytes;
  return kPanelFeatures * matrix.padded_k * static_cast<int64_t>(dtype_size(matrix.dtype));
}

struct CpuVector final : Vector {
  std::vector<float> values;  // (size), readable up to a multiple of 16
};

// Returns null for no vector.
inline const float* values_of(const Vector* vector) {
  return vector == nullptr ? nullptr : static_cast<const CpuVector*>(vector)->values.data();
}

// Reads the source on all threads of the team, converts it to `dtype` or to the source's format, and packs it in
// panels, in memory of the pool. Calls `progress` on the caller's thread. Throws kInvalidModel for NaN and Inf.
std::unique_ptr<CpuMatrix> pack_matrix(const MatrixSource& source, DType dtype, const CpuKernels& kernels, Team& team,
                                       HugePool& pool, const LoadProgress& progress);
// The values are those of the file plus `offset`.
std::unique_ptr<CpuVector> read_vector(const TensorSlice& slice, float offset, const LoadProgress& progress);
// Returns (2, size rounded up to 16): the weights, then the bias, which is 0 when null.
std::unique_ptr<CpuVector> read_layer_norm(const TensorSlice& weight, const TensorSlice* bias,
                                           const LoadProgress& progress);
// Returns the values of read_taps.
std::unique_ptr<CpuVector> read_convolution(const MatrixSource& source, const LoadProgress& progress);

// out (cols) = row `row` of a packed matrix. The matrix must not be gated.
void gather_row(const CpuMatrix& matrix, int64_t row, float* out);

}  // namespace capstan
