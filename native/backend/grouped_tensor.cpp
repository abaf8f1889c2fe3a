#include "native/backend/grouped_tensor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <numeric>
#include <string>

#include "native/backend/backend.h"
#include "native/base/error.h"
#include "native/base/number.h"

namespace capstan {

namespace {

constexpr int kWordBits = 32;
// Columns that share a scale in packed weights, at most, because activations have one scale for the same columns.
constexpr int64_t kMaxKeptGroup = 64;
// Below this, padding and scales would take more memory than decoded weights.
constexpr int64_t kMinKeptGroup = 16;
// With a larger one, a value may exceed f32.
constexpr float kMaxScale = 0x1p110f;

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

int64_t words_of(int64_t count, int bits) {
  return ceil_div(count * bits, kWordBits);
}

struct LayoutInfo {
  const char* name;
  bool is_by_column;  // the file holds the transpose, scales and zero points too
  bool has_bytes;     // a code takes a byte, otherwise codes lie in words
  int min_bits, max_bits;
  int row_unit, col_unit;  // the sizes are multiples of these
};

constexpr LayoutInfo kLayouts[] = {
    {"rows", false, false, 2, 8, 1, 1}, {"gptq", true, false, 2, 8, 1, 1}, {"gptq_v2", true, false, 2, 8, 1, 1},
    {"awq", true, false, 4, 4, 8, 1},   {"int8", false, true, 8, 8, 1, 1}, {"fp8", false, true, 8, 8, 1, 1},
    {"fp4", false, false, 4, 4, 1, 8},
};

const LayoutInfo& info_of(const GroupedTensor& groups) {
  return kLayouts[static_cast<size_t>(groups.layout)];
}

bool is_by_column(const GroupedTensor& groups) {
  return info_of(groups).is_by_column;
}

// Keeps products of rows, columns and bytes within 64 bits.
constexpr int64_t kMaxSize = int64_t{1} << 30;

float e4m3_to_float(int byte) {
  const int exponent = byte >> 3 & 15, mantissa = byte & 7;
  if (exponent == 15 && mantissa == 7) return std::nanf("");
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                        : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return byte >= 128 ? -magnitude : magnitude;
}

QuantType type_of(const GroupedTensor& groups) {
  if (groups.layout == CodeLayout::kFp4) return find_block_format("mxfp4")->type;
  QuantType type;
  type.bits = groups.bits <= 4 ? 4 : groups.bits == 7 ? 8 : groups.bits;
  type.zero = 1 << (groups.bits - 1);
  type.scale = groups.scales.type == ArrayType::kF16 ? ScaleKind::kF16 : ScaleKind::kF32;
  type.offset = groups.zeros.fd < 0 ? OffsetKind::kNone : OffsetKind::kZeroPoint;
  return type;
}

// codes (count) = those of words whose codes do not cross the ends of words.
template <int kBits>
void unpack_words(const uint32_t* words, uint8_t* codes, int64_t count) {
  constexpr int kPerWord = kWordBits / kBits;
  constexpr uint32_t kMask = (1u << kBits) - 1;
  int64_t i = 0;
  for (; i + kPerWord <= count; i += kPerWord, ++words)
    for (int j = 0; j < kPerWord; ++j)
      codes[i + j] = static_cast<uint8_t>(*words >> (j * kBits) & kMask);
  for (int shift = 0; i < count; ++i, shift += kBits)
    codes[i] = static_cast<uint8_t>(*words >> shift & kMask);
}

// codes (count) = those of words, in order.
void unpack_bits(const uint32_t* words, int bits, uint8_t* codes, int64_t count) {
  if (bits == 2) return unpack_words<2>(words, codes, count);
  if (bits == 4) return unpack_words<4>(words, codes, count);
  if (bits == 8) return unpack_words<8>(words, codes, count);
  uint64_t left = 0;
  int num_bits = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (num_bits < bits) {
      left |= uint64_t{*words++} << num_bits;
      num_bits += kWordBits;
    }
    codes[i] = static_cast<uint8_t>(left & ((1u << bits) - 1));
    left >>= bits;
    num_bits -= bits;
  }
}

// Returns the code at `index` of words that are `stride` words apart.
uint32_t code_at(const uint32_t* words, int64_t stride, int bits, int64_t index) {
  const int64_t bit = index * bits;
  const int shift = static_cast<int>(bit % kWordBits);
  uint64_t pair = words[bit / kWordBits * stride];
  if (shift + bits > kWordBits) pair |= uint64_t{words[(bit / kWordBits + 1) * stride]} << kWordBits;
  return static_cast<uint32_t>(pair >> shift) & ((1u << bits) - 1);
}

// AWQ's place of a row among the eight of a word.
int64_t awq_place(int64_t row) {
  const int64_t in_word = row % 8;
  return row - in_word + in_word % 2 * 4 + in_word / 2;
}

// Adds 1 to each code of `count` words that hold codes in order. A carry ends with the last word that a code shares.
void add_ones(uint32_t* words, int64_t count, int bits) {
  uint64_t carry = 0;
  for (int64_t i = 0; i < count; ++i) {
    uint64_t sum = words[i] + carry;
    for (int bit = 0; bit < kWordBits; ++bit)
      if ((i * kWordBits + bit) % bits == 0) sum += uint64_t{1} << bit;
    words[i] = static_cast<uint32_t>(sum);
    carry = (i + 1) * kWordBits % bits == 0 ? 0 : sum >> kWordBits;
  }
}

}  // namespace

std::optional<CodeLayout> find_code_layout(std::string_view name) {
  for (size_t i = 0; i < std::size(kLayouts); ++i)
    if (name == kLayouts[i].name) return static_cast<CodeLayout>(i);
  return std::nullopt;
}

void check_groups(const FileTensor& tensor) {
  const GroupedTensor& groups = *tensor.groups;
  const LayoutInfo& layout = info_of(groups);
  const auto demand = [&](bool is_met, const std::string& expected) {
    if (!is_met)
      throw Error(ErrorCode::kInvalidModel, "tensor " + tensor.name + ": " + layout.name + ": expected " + expected);
  };
  const auto range = [](int64_t low, int64_t high) { return std::to_string(low) + " to " + std::to_string(high); };
  demand(tensor.rows <= kMaxSize && tensor.cols <= kMaxSize, range(1, kMaxSize) + " rows and columns");
  demand(groups.bits >= layout.min_bits && groups.bits <= layout.max_bits,
         range(layout.min_bits, layout.max_bits) + " bits, got " + std::to_string(groups.bits));
  demand(tensor.rows % layout.row_unit == 0,
         "a multiple of " + std::to_string(layout.row_unit) + " rows, got " + std::to_string(tensor.rows));
  demand(tensor.cols % layout.col_unit == 0,
         "a multiple of " + std::to_string(layout.col_unit) + " columns, got " + std::to_string(tensor.cols));
  demand(groups.group_rows >= 1 && groups.group_rows <= tensor.rows,
         "groups of " + range(1, tensor.rows) + " rows, got " + std::to_string(groups.group_rows));
  demand(groups.group_cols >= 1 && groups.group_cols <= tensor.cols,
         "groups of " + range(1, tensor.cols) + " columns, got " + std::to_string(groups.group_cols));
  demand(tensor.paired_head_dim == 0, "rows in order");
  const ArrayType scales = groups.scales.type, zeros = groups.zeros.type;
  if (groups.layout == CodeLayout::kFp4)
    demand(scales == ArrayType::kE8m0, "scales in e8m0");
  else
    demand(scales == ArrayType::kF32 || scales == ArrayType::kF16 || scales == ArrayType::kBf16,
           "scales in f32, f16 or bf16");
  if (groups.zeros.fd < 0) return;
  demand(groups.layout != CodeLayout::kFp8 && groups.layout != CodeLayout::kFp4, "no zero points");
  const bool has_words = zeros == ArrayType::kInt32 && !layout.has_bytes;
  const bool has_bytes = zeros == ArrayType::kInt8 && !layout.is_by_column;
  demand(has_words || has_bytes, layout.has_bytes ? "zero points in int8" : "zero points in int32");
}

int64_t array_type_size(ArrayType type) {
  switch (type) {
    case ArrayType::kF32:
    case ArrayType::kInt32:
      return 4;
    case ArrayType::kF16:
    case ArrayType::kBf16:
      return 2;
    case ArrayType::kE8m0:
    case ArrayType::kInt8:
      return 1;
  }
  return 0;
}

int64_t num_column_groups(const FileTensor& tensor) {
  return ceil_div(tensor.cols, tensor.groups->group_cols);
}

static int64_t num_row_groups(const FileTensor& tensor) {
  return ceil_div(tensor.rows, tensor.groups->group_rows);
}

GroupedBytes grouped_bytes(const FileTensor& tensor) {
  const GroupedTensor& groups = *tensor.groups;
  const int64_t row_groups = num_row_groups(tensor), column_groups = num_column_groups(tensor);
  GroupedBytes bytes;
  if (info_of(groups).has_bytes)
    bytes.codes = tensor.rows * tensor.cols;
  else if (groups.layout == CodeLayout::kAwq)
    bytes.codes = tensor.cols * words_of(tensor.rows, groups.bits) * 4;
  else
    bytes.codes = tensor.rows * words_of(tensor.cols, groups.bits) * 4;
  bytes.scales = row_groups * column_groups * array_type_size(groups.scales.type);
  if (groups.zeros.fd >= 0)
    bytes.zeros = groups.zeros.type == ArrayType::kInt8 ? row_groups * column_groups
                                                        : words_of(row_groups, groups.bits) * column_groups * 4;
  return bytes;
}

KeptGroups kept_groups(const FileTensor& tensor) {
  if (tensor.groups == nullptr) return {};
  const GroupedTensor& groups = *tensor.groups;
  const int64_t size = groups.group_cols >= tensor.cols    ? kMaxKeptGroup
                       : groups.group_cols > kMaxKeptGroup ? std::gcd(groups.group_cols, kMaxKeptGroup)
                                                           : groups.group_cols;
  if (groups.layout == CodeLayout::kFp8 || !groups.group_index.empty() || size < kMinKeptGroup) return {};
  return {type_of(groups), static_cast<int>(size)};
}

bool are_kept_alike(const FileTensor& a, const FileTensor& b) {
  return a.format == b.format && kept_groups(a) == kept_groups(b);
}

LoadedGroups::LoadedGroups(const FileTensor& tensor)
    : tensor_(tensor), groups_(*tensor.groups), kept_(kept_groups(tensor)), type_(type_of(groups_)) {
  for (int code = 0; code < 1 << groups_.bits; ++code)
    numbers_.push_back(groups_.layout == CodeLayout::kFp8 ? e4m3_to_float(code) : code_value(type_, code, 1, 0));
  load_scales();
  load_zeros();
  if (is_by_column(groups_)) load_codes();
}

size_t LoadedGroups::first_group(int64_t row) const {
  return static_cast<size_t>(row / groups_.group_rows * num_column_groups(tensor_));
}

size_t LoadedGroups::group_cols() const {
  return static_cast<size_t>(groups_.group_cols);
}

void LoadedGroups::load_scales() {
  const int64_t rows = num_row_groups(tensor_), cols = num_column_groups(tensor_);
  const int64_t size = array_type_size(groups_.scales.type);
  std::vector<uint8_t> bytes(static_cast<size_t>(rows * cols * size));
  read_fully(tensor_.name, groups_.scales.fd, groups_.scales.offset, bytes.data(), bytes.size());
  scales_.resize(static_cast<size_t>(rows * cols));
  scale_values_.resize(scales_.size());
  for (int64_t i = 0; i < rows * cols; ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, bytes.data() + i * size, static_cast<size_t>(size));
    if (groups_.scales.type == ArrayType::kBf16) bits <<= 16;
    const float scale = block_scale(type_, bits, 0);
    if (!(std::abs(scale) <= kMaxScale))
      throw Error(ErrorCode::kInvalidModel, "tensor " + tensor_.name + " holds a scale that is NaN, Inf or too large");
    const auto to = static_cast<size_t>(is_by_column(groups_) ? i % rows * cols + i / rows : i);
    scales_[to] = bits;
    scale_values_[to] = scale;
  }
}

void LoadedGroups::load_zeros() {
  const int64_t rows = num_row_groups(tensor_), cols = num_column_groups(tensor_),
                row_words = words_of(rows, groups_.bits);
  const bool is_by_col = is_by_column(groups_), has_bytes = groups_.zeros.type == ArrayType::kInt8;
  zeros_.resize(static_cast<size_t>(rows * cols));
  if (groups_.zeros.fd < 0) return;
  if (has_bytes) return read_fully(tensor_.name, groups_.zeros.fd, groups_.zeros.offset, zeros_.data(), zeros_.size());
  std::vector<uint32_t> words(static_cast<size_t>(row_words * cols));
  read_fully(tensor_.name, groups_.zeros.fd, groups_.zeros.offset, words.data(), words.size() * 4);
  if (groups_.layout == CodeLayout::kGptq)
    for (int64_t col = 0; col < cols; ++col)
      add_ones(words.data() + col * row_words, row_words, groups_.bits);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t col = 0; col < cols; ++col) {
      const int64_t place = groups_.layout == CodeLayout::kAwq ? awq_place(row) : row;
      const uint32_t* first = words.data() + (is_by_col ? col * row_words : col);
      const auto zero = static_cast<int>(code_at(first, is_by_col ? 1 : cols, groups_.bits, place));
      zeros_[static_cast<size_t>(row * cols + col)] = static_cast<int8_t>(zero - type_.zero);
    }
}

// A layout by column holds (A, B) words; in memory they are (B, A), so that those of a row lie side by side.
void LoadedGroups::load_codes() {
  constexpr int64_t kStrip = 16;
  const bool is_awq = groups_.layout == CodeLayout::kAwq;
  const int64_t a_size = is_awq ? tensor_.cols : words_of(tensor_.cols, groups_.bits);
  const int64_t b_size = is_awq ? words_of(tensor_.rows, groups_.bits) : tensor_.rows;
  codes_.resize(static_cast<size_t>(a_size * b_size));
  std::vector<uint32_t> strip(static_cast<size_t>(kStrip * b_size));
  for (int64_t first = 0; first < a_size; first += kStrip) {
    const int64_t count = std::min(kStrip, a_size - first);
    read_fully(tensor_.name, tensor_.fd, tensor_.offset + static_cast<uint64_t>(first * b_size * 4), strip.data(),
               static_cast<size_t>(count * b_size * 4));
    for (int64_t b = 0; b < b_size; ++b)
      for (int64_t a = 0; a < count; ++a)
        codes_[static_cast<size_t>(b * a_size + first + a)] = strip[static_cast<size_t>(a * b_size + b)];
  }
}

void LoadedGroups::unpack_codes(int64_t row, QuantRow& out) const {
  const int64_t cols = tensor_.cols, words = words_of(cols, groups_.bits);
  out.codes.resize(static_cast<size_t>(cols));
  uint8_t* codes = out.codes.data();
  if (groups_.layout == CodeLayout::kAwq) {
    const int64_t place = awq_place(row);
    const int shift = static_cast<int>(place % 8) * 4;
    const uint32_t* from = codes_.data() + place / 8 * cols;
    for (int64_t col = 0; col < cols; ++col)
      codes[col] = static_cast<uint8_t>(from[col] >> shift & 15);
  } else if (is_by_column(groups_)) {
    unpack_bits(codes_.data() + row * words, groups_.bits, codes, cols);
  } else if (info_of(groups_).has_bytes) {
    read_fully(tensor_.name, tensor_.fd, tensor_.offset + static_cast<uint64_t>(row * cols), codes, out.codes.size());
    if (groups_.layout == CodeLayout::kInt8)
      for (int64_t col = 0; col < cols; ++col)
        codes[col] ^= 128;
  } else {
    out.words.resize(static_cast<size_t>(words));
    read_fully(tensor_.name, tensor_.fd, tensor_.offset + static_cast<uint64_t>(row * words * 4), out.words.data(),
               out.words.size() * 4);
    unpack_bits(out.words.data(), groups_.bits, codes, cols);
  }
}

void LoadedGroups::unpack_row(int64_t row, QuantRow& out) const {
  unpack_codes(row, out);
  out.group_size = kept_.group_size;
  const auto num_kept = static_cast<size_t>(ceil_div(tensor_.cols, kept_.group_size));
  out.scales.resize(num_kept);
  out.offsets.resize(num_kept);
  for (size_t i = 0; i < num_kept; ++i) {
    const size_t group = first_group(row) + i * static_cast<size_t>(kept_.group_size) / group_cols();
    out.scales[i] = scales_[group];
    out.offsets[i] = static_cast<uint8_t>(zeros_[group]);
  }
}

void LoadedGroups::decode_row(int64_t row, QuantRow& memory, float* out) const {
  unpack_codes(row, memory);
  const size_t first = first_group(row), cols = memory.codes.size();
  const uint8_t* codes = memory.codes.data();
  const float *numbers = numbers_.data(), *scales = scale_values_.data() + first;
  const int8_t* zeros = zeros_.data() + first;
  const std::vector<int32_t>& index = groups_.group_index;
  for (size_t col = 0; col < index.size(); ++col)
    out[col] = scales[index[col]] * (numbers[codes[col]] - static_cast<float>(zeros[index[col]]));
  if (!index.empty()) return;
  for (size_t begin = 0, group = 0; begin < cols; begin += group_cols(), ++group) {
    const float scale = scales[group], zero = zeros[group];
    const size_t end = std::min(cols, begin + group_cols());
    for (size_t col = begin; col < end; ++col)
      out[col] = scale * (numbers[codes[col]] - zero);
  }
}

std::shared_ptr<const LoadedGroups> load_groups(const FileTensor& tensor) {
  return tensor.groups == nullptr ? nullptr : std::make_shared<const LoadedGroups>(tensor);
}

}  // namespace capstan
