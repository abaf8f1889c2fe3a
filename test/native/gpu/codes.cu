// Products and embeddings of quantized weights: the same bits as with the decoded weights as 16-bit floats, which other
// tests compare with double precision.
#include <algorithm>
#include <memory>
#include <random>
#include <set>

#include "cuda/codes.h"
#include "cuda/wgmma_layout.h"
#include "test/native/gpu/kernel_testing.h"

namespace capstan::testing {
namespace {

// A tensor as a file holds it, without its data.
struct QuantizedTensor {
  std::string name;
  FileTensor tensor;
  WeightFormat format = WeightFormat::kFile;
};

QuantizedTensor own_tensor(WeightFormat format) {
  return {format == WeightFormat::kInt8 ? "int8" : "int4", {}, format};
}
QuantizedTensor block_tensor(const std::string& name) {
  QuantizedTensor made{name, {}};
  made.tensor.format = find_block_format(name);
  return made;
}
QuantizedTensor grouped_tensor(int bits, int64_t group_cols, ArrayType scales, bool has_zeros) {
  auto groups = std::make_shared<GroupedTensor>();
  groups->bits = bits;
  groups->group_cols = group_cols;
  groups->scales.type = scales;
  if (has_zeros) groups->zeros = {3, 0, ArrayType::kInt32};
  QuantizedTensor made{std::to_string(bits) + " bits in groups of " + std::to_string(group_cols), {}};
  made.tensor.groups = groups;
  return made;
}

QuantizedTensor fp8_tensor(int64_t group_cols, ArrayType scales) {
  QuantizedTensor made = grouped_tensor(8, group_cols, scales, false);
  auto groups = std::make_shared<GroupedTensor>(*made.tensor.groups);
  groups->layout = CodeLayout::kFp8;
  made.tensor.groups = groups;
  made.name = "e4m3 in groups of " + std::to_string(group_cols);
  return made;
}

std::vector<QuantizedTensor> tensors() {
  std::vector<QuantizedTensor> all = {own_tensor(WeightFormat::kInt8), own_tensor(WeightFormat::kInt4)};
  for (const char* name : {"q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl",
                           "iq4_xs", "mxfp4", "nvfp4"})
    all.push_back(block_tensor(name));
  all.push_back(grouped_tensor(4, 128, ArrayType::kF16, false));
  all.push_back(grouped_tensor(4, 128, ArrayType::kF16, true));
  all.push_back(grouped_tensor(4, 32, ArrayType::kBf16, true));
  all.push_back(grouped_tensor(8, int64_t{1} << 20, ArrayType::kF32, false));
  all.push_back(grouped_tensor(8, 64, ArrayType::kBf16, false));
  all.push_back(grouped_tensor(8, 16, ArrayType::kF16, true));
  all.push_back(fp8_tensor(128, ArrayType::kF32));
  all.push_back(fp8_tensor(int64_t{1} << 20, ArrayType::kBf16));
  return all;
}

// A matrix in codes, and the same matrix as 16-bit floats.
struct Twins {
  DeviceMatrix coded, plain;
  OnDevice<uint8_t> codes, high, records;
  OnDevice<uint16_t> blocks, floats;

  Twins(const DeviceCodes& layout, const HostCodes& host, const std::vector<uint8_t>& packed,
        const std::vector<uint16_t>& decoded, const float* bias, int64_t rows, const DepthSplit& split)
      : codes(packed), high(host.high), records(host.records), blocks(host.blocks), floats(decoded) {
    plain = {floats.get(), bias, rows, split};
    coded = {nullptr, bias, rows, split, layout};
    coded.codes.codes = codes.get();
    coded.codes.high = high.get();
    coded.codes.records = records.get();
    coded.codes.blocks = blocks.get();
  }
};

uint32_t random_record(const DeviceCodes& codes, std::mt19937& random) {
  const float scale = 0.001f + 0.03f * static_cast<float>(random() % 1000) / 1000.0f;
  const auto signed_scale = random() % 4 == 0 ? -scale : scale;
  uint32_t record = 0;
  switch (codes.scale) {
    case DeviceScale::kF16:
      record = float_to_f16(signed_scale);
      break;
    case DeviceScale::kBf16:
      record = float_to_bf16(signed_scale);
      break;
    case DeviceScale::kF32:
      return float_bits(signed_scale);
    case DeviceScale::kE8m0:
      return 115 + random() % 8;
    case DeviceScale::kTimesF16:
      record = random() % 128;
      break;
  }
  if (codes.offset == OffsetKind::kF16) record |= uint32_t{float_to_f16(signed_scale * 5)} << 16;
  if (codes.offset == OffsetKind::kTimesF16) record |= random() % 256 << 8;
  if (codes.offset == OffsetKind::kZeroPoint) record |= ((random() % 16 + 248) & 0xff) << 16;
  return record;
}

RowCodes random_row(const DeviceCodes& codes, const DepthSplit& split, int bits, std::mt19937& random) {
  RowCodes row;
  for (int64_t k = 0; k < split.parts * split.part_cols; ++k)
    row.codes.push_back(static_cast<uint8_t>(random() % (1u << bits)));
  // No NaN.
  for (uint8_t& code : row.codes)
    if (codes.is_fp8 && (code & 0x7f) == 0x7f) code = 0x80;
  // Columns of a group share a record.
  std::vector<uint32_t> by_group;
  for (int i = 0; i < codes.num_groups; ++i)
    by_group.push_back(random_record(codes, random));
  for (int part = 0; part < split.parts; ++part)
    for (int64_t k = 0; k < split.part_cols; k += 16)
      row.records.push_back(by_group[static_cast<size_t>(codes.group(part, k))]);
  for (int i = 0; i < codes.num_blocks; ++i) {
    row.block_scales.push_back(float_to_f16(0.0005f + 0.0001f * static_cast<float>(random() % 10)));
    if (codes.offset == OffsetKind::kTimesF16)
      row.block_offsets.push_back(float_to_f16(0.0002f * static_cast<float>(random() % 10)));
  }
  return row;
}

struct CodeCase {
  int64_t rows, cols, total_cols;  // of this rank, and K of all ranks
  int64_t col_begin = 0;
};

std::unique_ptr<Twins> make_twins(const QuantizedTensor& quantized, FloatType type, const CodeCase& shape,
                                  const float* bias) {
  FileTensor tensor = quantized.tensor;
  tensor.rows = shape.rows, tensor.cols = shape.total_cols;
  MatrixSource source;
  source.format = quantized.format;
  source.slices = {{&tensor, 0, shape.rows, shape.col_begin, shape.cols}};
  const DepthSplit split = split_depth(shape.cols, shape.total_cols, row_parallel_parts(shape.total_cols));
  const std::optional<DeviceCodes> layout = codes_of(source, split, type);
  if (!layout) return nullptr;
  const int bits = low_bits(layout->kind) + layout->high_bits;
  const int64_t num_tiles = (shape.rows + 15) / 16;
  std::vector<uint8_t> packed(static_cast<size_t>(num_tiles * code_tile_bytes(*layout, split)), 0);
  HostCodes host;
  host.codes = packed.data();
  resize(host, *layout, num_tiles, split);
  std::vector<float> values;
  std::mt19937 random(7);
  for (int64_t row = 0; row < shape.rows; ++row) {
    const RowCodes codes = random_row(*layout, split, bits, random);
    pack_row(codes, *layout, split, type, row, quantized.name, host);
    const std::vector<float> decoded = decode_row(codes, *layout, split);
    values.insert(values.end(), decoded.begin(), decoded.end());
  }
  return std::make_unique<Twins>(*layout, host, packed, packed_weights(type, values, shape.rows, split), bias,
                                 shape.rows, split);
}

// Widths at which parts begin inside of groups, and at which they do not; a rank's share that begins inside of a block.
const std::vector<CodeCase> kCases = {{40, 64, 64},        {48, 96, 96},     {16, 144, 1152, 288}, {32, 512, 512},
                                      {24, 256, 512, 256}, {40, 2048, 2048}, {48, 128, 1024, 640}};

bool has_blocks_for(const QuantizedTensor& quantized, const CodeCase& shape) {
  return quantized.tensor.format == nullptr || shape.total_cols % quantized.tensor.format->block_size == 0;
}

template <class Check>
void for_each_case(const std::vector<CodeCase>& cases, const Check& check) {
  std::set<CodeKind> kinds;
  for (const FloatType type : kTypes)
    for (const QuantizedTensor& quantized : tensors()) {
      int num_kept = 0;
      for (const CodeCase& shape : cases) {
        if (!has_blocks_for(quantized, shape)) continue;
        const OnDevice<float> bias(noise(3, round_up(shape.rows, 16), 1));
        const std::unique_ptr<Twins> twins = make_twins(quantized, type, shape, bias.get());
        if (twins == nullptr) continue;
        ++num_kept;
        kinds.insert(twins->coded.codes.kind);
        check(type, *twins, shape,
              quantized.name + ", " + std::to_string(shape.rows) + " x " + std::to_string(shape.cols));
      }
      EXPECT(num_kept > 0);
    }
  EXPECT_EQ(kinds.size(), size_t{5});
}

std::vector<uint32_t> output_bits(const OnDevice<float>& out, const OnDevice<uint16_t>& gated) {
  std::vector<uint32_t> bits;
  for (const float value : out.read())
    bits.push_back(float_bits(value));
  for (const uint16_t value : gated.read())
    bits.push_back(value);
  return bits;
}

TEST(kernel_gemm_of_codes_has_the_bits_of_decoded_weights) {
  for_each_case(kCases, [](FloatType type, const Twins& twins, const CodeCase& shape, const std::string& what) {
    const DepthSplit& split = twins.plain.split;
    constexpr int kMostTokens = 70;
    const OnDevice<uint16_t> acts(packed_acts(type, noise(2, kMostTokens * shape.cols, 1), kMostTokens, split));
    const DepthSplit gated_split = split_depth(shape.rows / 2, shape.rows / 2, row_parallel_parts(shape.rows / 2));
    const auto run = [&](const DeviceMatrix& weights, int tokens, GemmOutput output, bool is_gemv) {
      const int64_t stride = shape.rows + 3;
      const OnDevice<float> out(noise(4, kMaxParts * kMostTokens * stride, 1));
      const OnDevice<uint16_t> gated(static_cast<size_t>(round_up(kMostTokens, 8) * gated_split.padded()));
      GemmArgs args;
      args.type = type;
      args.output = output;
      args.weights = weights;
      args.acts = acts.get();
      args.num_tokens = tokens;
      args.out = out.get();
      args.out_stride = stride;
      args.gated = gated.get();
      args.gated_split = gated_split;
      GemvArgs alone;
      alone.product = args;
      alone.max_blocks = 2;
      is_gemv ? launch_gemv(alone, stream()) : launch_gemm(args, device_resources(), stream());
      return output_bits(out, gated);
    };
    const auto expect_same = [&](int tokens, GemmOutput output, bool is_gemv) {
      if (run(twins.coded, tokens, output, is_gemv) != run(twins.plain, tokens, output, is_gemv))
        fail(__FILE__, __LINE__, what + ", " + std::to_string(tokens) + " tokens" + (is_gemv ? ", gemv" : ""));
    };
    expect_same(1, GemmOutput::kStore, false);
    expect_same(30, GemmOutput::kResidual, false);
    expect_same(is_full() ? 70 : 40, GemmOutput::kParts, false);
    if (shape.rows % 16 == 0) expect_same(5, GemmOutput::kGated, false);
    if (!supports_gemv(twins.coded)) return;
    expect_same(3, GemmOutput::kStore, true);
    if (shape.rows % 16 == 0) expect_same(4, GemmOutput::kGated, true);
  });
}

TEST(kernel_gemm_wgmma_of_codes_has_the_bits_of_decoded_weights) {
  if (!has_wgmma()) return;
  std::vector<CodeCase> cases = {{40, 96, 96}, {16, 144, 1152, 288}, {24, 256, 512, 256}, {48, 128, 1024, 640}};
  // Two blocks share K. The second one begins inside of a part.
  cases.push_back({16, 4128, 4128});
  for_each_case(cases, [](FloatType type, const Twins& twins, const CodeCase& shape, const std::string& what) {
    const DepthSplit& split = twins.plain.split;
    const int num_tokens = shape.cols > 4096 ? 3 : 70;
    const std::vector<float> acts = rounded(type, noise(2, num_tokens * shape.cols, 1));
    std::vector<uint16_t> act_bits(static_cast<size_t>(num_tokens * split.padded()), 0);
    for (int64_t token = 0; token < num_tokens; ++token)
      for (int64_t k = 0; k < shape.cols; ++k)
        act_bits[static_cast<size_t>(token * split.padded() + split.place(k))] =
            bits_of(type, acts[static_cast<size_t>(token * shape.cols + k)]);
    const OnDevice<uint16_t> device_acts(act_bits);
    ActMaps maps;
    EXPECT(make_act_maps(maps, device_acts.get(), num_tokens, split.padded()));
    const OnDevice<int32_t> flags(std::vector<int32_t>(static_cast<size_t>(num_tile_flags(shape.rows, num_tokens)), 0));
    const DepthSplit gated_split = split_depth(shape.rows / 2, shape.rows / 2, row_parallel_parts(shape.rows / 2));
    const auto run = [&](const DeviceMatrix& weights, GemmOutput output, int width) {
      const int64_t stride = shape.rows + 3;
      const OnDevice<float> out(noise(4, num_tokens * stride, 1));
      const OnDevice<uint16_t> gated(static_cast<size_t>(num_tokens * gated_split.padded()));
      GemmArgs args;
      args.type = type;
      args.output = output;
      args.weights = weights;
      args.act_maps = &maps;
      args.num_tokens = num_tokens;
      args.out = out.get();
      args.out_stride = stride;
      args.gated = gated.get();
      args.gated_split = gated_split;
      if (!has_acts(output)) args.tile_flags = flags.get();
      launch_gemm_wgmma(args, 2, stream(), width);
      return output_bits(out, gated);
    };
    const GemmOutput output = shape.rows == 48   ? GemmOutput::kGated
                              : shape.rows == 40 ? GemmOutput::kResidual
                                                 : GemmOutput::kStore;
    const int width = shape.rows == 24 ? 256 : 128;
    if (run(twins.coded, output, width) != run(twins.plain, output, 96)) fail(__FILE__, __LINE__, what);
  });
}

TEST(kernel_embedding_of_codes_has_the_bits_of_decoded_weights) {
  for_each_case(kCases, [](FloatType type, const Twins& twins, const CodeCase& shape, const std::string& what) {
    const std::vector<int32_t> ids = {0, 7, 8, 15, static_cast<int32_t>(shape.rows) - 1};
    const OnDevice<int32_t> device_ids(ids);
    const auto run = [&](const DeviceMatrix& table) {
      const OnDevice<float> hidden(ids.size() * static_cast<size_t>(shape.cols));
      EmbedArgs args;
      args.type = type;
      args.table = table;
      args.ids = args.drawn_ids = device_ids.get();
      args.num_tokens = static_cast<int>(ids.size());
      args.hidden_size = shape.cols;
      args.hidden = hidden.get();
      launch_embed(args, stream());
      std::vector<uint32_t> bits;
      for (const float value : hidden.read())
        bits.push_back(float_bits(value));
      return bits;
    };
    if (run(twins.coded) != run(twins.plain)) fail(__FILE__, __LINE__, what);
  });
}

}  // namespace
}  // namespace capstan::testing
