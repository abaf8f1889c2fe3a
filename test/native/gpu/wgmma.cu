// Products of many tokens on compute capability 9.0: first the instructions, then the kernel, against double precision.
// Skipped on other devices.
#include <algorithm>

#include "cuda/hopper.h"
#include "test/native/gpu/kernel_testing.h"

namespace capstan::testing {
namespace {

// ---- instructions

struct WgmmaArgs {
  const uint32_t* a;  // (steps, threads, 4)
  float* c;           // (threads, N / 2), accumulators
  int column, row;    // of the box
};
// Multiplies one box in four steps of K = 16.
template <class T, int N>
__global__ void __launch_bounds__(128) wgmma_test_kernel(const __grid_constant__ TensorMap map, WgmmaArgs args) {
#if CAPSTAN_HAS_WGMMA
  unsigned char* const shared =
      shared_memory() + (kSwizzleAtom - shared_address(shared_memory()) % kSwizzleAtom) % kSwizzleAtom;
  auto* const barrier = reinterpret_cast<uint64_t*>(shared + N * kSwizzledRow);
  if (threadIdx.x == 0) {
    mbarrier_init(barrier, 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(barrier, N * kSwizzledRow);
    tma_load_2d(shared, map, args.column, args.row, barrier);
  }
  __syncthreads();
  mbarrier_wait(barrier, 0);
  uint32_t a[4][4];
  float acc[N / 2];
#pragma unroll
  for (int step = 0; step < 4; ++step)
#pragma unroll
    for (int r = 0; r < 4; ++r)
      a[step][r] = args.a[(step * 128 + static_cast<int>(threadIdx.x)) * 4 + r];
#pragma unroll
  for (int i = 0; i < N / 2; ++i)
    acc[i] = args.c[static_cast<int>(threadIdx.x) * N / 2 + i];
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < 4; ++step)
    wgmma_m64nNk16<T, N>(acc, a[step], next_depth(swizzled_operand(shared_address(shared)), step));
  wgmma_commit_group();
  wgmma_wait_group<0>();
  warpgroup_fence_operand(acc);
#pragma unroll
  for (int i = 0; i < N / 2; ++i)
    args.c[static_cast<int>(threadIdx.x) * N / 2 + i] = acc[i];
#endif
}

template <class T, int N>
void check_wgmma(FloatType type) {
  // The box extends over two edges of the array, where it reads zeros.
  constexpr int kRows = N + 3, kColumns = 104, kColumn = 48, kRow = 9;
  const std::vector<float> a = rounded(type, noise(1, 64 * 64, 1)), b = rounded(type, noise(2, kRows * kColumns, 1)),
                           c = noise(3, 64 * N, 1);
  std::vector<uint16_t> b_bits;
  for (const float value : b)
    b_bits.push_back(bits_of(type, value));
  std::vector<uint32_t> a_bits(4 * 128 * 4);
  std::vector<float> c_values(128 * N / 2);
  const auto place_of_c = [](int row, int column) {
    return static_cast<size_t>((row / 16 * 32 + row % 8 * 4 + column % 8 / 2) * N / 2 + column / 8 * 4 +
                               row % 16 / 8 * 2 + column % 2);
  };
  for (int row = 0; row < 64; ++row) {
    for (int k = 0; k < 64; ++k) {
      const int thread = row / 16 * 32 + row % 8 * 4 + k % 8 / 2, r = row % 16 / 8 + k % 16 / 8 * 2;
      a_bits[static_cast<size_t>((k / 16 * 128 + thread) * 4 + r)] |=
          static_cast<uint32_t>(bits_of(type, a[static_cast<size_t>(row * 64 + k)])) << k % 2 * 16;
    }
    for (int column = 0; column < N; ++column)
      c_values[place_of_c(row, column)] = c[static_cast<size_t>(row * N + column)];
  }
  const OnDevice<uint32_t> device_a(a_bits);
  const OnDevice<uint16_t> device_b(b_bits);
  const OnDevice<float> device_c(c_values);
  TensorMap map;
  EXPECT(make_tensor_map(map, device_b.get(), kRows, kColumns, N));
  check(connect_spin_report(), "a test");
  launch(wgmma_test_kernel<T, N>, dim3(1), dim3(128), kSwizzleAtom + N * kSwizzledRow + 16, stream(), map,
         WgmmaArgs{device_a.get(), device_c.get(), kColumn, kRow});
  const std::vector<float> got = device_c.read();
  for (int row = 0; row < 64; ++row)
    for (int column = 0; column < N; ++column) {
      double wanted = c[static_cast<size_t>(row * N + column)], size = std::abs(wanted);
      for (int k = 0; k < 64 && kColumn + k < kColumns && kRow + column < kRows; ++k) {
        const double product = static_cast<double>(a[static_cast<size_t>(row * 64 + k)]) *
                               b[static_cast<size_t>((kRow + column) * kColumns + kColumn + k)];
        wanted += product, size += std::abs(product);
      }
      expect_close(got[place_of_c(row, column)], wanted, 1e-5 * size, "wgmma of " + std::to_string(N) + " columns", row,
                   column);
    }
}

TEST(kernel_wgmma_follows_the_manual) {
  if (!has_wgmma()) return;
  check_wgmma<Bf16, 32>(FloatType::kBf16);
  check_wgmma<Bf16, 64>(FloatType::kBf16);
  check_wgmma<Bf16, 96>(FloatType::kBf16);
  check_wgmma<Bf16, 128>(FloatType::kBf16);
  check_wgmma<Bf16, 256>(FloatType::kBf16);
  check_wgmma<F16, 32>(FloatType::kF16);
  check_wgmma<F16, 64>(FloatType::kF16);
  check_wgmma<F16, 96>(FloatType::kF16);
  check_wgmma<F16, 128>(FloatType::kF16);
  check_wgmma<F16, 256>(FloatType::kF16);
}

// ---- the product

struct WgmmaCase {
  int64_t rows, cols;
  int tokens, width;
};

void check_gemm_wgmma(FloatType type, const WgmmaCase& shape, GemmOutput output, bool has_bias,
                      Activation activation = Activation::kXielu) {
  const bool is_gated = output == GemmOutput::kGated;
  const int64_t rows = is_gated ? round_up(shape.rows, 16) : shape.rows, cols = shape.cols,
                features = is_gated ? shape.rows / 2 : shape.rows;
  const DepthSplit split = split_depth(cols, cols, row_parallel_parts(cols));
  const std::vector<float> weights = rounded(type, noise(1, rows * cols, 1 / std::sqrt(static_cast<float>(cols)))),
                           acts = rounded(type, noise(2, shape.tokens * cols, 1));
  // Gates and ups that reach the limits of clamped gates.
  const std::vector<float> bias = noise(3, round_up(rows, 16), is_gated ? 12 : 3);
  // Padding rows hold NaN, which must not reach the tokens.
  const int64_t act_rows = shape.tokens + 5;
  std::vector<uint16_t> act_bits(static_cast<size_t>(act_rows * split.padded()), 0);
  std::fill(act_bits.begin() + static_cast<ptrdiff_t>(shape.tokens * split.padded()), act_bits.end(), kUnwritten);
  for (int64_t token = 0; token < shape.tokens; ++token)
    for (int64_t k = 0; k < cols; ++k)
      act_bits[static_cast<size_t>(token * split.padded() + split.place(k))] =
          bits_of(type, acts[static_cast<size_t>(token * cols + k)]);
  const OnDevice<uint16_t> device_weights(packed_weights(type, weights, rows, split)), device_acts(act_bits);
  const OnDevice<float> device_bias(bias);
  // Output rows that are 16-byte aligned, and others.
  const int64_t stride = shape.rows + ((shape.tokens % 2 == 0) == (output == GemmOutput::kStore) ? 4 : 3);
  const int padded_tokens = shape.tokens + 2;
  const std::vector<float> before = noise(4, padded_tokens * stride, 1);
  const OnDevice<float> out = output == GemmOutput::kResidual
                                  ? OnDevice<float>(before)
                                  : OnDevice<float>(static_cast<size_t>(padded_tokens * stride));
  const DepthSplit gated_split = split_depth(features, features, row_parallel_parts(features));
  const OnDevice<uint16_t> gated(static_cast<size_t>(padded_tokens * gated_split.padded()));
  GemmArgs args;
  args.type = type;
  args.output = output;
  args.weights = {device_weights.get(), has_bias ? device_bias.get() : nullptr, rows, split};
  args.num_tokens = shape.tokens;
  args.out = out.get();
  args.out_stride = stride;
  args.gated = gated.get();
  args.gated_split = gated_split;
  args.activation = shape.tokens % 2 == 0 ? Activation::kClampedSwish : Activation::kSilu;
  if (output == GemmOutput::kActivated) args.activation = activation;
  args.xielu = kXielu;
  // Some products have factors.
  const bool has_factors = has_bias && output == GemmOutput::kActivated;
  const Factors factors(shape.tokens, shape.rows);
  if (has_factors) factors.set(args);
  if (output == GemmOutput::kResidual) args.residual_scale = kResidualScale;
  const OnDevice<int32_t> flags(std::vector<int32_t>(static_cast<size_t>(num_tile_flags(rows, shape.tokens)), 0));
  if (!has_acts(output)) args.tile_flags = flags.get();
  ActMaps maps;
  EXPECT(make_act_maps(maps, device_acts.get(), act_rows, split.padded()));
  args.act_maps = &maps;
  launch_gemm_wgmma(args, 2, stream(), shape.width);
  const std::vector<float> got = out.read();
  const std::vector<uint16_t> got_gated = gated.read();
  for (const int32_t flag : flags.read())
    EXPECT_EQ(flag, 0);

  const std::string what = "gemm by wgmma " + std::to_string(shape.rows) + " x " + std::to_string(cols) + ", " +
                           std::to_string(shape.tokens) + " tokens by " + std::to_string(shape.width);
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
  // For large products only some elements of every token and row are compared, because the reference is slow.
  const int64_t step = std::max<int64_t>(1, shape.rows * cols * shape.tokens >> 26);
  double size;
  for (int token = 0; token < padded_tokens; ++token) {
    if (has_acts(output)) {
      std::vector<bool> is_written(static_cast<size_t>(gated_split.padded()));
      for (int64_t feature = 0; feature < features && token < shape.tokens; ++feature) {
        const int64_t row = is_gated ? feature / 8 * 16 + feature % 8 : feature;
        is_written[static_cast<size_t>(gated_split.place(feature))] = true;
        if ((token + feature) % step != 0) continue;
        const double sum = dot(row, token, size);
        double wanted = is_gated ? gated_in_doubles(args.activation, sum, dot(row + 8, token, size))
                                 : activated(args.activation, sum);
        if (has_factors) wanted *= factors.at(token, row);
        const float value =
            value_of(type, got_gated[static_cast<size_t>(token * gated_split.padded() + gated_split.place(feature))]);
        expect_close(value, wanted, rounding_of(type) * (std::abs(wanted) + 0.01), what + ", activated", token,
                     feature);
      }
      for (int64_t k = 0; k < gated_split.padded(); ++k)
        if (!is_written[static_cast<size_t>(k)])
          EXPECT_EQ(got_gated[static_cast<size_t>(token * gated_split.padded() + k)], kUnwritten);
      continue;
    }
    for (int64_t row = 0; row < stride; ++row) {
      const float value = got[static_cast<size_t>(token * stride + row)],
                  old = before[static_cast<size_t>(token * stride + row)];
      if (token >= shape.tokens || row >= shape.rows) {
        EXPECT(output == GemmOutput::kResidual ? value == old : is_unwritten(value));
        continue;
      }
      EXPECT(std::isfinite(value));
      if ((token + row) % step != 0) continue;
      const double wanted = dot(row, token, size) * args.residual_scale + (output == GemmOutput::kResidual ? old : 0);
      expect_close(value, wanted, 1e-5 * size, what, token, row);
    }
  }
}

TEST(kernel_gemm_wgmma_over_the_shapes) {
  if (!has_wgmma()) return;
  // K below one stage, more than the ring, ending with half a stage, in padded parts, and split over two blocks.
  std::vector<WgmmaCase> cases = {{40, 45, 65, 64},   {200, 96, 70, 64}, {136, 272, 97, 96}, {128, 480, 130, 128},
                                  {72, 96, 257, 256}, {24, 352, 3, 256}, {16, 4120, 66, 64}};
  if (is_full())
    for (const auto& [rows, cols] :
         std::vector<std::pair<int64_t, int64_t>>{{2048, 1536}, {1536, 8960}, {1000, 4864}, {17920, 96}})
      for (const int width : {64, 96, 128, 256, 0})
        for (const int tokens : {65, 300})
          cases.push_back({rows, cols, tokens, width});
  for (const FloatType type : kTypes)
    for (const WgmmaCase& shape : cases) {
      check_gemm_wgmma(type, shape, GemmOutput::kStore, true);
      check_gemm_wgmma(type, shape, GemmOutput::kResidual, false);
      check_gemm_wgmma(type, shape, GemmOutput::kGated, shape.tokens % 2 == 0);
      check_gemm_wgmma(type, shape, GemmOutput::kActivated, shape.tokens % 2 == 0);
    }
  for (const Activation activation : kUngated)
    check_gemm_wgmma(FloatType::kF16, {40, 45, 65, 64}, GemmOutput::kActivated, true, activation);
}

// Neither the number or position of tokens, nor the tile width, nor the number of blocks changes a bit of a token.
void check_batch_independence(int64_t rows, int64_t cols, int num_tokens) {
  const DepthSplit split = split_depth(cols, cols, row_parallel_parts(cols));
  const std::vector<float> weights = noise(1, rows * cols, 0.1f), acts = noise(2, num_tokens * cols, 1);
  const OnDevice<uint16_t> device_weights(packed_weights(FloatType::kBf16, weights, rows, split));
  const OnDevice<int32_t> flags(std::vector<int32_t>(static_cast<size_t>(num_tile_flags(rows, num_tokens)), 0));
  const auto run = [&](int first, int count, int width, int blocks) {
    std::vector<uint16_t> bits(static_cast<size_t>(count * split.padded()), 0);
    for (int token = 0; token < count; ++token)
      for (int64_t k = 0; k < cols; ++k)
        bits[static_cast<size_t>(token * split.padded() + split.place(k))] =
            bits_of(FloatType::kBf16, acts[static_cast<size_t>((first + token) * cols + k)]);
    const OnDevice<uint16_t> device_acts(bits);
    const OnDevice<float> out(static_cast<size_t>(count * rows));
    GemmArgs args;
    args.weights = {device_weights.get(), nullptr, rows, split};
    args.num_tokens = count;
    args.out = out.get();
    args.out_stride = rows;
    args.tile_flags = flags.get();
    ActMaps maps;
    EXPECT(make_act_maps(maps, device_acts.get(), count, split.padded()));
    args.act_maps = &maps;
    launch_gemm_wgmma(args, blocks, stream(), width);
    return out.read();
  };
  const std::vector<float> wanted = run(0, num_tokens, 64, 1);
  for (const int width : kTokenWidths)
    for (const int first : {0, 37, num_tokens - 1}) {
      const std::vector<float> got = run(first, num_tokens - first, width, 3);
      EXPECT(std::equal(got.begin(), got.end(), wanted.begin() + first * rows));
    }
}

TEST(kernel_gemm_wgmma_bits_do_not_depend_on_the_batch) {
  if (!has_wgmma()) return;
  check_batch_independence(152, 208, 140);
  check_batch_independence(16, 4128, 70);
}

}  // namespace
}  // namespace capstan::testing
