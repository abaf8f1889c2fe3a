// The kernels of models that pool against double precision.
#include "cuda/pooling.h"

#include <limits>

#include "test/native/gpu/kernel_testing.h"

namespace capstan::testing {
namespace {

TEST(kernel_add_embeddings_adds_rows_of_tables) {
  constexpr int64_t kHidden = 300;
  constexpr int kTokens = 5, kOffset = 2;
  const std::vector<int32_t> positions = {0, 1, 2, 0, 6}, types = {0, 0, 1, 1, 0};
  const std::vector<float> before = noise(1, kTokens * kHidden, 1), of_positions = noise(2, 9 * kHidden, 1),
                           of_types = noise(3, 2 * kHidden, 1);
  const OnDevice<int32_t> on_positions(positions), on_types(types);
  const OnDevice<float> position_table(of_positions), type_table(of_types);
  for (const bool has_positions : {false, true})
    for (const bool has_types : {false, true}) {
      const OnDevice<float> hidden(before);
      AddEmbeddingsArgs args;
      args.hidden = hidden.get();
      args.num_tokens = kTokens;
      args.hidden_size = kHidden;
      if (has_types) args.token_type_table = type_table.get(), args.token_types = on_types.get();
      if (has_positions) args.position_table = position_table.get(), args.positions = on_positions.get();
      args.position_offset = kOffset;
      launch_add_embeddings(args, stream());
      const std::vector<float> got = hidden.read();
      for (int64_t token = 0; token < kTokens; ++token)
        for (int64_t k = 0; k < kHidden; ++k) {
          const auto id = static_cast<size_t>(token);
          float wanted = before[static_cast<size_t>(token * kHidden + k)];
          if (has_types) wanted += of_types[static_cast<size_t>(types[id] * kHidden + k)];
          if (has_positions) wanted += of_positions[static_cast<size_t>((positions[id] + kOffset) * kHidden + k)];
          EXPECT_EQ(got[static_cast<size_t>(token * kHidden + k)], wanted);
        }
    }
}

TEST(kernel_biases_are_those_of_the_heads) {
  constexpr int kDistances = 301, kHeads = 3, kBegin = 2, kTotal = 7, kRows = 12;
  std::vector<int32_t> rows;
  for (int distance = 0; distance < kDistances; ++distance)
    rows.push_back(distance * 5 % kRows);
  const std::vector<float> table = noise(1, kRows * kTotal, 1);
  const OnDevice<float> on_table(table), biases(kHeads * kDistances);
  const OnDevice<int32_t> on_rows(rows);
  launch_biases({on_table.get(), on_rows.get(), kDistances, kHeads, kBegin, kTotal, biases.get()}, stream());
  const std::vector<float> got = biases.read();
  for (size_t head = 0; head < kHeads; ++head)
    for (size_t distance = 0; distance < kDistances; ++distance)
      EXPECT_EQ(got[head * kDistances + distance], table[static_cast<size_t>(rows[distance]) * kTotal + kBegin + head]);
}

// Rows whose size is not a multiple of a block's threads, and whose mean is far from 0.
TEST(kernel_row_norm_in_place_norms_what_is_activated) {
  constexpr int kRows = 3;
  for (const int64_t size : {7, 256, 300})
    for (const Activation activation : {Activation::kIdentity, Activation::kGelu, Activation::kTanh, Activation::kRelu})
      for (const int kind : {0, 1, 2}) {  // no norm, RMS norm, layer norm
        std::vector<float> before = noise(1, kRows * size, 1);
        for (float& value : before)
          value += 0.8f;
        const std::vector<float> weight = noise(2, size, 1), bias = noise(3, size, 1);
        const OnDevice<float> rows(before), on_weight(weight), on_bias(bias);
        RowNormArgs args;
        args.rows = rows.get();
        args.num_rows = kRows;
        args.size = size;
        args.activation = activation;
        if (kind > 0) args.weight = on_weight.get();
        if (kind == 2) args.bias = on_bias.get();
        args.eps = 1e-2f;
        launch_row_norm(args, stream());
        const std::vector<float> got = rows.read();
        for (int64_t row = 0; row < kRows; ++row) {
          std::vector<double> wanted;
          for (int64_t k = 0; k < size; ++k)
            wanted.push_back(activated(activation, before[static_cast<size_t>(row * size + k)]));
          double mean = 0, square = 0;
          for (const double value : wanted)
            mean += kind == 2 ? value / static_cast<double>(size) : 0;
          for (const double value : wanted)
            square += (value - mean) * (value - mean) / static_cast<double>(size);
          for (int64_t k = 0; k < size; ++k) {
            const auto at = static_cast<size_t>(k);
            if (kind > 0) wanted[at] = (wanted[at] - mean) / std::sqrt(square + 1e-2) * static_cast<double>(weight[at]);
            if (kind == 2) wanted[at] += static_cast<double>(bias[at]);
            expect_close(got[static_cast<size_t>(row * size) + at], wanted[at], 2e-5, "row norm", row, k);
          }
        }
      }
}

// Four sequences: one that begins, one that continues, one that ends without rows, and one that only adds rows.
TEST(kernel_pool_adds_the_rows_of_sequences) {
  constexpr int64_t kHidden = 300;
  constexpr int kTokens = 12, kItems = 4, kResults = 3;
  const std::vector<PoolItem> items = {{0, 3, 1, 0, 3}, {3, 5, 8, 2, 7}, {0, 0, 1, 1, 2}, {9, 1, 1, -1, 1}};
  const std::vector<float> hidden = noise(1, kTokens * kHidden, 1), before = noise(2, kItems * kHidden, 1);
  const OnDevice<float> on_hidden(hidden), on_before(before);
  const OnDevice<PoolItem> on_items(items);
  for (const Pooling pooling : {Pooling::kLast, Pooling::kMean, Pooling::kMax, Pooling::kWeightedMean}) {
    const OnDevice<float> sums(kItems * kHidden), results(kResults * kHidden);
    PoolArgs args;
    args.pooling = pooling;
    args.hidden = on_hidden.get();
    args.hidden_size = kHidden;
    args.items = on_items.get();
    args.num_items = kItems;
    args.before = on_before.get();
    args.sums = sums.get();
    args.results = results.get();
    launch_pool(args, stream());
    const std::vector<float> got_sums = sums.read(), got_results = results.read();
    for (size_t i = 0; i < kItems; ++i)
      for (int64_t k = 0; k < kHidden; ++k) {
        double wanted = before[i * kHidden + static_cast<size_t>(k)];
        for (int row = 0; row < items[i].num_rows; ++row) {
          const double value = hidden[static_cast<size_t>((items[i].first_row + row) * kHidden + k)];
          if (pooling == Pooling::kMax)
            wanted = std::max(wanted, value);
          else
            wanted += value * (pooling == Pooling::kWeightedMean ? items[i].first_weight + row : 1);
        }
        const std::string what = "pooling " + std::to_string(static_cast<int>(pooling));
        expect_close(got_sums[i * kHidden + static_cast<size_t>(k)], wanted, 1e-5, what, static_cast<int64_t>(i), k);
        if (items[i].result < 0) continue;
        expect_close(got_results[static_cast<size_t>(items[i].result * kHidden + k)],
                     wanted / static_cast<double>(items[i].divisor), 1e-5, what, static_cast<int64_t>(i), k);
      }
  }
}

TEST(kernel_pool_keeps_nan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const OnDevice<float> hidden(std::vector<float>{1, nan, 2}), before(std::vector<float>{-1}), sums(1), results(1);
  const OnDevice<PoolItem> items(std::vector<PoolItem>{{0, 3, 1, 0, 1}});
  PoolArgs args;
  args.pooling = Pooling::kMax;
  args.hidden = hidden.get();
  args.hidden_size = 1;
  args.items = items.get();
  args.num_items = 1;
  args.before = before.get();
  args.sums = sums.get();
  args.results = results.get();
  launch_pool(args, stream());
  EXPECT(std::isnan(results.read()[0]));
}

}  // namespace
}  // namespace capstan::testing
