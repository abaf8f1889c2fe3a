// Mixtures of experts: the argument checks of the launchers, the number of tiles, and a backend that uses wgmma.
#include <algorithm>
#include <functional>
#include <vector>

#include "cuda/experts.h"
#include "test/native/cuda_host/cuda_host.h"
#include "test/native/gpu/device.h"
#include "test/native/gpu/kernel_testing.h"

namespace capstan::testing {
namespace {

constexpr int kTokens = 3, kTopK = 2, kExperts = 4, kHidden = 64;

// A non-null pointer that is never dereferenced.
template <class T>
T* dummy_pointer() {
  return reinterpret_cast<T*>(uintptr_t{4096});
}

// Runs `change` on good arguments; the check that fails must contain `check`.
template <class Args>
void expect_refused(const Args& good, const std::function<void(const Args&)>& launch, const std::string& check,
                    const std::function<void(Args&)>& change) {
  Args bad = good;
  change(bad);
  std::string message = "nothing";
  try {
    launch(bad);
  } catch (const Error& error) {
    message = error.what();
  }
  if (message.find("invariant failed") != 0 || message.find(check) == std::string::npos)
    fail(__FILE__, __LINE__, check + ": " + message);
}

TEST(cuda_expert_launchers_reject_invalid_arguments) {
  RouterArgs router;
  router.moe.num_experts = kExperts, router.moe.top_k = kTopK;
  router.num_tokens = kTokens;
  router.hidden_size = kHidden;
  router.experts = dummy_pointer<int32_t>();
  router.weights = dummy_pointer<float>();
  const auto refuse_router = [&](const std::string& check, const std::function<void(RouterArgs&)>& change) {
    expect_refused<RouterArgs>(router, [](const RouterArgs& args) { launch_router(args, stream()); }, check, change);
  };
  refuse_router("num_tokens > 0", [](RouterArgs& args) { args.num_tokens = 0; });
  refuse_router("supports_router", [](RouterArgs& args) { args.hidden_size = 1 << 20; });
  refuse_router("top_k <= moe.num_experts", [](RouterArgs& args) { args.moe.top_k = kExperts + 1; });
  refuse_router("num_groups == 0", [](RouterArgs& args) { args.moe.num_groups = 3; });
  refuse_router("args.weights != nullptr", [](RouterArgs& args) { args.weights = nullptr; });
  refuse_router("shared_weights != nullptr", [](RouterArgs& args) { args.shared_gate = dummy_pointer<float>(); });

  ExpertRowsArgs rows;
  rows.num_pairs = kTokens * kTopK;
  rows.top_k = kTopK;
  rows.num_experts = kExperts;
  rows.tile_rows = kTileTokens;
  rows.num_tiles = static_cast<int>(max_expert_tiles(rows.num_pairs, kExperts, kTileTokens));
  const auto refuse_rows = [&](const std::string& check, const std::function<void(ExpertRowsArgs&)>& change) {
    expect_refused<ExpertRowsArgs>(
        rows, [](const ExpertRowsArgs& args) { launch_expert_rows(args, stream()); }, check, change);
  };
  refuse_rows("num_pairs > 0", [](ExpertRowsArgs& args) { args.num_pairs = 0; });
  refuse_rows("tile_rows <= kWarpSize", [](ExpertRowsArgs& args) { args.tile_rows = 64; });
  refuse_rows("max_expert_tiles", [](ExpertRowsArgs& args) { args.num_tiles -= 1; });

  ExpertGemmArgs gemm;
  gemm.experts = dummy_pointer<DeviceMatrix>();
  gemm.tile_experts = dummy_pointer<int32_t>();
  gemm.tile_rows = kTileTokens;
  gemm.product.weights = {nullptr, nullptr, kHidden, split_depth(kHidden, kHidden, 1)};
  gemm.product.acts = dummy_pointer<uint16_t>();
  gemm.product.num_tokens = 2 * kTileTokens;
  gemm.product.out = dummy_pointer<float>();
  const auto refuse_gemm = [&](const std::string& check, const std::function<void(ExpertGemmArgs&)>& change) {
    expect_refused<ExpertGemmArgs>(
        gemm, [](const ExpertGemmArgs& args) { launch_expert_gemm(args, {2, kMinSharedBytes}, stream()); }, check,
        change);
  };
  refuse_gemm("experts != nullptr", [](ExpertGemmArgs& args) { args.experts = nullptr; });
  refuse_gemm("tile_rows == 4 * kTileTokens", [](ExpertGemmArgs& args) { args.tile_rows = 16; });
  refuse_gemm("% args.tile_rows == 0", [](ExpertGemmArgs& args) { args.product.num_tokens += 1; });
  refuse_gemm("(parts - 1)) == 0", [](ExpertGemmArgs& args) { args.product.weights.split.parts = 3; });
  refuse_gemm("padded_part % kTileDepth == 0",
              [](ExpertGemmArgs& args) { args.product.weights.split.padded_part += 8; });
  refuse_gemm("output == GemmOutput::kStore", [](ExpertGemmArgs& args) { args.product.output = GemmOutput::kParts; });
  refuse_gemm("gated != nullptr", [](ExpertGemmArgs& args) { args.product.output = GemmOutput::kGated; });

  ExpertSumArgs sum;
  sum.num_tokens = sum.end = kTokens;
  sum.top_k = kTopK;
  sum.hidden_size = kHidden;
  const auto refuse_sum = [&](const std::string& check, const std::function<void(ExpertSumArgs&)>& change) {
    expect_refused<ExpertSumArgs>(
        sum, [](const ExpertSumArgs& args) { launch_expert_sum(args, stream()); }, check, change);
  };
  refuse_sum("num_tokens > 0", [](ExpertSumArgs& args) { args.num_tokens = 0; });
  refuse_sum("world_size == 8", [](ExpertSumArgs& args) { args.world_size = 3; });
  refuse_sum("args.end == args.num_tokens", [](ExpertSumArgs& args) { args.end = 1; });
}

// The most tiles over all numbers of pairs per expert.
TEST(cuda_expert_tiles_are_enough_for_any_choice) {
  for (const int tile_rows : {8, 32})
    for (const int num_experts : {1, 2, 3})
      for (int a = 0; a < 70; ++a)
        for (int b = 0; b < (num_experts > 1 ? 70 : 1); b += 3)
          for (int c = 0; c < (num_experts > 2 ? 70 : 1); c += 7) {
            if (a + b + c == 0) continue;
            const auto tiles = [&](int pairs) { return (pairs + tile_rows - 1) / tile_rows; };
            EXPECT(tiles(a) + tiles(b) + tiles(c) <= max_expert_tiles(a + b + c, num_experts, tile_rows));
          }
}

TEST(cuda_refuses_what_it_lacks_of_mixtures) {
  DeviceModel model;
  model.hidden_size = kHidden, model.head_dim = 32, model.vocab_size = 100;
  model.moe.num_experts = kExperts, model.moe.top_k = kTopK;
  EXPECT_EQ(cuda_refusal(model), "");
  model.hidden_size = 1 << 20;
  EXPECT(cuda_refusal(model).starts_with(
      "CUDA: router: expected a hidden size and twice the experts to be at most 25344"));
}

// A prefill whose shared expert is multiplied by wgmma, with row-major activations.
TEST(cuda_experts_beside_wgmma_answer_like_mma) {
  TinyShape shape;
  shape.num_experts = shape.top_k = 3;
  shape.shared_expert_size = 96;
  const TinyModel model(shape, DType::kF16);
  Request request;
  request.prompt_token_ids = random_ids(1, 90, 300);
  request.sampling.temperature = 0;
  request.sampling.max_tokens = 3;
  request.sampling.num_logprobs = kNumAlternatives;
  std::vector<Answer> answers;
  for (const int capability : {8, 9}) {
    cuda_host::set_compute_capability(capability);
    Session session(cuda_request(model));
    EXPECT_EQ(session.info().isa, std::string(capability == 9 ? "wgmma" : "mma"));
    answers.push_back(session.wait(session.submit(request)));
  }
  cuda_host::set_compute_capability(8);
  EXPECT(answers[0].token_ids == answers[1].token_ids && answers[0].logprobs.size() == answers[1].logprobs.size());
  for (size_t i = 0; i < answers[0].logprobs.size(); ++i)
    EXPECT_NEAR(answers[0].logprobs[i], answers[1].logprobs[i], 0.02);
}

}  // namespace
}  // namespace capstan::testing
