// Quantized tensors whose scales are separate arrays: values bit for bit with those of test/oracle/group_values.py,
// and descriptions and files that do not fit.
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "native/backend/cpu/cpu_backend.h"
#include "native/backend/cpu/isa.h"
#include "native/backend/cpu/matrix.h"
#include "native/backend/panel_reader.h"
#include "native/model/recurrent_weights.h"
#include "test/native/group_values.h"
#include "test/native/testing.h"

namespace capstan::testing {
namespace {

GroupValues values_of(const std::string& name) {
  for (const GroupValues& values : read_group_values())
    if (values.name == name) return values;
  throw std::runtime_error("no case " + name);
}

void expect_same_bits(const std::vector<float>& got, const GroupValues& values, int64_t col_begin, int64_t num_cols) {
  for (int64_t row = 0; row < values.rows; ++row)
    for (int64_t col = 0; col < num_cols; ++col)
      EXPECT_EQ(float_bits(got[static_cast<size_t>(row * num_cols + col)]),
                float_bits(values.values[static_cast<size_t>(row * values.cols + col_begin + col)]));
}

TEST(groups_decode_to_the_bits_of_their_definition) {
  const std::vector<GroupValues> all = read_group_values();
  EXPECT_EQ(all.size(), size_t{24});
  for (const GroupValues& values : all) {
    GroupFile file(values);
    file.open();
    for (const auto& [begin, count] : {std::pair{0, 64}, std::pair{16, 48}, std::pair{20, 33}})
      expect_same_bits(read_floats(file.slice(begin, count)), values, begin, count);
  }
}

TEST(groups_are_packed_without_a_change_of_their_values) {
  Team team({-1, -1}, false);
  HugePool pool;
  int num_kept = 0;
  for (const GroupValues& values : read_group_values()) {
    GroupFile file(values);
    file.open();
    for (const auto& [begin, count] : {std::pair{0, 64}, std::pair{32, 32}, std::pair{20, 33}}) {
      MatrixSource source;
      source.slices = {file.slice(begin, count)};
      source.format = WeightFormat::kFile;
      const auto matrix = pack_matrix(source, DType::kF32, cpu_kernels(CpuIsa::kPortable), team, pool, {});
      std::vector<float> got(static_cast<size_t>(values.rows * count));
      for (int64_t row = 0; row < values.rows; ++row)
        gather_row(*matrix, row, got.data() + row * count);
      expect_same_bits(got, values, begin, count);
      const bool is_decoded = values.layout == "fp8" || values.layout == "table4" || values.name == "gptq-4-act-order";
      EXPECT_EQ(matrix->quant.type.bits == 0, is_decoded);
      num_kept += is_decoded ? 0 : 1;
    }
  }
  EXPECT_EQ(num_kept, 18 * 3);
}

TEST(groups_of_heads_stored_as_pairs_are_read_in_order) {
  for (const char* name : {"awq", "packed-4", "fp8-channel"}) {
    const GroupValues values = values_of(name);
    GroupFile file(values);
    file.entry.paired_head_dim = 8;
    file.entry.paired_rows = 4;
    file.open();
    Team team({-1, -1}, false);
    HugePool pool;
    MatrixSource source;
    source.slices = {file.whole()};
    source.format = WeightFormat::kFile;
    const auto matrix = pack_matrix(source, DType::kF32, cpu_kernels(CpuIsa::kPortable), team, pool, {});
    const std::vector<float> read = read_floats(file.whole());
    std::vector<float> row(static_cast<size_t>(values.cols));
    const int64_t order[] = {0, 2, 1, 3, 4, 5, 6, 7};  // the row of the file by the row of a head
    for (int64_t r = 0; r < values.rows; ++r) {
      gather_row(*matrix, r, row.data());
      for (int64_t col = 0; col < values.cols; ++col) {
        const float wanted = values.values[static_cast<size_t>((r / 8 * 8 + order[r % 8]) * values.cols + col)];
        EXPECT_EQ(row[static_cast<size_t>(col)], wanted);
        EXPECT_EQ(read[static_cast<size_t>(r * values.cols + col)], wanted);
      }
    }
  }
}

TEST(groups_of_one_matrix_may_have_other_scales_but_not_another_type) {
  GroupFile first(values_of("packed-4")), second(values_of("awq")), third(values_of("packed-4"));
  for (GroupFile* file : {&first, &second, &third})
    file->open();
  Team team({-1, -1}, false);
  HugePool pool;
  MatrixSource source;
  source.slices = {first.whole(), third.whole(), second.whole()};
  source.format = WeightFormat::kFile;
  const auto matrix = pack_matrix(source, DType::kBf16, cpu_kernels(CpuIsa::kPortable), team, pool, {});
  EXPECT_EQ(matrix->rows, 32);
  EXPECT_EQ(matrix->rest->rows, 16);
  EXPECT(matrix->rest->rest == nullptr);
}

TEST(tensors_of_one_matrix_have_their_own_factors) {
  GroupFile first(values_of("nvfp4-factor")), second(values_of("nvfp4-divisor"));
  for (GroupFile* file : {&first, &second})
    file->open();
  Team team({-1, -1}, false);
  HugePool pool;
  MatrixSource source;
  source.slices = {first.whole(), second.whole()};
  source.format = WeightFormat::kFile;
  for (const bool is_gated : {false, true}) {
    source.interleave_pairs = is_gated;
    const auto matrix = pack_matrix(source, DType::kBf16, cpu_kernels(CpuIsa::kPortable), team, pool, {});
    EXPECT(matrix->rest == nullptr && matrix->quant.type.bits == 4);
    if (is_gated) continue;
    std::vector<float> row(64);
    for (int64_t r = 0; r < 32; ++r) {
      const GroupValues values = values_of(r < 16 ? "nvfp4-factor" : "nvfp4-divisor");
      gather_row(*matrix, r, row.data());
      for (size_t col = 0; col < 64; ++col)
        EXPECT_EQ(row[col], values.values[static_cast<size_t>(r % 16) * 64 + col]);
    }
  }
}

TEST(groups_of_a_projection_are_in_memory_once) {
  GroupFile file(values_of("awq"));
  file.open();
  const TensorTable tensors{{"w", *file.whole().tensor}};
  const Slicer slicer(tensors);
  EXPECT(slicer.rows_of("w", 0, 8).groups == slicer.rows_of("w", 8, 8).groups);
}

TEST(groups_of_a_recurrent_layer_are_loaded) {
  constexpr int64_t kChannels = 5;
  CpuBackendOptions options;
  options.cpus = {-1};
  options.weight_dtype = DType::kF32;
  const std::unique_ptr<Backend> backend = make_cpu_backend(options, nullptr);
  for (const char* name : {"awq", "gptq-4", "int8-channel", "fp8-channel"}) {
    const GroupValues values = values_of(name);
    GroupFile file(values);
    file.open();
    const TensorTable tensors{{"in_proj.weight", *file.whole().tensor}, {"conv.weight", *file.whole().tensor}};
    ModelSpec spec;
    spec.recurrent.conv_channels = kChannels;
    const auto load = [&](MatrixSource source) {
      source.format = WeightFormat::kFile;
      return backend->load_matrix(source, {});
    };
    const RecurrentWeights weights = load_recurrent_weights(spec, Mixer::kShortConv, make_recurrent_shard(spec, 0, 1),
                                                            Slicer(tensors), "", load, *backend, {});
    const std::vector<float>& conv = static_cast<const CpuVector&>(*weights.conv).values;
    std::vector<float> row(static_cast<size_t>(values.cols));
    for (int64_t r = 0; r < 3 * kChannels; ++r) {
      gather_row(static_cast<const CpuMatrix&>(*weights.in_proj), r, row.data());
      for (int64_t col = 0; col < values.cols; ++col) {
        const float wanted = values.values[static_cast<size_t>(r * values.cols + col)];
        EXPECT_EQ(row[static_cast<size_t>(col)], wanted);
        if (r < kChannels) EXPECT_EQ(conv[static_cast<size_t>(col * 16 + r)], wanted);
      }
    }
  }
}

// Opens a file whose description or bytes are changed, and reads it.
void read_changed(const std::string& name, const std::function<void(GroupValues&)>& change_values,
                  const std::function<void(TensorEntry&)>& change_entry) {
  GroupValues values = values_of(name);
  if (change_values) change_values(values);
  GroupFile file(values);
  if (change_entry) change_entry(file.entry);
  file.open();
  read_floats(file.whole());
}

TEST(groups_that_do_not_fit_their_file_are_refused) {
  const std::pair<const char*, std::function<void(TensorEntry&)>> changes[] = {
      {"gptq-4", [](TensorEntry& entry) { entry.groups->bits = 1; }},
      {"gptq-4", [](TensorEntry& entry) { entry.groups->bits = 9; }},
      {"gptq-4", [](TensorEntry& entry) { entry.groups->group_cols = 0; }},
      {"gptq-4", [](TensorEntry& entry) { entry.groups->group_cols = 65; }},
      {"gptq-4", [](TensorEntry& entry) { entry.groups->group_rows = -1; }},
      {"gptq-4", [](TensorEntry& entry) { entry.groups->scales.type = ArrayType::kE8m0; }},
      {"gptq-4", [](TensorEntry& entry) { entry.groups->zeros->type = ArrayType::kInt8; }},
      {"gptq-4", [](TensorEntry& entry) { entry.groups->scales.file_idx = 1; }},
      {"gptq-4", [](TensorEntry& entry) { entry.groups->scales.offset = uint64_t{1} << 52; }},
      {"gptq-4", [](TensorEntry& entry) { entry.groups->zeros->offset = 1 << 20; }},
      {"gptq-4", [](TensorEntry& entry) { entry.groups->group_index->offset = 1 << 20; }},
      {"gptq-4", [](TensorEntry& entry) { entry.shape = {64, 64}; }},
      {"gptq-4", [](TensorEntry& entry) { entry.shape = {int64_t{1} << 31, 64}; }},
      {"gptq-4", [](TensorEntry& entry) { entry.shape = {16, int64_t{1} << 40}; }},
      {"gptq-4", [](TensorEntry& entry) { entry.shape = {1 << 30, 1 << 30}; }},
      {"awq", [](TensorEntry& entry) { entry.shape = {12, 64}; }},
      {"awq", [](TensorEntry& entry) { entry.groups->bits = 8; }},
      {"int8-channel", [](TensorEntry& entry) { entry.groups->bits = 4; }},
      {"int8-tensor-zeros", [](TensorEntry& entry) { entry.groups->zeros->type = ArrayType::kInt32; }},
      {"mxfp4", [](TensorEntry& entry) { entry.groups->scales.type = ArrayType::kF16; }},
      {"mxfp4", [](TensorEntry& entry) { entry.shape = {16, 63}; }},
      {"nvfp4-factor", [](TensorEntry& entry) { entry.groups->scales.type = ArrayType::kE8m0; }},
      {"nvfp4-factor", [](TensorEntry& entry) { entry.factor->offset = 1 << 20; }},
      {"nvfp4-factor", [](TensorEntry& entry) { entry.factor->file_idx = 1; }},
      {"bitsandbytes-nf4", [](TensorEntry& entry) { entry.groups->table.reset(); }},
      {"bitsandbytes-nf4", [](TensorEntry& entry) { entry.groups->table->offset = 1 << 20; }},
      {"bitsandbytes-nf4", [](TensorEntry& entry) { entry.groups->scales.type = ArrayType::kUint8; }},
      {"bitsandbytes-fp4-double", [](TensorEntry& entry) { entry.groups->scales.type = ArrayType::kF32; }},
      {"bitsandbytes-fp4-double", [](TensorEntry& entry) { entry.groups->scale_codes->run = 0; }},
      {"bitsandbytes-fp4-double", [](TensorEntry& entry) { entry.groups->scale_codes->factors.offset = 1 << 20; }},
      {"bitsandbytes-fp4-double", [](TensorEntry& entry) { entry.groups->scale_codes->table.offset = 1 << 20; }},
      {"bitsandbytes-int8", [](TensorEntry& entry) { entry.groups->scales.type = ArrayType::kE8m0; }},
      {"nvfp4-divisor", [](TensorEntry& entry) { entry.groups->zeros = {0, 0, ArrayType::kInt8}; }},
  };
  for (const auto& [name, change] : changes)
    EXPECT_ERROR("invalid_model", read_changed(name, {}, change));
}

// Sets the factor, or the divisor.
std::function<void(GroupValues&)> set_factor(float value) {
  return [value](GroupValues& values) {
    std::vector<uint8_t>& bytes = values.factor.bytes.empty() ? values.divisor.bytes : values.factor.bytes;
    std::memcpy(bytes.data(), &value, sizeof value);
  };
}

TEST(a_factor_may_be_zero_or_negative) {
  GroupValues values = values_of("nvfp4-factor");
  float factor;
  std::memcpy(&factor, values.factor.bytes.data(), sizeof factor);
  for (const float sign : {0.0f, -1.0f}) {
    set_factor(factor * sign)(values);
    GroupFile file(values);
    file.open();
    const std::vector<float> got = read_floats(file.whole());
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_EQ(got[i], values.values[i] * sign);
  }
}

TEST(quotients_of_scales_and_a_divisor_have_the_bits_of_a_division) {
  for (int i = 0; i < 1000; ++i) {
    const float divisor = 1 + static_cast<float>(i * i * 7 % 1009) * 0.731f;
    GroupValues values = values_of("nvfp4-divisor");
    set_factor(divisor)(values);
    for (size_t byte = 0; byte < 64; ++byte)
      values.scales.bytes[byte] = static_cast<uint8_t>((static_cast<size_t>(i) * 64 + byte) % 127);
    values.codes.assign(values.codes.size(), 0x22);  // the number 1
    GroupFile file(values);
    file.open();
    const std::vector<float> got = read_floats(file.whole());
    for (size_t group = 0; group < 64; ++group) {
      const int bits = values.scales.bytes[group], exponent = bits >> 3, mantissa = bits & 7;
      const float scale = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                        : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
      EXPECT_EQ(float_bits(got[group * 16]), float_bits(scale / divisor));
    }
  }
}

TEST(groups_with_scales_or_an_index_out_of_range_are_refused) {
  const auto set_u16 = [](std::vector<uint8_t>& bytes, uint16_t bits) { std::memcpy(bytes.data() + 6, &bits, 2); };
  const auto set_i32 = [](std::vector<uint8_t>& bytes, int32_t value) { std::memcpy(bytes.data() + 8, &value, 4); };
  read_changed("gptq-4", {}, {});
  for (const uint16_t bits : {0x7c00, 0xfc00, 0x7e00})  // Inf, -Inf, NaN
    EXPECT_ERROR("invalid_model", read_changed("gptq-4", [&](GroupValues& v) { set_u16(v.scales.bytes, bits); }, {}));
  EXPECT_ERROR("invalid_model", read_changed("packed-4", [&](GroupValues& v) { set_u16(v.scales.bytes, 0x7f00); }, {}));
  EXPECT_ERROR("invalid_model", read_changed("mxfp4", [](GroupValues& v) { v.scales.bytes[5] = 255; }, {}));
  for (const uint8_t byte : {0x7f, 0x80, 0xff})  // NaN, below 0, NaN
    EXPECT_ERROR("invalid_model", read_changed("nvfp4-factor", [&](GroupValues& v) { v.scales.bytes[5] = byte; }, {}));
  const float largest = std::numeric_limits<float>::max(), inf = std::numeric_limits<float>::infinity();
  for (const float factor : {inf, -inf, std::nanf(""), largest})
    EXPECT_ERROR("invalid_model", read_changed("nvfp4-factor", set_factor(factor), {}));
  for (const float divisor : {0.0f, -0.0f, inf, std::nanf(""), 1 / largest})
    EXPECT_ERROR("invalid_model", read_changed("nvfp4-divisor", set_factor(divisor), {}));
  EXPECT_ERROR("invalid_model", read_changed("fp8-channel", [](GroupValues& v) { v.codes[9] = 0x7f; }, {}));
  for (const int32_t group : {-1, 4, 1 << 30})
    EXPECT_ERROR("invalid_model",
                 read_changed("gptq-4-act-order", [&](GroupValues& v) { set_i32(v.index.bytes, group); }, {}));
}

}  // namespace
}  // namespace capstan::testing
