#include "native/backend/cpu/matrix.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "native/backend/cpu/kernels.h"
#include "native/backend/panel_reader.h"
#include "native/base/check.h"
#include "native/base/number.h"

namespace capstan {

namespace {

constexpr int kInt8Group = 128, kInt4Group = 64;  // as WeightFormat says

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

// Groups begin anew at each part, so that every rank finds the same ones.
std::vector<QuantRun> make_runs(int64_t cols, int num_parts, int group_size) {
  std::vector<QuantRun> runs;
  const int64_t part_size = cols / num_parts;
  for (int part = 0; part < num_parts; ++part)
    for (int64_t k = 0; k < part_size; k += group_size) {
      const int64_t count = std::min<int64_t>(group_size, part_size - k);
      runs.push_back({static_cast<int32_t>(part * part_size + k), static_cast<int32_t>(count),
                      static_cast<int32_t>((count + 7) / 8 * 2), k + count == part_size});
    }
  return runs;
}

QuantWeights make_quant(int bits, const std::vector<QuantRun>& runs) {
  QuantWeights quant;
  quant.bits = bits;
  quant.runs = runs.data();
  quant.num_runs = static_cast<int>(runs.size());
  for (const QuantRun& run : runs)
    quant.num_words += run.num_words;
  quant.codes_offset = (quant.num_runs * kPanelFeatures * int64_t{sizeof(uint16_t)} + 63) / 64 * 64;
  quant.panel_bytes = quant.codes_offset + quant.num_words * 4 * kPanelFeatures * bits / 8;
  return quant;
}

// The byte of a panel that holds a code, and the code's place in it.
struct CodePlace {
  int64_t byte;
  int shift, mask;
};

// `word` is the index of the code's word in the panel, `i` the code's index in the word.
CodePlace code_place(const QuantWeights& quant, int64_t word, int lane, int i) {
  if (quant.bits == 8) return {quant.codes_offset + (word * kPanelFeatures + lane) * 4 + i, 0, 255};
  return {quant.codes_offset + (word / 2 * kPanelFeatures + lane) * 4 + i, word % 2 == 0 ? 0 : 4, 15};
}

// rows (16, cols) in f32.
void quantize_panel(const char* rows, const CpuKernels& kernels, CpuMatrix& matrix, int64_t panel,
                    const std::string& name) {
  const QuantWeights& quant = matrix.quant;
  uint8_t* to = matrix.data.as<uint8_t>() + panel * quant.panel_bytes;
  uint8_t codes[kMaxQuantGroup];
  for (int lane = 0; lane < kPanelFeatures; ++lane) {
    const float* row = reinterpret_cast<const float*>(rows) + lane * matrix.padded_k;
    int64_t word = 0;
    for (int r = 0; r < quant.num_runs; ++r) {
      const QuantRun& run = quant.runs[r];
      std::memset(codes, 1 << (quant.bits - 1), sizeof codes);
      const uint16_t scale = kernels.quantize_group({row + run.begin, run.count, quant.bits, codes});
      if ((scale & 0x7c00) == 0x7c00)
        throw Error(ErrorCode::kInvalidModel, "tensor " + name + " holds a value too large for a scale in f16");
      std::memcpy(to + (r * kPanelFeatures + lane) * sizeof scale, &scale, sizeof scale);
      for (int i = 0; i < run.num_words * 4; ++i) {
        const CodePlace place = code_place(quant, word + i / 4, lane, i % 4);
        to[place.byte] = static_cast<uint8_t>(to[place.byte] | codes[i] << place.shift);
      }
      word += run.num_words;
    }
  }
}

void gather_quantized(const CpuMatrix& matrix, int64_t panel, int lane, float* out) {
  const QuantWeights& quant = matrix.quant;
  const uint8_t* data = matrix.data.as<uint8_t>() + panel * quant.panel_bytes;
  const int zero = 1 << (quant.bits - 1);
  int64_t word = 0;
  for (int r = 0; r < quant.num_runs; ++r) {
    uint16_t scale;
    std::memcpy(&scale, data + (r * kPanelFeatures + lane) * sizeof scale, sizeof scale);
    const float step = f16_to_float(scale);
    for (int i = 0; i < quant.runs[r].count; ++i) {
      const CodePlace place = code_place(quant, word + i / 4, lane, i % 4);
      *out++ = static_cast<float>((data[place.byte] >> place.shift & place.mask) - zero) * step;
    }
    word += quant.runs[r].num_words;
  }
}

}  // namespace

std::unique_ptr<CpuMatrix> pack_matrix(const MatrixSource& source, DType dtype, const CpuKernels& kernels, Team& team,
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
  const bool is_quantized = source.format != WeightFormat::kDType;
  if (is_quantized) {
    const bool is_8_bit = source.format == WeightFormat::kInt8;
    matrix->runs = make_runs(matrix->cols, matrix->num_parts, is_8_bit ? kInt8Group : kInt4Group);
    matrix->quant = make_quant(is_8_bit ? 8 : 4, matrix->runs);
    matrix->bytes = matrix->num_panels * matrix->quant.panel_bytes;
  }
  matrix->data = HugeBuffer(static_cast<size_t>(matrix->bytes + kPanelSlackBytes),
                            "the weights of " + source.slices[0].tensor->name);

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
        const char* rows = reader.read(source, panel, is_quantized ? DType::kF32 : dtype, matrix->padded_k, bytes);
        if (is_quantized)
          quantize_panel(rows, kernels, *matrix, panel, source.slices[0].tensor->name);
        else
          pack_panel(rows, *matrix, panel);
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
  const int64_t panel = row / kPanelFeatures;
  const int lane = static_cast<int>(row % kPanelFeatures);
  if (matrix.quant.bits != 0) return gather_quantized(matrix, panel, lane, out);
  const int64_t panel_bytes = kPanelFeatures * matrix.padded_k * static_cast<int64_t>(dtype_size(matrix.dtype));
  const char* data = matrix.data.as<char>() + panel * panel_bytes;
  const bool has_pairs = matrix.dtype == DType::kBf16;
  for (int64_t k = 0; k < matrix.cols; ++k) {
    const int64_t i = has_pairs ? (k / 2 * kPanelFeatures + lane) * 2 + k % 2 : k * kPanelFeatures + lane;
    out[k] = element_at(matrix.dtype, data, i);
  }
}

}  // namespace capstan
