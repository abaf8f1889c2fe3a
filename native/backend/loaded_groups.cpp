#include "native/backend/loaded_groups.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "native/backend/weight_faults.h"
#include "native/base/error.h"
#include "native/base/number.h"

namespace capstan {

namespace {

// With a larger one, a value may exceed f32.
constexpr float kMaxScale = 0x1p110f;

float e4m3_to_float(int byte) {
  const int exponent = byte >> 3 & 15, mantissa = byte & 7;
  if (exponent == 15 && mantissa == 7) return std::nanf("");
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                        : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return byte >= 128 ? -magnitude : magnitude;
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

// Returns the bits of 2^(byte - 127) as f32. A block scale is half of that. No finite scale for 254 and 255.
uint32_t e8m0_as_f32(uint32_t byte) {
  QuantType type;
  type.scale = ScaleKind::kE8m0;
  return float_bits(block_scale(type, byte + 1, 0));
}

}  // namespace

LoadedGroups::LoadedGroups(const FileTensor& tensor)
    : tensor_(tensor), groups_(*tensor.groups), kept_(kept_groups(tensor)), type_(code_type(groups_)) {
  numbers_ = groups_.table;
  for (auto code = static_cast<int>(numbers_.size()); code < 1 << groups_.bits; ++code)
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
  std::vector<float> factors;  // of scales in bytes
  if (groups_.scale_codes) {
    factors.resize(static_cast<size_t>((rows * cols - 1) / groups_.scale_codes->run + 1));
    const FileArray& array = groups_.scale_codes->factors;
    read_fully(tensor_.name, array.fd, array.offset, factors.data(), factors.size() * sizeof(float));
  }
  std::vector<float> e4m3_values;  // by byte
  for (uint32_t byte = 0; type_.scale == ScaleKind::kE4m3 && byte < 256; ++byte)
    e4m3_values.push_back(e4m3_scale(byte, tensor_.factor));
  for (int64_t i = 0; i < rows * cols; ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, bytes.data() + i * size, static_cast<size_t>(size));
    if (groups_.scales.type == ArrayType::kBf16) bits <<= 16;
    if (groups_.scales.type == ArrayType::kE8m0 && type_.scale == ScaleKind::kF32) bits = e8m0_as_f32(bits);
    if (groups_.scale_codes) {
      const ScaleCodes& codes = *groups_.scale_codes;
      bits = float_bits(codes.table[bits] * factors[static_cast<size_t>(i / codes.run)] + codes.offset);
    }
    if (groups_.layout == CodeLayout::kInt8Max) bits = float_bits(block_scale(type_, bits, 0) / 127);
    const float scale = e4m3_values.empty() ? block_scale(type_, bits, 0) : e4m3_values[bits];
    if (!(std::abs(scale) <= kMaxScale))
      refuse_scale(tensor_.name,
                   type_.scale == ScaleKind::kE4m3 ? "negative, NaN or too large" : "NaN, Inf or too large");
    const auto to = static_cast<size_t>(is_by_column(groups_) ? i % rows * cols + i / rows : i);
    scales_[to] = bits;
    scale_values_[to] = scale;
  }
}

void LoadedGroups::load_zeros() {
  const int64_t rows = num_row_groups(tensor_), cols = num_column_groups(tensor_),
                row_words = num_words(rows, groups_.bits);
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
  const int64_t a_size = is_awq ? tensor_.cols : num_words(tensor_.cols, groups_.bits);
  const int64_t b_size = is_awq ? num_words(tensor_.rows, groups_.bits) : tensor_.rows;
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
  const int64_t cols = tensor_.cols, words = num_words(cols, groups_.bits);
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
  } else if (has_byte_codes(groups_)) {
    read_fully(tensor_.name, tensor_.fd, tensor_.offset + static_cast<uint64_t>(row * cols), codes, out.codes.size());
    if (groups_.layout == CodeLayout::kInt8 || groups_.layout == CodeLayout::kInt8Max)
      for (int64_t col = 0; col < cols; ++col)
        codes[col] ^= 128;
  } else {
    out.words.resize(static_cast<size_t>(words));
    read_fully(tensor_.name, tensor_.fd, tensor_.offset + static_cast<uint64_t>(row * words * 4), out.words.data(),
               out.words.size() * 4);
    unpack_bits(out.words.data(), groups_.bits, codes, cols);
    for (int64_t col = 0; groups_.layout == CodeLayout::kTable4 && col < cols; col += 2)
      std::swap(codes[col], codes[col + 1]);
  }
}

void LoadedGroups::unpack_row(int64_t row, QuantRow& out) const {
  unpack_codes(row, out);
  out.group_size = kept_.group_size > 0 ? kept_.group_size : static_cast<int>(group_cols());
  const auto num_kept = static_cast<size_t>((tensor_.cols + out.group_size - 1) / out.group_size);
  out.factor.reset();
  if (type_.scale == ScaleKind::kE4m3) out.factor = tensor_.factor;
  out.scales.resize(num_kept);
  out.offsets.resize(num_kept);
  for (size_t i = 0; i < num_kept; ++i) {
    const size_t group = first_group(row) + i * static_cast<size_t>(out.group_size) / group_cols();
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
