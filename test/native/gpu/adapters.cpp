// Adapters on a CUDA device: answers like the CPU's, and bits that do not depend on the batch or the ranks.
#include <algorithm>
#include <functional>

#include "test/native/gpu/device.h"
#include "test/native/testing.h"
#include "test/native/tiny_adapter.h"

namespace capstan::testing {
namespace {

LoadRequest with_adapters(LoadRequest request) {
  request.has_adapters = true;
  request.max_loras = 2;
  request.max_lora_rank = 8;
  return request;
}

LoadRequest on_device(const TinyModel& model, int world_size, bool is_deterministic, int num_tokens = 96) {
  LoadRequest request = with_adapters(cuda_request(model, cuda_device(world_size)));
  request.max_num_batched_tokens = num_tokens;
  request.device.is_deterministic = is_deterministic;
  return request;
}

Request request_of(const std::vector<int32_t>& prompt, uint64_t adapter_id, int max_tokens) {
  Request request;
  request.prompt_token_ids = prompt;
  request.sampling.temperature = 0;
  request.sampling.max_tokens = max_tokens;
  request.sampling.num_logprobs = kNumAlternatives;
  request.adapter_id = adapter_id;
  return request;
}

// A model, and what two adapters of it update.
struct AdaptedModel {
  TinyShape shape;
  std::function<void(TinyAdapter& one, TinyAdapter& two)> add;
  int prompt_tokens = 70;
};

// No adapter, and the two adapters.
std::vector<uint64_t> load_adapters(Session& session, const AdaptedModel& adapted) {
  TinyAdapter one(1), two(50);
  adapted.add(one, two);
  return {0, session.engine().load_adapter(one.source), session.engine().load_adapter(two.source)};
}

// Updated results that are added as they are, scaled, or after their norm, and an MLP without gates.
std::vector<AdaptedModel> dense_models() {
  TinyShape scaled = splittable_shape(), normed = splittable_shape(), ungated = splittable_shape();
  scaled.residual_scale = 0.5;
  normed.residual_scale = 0.5, normed.norms.attention_out = normed.norms.mlp_out = true;
  ungated.has_gated_mlp = false, ungated.activation = Activation::kXielu;
  std::vector<AdaptedModel> models;
  for (const TinyShape& shape : {splittable_shape(), scaled, normed, ungated})
    models.push_back({shape, [is_gated = shape.has_gated_mlp](TinyAdapter& one, TinyAdapter& two) {
                        one.add(0, "q_proj", 3, 64, 128).add(0, "down_proj", 8, 256, 64);
                        two.add(1, "v_proj", 8, 64, 64).add(1, "up_proj", 5, 64, 256).add(0, "o_proj", 4, 128, 64);
                        if (is_gated) one.add(1, "gate_proj", 2, 64, 256), two.add(0, "gate_up_proj", 3, 64, 512);
                      }});
  return models;
}

std::vector<AdaptedModel> models_with_vocabulary() {
  TinyShape untied = splittable_shape(), tied = splittable_shape();
  tied.is_tied = true, tied.embedding_scale = 1.5, tied.logit_scale = 0.5;
  std::vector<AdaptedModel> models;
  for (const TinyShape& shape : {untied, tied})
    models.push_back({shape, [](TinyAdapter& one, TinyAdapter& two) {
                        one.add(-1, "lm_head", 3, 64, 300).add(0, "q_proj", 3, 64, 128);
                        two.add(-1, "embed_tokens", 5, 300, 64);
                      }});
  return models;
}

// The update of a delta net has more values than that of attention may have.
std::vector<AdaptedModel> recurrent_models() {
  TinyShape delta_net = splittable_shape(), mamba = splittable_shape(), short_conv = splittable_shape();
  delta_net.first_mixer = Mixer::kDeltaNet;
  mamba.first_mixer = Mixer::kMamba2;
  short_conv.first_mixer = Mixer::kShortConv;
  return {{delta_net,
           [](TinyAdapter& one, TinyAdapter& two) {
             one.add(0, "in_proj_qkv", 8, 64, 192).add(0, "in_proj_z", 8, 64, 128);
             one.add(0, "in_proj_a", 8, 64, 4).add(0, "in_proj_b", 8, 64, 4);
             two.add(0, "in_proj_z", 3, 64, 128).add(0, "o_proj", 5, 128, 64).add(1, "k_proj", 2, 64, 64);
           }},
          {mamba,
           [](TinyAdapter& one, TinyAdapter& two) {
             one.add(0, "in_proj", 8, 64, 324);
             two.add(0, "o_proj", 5, 128, 64);
           }},
          {short_conv, [](TinyAdapter& one, TinyAdapter& two) {
             one.add(0, "in_proj", 4, 64, 192);
             two.add(0, "o_proj", 8, 64, 64);
           }}};
}

// Experts with a shared one and its gate; with biases, clamped gates and none shared; and with norms of their results
// beside inputs per layer. Without `chooses` every token has all experts, so that no rounding chooses other ones.
std::vector<AdaptedModel> models_with_experts(bool chooses) {
  TinyShape shared = splittable_shape(), biased = splittable_shape(), normed = splittable_shape();
  shared.shared_expert_size = 96, shared.has_bias = false;
  biased.activation = Activation::kClampedSwish, biased.residual_scale = 0.5, biased.norms.mlp_out = true;
  normed.is_gemma4 = normed.has_qk_norm = true, normed.has_bias = false;
  normed.num_layers = 4, normed.activation = Activation::kGeluTanh, normed.shared_expert_size = 96;
  normed.norms.attention_out = normed.norms.mlp_out = true;
  for (TinyShape* shape : {&shared, &biased, &normed})
    shape->num_experts = 3, shape->top_k = chooses ? 2 : 3;
  return {{shared,
           [](TinyAdapter& one, TinyAdapter& two) {
             one.add(1, "experts.gate_up_proj", 3 * 3, 64, 128).add(1, "experts.down_proj", 3 * 2, 64, 64);
             one.add(1, "shared_gate", 4, 64, 1).add(1, "shared_expert.down_proj", 8, 96, 64);
             two.add(1, "experts.0.up_proj", 8, 64, 64).add(1, "experts.2.down_proj", 1, 64, 64);
             two.add(1, "shared_expert.gate_proj", 5, 64, 96).add(1, "shared_expert.up_proj", 2, 64, 96);
             two.add(1, "router", 3, 64, 3);
           },
           190},  // more rows of experts than are multiplied at a time
          {biased,
           [](TinyAdapter& one, TinyAdapter& two) {
             one.add(1, "experts.down_proj", 3 * 2, 64, 64);
             two.add(1, "router", 8, 64, 3).add(1, "experts.1.gate_proj", 4, 64, 64).add(1, "q_proj", 3, 64, 128);
           }},
          {normed, [](TinyAdapter& one, TinyAdapter& two) {
             one.add(1, "experts.down_proj", 3 * 2, 64, 64).add(2, "shared_expert.down_proj", 3, 96, 64);
             one.add(0, "per_layer_gate", 3, 64, 32).add(3, "per_layer_projection", 8, 32, 64);
             two.add(-1, "per_layer_projection", 4, 64, 4 * 32).add(3, "experts.gate_up_proj", 3 * 2, 64, 128);
             two.add(1, "per_layer_gate", 8, 64, 32);
           }}};
}

// Narrow models lose more to 16-bit activations than contract 4 allows, also without adapters.
constexpr double kLimit = 0.03;

void expect_like_the_cpu(const AdaptedModel& adapted) {
  const TinyModel model(adapted.shape, DType::kF16);
  LoadRequest on_cpu = with_adapters(model.request());
  on_cpu.compute = ComputeChoice::kF32;
  Session cpu(on_cpu);
  const std::vector<uint64_t> cpu_ids = load_adapters(cpu, adapted);
  for (const int world_size : {1, 2}) {
    Session cuda(on_device(model, world_size, false, std::max(96, adapted.prompt_tokens)));
    const std::vector<uint64_t> ids = load_adapters(cuda, adapted);
    Answer plain;
    for (size_t i = 0; i < ids.size(); ++i) {
      Request request = request_of(random_ids(3, adapted.prompt_tokens, 300), cpu_ids[i], 1);
      request.sampling.num_prompt_logprobs = 0;
      const Answer wanted = cpu.wait(cpu.submit(request));
      request.adapter_id = ids[i];
      const Answer got = cuda.wait(cuda.submit(request));
      EXPECT_EQ(got.prompt_logprobs.size(), wanted.prompt_logprobs.size());
      for (size_t p = 1; p < wanted.prompt_logprobs.size(); ++p)
        EXPECT_NEAR(got.prompt_logprobs[p]->logprob, wanted.prompt_logprobs[p]->logprob, kLimit);
      EXPECT_EQ(got.logprobs.size(), wanted.logprobs.size());
      for (size_t n = 0; n < wanted.logprobs.size(); ++n)
        EXPECT_NEAR(got.logprobs[n], wanted.logprobs[n], kLimit);
      EXPECT(i == 0 || !(got == plain));
      if (i == 0) plain = got;
    }
  }
}

void expect_like_the_cpu(const std::vector<AdaptedModel>& models) {
  for (const AdaptedModel& adapted : models)
    expect_like_the_cpu(adapted);
}

TEST(cuda_adapters_answer_like_the_cpu) {
  expect_like_the_cpu(dense_models());
}

TEST(cuda_adapters_of_the_vocabulary_answer_like_the_cpu) {
  expect_like_the_cpu(models_with_vocabulary());
}

TEST(cuda_adapters_of_recurrent_layers_answer_like_the_cpu) {
  expect_like_the_cpu(recurrent_models());
}

TEST(cuda_adapters_of_experts_answer_like_the_cpu) {
  expect_like_the_cpu(models_with_experts(false));
}

void expect_same_bits(const AdaptedModel& adapted) {
  const TinyModel model(adapted.shape, DType::kBf16);
  const Prompts prompts = {random_ids(1, 70, 300), random_ids(2, 5, 300)};
  std::vector<Answer> of_one_rank;
  for (const int world_size : {1, 2}) {
    Session session(on_device(model, world_size, true));
    const std::vector<uint64_t> ids = load_adapters(session, adapted);
    std::vector<Answer> alone, mixed;
    for (const auto& prompt : prompts)
      for (const uint64_t id : ids)
        alone.push_back(session.wait(session.submit(request_of(prompt, id, 4))));
    std::vector<RequestId> requests;
    session.events().close();
    for (const auto& prompt : prompts)
      for (const uint64_t id : ids)
        requests.push_back(session.submit(request_of(prompt, id, 4)));
    session.events().open();
    for (const RequestId id : requests)
      mixed.push_back(session.wait(id));
    expect_same(mixed, alone, "mixed adapters");
    EXPECT(!(alone[0] == alone[1]) && !(alone[1] == alone[2]) && !(alone[0] == alone[2]));
    if (world_size == 1)
      of_one_rank = alone;
    else
      expect_same(alone, of_one_rank, "two ranks");
    session.engine().unload_adapter(ids[1]);
    EXPECT(session.wait(session.submit(request_of(prompts[0], ids[2], 4))) == alone[2]);
  }
}

void expect_same_bits(const std::vector<AdaptedModel>& models) {
  for (const AdaptedModel& adapted : models)
    expect_same_bits(adapted);
}

TEST(cuda_adapters_change_no_bit_of_other_rows) {
  expect_same_bits(dense_models());
}

TEST(cuda_adapters_of_the_vocabulary_change_no_bit_of_other_rows) {
  expect_same_bits(models_with_vocabulary());
}

TEST(cuda_adapters_of_recurrent_layers_change_no_bit_of_other_rows) {
  expect_same_bits(recurrent_models());
}

TEST(cuda_adapters_of_experts_change_no_bit_of_other_rows) {
  expect_same_bits(models_with_experts(true));
}

}  // namespace
}  // namespace capstan::testing
