#include "native/backend/panel_reader.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "native/backend/loaded_groups.h"
#include "native/backend/weight_faults.h"
#include "native/base/check.h"
#include "native/base/number.h"

namespace capstan {

namespace {

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

// Its functions are known to the compiler, which vectorizes the loop where they have no branches.
template <class From, float (*kWiden)(From), class To, To (*kRound)(float)>
void convert_each(const char* from, char* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    From bits;
    std::memcpy(&bits, from + i * static_cast<int64_t>(sizeof bits), sizeof bits);
    const To rounded = kRound(kWiden(bits));
    std::memcpy(to + i * static_cast<int64_t>(sizeof rounded), &rounded, sizeof rounded);
  }
}

template <class To, To (*kRound)(float)>
void convert_to(DType from_dtype, const char* from, char* to, int64_t count) {
  if (from_dtype == DType::kF32) return convert_each<uint32_t, bits_float, To, kRound>(from, to, count);
  if (from_dtype == DType::kBf16) return convert_each<uint16_t, bf16_to_float, To, kRound>(from, to, count);
  convert_each<uint16_t, f16_to_float, To, kRound>(from, to, count);
}

void convert(DType from_dtype, const char* from, DType to_dtype, char* to, int64_t count) {
  if (to_dtype == DType::kF32) return convert_to<uint32_t, float_bits>(from_dtype, from, to, count);
  if (to_dtype == DType::kBf16) return convert_to<uint16_t, float_to_bf16>(from_dtype, from, to, count);
  convert_to<uint16_t, float_to_f16>(from_dtype, from, to, count);
}

// Returns the row of the file that holds row `row` of the tensor.
int64_t file_row(const FileTensor& tensor, int64_t row) {
  if (tensor.paired_head_dim == 0) return row;
  const int64_t in_head = row % tensor.paired_head_dim, half = tensor.paired_rows / 2;
  return in_head >= tensor.paired_rows ? row : row - in_head + in_head % half * 2 + in_head / half;
}

// Reads `row_bytes` at `offset` of each of the slice's rows [row, row + rows).
void read_row_bytes(const TensorSlice& slice, int64_t row, int64_t rows, int64_t offset, int64_t row_bytes, char* to) {
  const FileTensor& tensor = *slice.tensor;
  const int64_t file_row_bytes = file_bytes(tensor, tensor.cols);
  const bool is_contiguous = row_bytes == file_row_bytes && tensor.paired_head_dim == 0;
  const int64_t num_reads = is_contiguous ? 1 : rows, bytes = is_contiguous ? rows * row_bytes : row_bytes;
  for (int64_t r = 0; r < num_reads; ++r) {
    const int64_t at = file_row(tensor, slice.row_begin + row + r) * file_row_bytes + offset;
    if (slice.ordered != nullptr)
      std::memcpy(to + r * bytes, slice.ordered->data() + at, static_cast<size_t>(bytes));
    else
      read_fully(tensor.name, tensor.fd, tensor.offset + static_cast<uint64_t>(at), to + r * bytes,
                 static_cast<size_t>(bytes));
  }
}

// The working memory of read_rows.
struct ReadBuffers {
  std::vector<char>& raw;
  std::vector<float>& decoded;
  QuantRow& row;
};

// to (rows, num_cols) in f32 = rows [row, row + rows) of a slice of a quantized tensor.
void decode_rows(const TensorSlice& slice, int64_t row, int64_t rows, ReadBuffers buffers, float* to) {
  const BlockFormat& format = *slice.tensor->format;
  const BlockRange blocks = block_range(slice);
  const int64_t row_bytes = blocks.count * format.block_bytes, row_size = blocks.count * format.block_size;
  buffers.raw.resize(std::max(buffers.raw.size(), static_cast<size_t>(rows * row_bytes)));
  buffers.decoded.resize(std::max(buffers.decoded.size(), static_cast<size_t>(row_size)));
  read_row_bytes(slice, row, rows, blocks.begin * format.block_bytes, row_bytes, buffers.raw.data());
  for (int64_t r = 0; r < rows; ++r) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(buffers.raw.data() + r * row_bytes);
    decode_blocks(format, bytes, blocks.count, slice.tensor->factor, buffers.decoded.data());
    const float* first = buffers.decoded.data() + (slice.col_begin - blocks.begin * format.block_size);
    std::copy(first, first + slice.num_cols, to + r * slice.num_cols);
  }
}

// The same of a tensor with groups.
void decode_groups(const TensorSlice& slice, int64_t row, int64_t rows, ReadBuffers buffers, float* to) {
  CAPSTAN_CHECK(slice.groups != nullptr);
  buffers.decoded.resize(std::max(buffers.decoded.size(), static_cast<size_t>(slice.tensor->cols)));
  for (int64_t r = 0; r < rows; ++r) {
    slice.groups->decode_row(file_row(*slice.tensor, slice.row_begin + row + r), buffers.row, buffers.decoded.data());
    const float* first = buffers.decoded.data() + slice.col_begin;
    std::copy(first, first + slice.num_cols, to + r * slice.num_cols);
  }
}

// Reads rows [row, row + rows) of a slice into `to`, in `dtype`, row-major.
void read_rows(const TensorSlice& slice, int64_t row, int64_t rows, DType dtype, ReadBuffers buffers, char* to) {
  const FileTensor& tensor = *slice.tensor;
  const bool is_quantized = tensor.format != nullptr || tensor.groups != nullptr;
  const DType file_dtype = is_quantized ? DType::kF32 : tensor.dtype;
  const int64_t count = rows * slice.num_cols;
  std::vector<float> values;
  char* from = to;
  if (is_quantized) {
    if (dtype != DType::kF32) {
      values.resize(static_cast<size_t>(count));
      from = reinterpret_cast<char*>(values.data());
    }
    const auto decode = tensor.format != nullptr ? decode_rows : decode_groups;
    decode(slice, row, rows, buffers, reinterpret_cast<float*>(from));
  } else {
    const int64_t row_bytes = file_bytes(tensor, slice.num_cols);
    if (tensor.dtype != dtype) {
      buffers.raw.resize(std::max(buffers.raw.size(), static_cast<size_t>(rows * row_bytes)));
      from = buffers.raw.data();
    }
    read_row_bytes(slice, row, rows, file_bytes(tensor, slice.col_begin), row_bytes, from);
  }
  if (file_dtype != dtype) convert(file_dtype, from, dtype, to, count);
  if (!has_non_finite(dtype, to, count)) return;
  if (has_non_finite(file_dtype, from, count)) refuse_non_finite(tensor.name);
  refuse_too_large(tensor.name, dtype);
}

// values = the x of -exp(x).
void take_exponents(const FileTensor& tensor, std::vector<float>& values) {
  for (float& value : values) {
    if (!(value < 0))
      throw Error(ErrorCode::kInvalidModel,
                  "tensor " + tensor.name + ": expected values below 0, got " + std::to_string(value));
    value = std::log(-value);
  }
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

// Whether every lane of a panel has a row.
bool is_full_panel(const MatrixSource& source, int64_t panel) {
  for (int lane = 0; lane < kPanelFeatures; ++lane)
    if (lane_source(source, panel, lane).slice < 0) return false;
  return true;
}

// Calls read(slice, row, lane, count) for the lanes of a panel that hold adjacent rows of one slice.
template <class Read>
void for_each_run(const MatrixSource& source, int64_t panel, const Read& read) {
  for (int lane = 0; lane < kPanelFeatures;) {
    const LaneSource first = lane_source(source, panel, lane);
    int count = 1;
    for (; lane + count < kPanelFeatures; ++count) {
      const LaneSource next = lane_source(source, panel, lane + count);
      if (next.slice != first.slice || (first.slice >= 0 && next.row != first.row + count)) break;
    }
    if (first.slice >= 0) read(source.slices[static_cast<size_t>(first.slice)], first.row, lane, count);
    lane += count;
  }
}

}  // namespace

BlockRange block_range(const TensorSlice& slice) {
  const int64_t size = slice.tensor->format->block_size;
  const int64_t begin = slice.col_begin / size, end = (slice.col_begin + slice.num_cols + size - 1) / size;
  return {begin, end - begin};
}

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

std::shared_ptr<const std::vector<char>> load_ordered(const FileTensor& tensor) {
  if (!tensor.is_transposed) return nullptr;
  const size_t item = dtype_size(tensor.dtype), rows = static_cast<size_t>(tensor.rows),
               cols = static_cast<size_t>(tensor.cols);
  std::vector<char> column(rows * item);
  auto ordered = std::make_shared<std::vector<char>>(rows * cols * item);
  for (size_t col = 0; col < cols; ++col) {
    read_fully(tensor.name, tensor.fd, tensor.offset + col * column.size(), column.data(), column.size());
    for (size_t row = 0; row < rows; ++row)
      std::memcpy(ordered->data() + (row * cols + col) * item, column.data() + row * item, item);
  }
  return ordered;
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
  const bool is_padded = row_elements != cols;
  rows_.resize(static_cast<size_t>(kPanelFeatures * row_bytes));
  if (is_padded) read_.resize(static_cast<size_t>(kPanelFeatures * cols * item));
  if (is_padded || !is_full_panel(source, panel)) std::fill(rows_.begin(), rows_.end(), 0);
  for_each_run(source, panel, [&](const TensorSlice& slice, int64_t row, int lane, int count) {
    char* to = rows_.data() + lane * row_bytes;
    read_rows(slice, row, count, dtype, {raw_, decoded_, row_}, is_padded ? read_.data() : to);
    for (int i = 0; is_padded && i < count; ++i)
      std::memcpy(to + i * row_bytes, read_.data() + i * cols * item, static_cast<size_t>(cols * item));
    bytes += count * file_bytes(*slice.tensor, cols);
  });
  return rows_.data();
}

void PanelReader::read_quantized(const MatrixSource& source, int64_t panel, const UseRow& use, int64_t& bytes) {
  for_each_run(source, panel, [&](const TensorSlice& slice, int64_t row, int lane, int count) {
    if (slice.groups != nullptr) {
      row_.first_col = slice.col_begin;
      for (int i = 0; i < count; ++i) {
        slice.groups->unpack_row(file_row(*slice.tensor, slice.row_begin + row + i), row_);
        use(lane + i, row_);
      }
      bytes += count * file_bytes(*slice.tensor, slice.num_cols);
      return;
    }
    CAPSTAN_CHECK(slice.tensor->format != nullptr);
    const BlockFormat& format = *slice.tensor->format;
    const BlockRange blocks = block_range(slice);
    const int64_t row_bytes = blocks.count * format.block_bytes;
    raw_.resize(std::max(raw_.size(), static_cast<size_t>(count * row_bytes)));
    read_row_bytes(slice, row, count, blocks.begin * format.block_bytes, row_bytes, raw_.data());
    row_.first_col = slice.col_begin % format.block_size;
    for (int i = 0; i < count; ++i) {
      const auto* bytes_of_row = reinterpret_cast<const uint8_t*>(raw_.data() + i * row_bytes);
      if (!unpack_blocks(format, bytes_of_row, blocks.count, slice.tensor->factor, row_))
        refuse_scale(slice.tensor->name, "NaN or Inf");
      use(lane + i, row_);
    }
    bytes += count * row_bytes;
  });
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
  const FileTensor& tensor = *slice.tensor;
  // A bias: its columns are the rows of a projection.
  const bool is_paired_bias = tensor.paired_head_dim != 0 && tensor.rows == 1;
  const TensorSlice read = is_paired_bias ? TensorSlice{&tensor, 0, 1, 0, tensor.cols} : slice;
  std::vector<float> values(static_cast<size_t>(read.num_rows * read.num_cols));
  std::vector<char> raw;
  std::vector<float> decoded;
  QuantRow row;
  read_rows(read, 0, read.num_rows, DType::kF32, {raw, decoded, row}, reinterpret_cast<char*>(values.data()));
  if (tensor.is_negated_exp) take_exponents(tensor, values);
  if (!is_paired_bias) return values;
  std::vector<float> ordered(static_cast<size_t>(slice.num_cols));
  for (size_t i = 0; i < ordered.size(); ++i)
    ordered[i] = values[static_cast<size_t>(file_row(tensor, slice.col_begin + static_cast<int64_t>(i)))];
  return ordered;
}

std::vector<float> read_taps(const MatrixSource& source, const LoadProgress& progress) {
  check_source(source);
  const int64_t taps = source.slices[0].num_cols, stride = (num_features(source) + 15) / 16 * 16;
  std::vector<float> all(static_cast<size_t>((taps + 1) * stride), 0.0f);
  float* to = all.data();
  for (const TensorSlice& slice : source.slices) {
    const std::vector<float> values = read_floats(slice);
    for (int64_t channel = 0; channel < slice.num_rows; ++channel, ++to)
      for (int64_t tap = 0; tap < taps; ++tap)
        to[tap * stride] = values[static_cast<size_t>(channel * taps + tap)];
    if (progress) progress(slice.num_rows * file_bytes(*slice.tensor, taps));
  }
  const std::vector<float> bias = read_bias(source);
  std::copy(bias.begin(), bias.end(), all.end() - stride);
  return all;
}

}  // namespace capstan
