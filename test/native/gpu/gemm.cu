// Products of few tokens: bits that do not depend on the batch or the device, products in parts, and programmatic
// dependent launch.
#include <algorithm>

#include "test/native/gpu/kernel_testing.h"

namespace capstan::testing {
namespace {

struct Shape {
  int64_t rows, cols;
};

// A product with its inputs. The arrays are large enough for kMaxTokens.
struct Product {
  static constexpr int kMaxTokens = 70;
  GemmArgs args;
  DepthSplit split;
  OnDevice<uint16_t> weights, acts, gated;
  OnDevice<float> bias, out;
  std::vector<float> before;

  Product(FloatType type, const Shape& shape, GemmOutput output)
      : split(split_depth(shape.cols, shape.cols, row_parallel_parts(shape.cols))),
        weights(packed_weights(type, noise(1, shape.rows * shape.cols, 1 / std::sqrt(static_cast<float>(shape.cols))),
                               shape.rows, split)),
        acts(packed_acts(type, noise(2, kMaxTokens * shape.cols, 1), kMaxTokens, split)),
        gated(static_cast<size_t>(round_up(kMaxTokens, 8) * gated_split(shape, output).padded())),
        bias(noise(3, shape.rows, 1)),
        out(static_cast<size_t>(kMaxParts * kMaxTokens * (shape.rows + 3))),
        before(noise(4, kMaxParts * kMaxTokens * (shape.rows + 3), 1)) {
    args.type = type;
    args.output = output;
    args.weights = {weights.get(), bias.get(), shape.rows, split};
    args.acts = acts.get();
    args.out = out.get();
    args.out_stride = shape.rows + 3;
    args.residual_scale = kResidualScale;
    args.gated = gated.get();
    args.gated_split = gated_split(shape, output);
    args.xielu = kXielu;
    if (output == GemmOutput::kActivated) args.activation = Activation::kXielu;
  }
  static DepthSplit gated_split(const Shape& shape, GemmOutput output) {
    const int64_t features = output == GemmOutput::kGated ? shape.rows / 2 : shape.rows;
    return split_depth(features, features, row_parallel_parts(features));
  }

  // Returns the bits of the outputs, token by token.
  std::vector<uint32_t> run(int tokens, const DeviceResources& resources) {
    check(cudaMemcpyAsync(out.get(), before.data(), before.size() * sizeof(float), cudaMemcpyHostToDevice, stream()),
          "a test");
    args.num_tokens = tokens;
    launch_gemm(args, resources, stream());
    std::vector<uint32_t> bits;
    if (has_acts(args.output)) {
      const std::vector<uint16_t> got = gated.read();
      for (int64_t token = 0; token < tokens; ++token)
        for (int64_t k = 0; k < args.gated_split.padded(); ++k)
          bits.push_back(got[static_cast<size_t>(operand_index(token, k, args.gated_split.padded()))]);
      return bits;
    }
    const std::vector<float> got = out.read();
    for (size_t i = 0; i < static_cast<size_t>(tokens * args.out_stride); ++i)
      bits.push_back(float_bits(got[i]));
    return bits;
  }
};

// One multiprocessor must process all tiles. Little shared memory limits the warps, or the tokens per block.
std::vector<DeviceResources> resource_variants() {
  const DeviceResources whole = device_resources();
  return {whole, {1, whole.shared_bytes}, {5, size_t{99} << 10}, {3, size_t{64} << 10}};
}

TEST(kernel_gemm_bits_do_not_depend_on_the_batch_or_the_device) {
  const std::vector<Shape> shapes = {{48, 64}, {272, 96}, {40, 1152}, {144, 45}};
  for (const FloatType type : kTypes)
    for (const Shape& shape : shapes)
      for (const GemmOutput output :
           {GemmOutput::kStore, GemmOutput::kResidual, GemmOutput::kGated, GemmOutput::kActivated}) {
        if (output == GemmOutput::kGated && shape.rows % 16 != 0) continue;
        Product product(type, shape, output);
        const std::vector<uint32_t> all = product.run(Product::kMaxTokens, device_resources());
        for (const DeviceResources& resources : resource_variants())
          for (const int tokens : {3, 8, 11, 20, 50, Product::kMaxTokens}) {
            const std::vector<uint32_t> some = product.run(tokens, resources);
            if (!std::equal(some.begin(), some.end(), all.begin()))
              fail(__FILE__, __LINE__,
                   std::to_string(tokens) + " tokens of " + std::to_string(shape.rows) + " x " +
                       std::to_string(shape.cols) + " on " + std::to_string(resources.multiprocessors) +
                       " multiprocessors");
          }
      }
}

TEST(kernel_gemm_leaves_parts_that_add_up) {
  const std::vector<Shape> shapes = {{48, 64}, {272, 96}, {40, 1152}, {33, 45}, {24, 2}};
  for (const FloatType type : kTypes)
    for (const Shape& shape : shapes)
      for (const int tokens : {1, 8, 13, 31, 64}) {
        Product whole(type, shape, GemmOutput::kStore), cut(type, shape, GemmOutput::kParts);
        const std::vector<uint32_t> wanted = whole.run(tokens, device_resources());
        const std::vector<float> bias = whole.bias.read();
        for (const DeviceResources& resources : resource_variants()) {
          cut.run(tokens, resources);
          const std::vector<float> got = cut.out.read();
          const int64_t stride = cut.args.out_stride, part_size = tokens * stride;
          for (int64_t i = 0; i < part_size; ++i) {
            std::vector<float> sums;
            for (int part = 0; part < cut.split.parts; ++part)
              sums.push_back(got[static_cast<size_t>(part * part_size + i)]);
            if (i % stride >= shape.rows) {
              for (int part = 0; part < cut.split.parts; ++part)
                EXPECT_EQ(sums[static_cast<size_t>(part)], cut.before[static_cast<size_t>(part * part_size + i)]);
              continue;
            }
            while (sums.size() > 1) {
              for (size_t pair = 0; pair < sums.size() / 2; ++pair)
                sums[pair] = sums[2 * pair] + sums[2 * pair + 1];
              sums.resize(sums.size() / 2);
            }
            EXPECT_EQ(float_bits(sums[0] + bias[static_cast<size_t>(i % stride)]), wanted[static_cast<size_t>(i)]);
          }
          for (size_t i = static_cast<size_t>(cut.split.parts * part_size); i < got.size(); ++i)
            EXPECT_EQ(got[i], cut.before[i]);
        }
      }
}

// Norm, product in parts, then heads or the sum with the next norm. Each input is written directly before, by a copy or
// by the preceding kernel.
TEST(kernel_gemm_and_its_neighbors_support_pdl) {
  constexpr int kTokens = 13, kHeads = 2, kKvHeads = 1, kHeadDim = 24, kPositions = 30;
  constexpr int64_t kHidden = 96, kRows = (kHeads + 2 * kKvHeads) * kHeadDim;
  static_assert(kRows == kHidden);  // so that the product can also be added to the hidden states
  const DepthSplit split = split_depth(kHidden, kHidden, row_parallel_parts(kHidden));
  const KvLayout layout = make_kv_layout(64, kKvHeads, kHeadDim);
  const std::vector<float> hidden = noise(1, kTokens * kHidden, 1), bias = noise(2, kRows, 1);
  const OnDevice<float> given(hidden), norm_weight(noise(3, kHidden, 1)), device_bias(bias),
      rope(noise(4, kPositions * kHeadDim, 1));
  std::vector<int32_t> positions, slots;
  for (int token = 0; token < kTokens; ++token)
    positions.push_back(token * 2), slots.push_back(token * 3);
  const OnDevice<int32_t> device_positions(positions), device_slots(slots);
  for (const FloatType type : kTypes) {
    const OnDevice<uint16_t> weights(packed_weights(type, noise(5, kRows * kHidden, 0.1f), kRows, split));
    const auto run = [&](bool is_early, bool has_heads) {
      const OnDevice<float> now(hidden.size()), parts(static_cast<size_t>(kMaxParts * kTokens * kRows));
      const OnDevice<uint16_t> acts(std::vector<uint16_t>(static_cast<size_t>(64 * split.padded()))),
          q(static_cast<size_t>(kTokens * kHeads * layout.k_dim)), cache(static_cast<size_t>(layout.block_elements()));
      check(cudaMemcpyAsync(now.get(), given.get(), hidden.size() * sizeof(float), cudaMemcpyDeviceToDevice, stream()),
            "a test");
      NormArgs norm;
      norm.type = type;
      norm.hidden = now.get();
      norm.num_rows = kTokens;
      norm.hidden_size = kHidden;
      norm.weight = norm_weight.get();
      norm.eps = 1e-6f;
      norm.split = split;
      norm.acts = acts.get();
      norm.uses_pdl = is_early;
      launch_norm(norm, stream());
      GemmArgs product;
      product.type = type;
      product.output = GemmOutput::kParts;
      product.weights = {weights.get(), device_bias.get(), kRows, split};
      product.acts = acts.get();
      product.num_tokens = kTokens;
      product.out = parts.get();
      product.out_stride = kRows;
      product.uses_pdl = is_early;
      launch_gemm(product, device_resources(), stream());
      if (has_heads) {
        QkvArgs heads;
        heads.type = type;
        heads.qkv = parts.get();
        heads.parts = split.parts;
        heads.bias = device_bias.get();
        heads.qkv_stride = kRows;
        heads.num_tokens = kTokens;
        heads.num_heads = kHeads;
        heads.rope = rope.get();
        heads.rotary_dim = kHeadDim;
        heads.positions = device_positions.get();
        heads.slots = device_slots.get();
        heads.layout = layout;
        heads.cache = cache.get();
        heads.q = q.get();
        heads.uses_pdl = is_early;
        launch_qkv(heads, stream());
      } else {
        AddNormArgs next;
        next.norm = norm;
        next.sum.hidden = now.get();
        for (int part = 0; part < split.parts; ++part)
          next.sum.partials[part] = parts.get() + part * kTokens * kRows;
        next.sum.world_size = split.parts;
        next.sum.bias = device_bias.get();
        next.sum.num_tokens = kTokens;
        next.sum.hidden_size = kHidden;
        launch_add_norm(next, stream());
      }
      std::vector<uint16_t> bits;
      for (const OnDevice<uint16_t>* array : {&acts, &q, &cache})
        for (const uint16_t value : array->read())
          bits.push_back(value);
      for (const float value : now.read())
        bits.push_back(static_cast<uint16_t>(float_bits(value))),
            bits.push_back(static_cast<uint16_t>(float_bits(value) >> 16));
      return bits;
    };
    for (const bool has_heads : {false, true})
      EXPECT(run(supports_pdl(), has_heads) == run(false, has_heads));
  }
}

// Compares the heads of a product in parts with those of a complete product.
TEST(kernel_qkv_adds_the_parts_of_a_product) {
  constexpr int kTokens = 6, kHeads = 3, kKvHeads = 1, kHeadDim = 40;
  constexpr int64_t kRows = (kHeads + 2 * kKvHeads) * kHeadDim, kCols = 256;
  const KvLayout layout = make_kv_layout(64, kKvHeads, kHeadDim);
  const OnDevice<float> rope(noise(4, kTokens * kHeadDim, 1));
  const OnDevice<int32_t> positions(std::vector<int32_t>{0, 1, 2, 3, 4, 5}),
      slots(std::vector<int32_t>{5, 4, 3, 2, 1, -1});
  for (const FloatType type : kTypes) {
    const auto run = [&](GemmOutput output) {
      Product product(type, {kRows, kCols}, output);
      product.run(kTokens, device_resources());
      const OnDevice<uint16_t> q(static_cast<size_t>(kTokens * kHeads * layout.k_dim)),
          cache(static_cast<size_t>(layout.block_elements()));
      QkvArgs heads;
      heads.type = type;
      heads.qkv = product.out.get();
      heads.qkv_stride = product.args.out_stride;
      if (output == GemmOutput::kParts) heads.parts = product.split.parts, heads.bias = product.bias.get();
      heads.num_tokens = kTokens;
      heads.num_heads = kHeads;
      heads.rope = rope.get();
      heads.rotary_dim = kHeadDim;
      heads.positions = positions.get();
      heads.slots = slots.get();
      heads.layout = layout;
      heads.cache = cache.get();
      heads.q = q.get();
      launch_qkv(heads, stream());
      std::vector<uint16_t> bits = q.read();
      for (const uint16_t value : cache.read())
        bits.push_back(value);
      return bits;
    };
    EXPECT(run(GemmOutput::kParts) == run(GemmOutput::kStore));
  }
}

}  // namespace
}  // namespace capstan::testing
