// Sums of partial hidden states, with and without the norm that follows.
#include "test/native/gpu/kernel_testing.h"

namespace capstan::testing {
namespace {

TEST(kernel_partials_add_in_a_tree) {
  constexpr int kTokens = 3, kHidden = 130;
  for (const int world_size : {2, 4, 8})
    for (const bool replaces : {false, true}) {
      const std::vector<float> before = noise(1, kTokens * kHidden, 1), bias = noise(2, kHidden, 1);
      const OnDevice<float> hidden(before), device_bias(bias);
      std::vector<std::vector<float>> partials;
      std::vector<OnDevice<float>> device_partials;
      AddPartialsArgs args;
      for (int rank = 0; rank < world_size; ++rank) {
        partials.push_back(noise(static_cast<uint64_t>(rank + 5), kTokens * kHidden, 1));
        device_partials.emplace_back(partials.back());
        args.partials[rank] = device_partials.back().get();
      }
      args.hidden = hidden.get();
      args.world_size = world_size;
      args.bias = device_bias.get();
      args.num_tokens = kTokens;
      args.hidden_size = kHidden;
      args.replaces = replaces;
      args.scale = kResidualScale;
      args.factor = 0.3f;
      launch_add_partials(args, stream());
      const std::vector<float> got = hidden.read();
      for (size_t i = 0; i < got.size(); ++i) {
        std::vector<float> sums;
        for (const auto& partial : partials)
          sums.push_back(partial[i]);
        while (sums.size() > 1) {
          for (size_t pair = 0; pair < sums.size() / 2; ++pair)
            sums[pair] = sums[2 * pair] + sums[2 * pair + 1];
          sums.resize(sums.size() / 2);
        }
        const float with_bias = sums[0] + bias[i % kHidden];
        EXPECT_EQ(got[i], replaces ? with_bias : 0.3f * std::fma(with_bias, kResidualScale, before[i]));
      }
    }
}

// Each of the `owners` has one tile of valid tokens.
struct AddNormCase {
  int world_size, num_tokens;
  int64_t hidden_size;
  bool replaces, is_row_major;
};

// Expects the bits of the two separate kernels, and compares with double precision.
void check_add_norm(FloatType type, const AddNormCase& shape) {
  const int64_t size = shape.hidden_size, count = shape.num_tokens * size;
  const std::vector<float> before = noise(1, count, 3), bias = noise(2, size, 1), weight = noise(3, size, 1);
  const OnDevice<float> device_bias(bias), device_weight(weight);
  std::vector<std::vector<float>> partials;
  std::vector<OnDevice<float>> device_partials;
  const DepthSplit split = split_depth(size, size, row_parallel_parts(size));
  AddNormArgs args;
  for (int rank = 0; rank < shape.world_size; ++rank) {
    partials.push_back(noise(static_cast<uint64_t>(rank + 5), count, 2));
    device_partials.emplace_back(partials.back());
    args.sum.partials[rank] = device_partials.back().get();
  }
  args.sum.world_size = shape.world_size;
  args.sum.bias = device_bias.get();
  args.sum.num_tokens = args.norm.num_rows = shape.num_tokens;
  args.sum.hidden_size = args.norm.hidden_size = size;
  args.sum.replaces = shape.replaces;
  args.norm.type = type;
  args.norm.weight = device_weight.get();
  args.norm.eps = 1e-6f;
  args.norm.split = split;
  args.norm.is_row_major = shape.is_row_major;

  struct Result {
    std::vector<float> hidden;
    std::vector<uint16_t> acts;
    bool operator==(const Result& other) const {
      return acts == other.acts && std::memcmp(hidden.data(), other.hidden.data(), hidden.size() * sizeof(float)) == 0;
    }
  };
  const auto run = [&](bool is_fused) {
    const OnDevice<float> hidden(before);
    const OnDevice<uint16_t> acts(static_cast<size_t>(round_up(shape.num_tokens, kTileTokens) * split.padded()));
    args.sum.hidden = hidden.get();
    args.norm.hidden = hidden.get();
    args.norm.acts = acts.get();
    if (is_fused) {
      launch_add_norm(args, stream());
    } else {
      launch_add_partials(args.sum, stream());
      launch_norm(args.norm, stream());
    }
    return Result{hidden.read(), acts.read()};
  };
  const Result fused = run(true), apart = run(false);
  const std::string what = "sum and norm of " + std::to_string(shape.num_tokens) + " x " + std::to_string(size) + ", " +
                           std::to_string(shape.world_size) + " ranks";
  if (!(fused == apart)) fail(__FILE__, __LINE__, what + ": the bits differ from those of the separate kernels");

  for (int64_t token = 0; token < shape.num_tokens; ++token) {
    std::vector<double> wanted;
    double square = 0;
    for (int64_t k = 0; k < size; ++k) {
      const auto i = static_cast<size_t>(token * size + k);
      double sum = static_cast<double>(bias[static_cast<size_t>(k)]) + (shape.replaces ? 0 : before[i]);
      for (const auto& partial : partials)
        sum += partial[i];
      wanted.push_back(sum);
      square += sum * sum;
      expect_close(fused.hidden[i], sum, 1e-5 * (std::abs(sum) + 10), what);
    }
    const double scale = 1 / std::sqrt(square / static_cast<double>(size) + 1e-6);
    for (int64_t k = 0; k < size; ++k) {
      const double normed = wanted[static_cast<size_t>(k)] * scale * weight[static_cast<size_t>(k)];
      const auto place = static_cast<size_t>(act_index(shape.is_row_major, token, split.place(k), split.padded()));
      expect_close(value_of(type, fused.acts[place]), normed, rounding_of(type) * (std::abs(normed) + 1e-2),
                   what + ", normed");
    }
  }

  // Some rows, one of them twice. Their hidden states are valid only on their owners.
  std::vector<OnDevice<float>> owners;
  for (int owner = 0; owner * kTileTokens < shape.num_tokens; ++owner) {
    std::vector<float> true_here(before.size(), std::nanf(""));
    const auto begin = static_cast<size_t>(owner * kTileTokens * size),
               end = std::min(begin + static_cast<size_t>(kTileTokens * size), before.size());
    std::copy(before.begin() + static_cast<ptrdiff_t>(begin), before.begin() + static_cast<ptrdiff_t>(end),
              true_here.begin() + static_cast<ptrdiff_t>(begin));
    owners.emplace_back(true_here);
    args.owners[owner] = owners.back().get();
  }
  args.tokens_per_owner = kTileTokens;
  const std::vector<int32_t> rows = {shape.num_tokens - 1, 0, 0, shape.num_tokens / 2};
  const OnDevice<int32_t> device_rows(rows);
  const OnDevice<float> hidden(before);
  const OnDevice<uint16_t> acts(static_cast<size_t>(kTileTokens * split.padded()));
  args.sum.hidden = hidden.get();
  args.norm.rows = device_rows.get();
  args.norm.num_rows = static_cast<int>(rows.size());
  args.norm.acts = acts.get();
  launch_add_norm(args, stream());
  EXPECT(hidden.read() == before);
  const std::vector<uint16_t> got = acts.read();
  for (int64_t row = 0; row < kTileTokens; ++row)
    for (int64_t k = 0; k < size; ++k) {
      const uint16_t bits =
          got[static_cast<size_t>(act_index(shape.is_row_major, row, split.place(k), split.padded()))];
      if (row >= args.norm.num_rows)
        EXPECT_EQ(bits, kUnwritten);
      else
        EXPECT_EQ(bits, apart.acts[static_cast<size_t>(act_index(shape.is_row_major, rows[static_cast<size_t>(row)],
                                                                 split.place(k), split.padded()))]);
    }
}

TEST(kernel_add_norm_matches_the_separate_kernels) {
  std::vector<AddNormCase> cases = {{2, 5, 64, false, false}, {4, 13, 45, false, false}, {8, 3, 896, false, true},
                                    {2, 9, 2, true, false},   {4, 17, 300, true, true},  {1, 6, 257, false, false}};
  if (is_full())
    cases.insert(cases.end(), {{2, 64, 1536, false, false},
                               {4, 64, 4096, false, true},
                               {8, 37, 8192, false, false},
                               {2, 64, 16384, true, true}});
  for (const FloatType type : kTypes)
    for (const AddNormCase& shape : cases)
      check_add_norm(type, shape);
}

// What the norm of the sum is, and the next norm.
struct NormedSum {
  bool has_norm, has_next_weight, is_next_layer_norm;
};

// The norm of the sum is scaled and added to the old hidden states, and the next norm reads the result. Some rows give
// the same bits.
void check_normed_sum(FloatType type, int64_t size, const NormedSum& kinds) {
  constexpr int kTokens = 3, kParts = 2;
  const DepthSplit split = split_depth(size, size, row_parallel_parts(size));
  const std::vector<float> before = noise(1, kTokens * size, 3), bias = noise(2, size, 1), of_sum = noise(3, size, 1),
                           weight = noise(4, size, 1), next_bias = noise(5, size, 1),
                           partials = noise(6, kParts * kTokens * size, 2);
  const OnDevice<float> on_bias(bias), on_of_sum(of_sum), on_weight(weight), on_next_bias(next_bias),
      on_partials(partials), hidden(before), old(before);
  const std::vector<int32_t> rows = {2, 0};
  const OnDevice<int32_t> on_rows(rows);
  const auto acts_size = static_cast<size_t>(kTileTokens * split.padded());
  const OnDevice<uint16_t> acts(acts_size), some_acts(acts_size);
  AddNormArgs args;
  args.sum.hidden = hidden.get();
  for (int part = 0; part < kParts; ++part)
    args.sum.partials[part] = on_partials.get() + part * kTokens * size;
  args.sum.world_size = kParts;
  args.sum.bias = on_bias.get();
  args.sum.num_tokens = args.norm.num_rows = kTokens;
  args.sum.hidden_size = args.norm.hidden_size = size;
  args.sum.norm = kinds.has_norm ? on_of_sum.get() : nullptr;
  args.sum.eps = 1e-3f;
  args.sum.scale = kResidualScale;
  args.sum.factor = 0.3f;
  args.norm.type = type;
  args.norm.hidden = hidden.get();
  args.norm.weight = kinds.has_next_weight ? on_weight.get() : nullptr;
  args.norm.bias = kinds.is_next_layer_norm ? on_next_bias.get() : nullptr;
  args.norm.eps = 1e-6f;
  args.norm.split = split;
  args.norm.acts = acts.get();
  launch_add_norm(args, stream());

  const std::vector<float> got = hidden.read();
  const std::vector<uint16_t> got_acts = acts.read();
  const auto mean_of = [&](const std::vector<double>& values, auto&& term) {
    double sum = 0;
    for (const double value : values)
      sum += term(value) / static_cast<double>(size);
    return sum;
  };
  for (int64_t token = 0; token < kTokens; ++token) {
    std::vector<double> row;
    for (int64_t k = 0; k < size; ++k)
      row.push_back(static_cast<double>(partials[static_cast<size_t>(token * size + k)]) +
                    partials[static_cast<size_t>((kTokens + token) * size + k)] + bias[static_cast<size_t>(k)]);
    const double scale = 1 / std::sqrt(mean_of(row, [](double x) { return x * x; }) + 1e-3);
    for (int64_t k = 0; k < size; ++k) {
      double& value = row[static_cast<size_t>(k)];
      if (kinds.has_norm) value *= scale * of_sum[static_cast<size_t>(k)];
      value = 0.3f * (before[static_cast<size_t>(token * size + k)] + value * static_cast<double>(kResidualScale));
      expect_close(got[static_cast<size_t>(token * size + k)], value, 1e-5 * (std::abs(value) + 10), "normed sum");
    }
    const double mean = kinds.is_next_layer_norm ? mean_of(row, [](double x) { return x; }) : 0;
    const double next = 1 / std::sqrt(mean_of(row, [&](double x) { return (x - mean) * (x - mean); }) + 1e-6);
    for (int64_t k = 0; k < size; ++k) {
      double wanted = row[static_cast<size_t>(k)];
      if (kinds.has_next_weight) wanted = (wanted - mean) * next * weight[static_cast<size_t>(k)];
      if (kinds.is_next_layer_norm) wanted += next_bias[static_cast<size_t>(k)];
      const auto place = static_cast<size_t>(operand_index(token, split.place(k), split.padded()));
      expect_close(value_of(type, got_acts[place]), wanted, rounding_of(type) * (std::abs(wanted) + 1e-2),
                   "norm of a normed sum");
    }
  }

  args.sum.hidden = old.get();
  args.owners[0] = old.get();
  args.tokens_per_owner = kTokens;
  args.norm.rows = on_rows.get();
  args.norm.num_rows = static_cast<int>(rows.size());
  args.norm.acts = some_acts.get();
  launch_add_norm(args, stream());
  EXPECT(old.read() == before);
  const std::vector<uint16_t> of_rows = some_acts.read();
  for (size_t row = 0; row < rows.size(); ++row)
    for (int64_t k = 0; k < size; ++k)
      EXPECT_EQ(of_rows[static_cast<size_t>(operand_index(static_cast<int64_t>(row), split.place(k), split.padded()))],
                got_acts[static_cast<size_t>(operand_index(rows[row], split.place(k), split.padded()))]);
}

TEST(kernel_add_norm_norms_the_sum) {
  for (const FloatType type : kTypes)
    for (const int64_t size : {45, 300, 896})
      for (const NormedSum& kinds : {NormedSum{true, true, false}, NormedSum{true, false, false},
                                     NormedSum{false, true, true}, NormedSum{false, false, false}})
        check_normed_sum(type, size, kinds);
}

}  // namespace
}  // namespace capstan::testing
