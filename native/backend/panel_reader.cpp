#include "native/backend/panel_reader.h"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "native/base/check.h"
#include "native/base/number.h"

namespace capstan {

namespace {

void read_fully(const FileTensor& tensor, uint64_t offset, void* to, size_t bytes) {
  char* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got = pread(tensor.fd, at, bytes, static_cast<off_t>(tensor.offset + offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw Error(ErrorCode::kIo, "cannot read tensor " + tensor.name + ": " + std::strerror(errno));
    if (got == 0)
      throw Error(ErrorCode::kInvalidModel,
                  "tensor " + tensor.name + ": the file is truncated, " + std::to_string(bytes) + " bytes are missing");
    at += got;
    offset += static_cast<uint64_t>(got);
    bytes -= static_cast<size_t>(got);
  }
}

// Has no branches in its loops, so that compilers vectorize it.
bool has_non_finite(DType dtype, const char* data, int64_t count) {
  if (dtype == DType::kF32) {
    uint32_t largest = 0;
    for (int64_t i = 0; i < count; ++i) {
      uint32_t bits;
      std::memcpy(&bits, data + i * 4, sizeof bits);
      largest |= ((bits & 0x7fffffffu) + 0x00800000u) & 0x80000000u;
    }
    return largest != 0;
  }
  // One unit of the exponent: only the largest exponent, which NaN and Inf have, carries into the sign bit.
  const uint16_t step = dtype == DType::kBf16 ? 0x0080 : 0x0400;
  uint16_t carry = 0;
  for (int64_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, data + i * 2, sizeof bits);
    carry = static_cast<uint16_t>(carry | ((bits & 0x7fff) + step));
  }
  return (carry & 0x8000) != 0;
}

void convert(DType from_dtype, const char* from, DType to_dtype, char* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float value = element_at(from_dtype, from, i);
    if (to_dtype == DType::kF32) {
      std::memcpy(to + i * 4, &value, sizeof value);
    } else {
      const uint16_t bits = to_dtype == DType::kBf16 ? float_to_bf16(value) : float_to_f16(value);
      std::memcpy(to + i * 2, &bits, sizeof bits);
    }
  }
}

[[noreturn]] void throw_non_finite(const FileTensor& tensor, DType to_dtype, bool is_in_file) {
  const std::string fault = is_in_file ? "NaN or Inf" : std::string("a value too large for ") + dtype_name(to_dtype);
  throw Error(ErrorCode::kInvalidModel, "tensor " + tensor.name + " holds " + fault);
}

// Reads rows [row, row + rows) of a slice into `to`, in `dtype`, row-major. `raw` is working memory.
void read_rows(const TensorSlice& slice, int64_t row, int64_t rows, DType dtype, std::vector<char>& raw, char* to) {
  const FileTensor& tensor = *slice.tensor;
  const int64_t item = static_cast<int64_t>(dtype_size(tensor.dtype));
  const int64_t row_bytes = slice.num_cols * item;
  const int64_t count = rows * slice.num_cols;
  char* from = to;
  if (tensor.dtype != dtype) {
    raw.resize(std::max(raw.size(), static_cast<size_t>(rows * row_bytes)));
    from = raw.data();
  }
  const auto file_offset = [&](int64_t r) {
    return static_cast<uint64_t>(((slice.row_begin + r) * tensor.cols + slice.col_begin) * item);
  };
  if (slice.num_cols == tensor.cols) {
    read_fully(tensor, file_offset(row), from, static_cast<size_t>(rows * row_bytes));
  } else {
    for (int64_t r = 0; r < rows; ++r)
      read_fully(tensor, file_offset(row + r), from + r * row_bytes, static_cast<size_t>(row_bytes));
  }
  if (tensor.dtype != dtype) convert(tensor.dtype, from, dtype, to, count);
  if (has_non_finite(dtype, to, count)) throw_non_finite(tensor, dtype, has_non_finite(tensor.dtype, from, count));
}

void check_slice(const TensorSlice& slice) {
  CAPSTAN_CHECK(slice.tensor != nullptr);
  const FileTensor& tensor = *slice.tensor;
  CAPSTAN_CHECK(slice.row_begin >= 0 && slice.num_rows > 0 && slice.row_begin + slice.num_rows <= tensor.rows);
  CAPSTAN_CHECK(slice.col_begin >= 0 && slice.num_cols > 0 && slice.col_begin + slice.num_cols <= tensor.cols);
}

// The source of one lane of a panel: a slice and a row in it; slice -1 = padding.
struct LaneSource {
  int slice = -1;
  int64_t row = 0;
};

LaneSource lane_source(const MatrixSource& source, int64_t panel, int lane) {
  if (source.interleave_pairs) {
    constexpr int kPairs = kPanelFeatures / 2;
    const int64_t row = panel * kPairs + lane % kPairs;
    return row < source.slices[0].num_rows ? LaneSource{lane / kPairs, row} : LaneSource{};
  }
  int64_t row = panel * kPanelFeatures + lane;
  for (size_t i = 0; i < source.slices.size(); ++i) {
    if (row < source.slices[i].num_rows) return {static_cast<int>(i), row};
    row -= source.slices[i].num_rows;
  }
  return {};
}

}  // namespace

float element_at(DType dtype, const char* data, int64_t i) {
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, data + i * 4, sizeof value);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, data + i * 2, sizeof bits);
  return dtype == DType::kBf16 ? bf16_to_float(bits) : f16_to_float(bits);
}

void check_source(const MatrixSource& source) {
  CAPSTAN_CHECK(!source.slices.empty() && (source.bias.empty() || source.bias.size() == source.slices.size()));
  for (const TensorSlice& slice : source.slices) {
    check_slice(slice);
    CAPSTAN_CHECK(slice.num_cols == source.slices[0].num_cols);
  }
  CAPSTAN_CHECK(!source.interleave_pairs ||
                (source.slices.size() == 2 && source.slices[0].num_rows == source.slices[1].num_rows));
}

int64_t num_features(const MatrixSource& source) {
  int64_t rows = 0;
  for (const TensorSlice& slice : source.slices)
    rows += slice.num_rows;
  return rows;
}

int num_local_parts(const MatrixSource& source) {
  if (source.kind == MatrixKind::kColumn) return 1;
  const int64_t total = source.total_cols, cols = source.slices[0].num_cols;
  const int parts = row_parallel_parts(total);
  // This rank holds complete parts that form a subtree of the sum.
  CAPSTAN_CHECK(total % parts == 0 && cols % (total / parts) == 0);
  const int64_t local = cols / (total / parts);
  CAPSTAN_CHECK(local > 0 && (local & (local - 1)) == 0 && parts % local == 0);
  return static_cast<int>(local);
}

const char* PanelReader::read(const MatrixSource& source, int64_t panel, DType dtype, int64_t row_elements,
                              int64_t& bytes) {
  const int64_t item = static_cast<int64_t>(dtype_size(dtype)), cols = source.slices[0].num_cols;
  const int64_t row_bytes = row_elements * item;
  read_.resize(static_cast<size_t>(kPanelFeatures * cols * item));
  rows_.assign(static_cast<size_t>(kPanelFeatures * row_bytes), 0);
  for (int lane = 0; lane < kPanelFeatures;) {
    const LaneSource first = lane_source(source, panel, lane);
    int count = 1;  // adjacent lanes that are adjacent rows of one slice
    for (; lane + count < kPanelFeatures; ++count) {
      const LaneSource next = lane_source(source, panel, lane + count);
      if (next.slice != first.slice || (first.slice >= 0 && next.row != first.row + count)) break;
    }
    if (first.slice >= 0) {
      const TensorSlice& slice = source.slices[first.slice];
      read_rows(slice, first.row, count, dtype, raw_, read_.data());
      for (int i = 0; i < count; ++i)
        std::memcpy(rows_.data() + (lane + i) * row_bytes, read_.data() + i * cols * item,
                    static_cast<size_t>(cols * item));
      bytes += count * cols * static_cast<int64_t>(dtype_size(slice.tensor->dtype));
    }
    lane += count;
  }
  return rows_.data();
}

std::vector<float> read_bias(const MatrixSource& source) {
  if (source.bias.empty()) return {};
  std::vector<std::vector<float>> values;
  for (size_t i = 0; i < source.bias.size(); ++i) {
    CAPSTAN_CHECK(source.bias[i].num_rows == 1 && source.bias[i].num_cols == source.slices[i].num_rows);
    values.push_back(read_floats(source.bias[i]));
  }
  std::vector<float> bias(
      static_cast<size_t>((num_features(source) + kPanelFeatures - 1) / kPanelFeatures * kPanelFeatures), 0.0f);
  for (size_t i = 0; i < bias.size(); ++i) {
    const LaneSource from =
        lane_source(source, static_cast<int64_t>(i) / kPanelFeatures, static_cast<int>(i) % kPanelFeatures);
    if (from.slice >= 0) bias[i] = values[from.slice][static_cast<size_t>(from.row)];
  }
  return bias;
}

std::vector<float> read_floats(const TensorSlice& slice) {
  check_slice(slice);
  std::vector<float> values(static_cast<size_t>(slice.num_rows * slice.num_cols));
  std::vector<char> raw;
  read_rows(slice, 0, slice.num_rows, DType::kF32, raw, reinterpret_cast<char*>(values.data()));
  return values;
}

}  // namespace capstan
