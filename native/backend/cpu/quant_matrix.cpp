#include "native/backend/cpu/quant_matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "native/base/error.h"
#include "native/base/number.h"

namespace capstan {

namespace {

constexpr int kLanes = kPanelFeatures;

bool has_blocks(const QuantType& type) {
  return type.scale == ScaleKind::kTimesF16 || type.offset == OffsetKind::kTimesF16;
}

// Element i of an array of numbers of 1, 2 or 4 bytes.
void write_bits(char* to, int64_t i, int bytes, uint32_t value) {
  if (bytes == 1) {
    to[i] = static_cast<char>(value);
  } else if (bytes == 2) {
    std::memcpy(to + i * 2, &value, 2);
  } else {
    std::memcpy(to + i * 4, &value, 4);
  }
}

uint32_t read_bits(const char* from, int64_t i, int bytes) {
  uint32_t value = 0;
  std::memcpy(&value, from + i * bytes, static_cast<size_t>(bytes));
  return value;
}

// Where the bits 4 and above of a code lie behind the 64 bytes of low bits of a pair.
struct HighBits {
  int byte, shift;
};

// `byte`: lane * 4 + the place of the code in its word.
HighBits high_bits(int bits, int word, int byte) {
  const int count = bits - 4, num_bytes = 16 * count;
  return {64 + byte % num_bytes, (word * (64 / num_bytes) + byte / num_bytes) * count};
}

// Stores the codes of one lane of a pair of words. `pair` is its first byte; the lane's bits are 0.
template <int kBits>
void store_pair(const uint8_t* codes, int lane, char* pair) {
  uint32_t words[2];
  std::memcpy(words, codes, sizeof words);
  if constexpr (kBits == 8) {
    std::memcpy(pair + lane * 4, &words[0], 4);
    std::memcpy(pair + 64 + lane * 4, &words[1], 4);
    return;
  }
  const uint32_t nibbles = (words[0] & 0x0f0f0f0fu) | (words[1] & 0x0f0f0f0fu) << 4;
  std::memcpy(pair + lane * 4, &nibbles, 4);
  if constexpr (kBits == 5 || kBits == 6) {
    // As in high_bits, for four codes at a time.
    constexpr int kCount = kBits - 4, kFieldLanes = 4 * kCount;
    constexpr uint32_t kMask = kCount == 2 ? 0x03030303u : 0x01010101u;
    char* high = pair + 64 + lane % kFieldLanes * 4;
    const int shift = lane / kFieldLanes * kCount;
    uint32_t bits;
    std::memcpy(&bits, high, sizeof bits);
    bits |= (words[0] >> 4 & kMask) << shift | (words[1] >> 4 & kMask) << (shift + 16 / kFieldLanes * kCount);
    std::memcpy(high, &bits, sizeof bits);
  }
}

// Returns code `i`, 0 to 7, of one lane of a pair.
int load_code(const char* pair, int bits, int lane, int i) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(pair);
  const int word = i / 4, byte = lane * 4 + i % 4;
  if (bits == 8) return bytes[word * 64 + byte];
  const int low = bytes[byte] >> (word * 4) & 15;
  if (bits == 4) return low;
  const HighBits at = high_bits(bits, word, byte);
  return low | (bytes[at.byte] >> at.shift & ((1 << (bits - 4)) - 1)) << 4;
}

// Stores the codes of a run, padded to whole pairs. Returns the byte after them.
template <int kBits>
char* store_run(const uint8_t* codes, const QuantRun& run, int lane, char* pair) {
  const int num_whole = run.count / 8;
  for (int i = 0; i < num_whole; ++i, codes += 8, pair += quant_pair_bytes(kBits))
    store_pair<kBits>(codes, lane, pair);
  if (run.num_words == num_whole * 2) return pair;
  uint8_t padded[8] = {};
  std::memcpy(padded, codes, static_cast<size_t>(run.count % 8));
  store_pair<kBits>(padded, lane, pair);
  return pair + quant_pair_bytes(kBits);
}

template <int kBits>
void store_codes(const QuantRow& row, const QuantWeights& quant, int lane, char* panel) {
  char* pair = panel + quant.codes_at;
  for (int r = 0; r < quant.num_runs; ++r)
    pair = store_run<kBits>(row.codes.data() + row.first_col + quant.runs[r].begin, quant.runs[r], lane, pair);
}

}  // namespace

std::vector<QuantRun> make_runs(int64_t cols, int num_parts, const QuantGroups& groups) {
  std::vector<QuantRun> runs;
  const int64_t part_size = cols / num_parts;
  size_t span = 0;  // index of its first run
  for (int64_t k = 0; k < cols;) {
    const int64_t in_part = k % part_size;
    const int64_t from_group = groups.first_block_col + k;
    const int64_t left_of_group = groups.group_size - from_group % groups.group_size;
    const int64_t count = std::min(left_of_group, part_size - in_part);
    QuantRun run;
    run.begin = static_cast<int32_t>(k);
    run.count = static_cast<int32_t>(count);
    run.num_words = static_cast<int32_t>((count + 7) / 8 * 2);
    run.block = static_cast<int32_t>(from_group / groups.block_size);
    run.ends_part = in_part + count == part_size;
    if (in_part == 0 || k + count - runs[span].begin > kQuantSpan) span = runs.size();
    runs.push_back(run);
    ++runs[span].span_runs;
    k += count;
  }
  return runs;
}

QuantWeights make_quant(const QuantType& type, const std::vector<QuantRun>& runs) {
  QuantWeights quant;
  quant.type = type;
  quant.runs = runs.data();
  quant.num_runs = static_cast<int>(runs.size());
  for (const QuantRun& run : runs) {
    quant.num_words += run.num_words;
    quant.num_block_words += (run.num_words + kBlockWords - 1) / kBlockWords * kBlockWords;
  }
  const int64_t run_lanes = int64_t{quant.num_runs} * kLanes;
  const int64_t block_bytes = has_blocks(type) ? (int64_t{runs.back().block} + 1) * kLanes * 2 : 0;
  quant.offsets_at = run_lanes * scale_bytes(type);
  quant.block_scales_at = quant.offsets_at + run_lanes * offset_bytes(type);
  quant.block_offsets_at = quant.block_scales_at + (type.scale == ScaleKind::kTimesF16 ? block_bytes : 0);
  if (type.scale == ScaleKind::kE4m3) quant.block_offsets_at += 2 * kLanes * int64_t{sizeof(float)};
  const int64_t end = quant.block_offsets_at + (type.offset == OffsetKind::kTimesF16 ? block_bytes : 0);
  quant.codes_at = (end + 63) / 64 * 64;
  quant.panel_bytes = quant.codes_at + quant.num_words / 2 * quant_pair_bytes(type.bits);
  return quant;
}

void quantize_values(const float* values, int64_t cols, int bits, int group_size, const CpuKernels& kernels,
                     const std::string& name, QuantRow& row) {
  quantize_groups(values, cols, group_size, name, row, [&](const float* group, int count, uint8_t* codes) {
    return kernels.quantize_group({group, count, bits, codes});
  });
}

void pack_quantized_row(const QuantRow& row, const QuantWeights& quant, int lane, char* panel) {
  const QuantType& type = quant.type;
  if (type.bits == 4)
    store_codes<4>(row, quant, lane, panel);
  else if (type.bits == 5)
    store_codes<5>(row, quant, lane, panel);
  else if (type.bits == 6)
    store_codes<6>(row, quant, lane, panel);
  else
    store_codes<8>(row, quant, lane, panel);
  const int scale_size = scale_bytes(type), offset_size = offset_bytes(type);
  size_t group = 0;
  for (int r = 0; r < quant.num_runs; ++r) {
    const int64_t first = row.first_col + quant.runs[r].begin, at = int64_t{r} * kLanes + lane;
    while (static_cast<int64_t>(group + 1) * row.group_size <= first)
      ++group;
    write_bits(panel, at, scale_size, row.scales[group]);
    if (offset_size > 0) write_bits(panel + quant.offsets_at, at, offset_size, row.offsets[group]);
  }
  if (row.factor) {
    write_bits(panel + quant.block_scales_at, lane, 4, float_bits(row.factor->high));
    write_bits(panel + quant.block_scales_at, kLanes + lane, 4, float_bits(row.factor->low));
  }
  for (size_t i = 0; i < row.block_scales.size(); ++i)
    write_bits(panel + quant.block_scales_at, static_cast<int64_t>(i) * kLanes + lane, 2, row.block_scales[i]);
  for (size_t i = 0; i < row.block_offsets.size(); ++i)
    write_bits(panel + quant.block_offsets_at, static_cast<int64_t>(i) * kLanes + lane, 2, row.block_offsets[i]);
}

void gather_quantized(const QuantWeights& quant, const char* panel, int lane, float* out) {
  const QuantType& type = quant.type;
  const char* pair = panel + quant.codes_at;
  ScaleFactor tensor_factor;
  if (type.scale == ScaleKind::kE4m3)
    tensor_factor = {bits_float(read_bits(panel + quant.block_scales_at, lane, 4)),
                     bits_float(read_bits(panel + quant.block_scales_at, kLanes + lane, 4))};
  for (int r = 0; r < quant.num_runs; ++r) {
    const QuantRun& run = quant.runs[r];
    const int64_t at = int64_t{r} * kLanes + lane, block_at = int64_t{run.block} * kLanes + lane;
    uint16_t factor = 0, offset_factor = 0;  // of the block
    if (type.scale == ScaleKind::kTimesF16)
      factor = static_cast<uint16_t>(read_bits(panel + quant.block_scales_at, block_at, 2));
    if (type.offset == OffsetKind::kTimesF16)
      offset_factor = static_cast<uint16_t>(read_bits(panel + quant.block_offsets_at, block_at, 2));
    const float scale = block_scale(type, read_bits(panel, at, scale_bytes(type)), factor, tensor_factor);
    const auto offset_bits = static_cast<uint16_t>(read_bits(panel + quant.offsets_at, at, offset_bytes(type)));
    const float offset = block_offset(type, offset_bits, offset_factor);
    for (int i = 0; i < run.count; ++i) {
      const int code = load_code(pair + i / 8 * quant_pair_bytes(type.bits), type.bits, lane, i % 8);
      *out++ = code_value(type, code, scale, offset);
    }
    pair += run.num_words / 2 * quant_pair_bytes(type.bits);
  }
}

}  // namespace capstan
