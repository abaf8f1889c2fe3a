// The updates of adapters against double precision, and gates against GemmOutput::kGated.
#include <algorithm>

#include "native/backend/adapter.h"
#include "test/native/gpu/lora_updates.h"

namespace capstan::testing {
namespace {

constexpr int kTokens = 11;

TEST(kernel_lora_updates_are_near_doubles) {
  // Tokens 2 and 9 have the second adapter; the third one has no update of this matrix.
  const std::vector<int32_t> tokens = {0, 2, 5, 9, 10}, adapters = {0, 1, 0, 1, 2};
  struct Case {
    int64_t cols;
    int ranks[4];  // of both factors of both adapters
  };
  for (const FloatType type : kTypes)
    for (const auto& [cols, r] : {Case{45, {3, 40, 16, 1}}, Case{128, {3, 40, 16, 1}}, Case{1152, {3, 40, 16, 1}},
                                  Case{40, {1, 1, kMaxLoraRank, kMaxLoraRank}}}) {
      const int64_t rows = 300;
      const Update updates[2] = {{type, 3, r[0], r[1], rows, cols}, {type, 8, r[2], r[3], rows, cols}};
      const UpdateOnDevice first(type, updates[0]), second(type, updates[1]);
      const OnDevice<const DeviceLora*> loras(
          std::vector<const DeviceLora*>{first.self.get(), second.self.get(), nullptr});
      const OnDevice<int32_t> on_tokens(tokens), on_adapters(adapters);
      const DepthSplit split = split_depth(cols, cols, row_parallel_parts(cols));
      const std::vector<float> x = rounded(type, noise(20, kTokens * cols, 1)),
                               before = noise(21, kTokens * (rows + 2), 1);
      const OnDevice<uint16_t> acts(packed_acts(type, x, kTokens, split));
      constexpr int kStride = 2 * kMaxLoraRank;
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

// Without a list of tokens every row is a token, and without a list of adapters it has its own update.
TEST(kernel_lora_updates_of_all_rows_have_the_bits_of_listed_rows) {
  constexpr int kStride = 50, kBegin = 3;
  constexpr int64_t kRows = 300, kCols = 45;
  const FloatType type = FloatType::kF16;
  const std::vector<int32_t> tokens = {0, 2, 5, 9}, adapters = {0, 1, 0, 1};
  const UpdateOnDevice first(type, {type, 3, 3, 40, kRows, kCols}), second(type, {type, 8, 16, 1, kRows, kCols});
  const std::vector<const DeviceLora*> both = {first.self.get(), second.self.get()};
  std::vector<const DeviceLora*> of_tokens(kTokens, nullptr);
  for (size_t i = 0; i < tokens.size(); ++i)
    of_tokens[static_cast<size_t>(tokens[i])] = both[static_cast<size_t>(adapters[i])];
  const OnDevice<const DeviceLora*> on_both(both), on_tokens(of_tokens);
  const OnDevice<int32_t> token_list(tokens), adapter_list(adapters);
  const DepthSplit split = split_depth(kCols, kCols, row_parallel_parts(kCols));
  const OnDevice<uint16_t> acts(packed_acts(type, rounded(type, noise(20, kTokens * kCols, 1)), kTokens, split));
  const auto update = [&](const LoraRows& rows) {
    const OnDevice<float> t(static_cast<size_t>(rows.num_rows * kStride)), out(noise(21, kTokens * kRows, 1));
    launch_lora_values({type, rows, acts.get(), split, t.get(), kStride}, stream());
    LoraUpdateArgs args;
    args.type = type;
    args.rows = rows;
    args.t[0] = t.get();
    args.t_stride = kStride;
    args.first_token = kBegin;
    args.end_token = 10;
    args.out = out.get() + kBegin * kRows;
    args.out_stride = args.num_features = kRows;
    launch_lora_update(args, stream());
    return out.read();
  };
  const std::vector<float> listed = update({token_list.get(), adapter_list.get(), on_both.get(), 4});
  EXPECT(update({nullptr, nullptr, on_tokens.get(), kTokens}) == listed);
  EXPECT(listed != noise(21, kTokens * kRows, 1));
}

TEST(kernel_lora_embeddings_are_rows_of_the_table) {
  constexpr int kRank = 5, kRows = 37, kStride = 6;
  // The second token was drawn by the previous step, and for the third one none was drawn.
  const std::vector<int32_t> ids = {3, -2, -1, 36}, drawn_ids = {-1, 20}, tokens = {1, 2, 3}, adapters = {0, 0, 1};
  const std::vector<int32_t> meant = {20, -1, 36};
  const OnDevice<int32_t> on_ids(ids), on_drawn(drawn_ids), on_tokens(tokens), on_adapters(adapters);
  for (const FloatType type : kTypes) {
    const std::vector<float> a = rounded(type, noise(1, kRows * kRank, 1));
    const OnDevice<uint16_t> on_a(UpdateOnDevice::bits(type, a));
    DeviceLora lora;
    lora.a = on_a.get();
    lora.num_values = kRank;
    const OnDevice<DeviceLora> on_device(std::vector<DeviceLora>{lora});
    const OnDevice<const DeviceLora*> loras(std::vector<const DeviceLora*>{on_device.get(), on_device.get()});
    const OnDevice<float> t(size_t{3 * kStride});
    launch_lora_embed(
        {type, {on_tokens.get(), on_adapters.get(), loras.get(), 3}, on_ids.get(), on_drawn.get(), t.get(), kStride},
        stream());
    const std::vector<float> got = t.read();
    for (size_t row = 0; row < meant.size(); ++row)
      for (size_t i = 0; i < kRank; ++i)
        EXPECT_EQ(got[row * kStride + i], meant[row] < 0 ? 0 : a[static_cast<size_t>(meant[row]) * kRank + i]);
  }
}

TEST(kernel_expert_loras_are_those_of_the_row_and_the_token) {
  constexpr int kAdapters = 2, kExperts = 3, kTileRows = 8, kTiles = 3, kNumTokens = 4;
  const std::vector<int32_t> token_adapters = {1, -1, 0, 1}, tile_experts = {0, 2, -1};
  std::vector<int32_t> row_tokens(kTiles * kTileRows, -1);
  row_tokens[0] = 0, row_tokens[1] = 1, row_tokens[2] = 3, row_tokens[8] = 2, row_tokens[9] = 3;
  const OnDevice<DeviceLora> some(size_t{(kExperts + 1) * kAdapters});
  std::vector<const DeviceLora*> loras;
  for (int i = 0; i < (kExperts + 1) * kAdapters; ++i)
    loras.push_back(i == 1 ? nullptr : some.get() + i);  // the second adapter has no update of the first expert
  const OnDevice<const DeviceLora*> on_loras(loras), of_rows(row_tokens.size() + kNumTokens);
  const OnDevice<int32_t> on_adapters(token_adapters), on_tokens(row_tokens), on_tiles(tile_experts);
  ExpertLorasArgs args;
  args.token_adapters = on_adapters.get();
  args.row_tokens = on_tokens.get();
  args.tile_experts = on_tiles.get();
  args.loras = on_loras.get();
  args.num_rows = kTiles * kTileRows;
  args.tile_rows = kTileRows;
  args.num_tokens = kNumTokens;
  args.num_experts = kExperts;
  args.num_adapters = kAdapters;
  args.of_rows = of_rows.get();
  launch_expert_loras(args, stream());
  std::vector<const DeviceLora*> wanted(row_tokens.size() + kNumTokens, nullptr);
  wanted[8] = loras[2 * kAdapters], wanted[9] = loras[2 * kAdapters + 1];
  for (size_t token = 0; token < kNumTokens; ++token)
    if (const int32_t adapter = token_adapters[token]; adapter >= 0)
      wanted[row_tokens.size() + token] = loras[static_cast<size_t>(kExperts * kAdapters + adapter)];
  EXPECT(of_rows.read() == wanted);
}

void expect_bits_of_product(FloatType type, Activation activation, bool is_gated, bool has_factors = false) {
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
  const int64_t factor_stride = size + 3;
  const OnDevice<float> factors(noise(3, kTokens * factor_stride, 1));
  if (has_factors) product.factors = factors.get(), product.factor_stride = factor_stride;
  launch_gemm(product, device_resources(), stream());
  launch_gate({type, out.get(), rows, kTokens, got.get(), gated_split, activation, is_gated, kXielu, product.factors,
               product.factor_stride},
              stream());
  EXPECT(got.read() == wanted.read());
}

TEST(kernel_gates_have_the_bits_of_activated_products) {
  for (const FloatType type : kTypes) {
    for (const Activation activation :
         {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh, Activation::kClampedSwish})
      expect_bits_of_product(type, activation, true);
    for (const Activation activation : kUngated)
      for (const bool has_factors : {false, true})
        expect_bits_of_product(type, activation, false, has_factors);
  }
}

}  // namespace
}  // namespace capstan::testing
