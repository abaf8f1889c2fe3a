// Every kernel against double precision, over odd sizes and the boundaries of tiles, blocks and chunks. nvcc compiles
// these tests for a device, and g++ for the host emulation, where they test the emulated instructions first. Outputs
// start as NaN, so that missing writes are detected.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "cuda/fp8.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "test/native/gpu/kernel_testing.h"

namespace capstan::testing {
namespace {

// ---- instructions

struct MmaArgs {
  const uint32_t* a;
  const uint32_t* b;
  float* c;
};
template <class T>
__global__ void mma_test_kernel(MmaArgs args) {
  const int lane = lane_id();
  uint32_t a[4], b[2];
  float c[4];
  for (int r = 0; r < 4; ++r)
    a[r] = args.a[lane * 4 + r], c[r] = args.c[lane * 4 + r];
  for (int r = 0; r < 2; ++r)
    b[r] = args.b[lane * 2 + r];
  mma_m16n8k16<T>(c, a, b);
  for (int r = 0; r < 4; ++r)
    args.c[lane * 4 + r] = c[r];
}

TEST(kernel_mma_follows_the_manual) {
  for (const FloatType type : kTypes)
    for (uint64_t seed = 0; seed < 10; ++seed) {
      const std::vector<float> a = rounded(type, noise(seed * 3 + 1, 16 * 16, 1)),
                               b = rounded(type, noise(seed * 3 + 2, 16 * 8, 1)), c = noise(seed * 3 + 3, 16 * 8, 1);
      std::vector<uint32_t> a_bits(128), b_bits(64);
      std::vector<float> c_values(128);
      for (int lane = 0; lane < 32; ++lane) {
        const int g = lane / 4, t = lane % 4;
        const auto pair = [&](const std::vector<float>& from, int first, int second) {
          return static_cast<uint32_t>(bits_of(type, from[static_cast<size_t>(first)])) |
                 static_cast<uint32_t>(bits_of(type, from[static_cast<size_t>(second)])) << 16;
        };
        for (int r = 0; r < 4; ++r) {
          const int row = g + r % 2 * 8, col = 2 * t + r / 2 * 8;
          a_bits[static_cast<size_t>(lane * 4 + r)] = pair(a, row * 16 + col, row * 16 + col + 1);
          c_values[static_cast<size_t>(lane * 4 + r)] = c[static_cast<size_t>((g + r / 2 * 8) * 8 + 2 * t + r % 2)];
        }
        for (int r = 0; r < 2; ++r)
          b_bits[static_cast<size_t>(lane * 2 + r)] = pair(b, (2 * t + r * 8) * 8 + g, (2 * t + r * 8 + 1) * 8 + g);
      }
      const OnDevice<uint32_t> device_a(a_bits), device_b(b_bits);
      const OnDevice<float> device_c(c_values);
      const MmaArgs args{device_a.get(), device_b.get(), device_c.get()};
      launch(type == FloatType::kBf16 ? mma_test_kernel<Bf16> : mma_test_kernel<F16>, dim3(1), dim3(32), 0, stream(),
             args);
      const std::vector<float> got = device_c.read();
      for (int lane = 0; lane < 32; ++lane)
        for (int r = 0; r < 4; ++r) {
          const int row = lane / 4 + r / 2 * 8, col = lane % 4 * 2 + r % 2;
          double wanted = c[static_cast<size_t>(row * 8 + col)], size = std::abs(wanted);
          for (int k = 0; k < 16; ++k) {
            const double product =
                static_cast<double>(a[static_cast<size_t>(row * 16 + k)]) * b[static_cast<size_t>(k * 8 + col)];
            wanted += product, size += std::abs(product);
          }
          expect_close(got[static_cast<size_t>(lane * 4 + r)], wanted, 1e-6 * size, "mma", row, col);
        }
    }
}

struct ConvertArgs {
  const float* values;
  const uint16_t* patterns;
  int64_t count;
  uint16_t* bits;
  float* floats;
};
template <class T>
__global__ void convert_test_kernel(ConvertArgs args) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= args.count) return;
  args.bits[i] = to_bits<T>(args.values[i]);
  args.floats[i] = to_float<T>(args.patterns[i]);
}

TEST(kernel_conversions_round_like_the_host) {
  std::vector<uint16_t> patterns(65536);
  std::vector<float> values;
  std::mt19937 random(3);
  for (uint32_t i = 0; i < 65536; ++i) {
    patterns[i] = static_cast<uint16_t>(i);
    // Every 16-bit value, a tie above it, and arbitrary f32 values.
    const uint32_t bits = i % 3 == 0   ? i << 16 | 0x8000u
                          : i % 3 == 1 ? float_bits(f16_to_float(static_cast<uint16_t>(i))) + 0x1000u
                                       : random();
    float value;
    std::memcpy(&value, &bits, sizeof value);
    values.push_back(value);
  }
  for (const FloatType type : kTypes) {
    const OnDevice<float> device_values(values);
    const OnDevice<uint16_t> device_patterns(patterns);
    const OnDevice<uint16_t> bits(values.size());
    const OnDevice<float> floats(values.size());
    const ConvertArgs args{device_values.get(), device_patterns.get(), static_cast<int64_t>(values.size()), bits.get(),
                           floats.get()};
    launch(type == FloatType::kBf16 ? convert_test_kernel<Bf16> : convert_test_kernel<F16>, dim3(256), dim3(256), 0,
           stream(), args);
    const std::vector<uint16_t> got_bits = bits.read();
    const std::vector<float> got_floats = floats.read();
    for (size_t i = 0; i < values.size(); ++i) {
      // Any NaN is accepted for NaN.
      if (std::isnan(values[i]))
        EXPECT(std::isnan(value_of(type, got_bits[i])));
      else
        EXPECT_EQ(got_bits[i], bits_of(type, values[i]));
      const float wanted = value_of(type, patterns[i]);
      if (std::isnan(wanted))
        EXPECT(std::isnan(got_floats[i]));
      else
        EXPECT_EQ(float_bits(got_floats[i]), float_bits(wanted));
    }
  }
}

__global__ void warp_sum_test_kernel(const float* values, float* sums) {
  sums[threadIdx.x] = warp_sum(values[threadIdx.x]);
  sums[threadIdx.x + 64] = warp_max(values[threadIdx.x]);
}

TEST(kernel_warp_sums_have_a_fixed_order) {
  const std::vector<float> values = noise(9, 64, 1);
  const OnDevice<float> device_values(values), sums(128);
  launch(warp_sum_test_kernel, dim3(1), dim3(64), 0, stream(), device_values.get(), sums.get());
  const std::vector<float> got = sums.read();
  for (size_t warp = 0; warp < 2; ++warp) {
    std::vector<float> lanes(values.begin() + static_cast<ptrdiff_t>(warp * 32),
                             values.begin() + static_cast<ptrdiff_t>(warp * 32 + 32));
    for (size_t bits = 16; bits > 0; bits /= 2) {
      const std::vector<float> before = lanes;
      for (size_t lane = 0; lane < 32; ++lane)
        lanes[lane] = before[lane] + before[lane ^ bits];
    }
    for (size_t lane = 0; lane < 32; ++lane) {
      EXPECT_EQ(got[warp * 32 + lane], lanes[lane]);
      EXPECT_EQ(got[64 + warp * 32 + lane], *std::max_element(values.begin() + static_cast<ptrdiff_t>(warp * 32),
                                                              values.begin() + static_cast<ptrdiff_t>(warp * 32 + 32)));
    }
  }
}

// ---- products

struct GemmCase {
  int64_t rows, cols;
  int tokens;
};

void check_gemm(FloatType type, const GemmCase& shape, GemmOutput output, bool has_bias, bool is_gemv = false,
                Activation activation = Activation::kXielu) {
  const bool is_gated = output == GemmOutput::kGated;
  const int64_t rows = is_gated ? round_up(shape.rows, 16) : shape.rows, cols = shape.cols,
                features = is_gated ? shape.rows / 2 : shape.rows;
  const DepthSplit split = split_depth(cols, cols, row_parallel_parts(cols));
  const std::vector<float> weights = rounded(type, noise(1, rows * cols, 1 / std::sqrt(static_cast<float>(cols)))),
                           acts = rounded(type, noise(2, shape.tokens * cols, 1));
  // Gates and ups that reach the limits of clamped gates.
  const std::vector<float> bias = noise(3, round_up(rows, 16), is_gated ? 12 : 3);
  const OnDevice<uint16_t> device_weights(packed_weights(type, weights, rows, split)),
      device_acts(packed_acts(type, acts, shape.tokens, split));
  const OnDevice<float> device_bias(bias);
  const int64_t stride = shape.rows + 3;
  const int padded_tokens = shape.tokens + 2;
  const std::vector<float> before = noise(4, padded_tokens * stride, 1);
  const OnDevice<float> out = output == GemmOutput::kResidual
                                  ? OnDevice<float>(before)
                                  : OnDevice<float>(static_cast<size_t>(padded_tokens * stride));
  const DepthSplit gated_split = split_depth(features, features, row_parallel_parts(features));
  const OnDevice<uint16_t> gated(static_cast<size_t>(round_up(shape.tokens, 8) * gated_split.padded()));
  GemmArgs args;
  args.type = type;
  args.output = output;
  args.weights = {device_weights.get(), has_bias ? device_bias.get() : nullptr, rows, split};
  args.acts = device_acts.get();
  args.num_tokens = shape.tokens;
  args.out = out.get();
  args.out_stride = stride;
  args.gated = gated.get();
  args.gated_split = gated_split;
  args.activation = shape.tokens % 2 == 0 ? Activation::kClampedSwish : Activation::kGeluTanh;
  if (output == GemmOutput::kActivated) args.activation = activation;
  args.xielu = kXielu;
  // Some products have factors.
  const bool has_factors = has_bias && output == GemmOutput::kActivated;
  const Factors factors(shape.tokens, shape.rows);
  if (has_factors) factors.set(args);
  if (output == GemmOutput::kResidual) args.residual_scale = kResidualScale;
  GemvArgs gemv;
  gemv.product = args;
  gemv.max_blocks = 3;
  is_gemv ? launch_gemv(gemv, stream()) : launch_gemm(args, device_resources(), stream());
  const std::vector<float> got = out.read();
  const std::vector<uint16_t> got_gated = gated.read();

  const std::string what = std::string(is_gemv ? "gemv " : "gemm ") + std::to_string(shape.rows) + " x " +
                           std::to_string(cols) + ", " + std::to_string(shape.tokens) + " tokens";
  const auto dot = [&](int64_t row, int token, double& size) {
    double sum = has_bias ? bias[static_cast<size_t>(row)] : 0;
    size = 1;
    for (int64_t k = 0; k < cols; ++k) {
      const double product = static_cast<double>(weights[static_cast<size_t>(row * cols + k)]) *
                             acts[static_cast<size_t>(token * cols + k)];
      sum += product, size += std::abs(product);
    }
    return sum;
  };
  for (int token = 0; token < padded_tokens; ++token) {
    if (has_acts(output)) {
      if (token >= shape.tokens) break;
      const auto bits_at = [&](int64_t place) {
        return got_gated[static_cast<size_t>(operand_index(token, place, gated_split.padded()))];
      };
      std::vector<bool> is_written(static_cast<size_t>(gated_split.padded()));
      for (int64_t feature = 0; feature < features; ++feature) {
        const int64_t row = is_gated ? feature / 8 * 16 + feature % 8 : feature, place = gated_split.place(feature);
        is_written[static_cast<size_t>(place)] = true;
        double size;
        const double value = dot(row, token, size);
        double wanted = is_gated ? gated_in_doubles(args.activation, value, dot(row + 8, token, size))
                                 : activated(args.activation, value);
        if (has_factors) wanted *= factors.at(token, row);
        expect_close(value_of(type, bits_at(place)), wanted, rounding_of(type) * (std::abs(wanted) + 0.01),
                     what + ", activated", token, feature);
      }
      for (int64_t place = 0; place < gated_split.padded(); ++place)
        if (!is_written[static_cast<size_t>(place)]) EXPECT_EQ(bits_at(place), kUnwritten);
      continue;
    }
    for (int64_t row = 0; row < stride; ++row) {
      const float value = got[static_cast<size_t>(token * stride + row)],
                  old = before[static_cast<size_t>(token * stride + row)];
      if (token >= shape.tokens || row >= shape.rows) {
        EXPECT(output == GemmOutput::kResidual ? value == old : is_unwritten(value));
        continue;
      }
      double size;
      const double wanted = dot(row, token, size) * args.residual_scale + (output == GemmOutput::kResidual ? old : 0);
      expect_close(value, wanted, 1e-5 * size, what, token, row);
    }
  }
}

struct GemvCase {
  int num_heads, num_kv_heads, head_dim;  // rows of q, k and v
  int64_t cols;
  int total_parts_of;  // ranks of the row-parallel layer that this matrix is a part of
};

// Runs the three separate launchers instead of the fused one.
void launch_apart(const GemvArgs& args) {
  if (args.is_normed) launch_norm(args.norm, stream());
  launch_gemm(args.product, device_resources(), stream());
  if (args.has_heads) launch_qkv(args.heads, stream());
}

// All combinations of a layer. Other tests compare the separate kernels with double precision; this one expects the
// same bits from the fused kernel, for any number of blocks and tokens.
void check_gemv(FloatType type, const GemvCase& shape, int tokens, int max_blocks) {
  constexpr int kBlockSize = 64, kBlocks = 2, kPositions = 50;
  const int64_t head_rows = int64_t{shape.num_heads + 2 * shape.num_kv_heads} * shape.head_dim,
                gated_rows = round_up(head_rows, 16);
  const KvLayout layout = make_kv_layout(kBlockSize, shape.num_kv_heads, shape.head_dim);
  const int64_t hidden_size = shape.cols;
  const DepthSplit split = split_depth(hidden_size, hidden_size * shape.total_parts_of,
                                       row_parallel_parts(hidden_size * shape.total_parts_of));
  const std::vector<float> weights =
      rounded(type, noise(1, gated_rows * hidden_size, 1 / std::sqrt(static_cast<float>(hidden_size))));
  const std::vector<float> hidden = noise(2, 7 * hidden_size, 3), norm = noise(3, hidden_size, 1),
                           bias = noise(4, gated_rows, 1), q_norm = noise(5, shape.head_dim, 1),
                           k_norm = noise(9, shape.head_dim, 1);
  const std::vector<int32_t> rows = {6, 0, 3, 2}, positions = {0, 49, 7, 30}, slots = {64, 3, -1, 127};
  const int rotary_dim = shape.head_dim / 2 * 2;
  const OnDevice<uint16_t> device_weights(packed_weights(type, weights, gated_rows, split));
  const OnDevice<float> device_hidden(hidden), device_norm(norm), device_bias(bias), device_q_norm(q_norm),
      device_k_norm(k_norm), rope(noise(6, kPositions * rotary_dim, 1));
  const OnDevice<int32_t> device_rows(rows), device_positions(positions), device_slots(slots),
      rows_done(std::vector<int32_t>(static_cast<size_t>(head_rows / shape.head_dim), 0));
  const std::string what = "gemv " + std::to_string(head_rows) + " x " + std::to_string(hidden_size) + ", " +
                           std::to_string(tokens) + " tokens, " + std::to_string(max_blocks) + " blocks";

  const auto run = [&](bool is_fused, bool is_normed, bool has_heads, GemmOutput output, bool has_kv) {
    const int64_t product_rows = output == GemmOutput::kGated ? gated_rows
                                 : has_kv                     ? head_rows
                                                              : int64_t{shape.num_heads} * shape.head_dim,
                  stride = product_rows + 3, features = output == GemmOutput::kGated ? gated_rows / 2 : product_rows;
    const DepthSplit gated_split = split_depth(features, features, row_parallel_parts(features));
    const std::vector<uint16_t> given =
        packed_acts(type, rounded(type, noise(7, tokens * hidden_size, 1)), tokens, split);
    const OnDevice<uint16_t> acts(given), gated(static_cast<size_t>(8 * gated_split.padded()));
    const OnDevice<uint16_t> cache(static_cast<size_t>(kBlocks * layout.block_elements())),
        q(static_cast<size_t>(tokens * shape.num_heads * layout.k_dim));
    const OnDevice<float> out(noise(8, (tokens + 1) * stride, 1));
    GemvArgs args;
    args.product.type = args.norm.type = args.heads.type = type;
    args.product.output = output;
    args.product.weights = {device_weights.get(), device_bias.get(), product_rows, split};
    args.product.acts = acts.get();
    args.product.num_tokens = tokens;
    args.product.out = out.get();
    args.product.out_stride = stride;
    args.product.gated = gated.get();
    args.product.gated_split = gated_split;
    args.product.residual_scale = kResidualScale;
    args.is_normed = is_normed;
    args.norm.hidden = device_hidden.get();
    args.norm.rows = has_heads ? nullptr : device_rows.get();
    args.norm.num_rows = tokens;
    args.norm.hidden_size = hidden_size;
    args.norm.weight = device_norm.get();
    args.norm.eps = 1e-6f;
    args.norm.split = split;
    args.norm.acts = acts.get();
    args.has_heads = has_heads;
    args.heads.qkv = out.get();
    args.heads.qkv_stride = stride;
    args.heads.num_tokens = tokens;
    args.heads.num_heads = shape.num_heads;
    args.heads.has_kv = has_kv;
    args.heads.q_norm = shape.head_dim % 3 == 0 ? device_q_norm.get() : nullptr;
    args.heads.k_norm = shape.head_dim % 3 == 0 ? device_k_norm.get() : nullptr;
    args.heads.eps = 1e-6f;
    args.heads.rope = rope.get();
    args.heads.rotary_dim = rotary_dim;
    args.heads.positions = device_positions.get();
    args.heads.slots = device_slots.get();
    args.heads.layout = layout;
    args.heads.cache = cache.get();
    args.heads.q = q.get();
    args.rows_done = rows_done.get();
    args.max_blocks = max_blocks;
    args.product.uses_pdl = supports_pdl();
    // The inputs are written directly before the launch.
    const OnDevice<float> hidden_now(hidden.size());
    const OnDevice<uint16_t> acts_now(given.size());
    args.norm.hidden = hidden_now.get();
    if (!is_normed) args.product.acts = acts_now.get();
    const auto copy = [&](void* to, const void* from, size_t bytes) {
      check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream()), "a test");
    };
    is_normed ? copy(hidden_now.get(), device_hidden.get(), hidden.size() * sizeof(float))
              : copy(acts_now.get(), acts.get(), given.size() * sizeof(uint16_t));
    is_fused ? launch_gemv(args, stream()) : launch_apart(args);
    const std::vector<float> floats = out.read();
    std::vector<uint16_t> bits = gated.read();
    for (const auto& more : {cache.read(), q.read()})
      bits.insert(bits.end(), more.begin(), more.end());
    for (const float value : floats)
      bits.push_back(static_cast<uint16_t>(float_bits(value))),
          bits.push_back(static_cast<uint16_t>(float_bits(value) >> 16));
    return bits;
  };
  const auto expect_same = [&](bool is_normed, bool has_heads, GemmOutput output, bool has_kv = true) {
    if (run(true, is_normed, has_heads, output, has_kv) != run(false, is_normed, has_heads, output, has_kv))
      fail(__FILE__, __LINE__,
           what + (is_normed ? ", normed" : "") + (has_heads ? ", heads" : "") + (has_kv ? "" : " of q") + ", output " +
               std::to_string(static_cast<int>(output)));
  };
  expect_same(false, false, GemmOutput::kResidual);
  expect_same(false, false, GemmOutput::kStore);
  if (shape.total_parts_of > 1) return;  // a norm needs complete rows
  expect_same(true, false, GemmOutput::kStore);
  expect_same(true, false, GemmOutput::kGated);
  expect_same(true, false, GemmOutput::kActivated);
  for (const bool has_kv : {true, false})
    expect_same(true, true, GemmOutput::kStore, has_kv);
  for (const int32_t count : rows_done.read())
    EXPECT_EQ(count, 0);
}

TEST(kernel_gemv_matches_the_separate_kernels) {
  const std::vector<GemvCase> cases = {{4, 2, 16, 64, 1},  {3, 1, 15, 45, 1},  {2, 1, 24, 272, 1},  {3, 3, 40, 96, 1},
                                       {2, 1, 64, 512, 1}, {1, 1, 32, 128, 4}, {1, 1, 32, 1152, 2}, {1, 1, 24, 2, 1}};
  for (const FloatType type : kTypes)
    for (size_t i = 0; i < cases.size(); ++i)
      for (const int tokens :
           is_full() ? std::vector<int>{1, 2, 3, 4} : std::vector<int>{1 + static_cast<int>(i) % 4, 4})
        for (const int max_blocks : {2, 1000})
          check_gemv(type, cases[i], tokens, max_blocks);
  if (is_full())
    for (const GemvCase& shape : {GemvCase{12, 2, 128, 1536, 1}, GemvCase{28, 4, 128, 3584, 1},
                                  GemvCase{4, 4, 128, 8960, 1}, GemvCase{4, 4, 128, 4480, 2}})
      for (const int tokens : {1, 4})
        check_gemv(FloatType::kBf16, shape, tokens, 264);
}

TEST(kernel_gemm_over_the_shapes) {
  std::vector<GemmCase> cases;
  for (const int tokens : {1, 7, 8, 9, 17, 33, 65})
    cases.push_back({48, 64, tokens});
  for (const int64_t cols : {2, 45, 96, 272, 512})
    cases.push_back({40, cols, 3});
  if (is_full()) {
    for (const int tokens : {1, 2, 4, 5, 16, 31, 32, 63, 64, 65, 127, 130, 300})
      cases.push_back({200, 896, tokens});
    for (const auto& [rows, cols] :
         std::vector<std::pair<int64_t, int64_t>>{{2048, 1536}, {1536, 1536}, {3584, 1536}, {1536, 8960}, {1000, 4864}})
      cases.push_back({rows, cols, 5});
  }
  for (const FloatType type : kTypes)
    for (const GemmCase& shape : cases) {
      check_gemm(type, shape, GemmOutput::kStore, true);
      check_gemm(type, shape, GemmOutput::kResidual, false);
      check_gemm(type, shape, GemmOutput::kGated, shape.tokens % 2 == 0);
      check_gemm(type, shape, GemmOutput::kActivated, shape.tokens % 2 == 0);
      if (shape.tokens > kGemvTokens) continue;
      check_gemm(type, shape, GemmOutput::kResidual, true, true);
      check_gemm(type, shape, GemmOutput::kGated, true, true);
    }
  for (const Activation activation : kUngated)
    for (const bool is_gemv : {false, true})
      check_gemm(FloatType::kF16, {40, 45, 3}, GemmOutput::kActivated, true, is_gemv, activation);
}

// ---- one token at a time

TEST(kernel_embedding_gathers_the_rows_of_its_rank) {
  constexpr int64_t kRows = 37, kHidden = 72, kBegin = 100;
  const DepthSplit split = split_depth(kHidden, kHidden, row_parallel_parts(kHidden));
  for (const FloatType type : kTypes) {
    const std::vector<float> table = rounded(type, noise(1, kRows * kHidden, 1));
    // Ids of this rank and of another rank, ids sampled by the previous step (one of them none), and padding.
    const std::vector<int32_t> ids = {100, 136, 99, 137, 0, 120, -1, -2, -3, kNoToken}, drawn = {120, 99, -1};
    const OnDevice<uint16_t> device_table(packed_weights(type, table, kRows, split));
    const OnDevice<int32_t> device_ids(ids), device_drawn(drawn);
    const OnDevice<float> hidden(ids.size() * kHidden);
    EmbedArgs args;
    args.type = type;
    args.table = {device_table.get(), nullptr, kRows, split};
    args.vocab_begin = kBegin;
    args.ids = device_ids.get();
    args.drawn_ids = device_drawn.get();
    args.num_tokens = static_cast<int>(ids.size());
    args.hidden_size = kHidden;
    args.scale = 1.7f;
    args.hidden = hidden.get();
    launch_embed(args, stream());
    const std::vector<float> got = hidden.read();
    for (size_t token = 0; token < ids.size(); ++token)
      for (size_t k = 0; k < kHidden; ++k) {
        const int32_t id =
            ids[token] >= 0 || ids[token] == kNoToken ? ids[token] : drawn[static_cast<size_t>(-1 - ids[token])];
        const int64_t row = int64_t{id} - kBegin;
        EXPECT_EQ(got[token * kHidden + k],
                  row >= 0 && row < kRows ? table[static_cast<size_t>(row * kHidden) + k] * 1.7f : 0.0f);
      }
  }
}

enum class NormOf : uint8_t { kRms, kLayer, kNothing };

void check_norm(FloatType type, int64_t hidden_size, NormOf kind) {
  constexpr int kTokens = 5;
  const DepthSplit split = split_depth(hidden_size, hidden_size, row_parallel_parts(hidden_size));
  std::vector<float> hidden = noise(1, kTokens * hidden_size, 1);
  for (int64_t k = 0; k < hidden_size; ++k)
    hidden[static_cast<size_t>(k)] *= 1000, hidden[static_cast<size_t>(hidden_size + k)] *= 1e-4f;
  const std::vector<float> weight = noise(2, hidden_size, 1), bias = noise(3, hidden_size, 1);
  const std::vector<int32_t> rows = {4, 0, 1};
  const OnDevice<float> device_hidden(hidden), device_weight(weight), device_bias(bias);
  const OnDevice<int32_t> device_rows(rows);
  const OnDevice<uint16_t> acts(static_cast<size_t>(8 * split.padded()));
  NormArgs args;
  args.type = type;
  args.hidden = device_hidden.get();
  args.rows = device_rows.get();
  args.num_rows = static_cast<int>(rows.size());
  args.hidden_size = hidden_size;
  args.weight = kind == NormOf::kNothing ? nullptr : device_weight.get();
  args.bias = kind == NormOf::kLayer ? device_bias.get() : nullptr;
  args.eps = 1e-6f;
  args.split = split;
  args.acts = acts.get();
  launch_norm(args, stream());
  const std::vector<uint16_t> got = acts.read();
  for (size_t i = 0; i < rows.size(); ++i) {
    const float* from = hidden.data() + rows[i] * hidden_size;
    double mean = 0, square = 0;
    for (int64_t k = 0; k < hidden_size && kind == NormOf::kLayer; ++k)
      mean += from[k] / static_cast<double>(hidden_size);
    for (int64_t k = 0; k < hidden_size; ++k)
      square += (from[k] - mean) * (from[k] - mean);
    const double scale = 1 / std::sqrt(square / static_cast<double>(hidden_size) + 1e-6);
    for (int64_t k = 0; k < hidden_size; ++k) {
      double wanted = from[k];
      if (kind != NormOf::kNothing) wanted = (wanted - mean) * scale * weight[static_cast<size_t>(k)];
      if (kind == NormOf::kLayer) wanted += bias[static_cast<size_t>(k)];
      expect_close(
          value_of(type,
                   got[static_cast<size_t>(operand_index(static_cast<int64_t>(i), split.place(k), split.padded()))]),
          wanted, rounding_of(type) * (std::abs(wanted) + 1e-3), "norm " + std::to_string(static_cast<int>(kind)));
    }
  }
  for (int64_t k = 0; k < hidden_size; ++k)
    EXPECT_EQ(got[static_cast<size_t>(operand_index(7, split.place(k), split.padded()))], kUnwritten);
}

TEST(kernel_norm_over_the_shapes) {
  for (const FloatType type : kTypes)
    for (const int64_t hidden_size : {2, 45, 64, 896, 1536, 4096})
      for (const NormOf kind : {NormOf::kRms, NormOf::kLayer, NormOf::kNothing})
        check_norm(type, hidden_size, kind);
}

// Scales and caps the ids of a rank, and leaves the columns of the other ranks as they are.
TEST(kernel_logits_are_scaled_and_capped) {
  constexpr int kRows = 3;
  constexpr int64_t kIds = 300, kStride = 704;
  const std::vector<float> before = noise(1, kRows * kStride, 20);
  for (const float cap : {0.0f, 5.0f}) {
    const OnDevice<float> logits(before);
    LogitsArgs args;
    args.logits = logits.get() + 100;
    args.num_rows = kRows;
    args.num_ids = kIds;
    args.stride = kStride;
    args.scale = 0.3f;
    args.soft_cap = cap;
    launch_logits(args, stream());
    const std::vector<float> got = logits.read();
    for (size_t i = 0; i < got.size(); ++i) {
      const size_t column = i % kStride;
      const double scaled = 0.3f * static_cast<double>(before[i]);
      if (column < 100 || column >= 100 + kIds)
        EXPECT_EQ(got[i], before[i]);
      else
        expect_close(got[i], cap == 0 ? scaled : cap * std::tanh(scaled / cap), 1e-5, "logits",
                     static_cast<int64_t>(i));
    }
  }
}

struct QkvCase {
  int num_heads, num_kv_heads, head_dim, rotary_dim;
  bool has_norm;
  bool rotates_first = false, has_query_scales = false;
  int norm_ranks = 0;  // ranks of a norm over all heads; 0 = of each head. All ranks have the same values.
  bool has_kv = true, has_v_norm = false;
};

void check_qkv(FloatType type, const QkvCase& shape) {
  const auto [num_heads, num_kv_heads, head_dim, rotary_dim, has_norm, rotates_first, has_query_scales, norm_ranks,
              has_kv, has_v_norm] = shape;
  constexpr int kTokens = 5, kBlocks = 3, kBlockSize = 64;
  const KvLayout layout = make_kv_layout(kBlockSize, num_kv_heads, head_dim);
  const int num_all = num_heads + (has_kv ? 2 * num_kv_heads : 0);
  const int64_t stride = int64_t{num_all} * head_dim;
  const int norm_size = norm_ranks > 0 ? head_dim * num_heads : head_dim;
  const std::vector<float> qkv = noise(1, kTokens * stride, 1), q_norm = noise(2, norm_size, 1),
                           k_norm = noise(3, norm_size, 1), query_scales = noise(4, 200, 1);
  std::vector<float> rope;
  for (int position = 0; position < 200; ++position)
    for (const bool is_sine : {false, true})
      for (int i = 0; i < rotary_dim / 2; ++i)
        rope.push_back(static_cast<float>(is_sine ? std::sin(position / (i + 1.0)) : std::cos(position / (i + 1.0))));
  const std::vector<int32_t> positions = {0, 1, 150, 199, 3}, slots = {64, 191, 0, -1, 63};
  const OnDevice<float> device_qkv(qkv), device_q_norm(q_norm), device_k_norm(k_norm), device_rope(rope),
      device_scales(query_scales), squares(static_cast<size_t>(kTokens * (num_heads + num_kv_heads)));
  const OnDevice<int32_t> device_positions(positions), device_slots(slots);
  const OnDevice<uint16_t> cache(static_cast<size_t>(kBlocks * layout.block_elements())),
      q(static_cast<size_t>(kTokens * num_heads * layout.k_dim));
  QkvArgs args;
  args.type = type;
  args.qkv = device_qkv.get();
  args.qkv_stride = stride;
  args.num_tokens = kTokens;
  args.num_heads = num_heads;
  args.q_norm = has_norm ? device_q_norm.get() : nullptr;
  args.k_norm = has_norm ? device_k_norm.get() : nullptr;
  args.eps = 1e-5f;
  args.rope = device_rope.get();
  args.rotary_dim = rotary_dim;
  args.positions = device_positions.get();
  args.slots = device_slots.get();
  args.layout = layout;
  args.cache = cache.get();
  args.q = q.get();
  args.rotates_before_norm = rotates_first;
  args.has_kv = has_kv, args.has_v_norm = has_v_norm;
  if (has_query_scales) args.query_scales = device_scales.get();
  if (norm_ranks > 0) {
    launch_head_squares(args, squares.get(), stream());
    args.world_size = norm_ranks;
    args.total_kv_heads = num_kv_heads * norm_ranks;
    for (int rank = 0; rank < norm_ranks; ++rank)
      args.squares[rank] = squares.get();
  }
  launch_qkv(args, stream());
  const std::vector<uint16_t> got_cache = cache.read(), got_q = q.read();

  std::vector<bool> is_written(got_cache.size());
  const auto check_value = [&](uint16_t bits, double wanted) {
    expect_close(value_of(type, bits), wanted, rounding_of(type) * (std::abs(wanted) + 1e-2),
                 "qkv, head_dim " + std::to_string(head_dim));
  };
  for (size_t token = 0; token < kTokens; ++token)
    for (int head = 0; head < num_all; ++head) {
      const bool is_q = head < num_heads, is_v = head >= num_heads + num_kv_heads;
      std::vector<double> row(static_cast<size_t>(layout.k_dim), 0.0);
      const float* const of_token = qkv.data() + token * static_cast<size_t>(stride);
      for (int d = 0; d < head_dim; ++d)
        row[static_cast<size_t>(d)] = of_token[head * head_dim + d];
      const auto rotate = [&] {
        for (int i = 0; i < rotary_dim / 2; ++i) {
          const float* table = rope.data() + positions[token] * rotary_dim;
          double &first = row[static_cast<size_t>(i)], &second = row[static_cast<size_t>(i + rotary_dim / 2)];
          const double x = first, y = second, c = table[i], s = table[i + rotary_dim / 2];
          first = x * c - y * s, second = y * c + x * s;
        }
      };
      const auto norm = [&] {
        const int first_head = is_q ? 0 : num_heads, heads = is_q ? num_heads : num_kv_heads;
        double square = 0;
        if (norm_ranks == 0)
          for (int d = 0; d < head_dim; ++d)
            square += row[static_cast<size_t>(d)] * row[static_cast<size_t>(d)] / head_dim;
        else
          for (int k = first_head * head_dim; k < (first_head + heads) * head_dim; ++k)
            square += static_cast<double>(of_token[k]) * of_token[k] / (heads * head_dim);
        const int first_weight = norm_ranks == 0 ? 0 : (head - first_head) * head_dim;
        for (int d = 0; d < head_dim; ++d)
          row[static_cast<size_t>(d)] *=
              (is_v ? 1 : (is_q ? q_norm : k_norm)[static_cast<size_t>(first_weight + d)]) / std::sqrt(square + 1e-5);
      };
      if (!is_v && rotates_first) rotate();
      if (is_v ? has_v_norm : has_norm) norm();
      if (!is_v && !rotates_first) rotate();
      if (is_q && has_query_scales)
        for (double& value : row)
          value *= query_scales[static_cast<size_t>(positions[token])];
      if (is_q) {
        for (int d = 0; d < layout.k_dim; ++d)
          check_value(got_q[(token * static_cast<size_t>(num_heads) + static_cast<size_t>(head)) *
                                static_cast<size_t>(layout.k_dim) +
                            static_cast<size_t>(d)],
                      row[static_cast<size_t>(d)]);
        continue;
      }
      if (slots[token] < 0) continue;
      const int kv_head = (head - num_heads) % num_kv_heads;
      for (int d = 0; d < (is_v ? head_dim : layout.k_dim); ++d) {
        const auto place =
            static_cast<size_t>(is_v ? layout.value(slots[token], kv_head, d) : layout.key(slots[token], kv_head, d));
        check_value(got_cache[place], row[static_cast<size_t>(d)]);
        is_written[place] = true;
      }
    }
  for (size_t i = 0; i < got_cache.size(); ++i)
    if (!is_written[i]) EXPECT_EQ(got_cache[i], kUnwritten);
}

TEST(kernel_qkv_writes_only_its_slots) {
  for (const FloatType type : kTypes) {
    check_qkv(type, {4, 2, 64, 64, false});
    check_qkv(type, {7, 1, 24, 24, true});
    check_qkv(type, {3, 3, 40, 20, true});
    check_qkv(type, {3, 1, 15, 14, false});
    check_qkv(type, {12, 2, 128, 128, false});
    check_qkv(type, {3, 3, 40, 20, true, true});
    check_qkv(type, {4, 2, 64, 64, false, false, true});
    check_qkv(type, {4, 2, 40, 40, true, false, false, 0, true, true});
    check_qkv(type, {3, 1, 24, 24, true, false, false, 0, false});
    for (const int ranks : {1, 2, 4})
      check_qkv(type, {6, 2, 24, 24, true, false, false, ranks});
  }
}

}  // namespace
}  // namespace capstan::testing
