// The mixture of experts: the router against the choice of the CPU, the rows of the experts, their products against
// launch_gemm, and the sums of the results.
#include <algorithm>
#include <array>
#include <limits>

#include "cuda/experts.h"
#include "native/backend/cpu/expert_plan.h"
#include "test/native/gpu/lora_updates.h"

namespace capstan::testing {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Moe moe_of(int num_experts, int top_k) {
  Moe moe;
  moe.num_experts = num_experts, moe.top_k = top_k;
  return moe;
}

// ---- the router

struct RouterCase {
  Moe moe;
  int num_tokens = 1;
  int64_t hidden_size = 64;
  bool has_bias = false, has_selection_bias = false, has_scales = false, has_gate = false;
  bool lacks_norm = false;
  std::vector<int32_t> adapters = {};  // of the tokens: 0 updates the router, 1 the shared gate, -1 nothing
};

// An update in f32, with r values.
struct FloatUpdate {
  static constexpr int kRank = 3;
  static constexpr float kScale = 0.5f;
  FloatUpdate(uint64_t seed, int64_t num_rows, int64_t num_cols)
      : rows(num_rows),
        cols(num_cols),
        a(noise(seed, kRank * cols, 0.2f)),
        b(noise(seed + 1, kRank * rows, 0.5f)),
        on_a(a),
        on_b(b),
        on_scales(std::vector<float>(kRank, kScale)),
        self(std::vector<DeviceLora>{device()}) {}

  DeviceLora device() const {
    DeviceLora lora;
    lora.float_a = on_a.get(), lora.float_b = on_b.get(), lora.scales = on_scales.get();
    lora.num_values = kRank, lora.rows = rows, lora.cols = cols;
    return lora;
  }
  // dot_a(row of A): its product with the input.
  template <class DotA>
  double of(int64_t row, const DotA& dot_a) const {
    double sum = 0;
    for (int64_t j = 0; j < kRank; ++j)
      sum += double{b[static_cast<size_t>(j * rows + row)]} * kScale * dot_a(&a[static_cast<size_t>(j * cols)]);
    return sum;
  }

  int64_t rows, cols;
  std::vector<float> a, b;  // b (r, rows)
  OnDevice<float> on_a, on_b, on_scales;
  OnDevice<DeviceLora> self;
};

struct Choices {
  std::vector<int32_t> experts;
  std::vector<float> weights, shared_weights;
};

class Router {
 public:
  explicit Router(const RouterCase& shape)
      : shape_(shape),
        hidden(noise(1, shape.num_tokens * shape.hidden_size, 1)),
        norm(noise(2, shape.hidden_size, 1)),
        router(noise(3, shape.moe.num_experts * shape.hidden_size, 1)),
        bias(noise(4, shape.moe.num_experts, 1)),
        selection_bias(noise(5, shape.moe.num_experts, 0.3f)),
        scales(noise(6, shape.moe.num_experts, 1)),
        gate(noise(7, shape.hidden_size, 0.1f)),
        router_update(8, shape.moe.num_experts, shape.hidden_size),
        gate_update(10, 1, shape.hidden_size),
        ids(static_cast<size_t>(shape.num_tokens), 3) {}

  Choices run() const {
    const OnDevice<float> on_hidden(hidden), on_norm(norm), on_router(router), on_bias(bias),
        on_selection(selection_bias), on_scales(scales), on_gate(gate);
    const OnDevice<int32_t> on_ids(ids);
    const auto pairs = static_cast<size_t>(shape_.num_tokens * shape_.moe.top_k);
    const OnDevice<int32_t> experts(pairs);
    const OnDevice<float> weights(pairs), shared(static_cast<size_t>(shape_.num_tokens));
    RouterArgs args;
    args.moe = shape_.moe;
    args.hidden = on_hidden.get();
    args.ids = on_ids.get();
    args.num_tokens = shape_.num_tokens;
    args.hidden_size = shape_.hidden_size;
    if (!shape_.lacks_norm) args.norm = on_norm.get();
    args.eps = 1e-6f;
    args.router = on_router.get();
    if (shape_.has_bias) args.bias = on_bias.get();
    if (shape_.has_selection_bias) args.selection_bias = on_selection.get();
    if (shape_.has_scales) args.scales = on_scales.get();
    if (shape_.has_gate) args.shared_gate = on_gate.get();
    args.experts = experts.get();
    args.weights = weights.get();
    args.shared_weights = shared.get();
    const OnDevice<int32_t> on_adapters(shape_.adapters);
    const OnDevice<const DeviceLora*> of_router(std::vector<const DeviceLora*>{router_update.self.get(), nullptr}),
        of_gate(std::vector<const DeviceLora*>{nullptr, gate_update.self.get()});
    const OnDevice<float> updates(static_cast<size_t>(shape_.num_tokens * (shape_.moe.num_experts + 1)));
    if (!shape_.adapters.empty()) {
      args.token_adapters = on_adapters.get();
      args.router_loras = of_router.get();
      if (shape_.has_gate) args.gate_loras = of_gate.get();
      args.updates = updates.get();
    }
    launch_router(args, stream());
    return {experts.read(), weights.read(), shared.read()};
  }

  // The CPU's choice from logits in double precision.
  Choices wanted() const {
    const auto size = static_cast<size_t>(shape_.hidden_size), top_k = static_cast<size_t>(shape_.moe.top_k);
    Choices choices;
    for (size_t token = 0; token < static_cast<size_t>(shape_.num_tokens); ++token) {
      double square = 0;
      for (size_t k = 0; k < size; ++k)
        square += std::pow(hidden[token * size + k], 2.0);
      const double scale = 1 / std::sqrt(square / static_cast<double>(size) + 1e-6);
      const auto dot = [&](const float* row) {
        double sum = 0;
        for (size_t k = 0; k < size; ++k)
          sum += row[k] * hidden[token * size + k] * (shape_.lacks_norm ? 1 : scale * norm[k]);
        return sum;
      };
      std::vector<float> logits;
      const int32_t adapter = shape_.adapters.empty() ? -1 : shape_.adapters[token];
      for (size_t i = 0; i < static_cast<size_t>(shape_.moe.num_experts); ++i)
        logits.push_back(static_cast<float>(dot(&router[i * size]) + (shape_.has_bias ? bias[i] : 0) +
                                            (adapter == 0 ? router_update.of(static_cast<int64_t>(i), dot) : 0)));
      const double gate_logit = dot(gate.data()) + (adapter == 1 ? gate_update.of(0, dot) : 0);
      choices.experts.resize((token + 1) * top_k);
      choices.weights.resize((token + 1) * top_k);
      const ExpertFactors factors{shape_.has_selection_bias ? selection_bias.data() : nullptr,
                                  shape_.has_scales ? scales.data() : nullptr};
      choose_experts(shape_.moe, logits.data(), factors,
                     {&choices.experts[token * top_k], &choices.weights[token * top_k]});
      choices.shared_weights.push_back(static_cast<float>(1 / (1 + std::exp(-gate_logit))));
    }
    return choices;
  }

 private:
  const RouterCase shape_;

 public:
  std::vector<float> hidden, norm, router, bias, selection_bias, scales, gate;
  FloatUpdate router_update, gate_update;
  std::vector<int32_t> ids;
};

TEST(kernel_router_chooses_like_the_cpu) {
  Moe sigmoid = moe_of(12, 3);
  sigmoid.score = RouterScore::kSigmoid, sigmoid.normalizes_weights = true, sigmoid.weight_scale = 2.5;
  Moe grouped = sigmoid;
  grouped.num_experts = 40, grouped.num_groups = 5, grouped.top_groups = 2, grouped.top_k = 6;
  Moe scaled = moe_of(70, 8);
  scaled.logit_scale = 0.125, scaled.normalizes_weights = true;
  const std::vector<RouterCase> cases = {{moe_of(3, 2), 1, 45},
                                         {moe_of(4, 4), 5, 64, true},
                                         {sigmoid, 3, 96, false, true},
                                         {grouped, 9, 64, true, true, true, true},
                                         {scaled, 2, 64, false, false, false, true},
                                         {moe_of(33, 2), 259, 32},
                                         {moe_of(5, 2), 3, 64, true, false, false, true, true},
                                         {grouped, 257, 40, false, true, false, true},
                                         {sigmoid, 5, 96, true, true, false, true, false, {0, 1, -1, 0, 1}},
                                         {moe_of(40, 3), 3, 45, false, false, true, false, true, {0, -1, 0}}};
  for (const RouterCase& shape : cases) {
    const Router router(shape);
    const Choices got = router.run(), wanted = router.wanted();
    const std::string what =
        std::to_string(shape.moe.num_experts) + " experts, " + std::to_string(shape.num_tokens) + " tokens: weight";
    EXPECT(got.experts == wanted.experts);
    for (size_t i = 0; i < wanted.weights.size(); ++i)
      expect_close(got.weights[i], wanted.weights[i], 1e-5 * (1 + std::abs(wanted.weights[i])), what,
                   static_cast<int64_t>(i));
    for (size_t i = 0; shape.has_gate && i < wanted.shared_weights.size(); ++i)
      expect_close(got.shared_weights[i], wanted.shared_weights[i], 1e-5, what, static_cast<int64_t>(i));
  }
}

// Blocks of one, four and eight tokens, by the size of the hidden states.
TEST(kernel_router_bits_do_not_depend_on_the_batch) {
  for (const int64_t hidden_size : {64, 4100, 9000}) {
    const RouterCase many{moe_of(5, 2), 257, hidden_size};
    RouterCase few = many;
    few.num_tokens = 2;
    const Choices all = Router(many).run(), some = Router(few).run();
    for (size_t i = 0; i < some.weights.size(); ++i)
      EXPECT(all.experts[i] == some.experts[i] && float_bits(all.weights[i]) == float_bits(some.weights[i]));
  }
}

TEST(kernel_router_takes_the_first_of_equal_experts) {
  Moe grouped = moe_of(40, 3);
  grouped.num_groups = 4, grouped.top_groups = 1;
  for (const Moe& moe : {moe_of(40, 3), grouped}) {
    Router router({moe, 2, 64});
    std::ranges::fill(router.router, 0.0f);
    EXPECT(router.run().experts == (std::vector<int32_t>{0, 1, 2, 0, 1, 2}));
  }
}

// A NaN reaches the weights of its token alone.
TEST(kernel_router_passes_nan_on_and_leaves_padding_without_experts) {
  Router router({moe_of(9, 2), 3, 64});
  router.hidden[64 + 5] = kNan;
  router.ids[2] = kNoToken;
  const Choices got = router.run();
  EXPECT(!std::isnan(got.weights[0]) && std::isnan(got.weights[2]) && std::isnan(got.weights[3]));
  EXPECT(got.experts[2] == 0 && got.experts[3] == 1);
  EXPECT(got.experts[4] == -1 && got.experts[5] == -1 && got.weights[4] == 0 && got.weights[5] == 0);
}

// ---- rows

// Deterministic experts of each pair, some without.
std::vector<int32_t> some_experts(int num_pairs, int num_experts) {
  std::vector<int32_t> experts;
  for (const float value : noise(9, num_pairs, 1))
    experts.push_back(static_cast<int32_t>(std::abs(value) * 1e6f) % (num_experts + 1) - 1);
  return experts;
}

struct RowsOnDevice {
  ExpertRowsArgs args;
  OnDevice<int32_t> experts, first_rows, tile_experts, row_tokens, pair_rows;

  RowsOnDevice(const std::vector<int32_t>& chosen, int top_k, int num_experts, int tile_rows)
      : args(sizes(chosen, top_k, num_experts, tile_rows)),
        experts(chosen),
        first_rows(old_values(num_experts + 1)),
        tile_experts(old_values(args.num_tiles)),
        row_tokens(old_values(args.num_tiles * tile_rows)),
        pair_rows(old_values(args.num_pairs)) {
    args.experts = experts.get();
    args.first_rows = first_rows.get();
    args.tile_experts = tile_experts.get();
    args.row_tokens = row_tokens.get();
    args.pair_rows = pair_rows.get();
    launch_expert_rows(args, stream());
  }
  // What an earlier step may have left.
  static std::vector<int32_t> old_values(int count) { return std::vector<int32_t>(static_cast<size_t>(count), 7); }
  static ExpertRowsArgs sizes(const std::vector<int32_t>& chosen, int top_k, int num_experts, int tile_rows) {
    ExpertRowsArgs args;
    args.num_pairs = static_cast<int>(chosen.size());
    args.top_k = top_k, args.num_experts = num_experts, args.tile_rows = tile_rows;
    args.num_tiles = static_cast<int>(max_expert_tiles(args.num_pairs, num_experts, tile_rows));
    return args;
  }
};

TEST(kernel_expert_rows_are_in_the_order_of_the_tokens) {
  for (const auto& [num_tokens, top_k, num_experts] :
       std::vector<std::array<int, 3>>{{1, 1, 1}, {1, 3, 5}, {40, 2, 3}, {100, 3, 40}, {30, 2, 1500}})
    for (const int tile_rows : {8, 32}) {
      const std::vector<int32_t> chosen = some_experts(num_tokens * top_k, num_experts);
      const RowsOnDevice rows(chosen, top_k, num_experts, tile_rows);
      std::vector<int32_t> first_rows, tile_experts, row_tokens, pair_rows(chosen.size(), -1);
      for (int expert = 0; expert < num_experts; ++expert) {
        first_rows.push_back(static_cast<int32_t>(row_tokens.size()));
        for (size_t pair = 0; pair < chosen.size(); ++pair) {
          if (chosen[pair] != expert) continue;
          pair_rows[pair] = static_cast<int32_t>(row_tokens.size());
          row_tokens.push_back(static_cast<int32_t>(pair) / top_k);
        }
        while (row_tokens.size() % static_cast<size_t>(tile_rows) != 0)
          row_tokens.push_back(-1);
        tile_experts.resize(row_tokens.size() / static_cast<size_t>(tile_rows), expert);
      }
      first_rows.push_back(static_cast<int32_t>(row_tokens.size()));
      EXPECT(tile_experts.size() <= static_cast<size_t>(rows.args.num_tiles));
      tile_experts.resize(static_cast<size_t>(rows.args.num_tiles), -1);
      row_tokens.resize(tile_experts.size() * static_cast<size_t>(tile_rows), -1);
      EXPECT(rows.first_rows.read() == first_rows && rows.tile_experts.read() == tile_experts);
      EXPECT(rows.row_tokens.read() == row_tokens && rows.pair_rows.read() == pair_rows);
    }
}

TEST(kernel_norm_writes_no_row_without_a_token) {
  const int64_t size = 64;
  const OnDevice<float> hidden(noise(1, 3 * size, 1)), weight(noise(2, size, 1));
  const OnDevice<int32_t> rows(std::vector<int32_t>{2, -1, 0});
  const OnDevice<uint16_t> acts(static_cast<size_t>(8 * size));
  NormArgs args;
  args.hidden = hidden.get();
  args.rows = rows.get();
  args.num_rows = 3;
  args.hidden_size = size;
  args.weight = weight.get();
  args.split = split_depth(size, size, 1);
  args.acts = acts.get();
  launch_norm(args, stream());
  const std::vector<uint16_t> got = acts.read();
  for (int row = 0; row < 3; ++row)
    for (int64_t k = 0; k < size; ++k)
      EXPECT_EQ(got[static_cast<size_t>(operand_index(row, k, size))] == kUnwritten, row == 1);
}

// ---- products

TEST(kernel_expert_gemm_has_the_bits_of_gemm) {
  constexpr int kExperts = 3, kTiles = 5;
  const std::vector<int32_t> tile_experts = {0, 2, 2, 1, -1};
  for (const FloatType type : kTypes)
    for (const auto& [num_rows, cols] : std::vector<std::pair<int64_t, int64_t>>{{48, 64}, {32, 45}, {208, 1152}})
      for (const int tile_rows : {8, 32})
        for (const GemmOutput output : {GemmOutput::kStore, GemmOutput::kGated}) {
          const DepthSplit split = split_depth(cols, cols, row_parallel_parts(cols)),
                           gated_split = split_depth(num_rows / 2, num_rows / 2, row_parallel_parts(num_rows / 2));
          const int tokens = kTiles * tile_rows;
          std::vector<OnDevice<uint16_t>> weights;
          std::vector<OnDevice<float>> biases;
          std::vector<DeviceMatrix> matrices;
          for (uint64_t e = 0; e < kExperts; ++e) {
            const float deviation = 1 / std::sqrt(static_cast<float>(cols));
            weights.emplace_back(packed_weights(type, noise(e + 1, num_rows * cols, deviation), num_rows, split));
            biases.emplace_back(noise(e + 10, num_rows, 1));
            matrices.push_back({weights.back().get(), biases.back().get(), num_rows, split});
          }
          const OnDevice<uint16_t> acts(packed_acts(type, noise(20, tokens * cols, 1), tokens, split));
          const auto outputs = static_cast<size_t>(tokens * num_rows),
                     gated_outputs = static_cast<size_t>(tokens * gated_split.padded());
          const OnDevice<float> out(outputs), alone(outputs);
          const OnDevice<uint16_t> gated(gated_outputs), gated_alone(gated_outputs);
          const OnDevice<DeviceMatrix> on_device(matrices);
          const OnDevice<int32_t> tiles(tile_experts);
          ExpertGemmArgs args;
          args.experts = on_device.get();
          args.tile_experts = tiles.get();
          args.tile_rows = tile_rows;
          GemmArgs& product = args.product;
          product.type = type;
          product.output = output;
          product.weights = matrices[0];
          product.acts = acts.get();
          product.num_tokens = tokens;
          product.out = out.get();
          product.out_stride = num_rows;
          product.gated = gated.get();
          product.gated_split = gated_split;
          launch_expert_gemm(args, device_resources(), stream());
          const std::vector<float> got = out.read();
          const std::vector<uint16_t> got_gated = gated.read();
          GemmArgs single = product;
          single.out = alone.get();
          single.gated = gated_alone.get();
          for (int32_t e = 0; e < kExperts; ++e) {
            single.weights = matrices[static_cast<size_t>(e)];
            launch_gemm(single, device_resources(), stream());
            const std::vector<float> wanted = alone.read();
            const std::vector<uint16_t> wanted_gated = gated_alone.read();
            for (int token = 0; token < tokens; ++token) {
              if (tile_experts[static_cast<size_t>(token / tile_rows)] != e) continue;
              for (int64_t row = 0; row < num_rows; ++row) {
                const auto at = static_cast<size_t>(token * num_rows + row);
                if (output == GemmOutput::kStore) EXPECT_EQ(float_bits(got[at]), float_bits(wanted[at]));
                const auto gated_at =
                    static_cast<size_t>(operand_index(token, gated_split.place(row / 2), gated_split.padded()));
                if (output == GemmOutput::kGated) EXPECT_EQ(got_gated[gated_at], wanted_gated[gated_at]);
              }
            }
          }
          // Nothing is written without an expert.
          EXPECT(is_unwritten(got.back()) && got_gated.back() == kUnwritten);
        }
}

TEST(kernel_expert_gemm_leaves_biases_out) {
  const DepthSplit split = split_depth(64, 64, row_parallel_parts(64));
  const OnDevice<uint16_t> weights(packed_weights(FloatType::kBf16, noise(1, 16 * 64, 1), 16, split));
  const OnDevice<float> bias(noise(2, 16, 1)), out(size_t{8 * 16}), without(size_t{8 * 16});
  const OnDevice<uint16_t> acts(packed_acts(FloatType::kBf16, noise(3, 8 * 64, 1), 8, split));
  const OnDevice<DeviceMatrix> matrices(std::vector<DeviceMatrix>{{weights.get(), bias.get(), 16, split}});
  const OnDevice<int32_t> tiles(std::vector<int32_t>{0});
  ExpertGemmArgs args;
  args.experts = matrices.get();
  args.tile_experts = tiles.get();
  args.tile_rows = 8;
  args.product.weights = {weights.get(), bias.get(), 16, split};
  args.product.acts = acts.get();
  args.product.num_tokens = 8;
  args.product.out_stride = 16;
  for (const bool adds_bias : {true, false}) {
    args.adds_bias = adds_bias;
    args.product.out = (adds_bias ? out : without).get();
    launch_expert_gemm(args, device_resources(), stream());
  }
  const std::vector<float> all = out.read(), plain = without.read(), added = bias.read();
  for (size_t i = 0; i < all.size(); ++i)
    EXPECT_EQ(float_bits(all[i]), float_bits(plain[i] + added[i % 16]));
}

// ---- sums

// `is_updated`: adapters update the results of some rows.
void expect_expert_sums(bool is_updated) {
  constexpr int kTokens = 3, kTopK = 2, kRows = 10;
  constexpr int64_t kSize = 300;
  const std::vector<int32_t> chosen = {1, 0, 0, -1, 1, 0}, rows = {8, 0, 1, -1, 9, 2};
  const std::vector<float> weights = noise(1, kTokens * kTopK, 1), shared_weights = noise(2, kTokens, 1),
                           before = noise(3, kTokens * kSize, 1), shared_bias = noise(4, kSize, 1);
  const std::vector<float> bias = noise(5, kSize, 1);
  const OnDevice<float> on_bias(bias), on_weights(weights), on_shared(shared_weights), on_shared_bias(shared_bias);
  const OnDevice<int32_t> on_chosen(chosen), on_rows(rows);
  // The first expert has a bias.
  std::vector<DeviceMatrix> downs(2);
  downs[0].bias = on_bias.get();
  const OnDevice<DeviceMatrix> on_downs(downs);
  const std::vector<float> expert_norm = noise(6, kSize, 1), shared_norm = noise(7, kSize, 1);
  const OnDevice<float> on_expert_norm(expert_norm), on_shared_norm(shared_norm);
  enum class Shared : uint8_t { kNone, kWeighted, kNormed };
  // Rows 8 and 1 have different updates, and so does the shared expert of the second token.
  const FloatType type = is_updated ? FloatType::kF16 : FloatType::kBf16;
  const Update updates[2] = {{type, 20, 2, 5, kSize, 1}, {type, 30, 4, 3, kSize, 1}};
  const UpdateOnDevice first(type, updates[0]), second(type, updates[1]);
  std::vector<int> update_of(kRows + kTokens, -1);
  update_of[8] = 0, update_of[1] = 1, update_of[kRows + 1] = 0;
  std::vector<const DeviceLora*> loras;
  for (const int update : update_of)
    loras.push_back(update < 0 ? nullptr : update == 0 ? first.self.get() : second.self.get());
  const OnDevice<const DeviceLora*> on_loras(loras);
  constexpr size_t kStride = 9, kT = (kRows + kTokens) * kSize;
  for (const int world_size : {1, 2, 4, 8})
    for (const Shared shared : {Shared::kNone, Shared::kWeighted, Shared::kNormed})
      for (const bool replaces : {false, true}) {
        std::vector<std::vector<float>> results;
        std::vector<OnDevice<float>> on_results;
        ExpertSumArgs args;
        for (int rank = 0; rank < world_size; ++rank) {
          results.push_back(noise(static_cast<uint64_t>(rank) + 10, (kRows + kTokens) * (kSize + kStride), 1));
          on_results.emplace_back(results.back());
          args.results[rank] = on_results.back().get();
        }
        const OnDevice<float> hidden(before);
        args.hidden = hidden.get();
        args.replaces = replaces;
        args.scale = kResidualScale;
        args.first = replaces ? 1 : 0;
        args.end = replaces ? 2 : kTokens;
        args.world_size = world_size;
        args.experts = on_chosen.get();
        args.pair_rows = on_rows.get();
        args.weights = on_weights.get();
        args.downs = on_downs.get();
        args.num_tokens = kTokens;
        args.top_k = kTopK;
        args.hidden_size = kSize;
        if (shared != Shared::kNone) {
          args.shared_row = kRows;
          args.shared_bias = on_shared_bias.get();
        }
        if (shared == Shared::kWeighted) args.shared_weights = on_shared.get();
        if (shared == Shared::kNormed)
          args.expert_norm = on_expert_norm.get(), args.shared_norm = on_shared_norm.get(), args.eps = 1e-3f;
        args.type = type;
        if (is_updated) args.loras = on_loras.get(), args.t_begin = kT, args.t_stride = kStride;
        launch_expert_sum(args, stream());
        const std::vector<float> got = hidden.read();
        for (size_t token = 0; token < kTokens; ++token) {
          const bool is_mine = !replaces || token == 1;
          std::vector<double> of_experts(kSize), of_shared(kSize);
          double expert_square = 1e-3, shared_square = 1e-3;  // with eps
          for (size_t k = 0; is_mine && k < kSize; ++k) {
            const auto result = [&](size_t row) {
              double sum = 0;
              for (const auto& of_rank : results)
                sum += of_rank[row * kSize + k];
              if (!is_updated || update_of[row] < 0) return sum;
              const Update& lora = updates[update_of[row]];
              const LoraRange& range = lora.ranges[k];
              for (int j = 0; j < range.count; ++j) {
                const auto value = static_cast<size_t>(range.first + j);
                double t = 0;
                for (const auto& of_rank : results)
                  t += of_rank[kT + row * kStride + value];
                sum += t * lora.scales[value] * lora.b[k * static_cast<size_t>(lora.width()) + static_cast<size_t>(j)];
              }
              return sum;
            };
            for (size_t slot = 0; slot < kTopK; ++slot) {
              const size_t pair = token * kTopK + slot;
              if (rows[pair] < 0) continue;
              of_experts[k] +=
                  weights[pair] * (result(static_cast<size_t>(rows[pair])) + (chosen[pair] == 0 ? bias[k] : 0));
            }
            if (shared != Shared::kNone) of_shared[k] = result(kRows + token) + shared_bias[k];
            if (shared == Shared::kWeighted) of_shared[k] *= shared_weights[token];
            expert_square += of_experts[k] * of_experts[k] / kSize;
            shared_square += of_shared[k] * of_shared[k] / kSize;
          }
          for (size_t k = 0; k < kSize; ++k) {
            if (shared == Shared::kNormed)
              of_experts[k] *= expert_norm[k] / std::sqrt(expert_square),
                  of_shared[k] *= shared_norm[k] / std::sqrt(shared_square);
            double wanted = of_experts[k] + of_shared[k];
            if (!replaces) wanted = before[token * kSize + k] + wanted * static_cast<double>(kResidualScale);
            expect_close(got[token * kSize + k], wanted, 1e-5, "sum", static_cast<int64_t>(token),
                         static_cast<int64_t>(k));
            if (!is_mine) EXPECT_EQ(got[token * kSize + k], 0.0f);
          }
        }
      }
}

TEST(kernel_expert_sums_add_the_ranks_the_experts_and_the_shared_expert) {
  expect_expert_sums(false);
}

TEST(kernel_expert_sums_add_the_updates_of_rows) {
  expect_expert_sums(true);
}

}  // namespace
}  // namespace capstan::testing
