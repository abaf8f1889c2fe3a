// The row kernels of every instruction set, compared with the double-precision reference, and bit for bit with the
// portable kernels.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "native/backend/cpu/act_tiles.h"
#include "native/backend/cpu/isa.h"
#include "native/base/number.h"
#include "test/native/act_values.h"
#include "test/native/checkpoint.h"
#include "test/native/reference.h"
#include "test/native/testing.h"

namespace capstan::testing {
namespace {

constexpr ActFormat kFormats[] = {ActFormat::kF32, ActFormat::kBf16Rounded, ActFormat::kBf16Pairs,
                                  ActFormat::kBf16Blocks};

// Tiles of `rows` rows in which every word is NaN.
struct Acts {
  std::vector<uint32_t> memory;
  ActTiles tiles;
  Acts(const CpuKernels& kernels, int64_t rows, int64_t k, ActFormat format, int num_parts = 1) {
    tiles = plain_act_tiles(kernels, format, rows, (k + 1) / 2 * 2, num_parts);
    memory.assign(static_cast<size_t>(rows * tiles.words), 0x7fc07fc0u);
    tiles.data = memory.data();
  }
  float at(int64_t row, int64_t k) const { return act_value(tiles, row, k); }
};

reference::Row to_row(const float* from, int64_t count) {
  return reference::Row(from, from + count);
}

TEST(rms_norm_is_close_to_the_reference_in_every_format) {
  for (const CpuIsa isa : available_cpu_isas()) {
    const CpuKernels& kernels = cpu_kernels(isa);
    for (const ActFormat format : kFormats) {
      for (const int64_t k : {1, 15, 16, 17, 45, 64, 896}) {
        const int64_t rows = 10;
        const std::vector<float> x = random_values(1, rows * k + 16, 3.0f), w = random_values(2, k + 16, 1.0f);
        Acts acts(kernels, rows, k, format), portable(cpu_kernels(CpuIsa::kPortable), rows, k, format);
        for (int64_t row = 0; row < rows; ++row) {
          kernels.rms_norm(x.data() + row * k, w.data(), k, 1e-5f, acts.tiles, row);
          cpu_kernels(CpuIsa::kPortable).rms_norm(x.data() + row * k, w.data(), k, 1e-5f, portable.tiles, row);
        }
        for (int64_t row = 0; row < rows; ++row) {
          const reference::Row wanted = reference::rms_norm(to_row(x.data() + row * k, k), to_row(w.data(), k), 1e-5);
          for (int64_t i = 0; i < (k + 1) / 2 * 2; ++i) {
            const double value = i < k ? wanted[i] : 0;
            EXPECT_NEAR(acts.at(row, i), value, std::abs(value) * (format == ActFormat::kF32 ? 1e-6 : 0x1p-8));
            EXPECT_EQ(float_bits(acts.at(row, i)), float_bits(portable.at(row, i)));
          }
        }
      }
    }
  }
}

TEST(layer_norm_is_close_to_the_reference_in_place_and_not) {
  for (const CpuIsa isa : available_cpu_isas()) {
    for (const int64_t n : {1, 15, 16, 17, 45, 64, 896}) {
      const std::vector<float> x = random_values(1, n + 16, 3.0f), w = random_values(2, n + 16, 1.0f),
                               b = random_values(3, n + 16, 1.0f);
      double mean = 0, variance = 0;
      for (int64_t i = 0; i < n; ++i)
        mean += x[i] / static_cast<double>(n);
      for (int64_t i = 0; i < n; ++i)
        variance += (x[i] - mean) * (x[i] - mean) / static_cast<double>(n);
      std::vector<float> out(static_cast<size_t>(n) + 16, 7.0f), in_place = x, portable(out);
      cpu_kernels(isa).layer_norm({x.data(), w.data(), b.data(), out.data(), n, 1e-5f});
      cpu_kernels(isa).layer_norm({in_place.data(), w.data(), b.data(), in_place.data(), n, 1e-5f});
      cpu_kernels(CpuIsa::kPortable).layer_norm({x.data(), w.data(), b.data(), portable.data(), n, 1e-5f});
      for (int64_t i = 0; i < n; ++i) {
        EXPECT_NEAR(out[i], (x[i] - mean) / std::sqrt(variance + 1e-5) * w[i] + b[i], 2e-5);
        EXPECT_EQ(float_bits(out[i]), float_bits(in_place[i]));
        EXPECT_EQ(float_bits(out[i]), float_bits(portable[i]));
      }
      EXPECT_EQ(out[n], 7.0f);
    }
  }
}

TEST(rows_are_activated_and_added_in_place) {
  for (const CpuIsa isa : available_cpu_isas()) {
    for (const int64_t n : {1, 16, 37}) {
      const std::vector<float> x = random_values(1, n + 16, 3.0f), y = random_values(2, n + 16, 3.0f);
      for (const Activation activation : {Activation::kIdentity, Activation::kTanh, Activation::kRelu,
                                          Activation::kGelu, Activation::kGeluTanh, Activation::kSilu}) {
        std::vector<float> out = x;
        cpu_kernels(isa).activate(out.data(), n, activation);
        for (int64_t i = 0; i < n; ++i)
          EXPECT_NEAR(out[i], reference::activation(activation, x[i]), 2e-6);
        EXPECT_EQ(out[n], x[n]);
      }
      std::vector<float> sum = x;
      cpu_kernels(isa).add_row(sum.data(), y.data(), n);
      for (int64_t i = 0; i < n; ++i)
        EXPECT_EQ(sum[i], x[i] + y[i]);
      EXPECT_EQ(sum[n], x[n]);
    }
  }
}

TEST(pack_row_rounds_to_nearest_even) {
  for (const CpuIsa isa : available_cpu_isas()) {
    const CpuKernels& kernels = cpu_kernels(isa);
    std::vector<float> x = random_values(3, 100 + 16, 1.0f);
    x[0] = bits_float(0x3f808000u), x[1] = bits_float(0x3f818000u), x[2] = bits_float(0x3f808001u), x[3] = -0.0f,
    x[4] = std::nanf("");
    for (const ActFormat format : kFormats) {
      Acts acts(kernels, 1, 99, format);
      kernels.pack_rows(x.data(), 99, 99, acts.tiles, 0, 1);
      for (int64_t i = 0; i < 99; ++i) {
        const float wanted = format == ActFormat::kF32 ? x[i] : bf16_to_float(float_to_bf16(x[i]));
        EXPECT(float_bits(acts.at(0, i)) == float_bits(wanted));
      }
      EXPECT_EQ(acts.at(0, 99), 0.0f);
    }
  }
}

TEST(pack_rows_stores_what_each_row_alone_does) {
  for (const CpuIsa isa : available_cpu_isas()) {
    const CpuKernels& kernels = cpu_kernels(isa);
    for (const auto& [rows, first] : {std::pair<int64_t, int64_t>{1, 0}, {8, 0}, {21, 0}, {21, 3}, {16, 8}, {13, 12}}) {
      for (const int64_t k : {2, 16, 31, 99}) {
        const int64_t stride = k + 5;
        const std::vector<float> x = random_values(17, rows * stride + 16, 1.0f);
        for (const ActFormat format : kFormats) {
          Acts together(kernels, rows, k, format), alone(kernels, rows, k, format);
          for (int64_t row = 0; row < rows; ++row)
            kernels.pack_rows(x.data() + row * stride, stride, k, alone.tiles, row, 1);
          kernels.pack_rows(x.data(), stride, k, together.tiles, 0, first);
          kernels.pack_rows(x.data() + first * stride, stride, k, together.tiles, first, rows - first);
          for (int64_t row = 0; row < rows; ++row)
            for (int64_t i = 0; i < (k + 1) / 2 * 2; ++i)
              EXPECT_EQ(float_bits(together.at(row, i)), float_bits(alone.at(row, i)));
        }
      }
    }
  }
}

TEST(blocks_of_activations_end_in_zeros_at_every_part) {
  for (const CpuIsa isa : available_cpu_isas()) {
    const CpuKernels& kernels = cpu_kernels(isa);
    for (const auto& [k, num_parts] :
         {std::pair<int64_t, int>{1, 1}, {31, 1}, {96, 1}, {16, 8}, {24, 2}, {80, 4}, {128, 8}, {224, 8}, {512, 8}}) {
      const int64_t rows = 19, part_k = (k + 1) / 2 * 2 / num_parts;
      const std::vector<float> x = random_values(11, rows * k + 16, 1.0f);
      Acts acts(kernels, rows, k, ActFormat::kBf16Blocks, num_parts);
      for (int64_t row = 0; row < rows; ++row)
        kernels.pack_rows(x.data() + row * k, k, k, acts.tiles, row, 1);
      for (int64_t row = 0; row < rows; ++row) {
        int64_t num_values = 0;
        for (int64_t word = 0; word < acts.tiles.words; ++word) {
          const int64_t part = word * num_parts / acts.tiles.words,
                        in_part = word - part * acts.tiles.words / num_parts;
          for (int i = 0; i < 2; ++i) {
            const int64_t at = part * part_k + in_part * 2 + i;
            const bool is_value = in_part * 2 < part_k && at < k;
            num_values += is_value;
            EXPECT_EQ(block_value(acts.tiles, row, word, i),
                      is_value ? bf16_to_float(float_to_bf16(x[row * k + at])) : 0.0f);
          }
        }
        EXPECT_EQ(num_values, k);
      }
    }
  }
}

TEST(qkv_row_applies_norm_rope_and_scale_and_stores_k_and_v) {
  for (const CpuIsa isa : available_cpu_isas()) {
    const CpuKernels& kernels = cpu_kernels(isa);
    for (const auto& [head_dim, rotary_dim] :
         {std::pair{64, 64}, {64, 32}, {24, 24}, {40, 10}, {15, 14}, {80, 80}, {128, 64}}) {
      for (const bool has_norm : {false, true}) {
        const int heads = 3, kv_heads = 2;
        KvCache cache;
        cache.layout = {DType::kF32, 32, kv_heads, head_dim, (head_dim + 1) / 2 * 2, (head_dim + 15) / 16 * 16};
        std::vector<float> k_memory(static_cast<size_t>(4 * 32 * kv_heads * cache.layout.k_dim), -7.0f);
        std::vector<float> v_memory(static_cast<size_t>(4 * 32 * kv_heads * cache.layout.v_dim), -7.0f);
        cache.k = k_memory.data();
        cache.v = v_memory.data();
        std::vector<float> qkv = random_values(4, (heads + 2 * kv_heads) * head_dim + 16, 1.0f);
        const std::vector<float> original = qkv, q_norm = random_values(5, head_dim + 16, 1.0f),
                                 k_norm = random_values(6, head_dim + 16, 1.0f);
        const std::vector<float> rope = random_values(7, rotary_dim + 16, 1.0f);
        QkvRowArgs args;
        args.qkv = qkv.data();
        args.num_heads = heads;
        args.q_norm.weight = has_norm ? q_norm.data() : nullptr;
        args.k_norm.weight = has_norm ? k_norm.data() : nullptr;
        args.eps = 1e-6f;
        args.q_scale = 0.3f;
        args.rope = rope.data();
        args.rotary_dim = rotary_dim;
        args.cache = cache;
        args.slot = 2 * 32 + 21;  // block 2, second group of slots, lane 5
        kernels.qkv_row(args);
        const auto rotated = [&](int head, const std::vector<float>& norm) {
          reference::Row x = to_row(original.data() + head * head_dim, head_dim);
          if (has_norm) x = reference::rms_norm(x, to_row(norm.data(), head_dim), 1e-6);
          return reference::rotate(x, rope.data(), rotary_dim);
        };
        for (int h = 0; h < heads; ++h)
          for (int d = 0; d < head_dim; ++d)
            EXPECT_NEAR(qkv[h * head_dim + d], 0.3f * rotated(h, q_norm)[d], 3e-6);
        int64_t num_written = 0;
        for (int h = 0; h < kv_heads; ++h) {
          const reference::Row wanted = rotated(heads + h, k_norm);
          for (int d = 0; d < head_dim; ++d) {
            EXPECT_NEAR(k_memory[(((2 * kv_heads + h) * 2 + 1) * cache.layout.k_dim + d) * 16 + 5], wanted[d], 3e-6);
            EXPECT_EQ(v_memory[((2 * kv_heads + h) * 32 + 21) * cache.layout.v_dim + d],
                      original[(heads + kv_heads + h) * head_dim + d]);
          }
        }
        for (const float value : k_memory)
          num_written += value != -7.0f;
        EXPECT_EQ(num_written, int64_t{kv_heads} * cache.layout.k_dim);
        num_written = 0;
        for (const float value : v_memory)
          num_written += value != -7.0f;
        EXPECT_EQ(num_written, int64_t{kv_heads} * cache.layout.v_dim);
      }
    }
  }
}

TEST(add_residual_adds_the_tree_then_bias_then_hidden) {
  for (const CpuIsa isa : available_cpu_isas()) {
    for (const int num_partials : {1, 2, 4, 8}) {
      const int64_t n = 37;
      const std::vector<float> values = random_values(8, 8 * (n + 16), 1.0f), bias = random_values(9, n + 16, 1.0f);
      std::vector<float> hidden = random_values(10, n + 16, 1.0f);
      const std::vector<float> before = hidden;
      const float* partials[8];
      for (int i = 0; i < num_partials; ++i)
        partials[i] = values.data() + i * (n + 16);
      cpu_kernels(isa).add_residual({hidden.data(), partials, num_partials, bias.data(), nullptr, 0.0f, 1.0f, n});
      for (int64_t i = 0; i < n + 16; ++i) {
        std::vector<float> sums;
        for (int p = 0; p < num_partials; ++p)
          sums.push_back(partials[p][i]);
        for (int width = num_partials; width > 1; width /= 2)
          for (int p = 0; p < width / 2; ++p)
            sums[p] = sums[2 * p] + sums[2 * p + 1];
        EXPECT_EQ(hidden[i], i < n ? before[i] + (sums[0] + bias[i]) : before[i]);
      }
    }
  }
}

TEST(add_residual_normalizes_and_scales_the_sum) {
  const int64_t n = 37;
  const std::vector<float> values = random_values(8, 2 * (n + 16), 1.0f), norm = random_values(9, n + 16, 1.0f);
  const float* partials[2] = {values.data(), values.data() + n + 16};
  const std::vector<float> before = random_values(10, n + 16, 1.0f);
  reference::Row sum, weight;
  for (int64_t i = 0; i < n; ++i) {
    sum.push_back(static_cast<double>(partials[0][i]) + partials[1][i]);
    weight.push_back(norm[i]);
  }
  const reference::Row wanted = reference::rms_norm(sum, weight, 1e-5);
  for (const CpuIsa isa : available_cpu_isas()) {
    std::vector<float> hidden = before;
    cpu_kernels(isa).add_residual({hidden.data(), partials, 2, nullptr, norm.data(), 1e-5f, 0.25f, n});
    for (int64_t i = 0; i < n + 16; ++i)
      EXPECT_NEAR(hidden[i], i < n ? before[i] + 0.25 * wanted[i] : before[i], i < n ? 1e-6 : 0);
  }
}

TEST(weighted_sum_adds_rows_in_order) {
  const int64_t n = 21;
  const int rows = 3, ranks = 2;
  const std::vector<float> values = random_values(1, rows * ranks * (n + 16), 1.0f),
                           bias = random_values(2, n + 16, 1.0f), update = random_values(3, n + 16, 1.0f);
  const std::vector<float> weights = {0.5f, -0.25f, 2.0f};
  const float* partials[rows * ranks];
  for (int i = 0; i < rows * ranks; ++i)
    partials[i] = values.data() + i * (n + 16);
  const float* const biases[rows] = {nullptr, bias.data(), nullptr};
  const float* const updates[rows] = {nullptr, update.data(), update.data()};
  for (const CpuIsa isa : available_cpu_isas()) {
    std::vector<float> out(static_cast<size_t>(n + 16), 7.0f);
    cpu_kernels(isa).weighted_sum({out.data(), rows, partials, ranks, biases, updates, weights.data(), n});
    for (int64_t i = 0; i < n; ++i) {
      float wanted = 0;
      for (int row = 0; row < rows; ++row) {
        float sum = partials[2 * row][i] + partials[2 * row + 1][i];
        if (row > 0) sum += update[i];
        if (row == 1) sum += bias[i];
        wanted = std::fma(sum, weights[row], wanted);
      }
      EXPECT_EQ(out[i], wanted);
    }
    EXPECT_EQ(out[n], 7.0f);
  }
}

TEST(squares_of_heads_and_capped_logits_are_close_to_the_reference) {
  const int heads = 3, head_dim = 20, n = 45;
  const std::vector<float> x = random_values(3, heads * head_dim + 16, 1.0f), logits = random_values(4, n + 16, 40.0f);
  for (const CpuIsa isa : available_cpu_isas()) {
    float squares[heads];
    cpu_kernels(isa).head_squares(x.data(), heads, head_dim, squares);
    for (int head = 0; head < heads; ++head) {
      double wanted = 0;
      for (int i = 0; i < head_dim; ++i)
        wanted += static_cast<double>(x[head * head_dim + i]) * x[head * head_dim + i];
      EXPECT_NEAR(squares[head], wanted, 1e-5);
    }
    for (const float cap : {0.0f, 5.0f, 30.0f}) {
      std::vector<float> got = logits;
      cpu_kernels(isa).scale_logits(got.data(), n, 0.5f, cap);
      for (int i = 0; i < n + 16; ++i) {
        const double scaled = 0.5 * logits[i];
        EXPECT_NEAR(got[i], i >= n ? logits[i] : cap > 0 ? cap * std::tanh(scaled / cap) : scaled, 2e-5);
      }
    }
  }
}

TEST(qkv_row_normalizes_over_all_heads_or_after_the_rotation) {
  const int heads = 2, head_dim = 12, rotary_dim = 8;
  for (const bool is_after : {false, true}) {
    for (const CpuIsa isa : available_cpu_isas()) {
      std::vector<float> qkv = random_values(5, 4 * head_dim + 16, 1.0f);
      const std::vector<float> original = qkv, rope = random_values(6, rotary_dim + 16, 1.0f),
                               norm = random_values(7, heads * head_dim + 16, 1.0f);
      KvCache cache;
      cache.layout = {DType::kF32, 16, 1, head_dim, 12, 16};
      std::vector<float> keys(16 * 12), values(16 * 16);
      cache.k = keys.data(), cache.v = values.data();
      QkvRowArgs args;
      args.qkv = qkv.data(), args.num_heads = heads, args.eps = 1e-5f, args.cache = cache;
      args.rope = rope.data(), args.rotary_dim = rotary_dim;
      args.q_norm = {norm.data(), !is_after, 0.75f};
      args.rotates_before_norm = is_after;
      cpu_kernels(isa).qkv_row(args);
      for (int h = 0; h < heads; ++h) {
        reference::Row head(original.begin() + h * head_dim, original.begin() + (h + 1) * head_dim);
        const float* weight = norm.data() + (is_after ? 0 : h * head_dim);
        if (is_after) {
          head = reference::rms_norm(reference::rotate(head, rope.data(), rotary_dim),
                                     reference::Row(weight, weight + head_dim), 1e-5);
        } else {
          for (int i = 0; i < head_dim; ++i)
            head[i] *= 0.75 * weight[i];
          head = reference::rotate(head, rope.data(), rotary_dim);
        }
        for (int i = 0; i < head_dim; ++i)
          EXPECT_NEAR(qkv[h * head_dim + i], head[i], 3e-6);
      }
    }
  }
}

}  // namespace
}  // namespace capstan::testing
