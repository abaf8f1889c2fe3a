// The whole engine on a CUDA device: its answers match the CPU's, and options that must not change a bit do not.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <random>

#include "test/native/gpu/device.h"
#include "test/native/testing.h"

namespace capstan::testing {
namespace {

struct EngineModel {
  TinyShape shape;
  DType dtype;
};

std::vector<EngineModel> models() {
  TinyShape qwen3{.has_bias = false, .has_qk_norm = true, .is_tied = true};
  TinyShape windowed{.num_heads = 6, .num_kv_heads = 2, .head_dim = 24, .sliding_window = 40};
  windowed.intermediate_size = 172;
  if (!is_full_run()) return {{TinyShape{}, DType::kBf16}, {windowed, DType::kF16}};
  return {{TinyShape{}, DType::kBf16}, {TinyShape{}, DType::kF16}, {qwen3, DType::kBf16},
          {qwen3, DType::kF16},        {windowed, DType::kBf16},   {windowed, DType::kF16}};
}

// Lengths around block and chunk boundaries. The last two prompts share a prefix of more than a block.
Prompts engine_prompts() {
  if (is_full_run()) return some_prompts();
  Prompts prompts = {random_ids(1, 1, 300), random_ids(2, 64, 300), random_ids(3, 33, 300), random_ids(4, 129, 300)};
  prompts.push_back(prompts.back());
  prompts.back().resize(70);
  prompts.back().push_back(5);
  return prompts;
}

int num_tokens() {
  return is_full_run() ? kMaxTokens : 5;
}

// Compares steps until the tokens differ, which is allowed only if the CPU's margin is within the limit.
void expect_near(const Answer& got, const Answer& wanted, double limit, const std::string& what) {
  constexpr size_t kWidth = 1 + kNumAlternatives;
  for (size_t step = 0; step < wanted.token_ids.size(); ++step) {
    if (step >= got.token_ids.size()) return fail(what.c_str(), static_cast<int>(step), "the answer is too short");
    const float* mine = got.logprobs.data() + step * kWidth;
    const float* theirs = wanted.logprobs.data() + step * kWidth;
    for (size_t i = 0; i < kNumAlternatives; ++i)
      if (!(std::abs(mine[1 + i] - theirs[1 + i]) <= limit))
        fail(what.c_str(), static_cast<int>(step),
             "log-probability " + show(mine[1 + i]) + ", expected " + show(theirs[1 + i]));
    if (got.token_ids[step] == wanted.token_ids[step]) continue;
    if (theirs[1] - theirs[2] > limit)
      fail(what.c_str(), static_cast<int>(step),
           "token " + show(got.token_ids[step]) + ", expected " + show(wanted.token_ids[step]) + ", margin " +
               show(theirs[1] - theirs[2]));
    return;
  }
}

// The bounds of contract 4, but narrow models lose more to 16-bit activations.
double limit_of(const TinyShape& shape, DType dtype) {
  const bool is_narrow = shape.hidden_size < 512;
  if (dtype == DType::kF16) return is_narrow ? 0.02 : 0.01;
  return is_narrow ? 0.25 : 0.15;
}

void expect_like_the_cpu(const TinyShape& shape, DType dtype, int world_size,
                         const Prompts& prompts = engine_prompts()) {
  const TinyModel model(shape, dtype);
  LoadRequest on_cpu = model.request();
  on_cpu.compute = ComputeChoice::kF32;
  Session cpu(on_cpu), cuda(ranks_request(model, world_size, false));
  EXPECT_EQ(cuda.info().backend, std::string("cuda"));
  const double limit = limit_of(shape, dtype);
  for (size_t i = 0; i < prompts.size(); ++i) {
    Request request;
    request.prompt_token_ids = prompts[i];
    request.sampling.temperature = 0;
    request.sampling.max_tokens = num_tokens();
    request.sampling.num_logprobs = kNumAlternatives;
    if (i % 2 == 1) request.sampling.num_prompt_logprobs = 0;
    const Answer wanted = cpu.wait(cpu.submit(request)), got = cuda.wait(cuda.submit(request));
    expect_near(
        got, wanted, limit,
        std::string(dtype_name(dtype)) + ", " + std::to_string(world_size) + " ranks, prompt " + std::to_string(i));
    EXPECT_EQ(got.prompt_logprobs.size(), wanted.prompt_logprobs.size());
    for (size_t p = 1; p < wanted.prompt_logprobs.size(); ++p)
      EXPECT_NEAR(got.prompt_logprobs[p]->logprob, wanted.prompt_logprobs[p]->logprob, limit);
  }
}

TEST(cuda_engine_answers_like_the_cpu) {
  for (const auto& [shape, dtype] : models())
    expect_like_the_cpu(shape, dtype, 1);
  expect_ranks_like_the_cpu();
}

TEST(cuda_engine_rotates_each_layer_by_its_table) {
  TinyShape shape;
  for (const int rope : {-1, 1}) {
    shape.last_rope = rope;
    expect_like_the_cpu(shape, DType::kF16, 1, {random_ids(1, 40, 300)});
  }
}

TEST(cuda_engine_keeps_a_wider_model_within_contract_4) {
  TinyShape shape{.hidden_size = 512, .intermediate_size = 1024, .num_heads = 8, .num_kv_heads = 2, .head_dim = 64};
  const Prompts prompts = is_full_run() ? some_prompts() : Prompts{random_ids(1, 20, 300), random_ids(2, 66, 300)};
  for (const DType dtype : {DType::kBf16, DType::kF16})
    expect_like_the_cpu(shape, dtype, 1, prompts);
}

TEST(cuda_engine_batch_cache_and_chunks_change_no_bit) {
  for (const auto& [shape, dtype] : models()) {
    const TinyModel model(shape, dtype);
    const Prompts prompts = engine_prompts();
    const auto solo = solo_answers(ranks_request(model), num_tokens(), prompts);
    Session session(ranks_request(model));
    expect_same(batched_answers(session, num_tokens(), prompts), solo, "batched, cold");
    expect_same(batched_answers(session, num_tokens(), prompts), solo, "batched, cached");
    EXPECT(session.engine().stats().cached_tokens > 0);
    for (const int budget : is_full_run() ? std::vector<int>{4, 17, 64} : std::vector<int>{37}) {
      LoadRequest request = ranks_request(model);
      request.max_num_seqs = 4;
      request.max_num_batched_tokens = budget;
      Session chunked(request);
      expect_same(batched_answers(chunked, num_tokens(), prompts), solo, "chunked");
    }
  }
}

TEST(cuda_engine_preemption_changes_no_bit) {
  const TinyModel model(TinyShape{}, DType::kBf16);
  Prompts prompts;
  for (uint64_t i = 0; i < 3; ++i)
    prompts.push_back(random_ids(i, 120, 300));
  // The first sequence may be a few tokens ahead, and still runs when the second one needs its third block.
  const int max_tokens = is_full_run() ? 130 : 24;
  const auto solo = solo_answers(ranks_request(model), max_tokens, prompts);
  LoadRequest request = ranks_request(model);
  request.max_model_len = 256;
  // Five blocks of 64 tokens: 2 layers × 2 × 2 heads × 32 × 2 bytes × 64 each. Two sequences start with two blocks
  // each, and both need a third.
  request.kv_cache_bytes = 5 * 32768;
  Session session(request);
  expect_same(batched_answers(session, max_tokens, prompts), solo, "preempted");
  EXPECT(session.engine().stats().num_preemptions > 0);
}

TEST(cuda_engine_ranks_change_no_bit) {
  TinyShape shape;
  shape.intermediate_size = 256;
  const TinyModel model(shape, DType::kBf16);
  const Prompts prompts = engine_prompts();
  const auto solo = solo_answers(ranks_request(model), num_tokens(), prompts);
  for (const int world_size : {2, 4}) {
    Session session(ranks_request(model, world_size));
    EXPECT_EQ(session.info().world_size, world_size);
    expect_same(batched_answers(session, num_tokens(), prompts), solo, (std::to_string(world_size) + " ranks").c_str());
  }
}

// Every token has all experts, so that no rounding chooses others.
TinyShape mixture() {
  TinyShape shape{.intermediate_size = 256, .num_layers = 3};
  shape.num_experts = shape.top_k = 3;
  shape.shared_expert_size = 96;
  return shape;
}

TEST(cuda_engine_with_experts_answers_like_the_cpu) {
  TinyShape without_shared = mixture();
  without_shared.has_bias = false, without_shared.shared_expert_size = 0;
  expect_like_the_cpu(mixture(), DType::kBf16, 1);
  for (const int world_size : {1, 2})
    expect_like_the_cpu(mixture(), DType::kF16, world_size);
  expect_like_the_cpu(without_shared, DType::kF16, 1);
}

// The batch, the cache, chunks and ranks, with experts that differ between tokens.
TEST(cuda_engine_with_experts_changes_no_bit) {
  TinyShape shape = mixture();
  shape.num_experts = 7, shape.top_k = 2;
  const TinyModel model(shape, DType::kBf16);
  Prompts prompts = engine_prompts();
  const auto solo = solo_answers(ranks_request(model), num_tokens(), prompts);
  for (const int world_size : {1, 2}) {
    LoadRequest request = ranks_request(model, world_size);
    if (world_size == 1) request.max_num_batched_tokens = is_full_run() ? 17 : 37;
    Session session(request);
    const std::string what = "experts, " + std::to_string(world_size) + " ranks";
    expect_same(batched_answers(session, num_tokens(), prompts), solo, what.c_str());
    expect_same(batched_answers(session, num_tokens(), prompts), solo, (what + ", cached").c_str());
  }
}

// Disables features of the backend for sessions created during its lifetime.
class Without {
 public:
  explicit Without(const char* parts) { setenv("CAPSTAN_CUDA_WITHOUT", parts, 1); }
  ~Without() { unsetenv("CAPSTAN_CUDA_WITHOUT"); }
};

// A gated delta net beside attention with output gates (Qwen3.5), and the other recurrent layers.
std::vector<TinyShape> recurrent_models() {
  TinyShape delta_net{.num_layers = 2};
  delta_net.first_mixer = Mixer::kDeltaNet;
  delta_net.has_bias = false, delta_net.has_output_gate = true;
  TinyShape short_conv{.num_layers = 2}, mamba{.num_layers = 2};
  short_conv.first_mixer = Mixer::kShortConv;
  mamba.first_mixer = Mixer::kMamba2, mamba.last_rope = -1;
  return {delta_net, short_conv, mamba};
}

TEST(cuda_engine_with_recurrent_layers_answers_like_the_cpu) {
  int64_t num_cases = 0;
  for (TinyShape shape : recurrent_models()) {
    if (takes_case(num_cases++, 2)) expect_like_the_cpu(shape, DType::kBf16, 1);
    shape.intermediate_size = 256;
    for (const int world_size : {1, 2})
      if (takes_case(num_cases++, 2)) expect_like_the_cpu(shape, DType::kF16, world_size);
  }
}

// The batch, snapshots of states, chunks and ranks.
TEST(cuda_engine_with_recurrent_layers_changes_no_bit) {
  for (TinyShape shape : recurrent_models()) {
    shape.intermediate_size = 256;
    const TinyModel model(shape, DType::kBf16);
    const Prompts prompts = engine_prompts();
    const auto solo = solo_answers(ranks_request(model), num_tokens(), prompts);
    for (const int world_size : {1, 2}) {
      LoadRequest request = ranks_request(model, world_size);
      if (world_size == 1) request.max_num_batched_tokens = is_full_run() ? 17 : 37;
      Session session(request);
      const std::string what = "recurrent layers, " + std::to_string(world_size) + " ranks";
      expect_same(batched_answers(session, num_tokens(), prompts), solo, what.c_str());
      expect_same(batched_answers(session, num_tokens(), prompts), solo, (what + ", cached").c_str());
      EXPECT(session.engine().stats().num_snapshot_hits > 0);
    }
    const Without graphs("graphs,gemv");
    expect_same(solo_answers(ranks_request(model), num_tokens(), prompts), solo, "recurrent layers without graphs");
  }
}

// What families add to the decoder of Llama. The names are those of families that have it.
std::vector<std::pair<const char*, TinyShape>> family_models() {
  TinyShape granite, gemma2, olmo2, cohere, gpt_oss, hunyuan, starcoder2, apertus, gemma4;
  granite.embedding_scale = 3, granite.residual_scale = 0.4, granite.logit_scale = 0.3;
  gemma2.norms.attention_out = gemma2.norms.mlp_out = true;
  gemma2.embedding_scale = 8, gemma2.attention_soft_cap = 2, gemma2.logit_soft_cap = 3;
  gemma2.activation = Activation::kGeluTanh, gemma2.sliding_window = 40;
  olmo2.norms = {false, true, false, true};
  olmo2.has_qk_norm = olmo2.has_norm_of_all_heads = true;
  TinyShape flex_olmo = olmo2;
  flex_olmo.num_experts = flex_olmo.top_k = 3;
  cohere.norm_kind = NormKind::kLayer, cohere.is_parallel = true, cohere.logit_scale = 0.5;
  gpt_oss.has_sinks = true, gpt_oss.activation = Activation::kClampedSwish, gpt_oss.sliding_window = 40;
  gpt_oss.num_experts = gpt_oss.top_k = 3, gpt_oss.residual_scale = 0.5;
  gpt_oss.norms.mlp_out = true;
  hunyuan.has_qk_norm = hunyuan.rotates_before_qk_norm = true, hunyuan.query_scale_growth = 0.3;
  starcoder2.norm_kind = NormKind::kLayer, starcoder2.has_gated_mlp = false, starcoder2.sliding_window = 40;
  starcoder2.activation = Activation::kGeluTanh;
  apertus.has_gated_mlp = false, apertus.activation = Activation::kXielu, apertus.has_qk_norm = true;
  gemma4.is_gemma4 = gemma4.has_qk_norm = true, gemma4.has_bias = false;
  gemma4.num_layers = 4, gemma4.sliding_window = 40, gemma4.activation = Activation::kGeluTanh;
  gemma4.norms.attention_out = gemma4.norms.mlp_out = true;
  TinyShape gemma4_moe = gemma4;
  gemma4_moe.num_experts = gemma4_moe.top_k = 3, gemma4_moe.shared_expert_size = 96;
  std::vector<std::pair<const char*, TinyShape>> all = {
      {"granite", granite},       {"gemma2", gemma2},   {"olmo2", olmo2},          {"flex_olmo", flex_olmo},
      {"cohere", cohere},         {"gpt_oss", gpt_oss}, {"hunyuan", hunyuan},      {"apertus", apertus},
      {"starcoder2", starcoder2}, {"gemma4", gemma4},   {"gemma4_moe", gemma4_moe}};
  for (auto& [name, shape] : all)
    shape.intermediate_size = 256;
  return all;
}

TEST(cuda_engine_with_parts_of_families_answers_like_the_cpu) {
  int64_t num_models = 0;
  for (const auto& [name, shape] : family_models()) {
    ++num_models;
    for (const int world_size : {1, 2})
      if (takes_case(num_models + world_size, 2)) expect_like_the_cpu(shape, DType::kF16, world_size);
  }
}

// The batch, the cache, chunks, ranks, and kernels that are switched off.
TEST(cuda_engine_with_parts_of_families_changes_no_bit) {
  int64_t num_models = 0;
  for (const auto& [name, shape] : family_models()) {
    ++num_models;
    const TinyModel model(shape, DType::kBf16);
    const Prompts prompts = engine_prompts();
    const auto solo = solo_answers(ranks_request(model), num_tokens(), prompts);
    for (const int world_size : {1, 2}) {
      if (!takes_case(num_models + world_size, 2)) continue;
      LoadRequest request = ranks_request(model, world_size);
      if (world_size == 1) request.max_num_batched_tokens = is_full_run() ? 17 : 37;
      Session session(request);
      const std::string what = std::string(name) + ", " + std::to_string(world_size) + " ranks";
      expect_same(batched_answers(session, num_tokens(), prompts), solo, what.c_str());
      expect_same(batched_answers(session, num_tokens(), prompts), solo, (what + ", cached").c_str());
    }
    for (int64_t i = 0; const char* parts : {"graphs,gemv", "k_splits"}) {
      if (!takes_case(num_models + i++, 2)) continue;
      const Without without(parts);
      const Prompts some = {prompts[2], prompts[3]};
      const std::vector<Answer> wanted = {solo[2], solo[3]};
      expect_same(solo_answers(ranks_request(model), num_tokens(), some), wanted,
                  (std::string(name) + " without " + parts).c_str());
    }
  }
}

// Prompts and completions of few ids, so that look-ups find places. Drafts are accepted and rejected.
TEST(cuda_engine_speculation_changes_no_bit) {
  std::vector<EngineModel> all = models();
  all.push_back({recurrent_models()[0], DType::kBf16});
  for (const auto& [shape, dtype] : all) {
    const TinyModel model(shape, dtype);
    const auto answers = [&](const LoadRequest& load, EngineStats* stats = nullptr) {
      Session session(load);
      std::vector<RequestId> open;
      for (uint64_t i = 0; i < 4; ++i) {
        Request request;
        request.prompt_token_ids = random_ids(i, 12, 3);
        request.sampling.temperature = i % 2 == 0 ? 0 : 0.5f;
        request.sampling.seed = i;
        request.sampling.max_tokens = 3 * num_tokens();
        request.sampling.allowed_token_ids = std::vector<int32_t>{0, 1, 2};
        request.sampling.num_logprobs = kNumAlternatives;
        if (i == 3) request.sampling.repetition_penalty = 1.1f;
        open.push_back(session.submit(request));
      }
      std::vector<Answer> all;
      for (const RequestId id : open)
        all.push_back(session.wait(id));
      if (stats != nullptr) *stats = session.engine().stats();
      return all;
    };
    const std::vector<Answer> plain = answers(ranks_request(model));
    LoadRequest load = ranks_request(model);
    load.speculation = {.num_tokens = 3, .max_ngram = 2, .min_ngram = 1};
    EngineStats stats;
    expect_same(answers(load, &stats), plain, "speculation");
    EXPECT(stats.num_accepted_tokens[0] > 0 && stats.num_accepted_tokens[0] < stats.num_draft_tokens);
  }
}

TEST(cuda_engine_without_a_feature_changes_no_bit) {
  TinyShape shape;
  shape.intermediate_size = 256;
  const TinyModel model(shape, DType::kBf16);
  Prompts prompts = engine_prompts();
  if (!is_full_run()) prompts.resize(3);
  int64_t num_cases = 0;
  for (const int world_size : {1, 2})
    for (const bool is_deterministic : {false, true}) {
      const LoadRequest request = ranks_request(model, world_size, is_deterministic);
      const auto wanted = solo_answers(request, num_tokens(), prompts);
      // A deterministic backend splits no K by wgmma, so that all of these keep the order of sums.
      for (const std::string parts : {"graphs", "early", "gemv", "fused_heads", "k_splits"}) {
        if (parts == "early" && world_size > 1) continue;  // PDL is not used with several ranks
        if (parts == "k_splits" && !is_deterministic) continue;
        if (!takes_case(num_cases++, 2)) continue;
        const Without without(parts.c_str());
        expect_same(solo_answers(request, num_tokens(), prompts), wanted,
                    ("without " + parts + ", " + std::to_string(world_size) + " ranks").c_str());
        if (!is_deterministic) continue;
        Session session(request);
        expect_same(batched_answers(session, num_tokens(), prompts), wanted,
                    ("batched without " + parts + ", " + std::to_string(world_size) + " ranks").c_str());
      }
    }
}

// Decoded weights have the values of the codes.
TEST(cuda_engine_with_experts_of_codes_changes_no_bit) {
  const TinyModel model(mixture(), DType::kBf16);
  const Prompts prompts = {random_ids(1, 70, 300), random_ids(2, 5, 300)};
  for (const Quantization quantization : {Quantization::kInt8, Quantization::kInt4}) {
    LoadRequest request = ranks_request(model);
    request.quantization = quantization;
    const auto with_codes = solo_answers(request, num_tokens(), prompts);
    const Without without("codes");
    expect_same(with_codes, solo_answers(request, num_tokens(), prompts), quantization_name(quantization));
  }
}

// Models this small always use one-shot otherwise. Runs prompts alone and together, and decodes more sequences than a
// tile of tokens has.
TEST(cuda_engine_two_shot_all_reduce_changes_no_bit) {
  TinyShape shape;
  shape.intermediate_size = 256;
  const TinyModel model(shape, DType::kBf16);
  Prompts prompts = engine_prompts();
  for (uint64_t i = 0; i < 10; ++i)
    prompts.push_back(random_ids(i, 3, 300));
  const auto solo = solo_answers(ranks_request(model), num_tokens(), prompts);
  const Without without("one_shot");
  for (const int world_size : {2, 4}) {
    LoadRequest request = ranks_request(model, world_size);
    request.max_num_seqs = std::max(request.max_num_seqs, 16);
    const std::string ranks = std::to_string(world_size) + " ranks";
    Session session(request);
    expect_same(batched_answers(session, num_tokens(), prompts), solo, (ranks + ", batched").c_str());
    expect_same(solo_answers(request, num_tokens(), engine_prompts()),
                {solo.begin(), solo.begin() + static_cast<ptrdiff_t>(engine_prompts().size())},
                (ranks + ", alone").c_str());
  }
}

// When not deterministic, greedy canaries must be near the deterministic answers.
void soak(bool is_deterministic, int seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  const bool is_wide = is_full_run() && !is_deterministic;  // the attention of a step then fills a device
  TinyShape shape;
  if (is_wide) shape.num_heads = 32, shape.num_kv_heads = 8;
  const TinyModel model(shape, is_deterministic ? DType::kBf16 : DType::kF16);
  const Prompts canaries = {random_ids(1, 66, 300), random_ids(2, 5, 300), random_ids(3, 90, 300)};
  const auto wanted = solo_answers(ranks_request(model), 6, canaries);
  LoadRequest request = ranks_request(model, 1, is_deterministic);
  request.kv_cache_bytes = 16 * 16384 * shape.num_kv_heads;  // few blocks, so that they are reused at once
  request.max_num_batched_tokens = is_wide ? 512 : 96;
  Session session(request);
  std::mt19937 random(5);
  int64_t num_requests = 0;
  do {
    std::vector<RequestId> ids;
    const int count = is_full_run() ? 24 : 6;
    for (int i = 0; i < count; ++i) {
      const int length = 1 + static_cast<int>(random() % 150);
      Request one;
      one.prompt_token_ids = random_ids(random() % 40, length, 300);
      one.sampling.temperature = random() % 2 == 0 ? 0.0f : 0.9f;
      one.sampling.max_tokens = 1 + static_cast<int>(random() % (is_full_run() ? 60 : 6));
      one.sampling.repetition_penalty = random() % 4 == 0 ? 1.2f : 1.0f;
      one.num_choices = random() % 5 == 0 ? 2 : 1;
      ids.push_back(session.submit(std::move(one)));
      if (random() % 3 == 0) session.wait_for_tokens(ids[random() % ids.size()], random() % 4);
      if (random() % 3 == 0) session.engine().abort(ids[random() % ids.size()]);
    }
    // Canaries get the same answers as alone.
    const auto got = batched_answers(session, 6, canaries);
    if (is_deterministic) expect_same(got, wanted, "canary");
    for (size_t i = 0; !is_deterministic && i < canaries.size(); ++i)
      if (temperature_of(i) == 0) expect_near(got[i], wanted[i], 0.02, "canary");
    for (const RequestId id : ids)
      session.engine().abort(id);
    for (const RequestId id : ids) {
      const auto reason = session.wait(id).finish->reason;
      EXPECT(reason == FinishReason::kAbort || reason == FinishReason::kLength);
    }
    num_requests += count;
  } while (std::chrono::steady_clock::now() < end && num_failures() == 0);
  // Stats are published with the step after the last sequence has ended.
  session.wait(session.submit({1, 2, 3}, 2));
  const EngineStats stats = session.engine().stats();
  EXPECT_EQ(stats.num_running, 0);
  EXPECT_EQ(stats.num_free_blocks + stats.num_cached_blocks, stats.num_blocks);
  std::printf("  %s: %lld requests, %lld steps, %lld preemptions\n", session.info().isa.c_str(),
              static_cast<long long>(num_requests), static_cast<long long>(stats.num_steps),
              static_cast<long long>(stats.num_preemptions));
}

// The total time of both soak tests; by default each runs a few rounds.
int soak_seconds() {
  const char* seconds = std::getenv("CAPSTAN_SOAK_SECONDS");
  return seconds == nullptr ? 0 : std::atoi(seconds);
}
TEST(cuda_engine_soak_with_random_aborts) {
  soak(true, soak_seconds() * 2 / 3);
}
TEST(cuda_engine_soak_not_deterministic) {
  run_nondeterministic_soak();
}

}  // namespace

void expect_ranks_like_the_cpu() {
  TinyShape shape;
  shape.intermediate_size = 256;
  for (const int world_size : {2, 4})
    expect_like_the_cpu(shape, DType::kF16, world_size);
}

void run_nondeterministic_soak() {
  soak(false, soak_seconds() / 3);
}

}  // namespace capstan::testing
