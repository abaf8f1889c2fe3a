// The updates of adapters against double precision, and gates against GemmOutput::kGated.
#include <algorithm>

#include "cuda/lora.h"
#include "test/native/gpu/kernel_testing.h"

namespace capstan::testing {
namespace {

constexpr int kTokens = 11;

// An adapter of a matrix with two factors. The second one has no update for the last rows.
struct Update {
  int r[2];
  int64_t rows, cols;
  std::vector<float> a, scales, b;  // b (rows, most values)
  std::vector<LoraRange> ranges;
  int width() const { return std::max(r[0], r[1]); }
  int num_values() const { return r[0] + r[1]; }

  Update(FloatType type, uint64_t seed, int r0, int r1, int64_t num_rows, int64_t num_cols)
      : r{r0, r1},
        rows(num_rows),
        cols(num_cols),
        a(rounded(type, noise(seed, (r0 + r1) * num_cols, 0.1f))),
        scales(static_cast<size_t>(r0 + r1), 0.5f),
        b(rounded(type, noise(seed + 1, num_rows * std::max(r0, r1), 0.5f))) {
    std::fill(scales.begin() + r0, scales.end(), 2.0f);
    for (int64_t row = 0; row < rows; ++row)
      ranges.push_back(row < rows / 2 ? LoraRange{0, r0} : row < rows - 3 ? LoraRange{r0, r1} : LoraRange{});
  }
};

struct UpdateOnDevice {
  DeviceLora lora;
  OnDevice<uint16_t> a, b;
  OnDevice<float> scales;
  OnDevice<LoraRange> ranges;
  OnDevice<DeviceLora> self;

  UpdateOnDevice(FloatType type, const Update& update)
      : a(bits(type, update.a)),
        b(transposed(type, update)),
        scales(update.scales),
        ranges(update.ranges),
        self(std::vector<DeviceLora>{
            {a.get(), scales.get(), b.get(), ranges.get(), update.num_values(), update.rows, update.cols}}) {}

  static std::vector<uint16_t> bits(FloatType type, const std::vector<float>& values) {
    std::vector<uint16_t> all;
    for (const float value : values)
      all.push_back(bits_of(type, value));
    return all;
  }
  static std::vector<uint16_t> transposed(FloatType type, const Update& update) {
    std::vector<uint16_t> all(update.b.size());
    for (int64_t row = 0; row < update.rows; ++row)
      for (int j = 0; j < update.width(); ++j)
        all[static_cast<size_t>(j * update.rows + row)] =
            bits_of(type, update.b[static_cast<size_t>(row * update.width() + j)]);
    return all;
  }
};

TEST(kernel_lora_updates_are_near_doubles) {
  // Tokens 2 and 9 have the second adapter; the third one has no update of this matrix.
  const std::vector<int32_t> tokens = {0, 2, 5, 9, 10}, adapters = {0, 1, 0, 1, 2};
  for (const FloatType type : kTypes)
    for (const int64_t cols : {45, 128, 1152}) {
      const int64_t rows = 300;
      const Update updates[2] = {{type, 3, 3, 40, rows, cols}, {type, 8, 16, 1, rows, cols}};
      const UpdateOnDevice first(type, updates[0]), second(type, updates[1]);
      const OnDevice<const DeviceLora*> loras(
          std::vector<const DeviceLora*>{first.self.get(), second.self.get(), nullptr});
      const OnDevice<int32_t> on_tokens(tokens), on_adapters(adapters);
      const DepthSplit split = split_depth(cols, cols, row_parallel_parts(cols));
      const std::vector<float> x = rounded(type, noise(20, kTokens * cols, 1)),
                               before = noise(21, kTokens * (rows + 2), 1);
      const OnDevice<uint16_t> acts(packed_acts(type, x, kTokens, split));
      constexpr int kStride = 50;
      const OnDevice<float> t(static_cast<size_t>(tokens.size() * kStride)), other_rank(t.read());
      LoraValuesArgs values;
      values.type = type;
      values.rows = {on_tokens.get(), on_adapters.get(), loras.get(), static_cast<int>(tokens.size())};
      values.acts = acts.get();
      values.split = split;
      values.t = t.get();
      values.t_stride = kStride;
      launch_lora_values(values, stream());
      const std::vector<float> got_t = t.read();
      for (const int world_size : {1, 2})
        for (const int begin : {0, 3}) {
          const OnDevice<float> out(before), of_other_rank(got_t);
          LoraUpdateArgs update;
          update.type = type;
          update.rows = values.rows;
          update.t[0] = t.get();
          update.t[1] = of_other_rank.get();
          update.world_size = world_size;
          update.t_stride = kStride;
          update.first_token = begin;
          update.end_token = 10;
          update.out = out.get() + begin * (rows + 2);
          update.out_stride = rows + 2;
          update.residual_scale = kResidualScale;
          update.num_features = rows;
          launch_lora_update(update, stream());
          const std::vector<float> got = out.read();
          std::vector<double> wanted(before.begin(), before.end());
          for (size_t i = 0; i < tokens.size(); ++i) {
            if (adapters[i] == 2 || tokens[i] < begin || tokens[i] >= 10) continue;
            const Update& lora = updates[adapters[i]];
            for (int64_t row = 0; row < rows; ++row) {
              const LoraRange& range = lora.ranges[static_cast<size_t>(row)];
              for (int j = 0; j < range.count; ++j) {
                double value = 0;
                for (int64_t k = 0; k < cols; ++k)
                  value += double{lora.a[static_cast<size_t>((range.first + j) * cols + k)]} *
                           x[static_cast<size_t>(tokens[i] * cols + k)];
                wanted[static_cast<size_t>(tokens[i] * (rows + 2) + row)] +=
                    kResidualScale * world_size * value * lora.scales[static_cast<size_t>(range.first + j)] *
                    lora.b[static_cast<size_t>(row * lora.width() + j)];
              }
            }
          }
          for (size_t i = 0; i < wanted.size(); ++i)
            expect_close(got[i], wanted[i], 2e-4 * (1 + std::abs(wanted[i])), "update", static_cast<int64_t>(i));
        }
    }
}

// Values of t that overflow change no feature that does not use them.
TEST(kernel_lora_updates_use_no_other_values) {
  Update update(FloatType::kBf16, 1, 2, 2, 32, 64);
  std::fill(update.scales.begin(), update.scales.begin() + 2, INFINITY);
  const UpdateOnDevice on_device(FloatType::kBf16, update);
  const OnDevice<const DeviceLora*> loras(std::vector<const DeviceLora*>{on_device.self.get()});
  const OnDevice<int32_t> zero(std::vector<int32_t>{0});
  const OnDevice<float> t(std::vector<float>(8, 1.0f)), out(std::vector<float>(32, 1.0f));
  LoraUpdateArgs args;
  args.rows = {zero.get(), zero.get(), loras.get(), 1};
  args.t[0] = t.get();
  args.t_stride = 8;
  args.end_token = 1;
  args.out = out.get();
  args.out_stride = args.num_features = 32;
  launch_lora_update(args, stream());
  const std::vector<float> got = out.read();
  for (size_t row = 0; row < got.size(); ++row)
    EXPECT_EQ(std::isfinite(got[row]), row >= 16);
}

void expect_bits_of_product(FloatType type, Activation activation, bool is_gated) {
  const int64_t rows = is_gated ? 80 : 37, cols = 64, size = 37;  // the last tile has padding
  const DepthSplit split = split_depth(cols, cols, row_parallel_parts(cols)), gated_split = split_depth(size, size, 1);
  const OnDevice<uint16_t> weights(packed_weights(type, noise(1, rows * cols, 0.2f), rows, split)),
      acts(packed_acts(type, noise(2, kTokens * cols, 1), kTokens, split));
  const size_t count = static_cast<size_t>(round_up(kTokens, 8) * gated_split.padded());
  const OnDevice<uint16_t> wanted(count), got(count);
  const OnDevice<float> out(static_cast<size_t>(kTokens * rows));
  GemmArgs product;
  product.type = type;
  product.weights = {weights.get(), nullptr, rows, split};
  product.acts = acts.get();
  product.num_tokens = kTokens;
  product.out = out.get();
  product.out_stride = rows;
  launch_gemm(product, device_resources(), stream());
  product.output = is_gated ? GemmOutput::kGated : GemmOutput::kActivated;
  product.gated = wanted.get();
  product.gated_split = gated_split;
  product.activation = activation;
  product.xielu = kXielu;
  launch_gemm(product, device_resources(), stream());
  launch_gate({type, out.get(), rows, kTokens, got.get(), gated_split, activation, is_gated, kXielu}, stream());
  EXPECT(got.read() == wanted.read());
}

TEST(kernel_gates_have_the_bits_of_activated_products) {
  for (const FloatType type : kTypes) {
    for (const Activation activation :
         {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh, Activation::kClampedSwish})
      expect_bits_of_product(type, activation, true);
    for (const Activation activation : kUngated)
      expect_bits_of_product(type, activation, false);
  }
}

}  // namespace
}  // namespace capstan::testing
