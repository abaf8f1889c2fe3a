// The 8-bit KV cache: rounding and scales of all values, and what the kernels write. kernel_attention (attention.cu)
// tests reading.
#include <algorithm>
#include <limits>
#include <random>

#include "cuda/fp8.h"
#include "test/native/gpu/kernel_testing.h"

namespace capstan::testing {
namespace {

TEST(kernel_fp8_rounds_to_the_nearest) {
  for (int code = 0; code < 256; ++code)
    if ((code & 0x7f) != 0x7f && code != 0x80)
      EXPECT_EQ(static_cast<int>(to_fp8(fp8_value(static_cast<uint8_t>(code)))), code);
  std::vector<float> values = {0.0f,    448.0f,   464.0f,     1e6f,     0.015625f, 0.0146484375f,
                               0x1p-9f, 0x1p-10f, 0x1.8p-10f, 0x1p-30f, 17.0f,     19.0f};
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i)
    values.push_back(std::ldexp(static_cast<float>(random() % 4096) / 4096.0f, static_cast<int>(random() % 24) - 14));
  for (const float value : values)
    for (const float sign : {1.0f, -1.0f}) {
      const uint8_t got = to_fp8(sign * value);
      EXPECT(value == 0 || (got >> 7 == 1) == (sign < 0));
      const double error = std::abs(static_cast<double>(fp8_value(got & 0x7f)) - std::min(value, 448.0f));
      for (const int other : {(got & 0x7f) - 1, (got & 0x7f) + 1}) {
        if (other < 0 || other > 0x7e) continue;
        const double theirs =
            std::abs(static_cast<double>(fp8_value(static_cast<uint8_t>(other))) - std::min(value, 448.0f));
        EXPECT(error < theirs || (error == theirs && got % 2 == 0));
      }
    }
  // The smallest power of two that scales a magnitude to at most 448.
  for (const float value : values) {
    const int exponent = fp8_exponent(value * 1024);
    EXPECT(exponent >= kMinExponent && exponent <= kMaxExponent);
    if (exponent < kMaxExponent) EXPECT(value * 1024 * power_of_two(-exponent) <= 448.0f);
    if (exponent > kMinExponent) EXPECT(value * 1024 * power_of_two(-exponent) > 224.0f);
  }
}

struct ExpandArgs {
  uint32_t* pairs;  // (exponents, 256, 2)
};
template <class T>
__global__ void expand_test_kernel(ExpandArgs args) {
  const uint32_t code = threadIdx.x, scale = fp8_scale<T>(static_cast<uint8_t>(blockIdx.x));
  // Puts the code in both bytes of either half of a word.
  for (int i = 0; i < 2; ++i)
    args.pairs[(blockIdx.x * 256 + code) * 2 + static_cast<uint32_t>(i)] =
        expand_fp8<T>((code | code << 8) << i * 16, i, scale | scale << 16);
}

TEST(kernel_fp8_expands_exactly) {
  for (const FloatType type : kTypes) {
    const OnDevice<uint32_t> pairs(256 * 256 * 2);
    launch(type == FloatType::kBf16 ? expand_test_kernel<Bf16> : expand_test_kernel<F16>, dim3(256), dim3(256), 0,
           stream(), ExpandArgs{pairs.get()});
    const std::vector<uint32_t> got = pairs.read();
    for (int exponent = kMinExponent; exponent <= kNonFiniteExponent;
         exponent = exponent == kMaxExponent ? kNonFiniteExponent : exponent + 1)
      for (int code = 0; code < 256; ++code)
        for (int i = 0; i < 2; ++i)
          for (int half = 0; half < 2; ++half) {
            const uint32_t pair = got[static_cast<size_t>(((exponent & 0xff) * 256 + code) * 2 + i)];
            const float value = value_of(type, static_cast<uint16_t>(pair >> half * 16));
            if (exponent == kNonFiniteExponent) EXPECT(std::isnan(value));
            // NaN codes are never written.
            else if ((code & 0x7f) != 0x7f)
              EXPECT_EQ(value,
                        value_of(type, bits_of(type, fp8_value(static_cast<uint8_t>(code)) * power_of_two(exponent))));
          }
  }
}

void check_append(FloatType type, int num_kv_heads, int head_dim) {
  constexpr int kTokens = 6, kBlocks = 3, kBlockSize = 64;
  const KvLayout layout = make_kv_layout(kBlockSize, num_kv_heads, head_dim, true);
  const int num_all = 1 + 2 * num_kv_heads;
  const int64_t stride = int64_t{num_all} * head_dim;
  std::vector<float> qkv = noise(1, kTokens * stride, 1);
  // Large, small, all zeros, and non-finite.
  for (int64_t i = 0; i < stride; ++i) {
    qkv[static_cast<size_t>(stride + i)] *= 9000, qkv[static_cast<size_t>(2 * stride + i)] *= 1e-3f;
    qkv[static_cast<size_t>(4 * stride + i)] = 0;
  }
  qkv[static_cast<size_t>(5 * stride + stride - 1)] = std::numeric_limits<float>::quiet_NaN();
  qkv[static_cast<size_t>(5 * stride + head_dim)] = std::numeric_limits<float>::infinity();
  const std::vector<int32_t> positions(kTokens, 0), slots = {64, 191, 0, -1, 63, 5};
  std::vector<float> rope(static_cast<size_t>(head_dim / 2 * 2), 0.0f);
  std::fill(rope.begin(), rope.begin() + head_dim / 2, 1.0f);  // identity rotation
  const OnDevice<float> device_qkv(qkv), device_rope(rope);
  const OnDevice<int32_t> device_positions(positions), device_slots(slots);
  const OnDevice<uint8_t> cache(static_cast<size_t>(kBlocks * layout.block_bytes()));
  const OnDevice<uint16_t> q(static_cast<size_t>(kTokens * layout.k_dim));
  QkvArgs args;
  args.type = type;
  args.qkv = device_qkv.get();
  args.qkv_stride = stride;
  args.num_tokens = kTokens;
  args.num_heads = 1;
  args.rope = device_rope.get();
  args.rotary_dim = head_dim / 2 * 2;
  args.positions = device_positions.get();
  args.slots = device_slots.get();
  args.layout = layout;
  args.cache = cache.get();
  args.q = q.get();
  launch_qkv(args, stream());
  const std::vector<uint8_t> got = cache.read();

  std::vector<bool> is_written(got.size());
  for (int token = 0; token < kTokens; ++token)
    for (int head = 0; head < 2 * num_kv_heads && slots[static_cast<size_t>(token)] >= 0; ++head) {
      const bool is_value = head >= num_kv_heads;
      const int kv_head = head % num_kv_heads;
      const int64_t slot = slots[static_cast<size_t>(token)];
      const float* row = qkv.data() + token * stride + (1 + head) * head_dim;
      const auto at = static_cast<size_t>(layout.exponent(slot, kv_head, is_value));
      const auto exponent = static_cast<int8_t>(got[at]);
      is_written[at] = true;
      double largest = 0;
      bool is_non_finite = false;
      for (int d = 0; d < head_dim; ++d)
        largest = std::max(largest, std::abs(static_cast<double>(row[d]))),
        is_non_finite = is_non_finite || !std::isfinite(row[d]);
      EXPECT_EQ(exponent == kNonFiniteExponent, is_non_finite);
      for (int d = 0; d < (is_value ? head_dim : layout.k_dim); ++d) {
        const auto place =
            static_cast<size_t>(is_value ? layout.value(slot, kv_head, d) : layout.key(slot, kv_head, d));
        is_written[place] = true;
        const double wanted = d < head_dim ? static_cast<double>(row[d]) : 0;
        // Half a unit of three fraction bits, or of the spacing near zero.
        if (!is_non_finite)
          expect_close(fp8_value(got[place]) * std::ldexp(1.0, exponent), wanted,
                       std::abs(wanted) / 16 + largest * std::ldexp(1.0, -17),
                       "fp8, head_dim " + std::to_string(head_dim));
      }
    }
  for (size_t i = 0; i < got.size(); ++i)
    if (!is_written[i]) EXPECT_EQ(static_cast<int>(got[i]), 0xff);
}

TEST(kernel_fp8_scales_each_head_separately) {
  for (const FloatType type : kTypes) {
    check_append(type, 2, 64);
    check_append(type, 1, 24);
    check_append(type, 3, 15);
    check_append(type, 2, 128);
  }
}

}  // namespace
}  // namespace capstan::testing
