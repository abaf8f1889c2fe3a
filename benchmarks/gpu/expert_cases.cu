// The kernels of a mixture of experts.
#include <functional>

#include "benchmarks/gpu/case_parts.h"
#include "cuda/experts.h"

namespace capstan::benchmarks {
namespace {

// The buffers of one layer. The router's choice and the rows are made once.
struct Experts {
  Moe moe;
  int64_t hidden_size, inner;
  DepthSplit split, inner_split;
  DeviceBuffer hidden, norm, router_weights, gate_ups, downs, gate_up_list, down_list;
  DeviceBuffer chosen, weights, first_rows, tile_experts, row_tokens, pair_rows, acts, mlp_acts, results;
  RouterArgs router;
  ExpertRowsArgs rows;
  ExpertGemmArgs gate_up, down;
  ExpertSumArgs sum;
  // Of an adapter that all tokens have, with the same update of each expert.
  DeviceBuffer a, b, scales, ranges, down_update, down_updates, token_adapters, of_rows, results_and_t;
  DeviceBuffer float_a, float_b, router_update, router_updates, logit_updates;
  RouterArgs updated_router;
  ExpertLorasArgs look_up;
  LoraValuesArgs values;
  ExpertSumArgs updated_sum;
};

DeviceBuffer list_of(const DeviceBuffer& weights, int count, int64_t rows, const DepthSplit& split,
                     cudaStream_t stream) {
  std::vector<DeviceMatrix> all;
  for (int expert = 0; expert < count; ++expert)
    all.push_back({weights.as<uint16_t>() + expert * round_up(rows, kTileRows) * split.padded(), nullptr, rows, split});
  DeviceBuffer list(all.size() * sizeof(DeviceMatrix), "experts");
  check(cudaMemcpyAsync(list.as<void>(), all.data(), list.bytes(), cudaMemcpyHostToDevice, stream), "experts");
  check(cudaStreamSynchronize(stream), "experts");
  return list;
}

// The updates of the router and of the second product.
void add_adapter(Experts& all, cudaStream_t stream) {
  const int64_t size = all.hidden_size, rows = int64_t{all.rows.num_tiles} * all.rows.tile_rows;
  const int num_experts = all.moe.num_experts, tokens = all.router.num_tokens;
  all.token_adapters = zeros(tokens, stream);
  all.scales = floats(kRank, stream, kNorm);
  all.float_a = floats(kRank * size, stream, kWeights);
  all.float_b = floats(kRank * num_experts, stream, kBefore);
  DeviceLora router;
  router.float_a = all.float_a.as<float>();
  router.float_b = all.float_b.as<float>();
  router.scales = all.scales.as<float>();
  router.num_values = kRank;
  router.rows = num_experts;
  all.router_update = uploaded(std::vector<DeviceLora>{router}, stream);
  all.router_updates = uploaded(std::vector<const DeviceLora*>{all.router_update.as<DeviceLora>()}, stream);
  all.logit_updates = zeros(int64_t{tokens} * (num_experts + 1), stream);
  all.updated_router = all.router;
  all.updated_router.token_adapters = all.token_adapters.as<int32_t>();
  all.updated_router.router_loras = all.router_updates.as<const DeviceLora*>();
  all.updated_router.updates = all.logit_updates.as<float>();

  all.a = filled_bf16(kRank * all.inner, bf16_pattern(kWeights, 0.015625f), stream);
  all.b = filled_bf16(kRank * size, bf16_pattern(kBefore, 0.015625f), stream);
  all.ranges = uploaded(std::vector<LoraRange>(static_cast<size_t>(size), {0, kRank}), stream);
  DeviceLora down;
  down.a = all.a.as<uint16_t>();
  down.b = all.b.as<uint16_t>();
  down.scales = router.scales;
  down.ranges = all.ranges.as<LoraRange>();
  down.num_values = kRank;
  down.rows = size;
  down.cols = all.inner;
  all.down_update = uploaded(std::vector<DeviceLora>{down}, stream);
  all.down_updates = uploaded(
      std::vector<const DeviceLora*>(static_cast<size_t>(num_experts) + 1, all.down_update.as<DeviceLora>()), stream);
  all.of_rows = zeros((rows + tokens) * static_cast<int64_t>(sizeof(void*) / 4), stream);
  all.look_up.token_adapters = all.updated_router.token_adapters;
  all.look_up.row_tokens = all.rows.row_tokens;
  all.look_up.tile_experts = all.rows.tile_experts;
  all.look_up.loras = all.down_updates.as<const DeviceLora*>();
  all.look_up.num_rows = static_cast<int>(rows);
  all.look_up.tile_rows = all.rows.tile_rows;
  all.look_up.num_tokens = tokens;
  all.look_up.num_experts = num_experts;
  all.look_up.num_adapters = 1;
  all.look_up.of_rows = all.of_rows.as<const DeviceLora*>();
  launch_expert_loras(all.look_up, stream);

  all.results_and_t = floats(rows * (size + kRank), stream, kBefore);
  all.values.rows = {nullptr, nullptr, all.look_up.of_rows, static_cast<int>(rows)};
  all.values.acts = all.mlp_acts.as<uint16_t>();
  all.values.split = all.inner_split;
  all.values.t = all.results_and_t.as<float>() + rows * size;
  all.values.t_stride = kRank;
  all.updated_sum = all.sum;
  all.updated_sum.results[0] = all.results_and_t.as<float>();
  all.updated_sum.loras = all.look_up.of_rows;
  all.updated_sum.t_begin = rows * size;
  all.updated_sum.t_stride = kRank;
}

std::shared_ptr<Experts> make_experts(int tokens, cudaStream_t stream) {
  const auto made = std::make_shared<Experts>();
  Experts& all = *made;
  all.moe.num_experts = is_tiny ? 6 : 128, all.moe.top_k = is_tiny ? 2 : 8;
  all.hidden_size = is_tiny ? 64 : 2048, all.inner = is_tiny ? 32 : 768;
  const int num_experts = all.moe.num_experts, pairs = tokens * all.moe.top_k,
            tile_rows = expert_tile_rows(pairs, num_experts),
            tiles = static_cast<int>(max_expert_tiles(pairs, num_experts, tile_rows));
  const int64_t rows = int64_t{tiles} * tile_rows, size = all.hidden_size;
  all.split = split_depth(size, size, row_parallel_parts(size));
  all.inner_split = split_depth(all.inner, all.inner, row_parallel_parts(all.inner));
  all.hidden = floats(tokens * size, stream, kHidden);
  all.norm = floats(size, stream, kNorm);
  all.router_weights = floats(num_experts * size, stream, kPartials);
  const Pattern pattern = bf16_pattern(kWeights, 0.015625f);
  all.gate_ups = filled_bf16(num_experts * 2 * all.inner * all.split.padded(), pattern, stream);
  all.downs = filled_bf16(num_experts * size * all.inner_split.padded(), pattern, stream);
  all.gate_up_list = list_of(all.gate_ups, num_experts, 2 * all.inner, all.split, stream);
  all.down_list = list_of(all.downs, num_experts, size, all.inner_split, stream);
  all.chosen = zeros(pairs, stream);
  all.weights = zeros(pairs, stream);
  all.first_rows = zeros(num_experts + 1, stream);
  all.tile_experts = zeros(tiles, stream);
  all.row_tokens = zeros(rows, stream);
  all.pair_rows = zeros(pairs, stream);
  all.acts = filled_bf16(round_up(rows, 64) * all.split.padded(), bf16_pattern(kActs, 1), stream);
  all.mlp_acts = filled_bf16(round_up(rows, 64) * all.inner_split.padded(), bf16_pattern(kActs, 1), stream);
  all.results = floats(rows * size, stream, kBefore);

  all.router.moe = all.moe;
  all.router.hidden = all.hidden.as<float>();
  all.router.num_tokens = tokens;
  all.router.hidden_size = size;
  all.router.norm = all.norm.as<float>();
  all.router.eps = 1e-6f;
  all.router.router = all.router_weights.as<float>();
  all.router.experts = all.chosen.as<int32_t>();
  all.router.weights = all.weights.as<float>();
  all.rows = {all.chosen.as<int32_t>(),
              pairs,
              all.moe.top_k,
              num_experts,
              tile_rows,
              tiles,
              all.first_rows.as<int32_t>(),
              all.tile_experts.as<int32_t>(),
              all.row_tokens.as<int32_t>(),
              all.pair_rows.as<int32_t>()};
  all.gate_up.experts = all.gate_up_list.as<DeviceMatrix>();
  all.gate_up.tile_experts = all.rows.tile_experts;
  all.gate_up.tile_rows = tile_rows;
  GemmArgs& product = all.gate_up.product;
  product.output = GemmOutput::kGated;
  product.weights = {nullptr, nullptr, 2 * all.inner, all.split};
  product.acts = all.acts.as<uint16_t>();
  product.num_tokens = static_cast<int>(rows);
  product.gated = all.mlp_acts.as<uint16_t>();
  product.gated_split = all.inner_split;
  all.down = all.gate_up;
  all.down.experts = all.down_list.as<DeviceMatrix>();
  all.down.product.output = GemmOutput::kStore;
  all.down.product.weights = {nullptr, nullptr, size, all.inner_split};
  all.down.product.acts = all.mlp_acts.as<uint16_t>();
  all.down.product.out = all.results.as<float>();
  all.down.product.out_stride = size;
  all.sum.hidden = all.hidden.as<float>();
  all.sum.replaces = true;
  all.sum.end = tokens;
  all.sum.results[0] = all.results.as<float>();
  all.sum.experts = all.router.experts;
  all.sum.pair_rows = all.rows.pair_rows;
  all.sum.weights = all.router.weights;
  all.sum.downs = all.down.experts;
  all.sum.num_tokens = tokens;
  all.sum.top_k = all.moe.top_k;
  all.sum.hidden_size = size;
  launch_router(all.router, stream);
  launch_expert_rows(all.rows, stream);
  add_adapter(all, stream);
  return made;
}

using Run = std::function<void(const Experts&, cudaStream_t)>;

KernelCase case_of(const char* what, int tokens, const char* kernel, DeviceBuffer Experts::* output, const Run& run) {
  KernelCase made;
  made.name = std::string(what) + " x" + std::to_string(tokens);
  made.kernel = kernel;
  made.prepare = [=](cudaStream_t stream) {
    const std::shared_ptr<Experts> experts = make_experts(tokens, stream);
    return PreparedCase{[=](int) { run(*experts, stream); }, {output_of((*experts).*output)}};
  };
  return made;
}

}  // namespace

std::vector<KernelCase> expert_cases(int tokens) {
  std::vector<KernelCase> cases = {
      case_of("router", tokens, "router_kernel", &Experts::weights,
              [](const Experts& all, cudaStream_t stream) { launch_router(all.router, stream); }),
      case_of("expert rows", tokens, "expert_place_kernel", &Experts::row_tokens,
              [](const Experts& all, cudaStream_t stream) { launch_expert_rows(all.rows, stream); }),
      case_of(
          "experts gate_up", tokens, "expert_gemm_kernel", &Experts::mlp_acts,
          [](const Experts& all, cudaStream_t stream) { launch_expert_gemm(all.gate_up, device_resources(), stream); }),
      case_of(
          "experts down", tokens, "expert_gemm_kernel", &Experts::results,
          [](const Experts& all, cudaStream_t stream) { launch_expert_gemm(all.down, device_resources(), stream); }),
      case_of("experts sum", tokens, "expert_sum_kernel", &Experts::hidden,
              [](const Experts& all, cudaStream_t stream) { launch_expert_sum(all.sum, stream); }),
      case_of("router with adapter", tokens, "router_update_kernel", &Experts::weights,
              [](const Experts& all, cudaStream_t stream) { launch_router(all.updated_router, stream); }),
      case_of("experts with adapter: rows", tokens, "expert_loras_kernel", &Experts::of_rows,
              [](const Experts& all, cudaStream_t stream) { launch_expert_loras(all.look_up, stream); }),
      case_of("experts with adapter: values", tokens, "lora_values_kernel", &Experts::results_and_t,
              [](const Experts& all, cudaStream_t stream) { launch_lora_values(all.values, stream); }),
      case_of("experts with adapter: sum", tokens, "expert_sum_kernel", &Experts::hidden,
              [](const Experts& all, cudaStream_t stream) { launch_expert_sum(all.updated_sum, stream); })};
  // What the products read and compute, if no expert is chosen twice before all are chosen once.
  const int num_experts = is_tiny ? 6 : 128, pairs = tokens * (is_tiny ? 2 : 8);
  const double weights = is_tiny ? 64.0 * 32 : 2048.0 * 768;
  for (const auto& [index, matrices] : {std::pair{size_t{2}, 2}, {size_t{3}, 1}}) {
    cases[index].bytes = std::min(pairs, num_experts) * weights * matrices * 2;
    cases[index].flops = 2.0 * pairs * weights * matrices;
    cases[index].element = index == 2 ? Element::kBf16 : Element::kFloat;
  }
  return cases;
}

}  // namespace capstan::benchmarks
