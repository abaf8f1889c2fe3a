// The inputs of layers against double precision.
#include "test/native/gpu/kernel_testing.h"

namespace capstan::testing {
namespace {

TEST(kernel_layer_inputs_add_the_table_to_the_normed_projection) {
  constexpr int kTokens = 6, kLayers = 3;
  constexpr int64_t kSize = 40, kWidth = kLayers * kSize, kRows = 37;
  // The third token was drawn by the previous step. For the fifth one none was drawn, and the last one only pads the
  // batch.
  const std::vector<int32_t> ids = {3, 36, -2, 0, -3, kNoToken}, drawn_ids = {1, 20, -1}, meant = {3, 36, 20, 0};
  const OnDevice<int32_t> on_ids(ids), on_drawn(drawn_ids);
  const std::vector<float> projections = noise(1, kTokens * kWidth, 3), norm = noise(2, kSize, 1);
  const OnDevice<float> on_norm(norm);
  const DepthSplit split = split_depth(kWidth, kWidth, row_parallel_parts(kWidth));
  for (const FloatType type : kTypes) {
    const std::vector<float> table = rounded(type, noise(3, kRows * kWidth, 1));
    const OnDevice<uint16_t> on_table(packed_weights(type, table, kRows, split));
    const OnDevice<float> inputs(projections);
    LayerInputArgs args;
    args.type = type;
    args.table = {on_table.get(), nullptr, kRows, split};
    args.ids = on_ids.get();
    args.drawn_ids = on_drawn.get();
    args.num_tokens = kTokens;
    args.num_layers = kLayers;
    args.size = kSize;
    args.norm = on_norm.get();
    args.eps = 1e-2f;
    args.projection_scale = 0.2f;
    args.table_scale = 6;
    args.sum_scale = 0.7f;
    args.inputs = inputs.get();
    launch_layer_inputs(args, stream());
    const std::vector<float> got = inputs.read();
    for (size_t token = 0; token < kTokens; ++token)
      for (size_t layer = 0; layer < kLayers; ++layer) {
        const size_t first = token * kWidth + layer * kSize;
        double square = 0;
        for (size_t k = 0; k < kSize; ++k)
          square += std::pow(0.2f * static_cast<double>(projections[first + k]), 2) / kSize;
        for (size_t k = 0; k < kSize; ++k) {
          const double of_table =
              token < meant.size() ? table[static_cast<size_t>(meant[token]) * kWidth + layer * kSize + k] : 0;
          const double normed = 0.2f * static_cast<double>(projections[first + k]) / std::sqrt(square + 1e-2) * norm[k];
          expect_close(got[first + k], (normed + 6 * of_table) * 0.7f, 1e-5, "input of a layer",
                       static_cast<int64_t>(token), static_cast<int64_t>(layer * kSize + k));
        }
      }
  }
}

}  // namespace
}  // namespace capstan::testing
