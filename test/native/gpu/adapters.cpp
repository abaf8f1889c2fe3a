// Adapters on a CUDA device: answers like the CPU's, and bits that do not depend on the batch or the ranks.
#include <cmath>

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

LoadRequest on_device(const TinyModel& model, int world_size, bool is_deterministic) {
  LoadRequest request = with_adapters(cuda_request(model, cuda_device(world_size)));
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

// No adapter, and two that update different projections.
std::vector<uint64_t> load_adapters(Session& session, const TinyShape& shape) {
  TinyAdapter one(1), two(50);
  one.add(0, "q_proj", 3, 64, 128).add(0, "down_proj", 8, 256, 64);
  two.add(1, "v_proj", 8, 64, 64).add(1, "up_proj", 5, 64, 256).add(0, "o_proj", 4, 128, 64);
  if (shape.has_gated_mlp) one.add(1, "gate_proj", 2, 64, 256), two.add(0, "gate_up_proj", 3, 64, 512);
  return {0, session.engine().load_adapter(one.source), session.engine().load_adapter(two.source)};
}

// Updated results that are added as they are, scaled, or after their norm, and an MLP without gates.
std::vector<TinyShape> shapes() {
  TinyShape scaled = splittable_shape(), normed = splittable_shape(), ungated = splittable_shape();
  scaled.residual_scale = 0.5;
  normed.residual_scale = 0.5, normed.norms.attention_out = normed.norms.mlp_out = true;
  ungated.has_gated_mlp = false, ungated.activation = Activation::kXielu;
  return {splittable_shape(), scaled, normed, ungated};
}

void expect_like_the_cpu(const TinyShape& shape) {
  const TinyModel model(shape, DType::kF16);
  LoadRequest on_cpu = with_adapters(model.request());
  on_cpu.compute = ComputeChoice::kF32;
  Session cpu(on_cpu);
  const std::vector<uint64_t> cpu_ids = load_adapters(cpu, shape);
  for (const int world_size : {1, 2}) {
    Session cuda(on_device(model, world_size, false));
    const std::vector<uint64_t> ids = load_adapters(cuda, shape);
    Answer plain;
    for (size_t i = 0; i < ids.size(); ++i) {
      Request request = request_of(random_ids(3, 70, 300), cpu_ids[i], 1);
      request.sampling.num_prompt_logprobs = 0;
      const Answer wanted = cpu.wait(cpu.submit(request));
      request.adapter_id = ids[i];
      const Answer got = cuda.wait(cuda.submit(request));
      EXPECT_EQ(got.prompt_logprobs.size(), wanted.prompt_logprobs.size());
      for (size_t p = 1; p < wanted.prompt_logprobs.size(); ++p)
        EXPECT_NEAR(got.prompt_logprobs[p]->logprob, wanted.prompt_logprobs[p]->logprob, 0.02);
      EXPECT_EQ(got.logprobs.size(), wanted.logprobs.size());
      for (size_t n = 0; n < wanted.logprobs.size(); ++n)
        EXPECT_NEAR(got.logprobs[n], wanted.logprobs[n], 0.02);
      EXPECT(i == 0 || !(got == plain));
      if (i == 0) plain = got;
    }
  }
}

TEST(cuda_adapters_answer_like_the_cpu) {
  for (const TinyShape& shape : shapes())
    expect_like_the_cpu(shape);
}

void expect_same_bits(const TinyShape& shape) {
  const TinyModel model(shape, DType::kBf16);
  const Prompts prompts = {random_ids(1, 70, 300), random_ids(2, 5, 300)};
  std::vector<Answer> of_one_rank;
  for (const int world_size : {1, 2}) {
    Session session(on_device(model, world_size, true));
    const std::vector<uint64_t> ids = load_adapters(session, shape);
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

TEST(cuda_adapters_change_no_bit_of_other_rows) {
  for (const TinyShape& shape : shapes())
    expect_same_bits(shape);
}

TEST(cuda_adapters_of_other_layers_are_refused_with_their_tensor) {
  TinyShape shape = splittable_shape();
  shape.num_experts = 3, shape.top_k = 2;
  const TinyModel model(shape, DType::kF16);
  Session session(on_device(model, 1, false));
  const auto expect_refusal = [&](int layer, const char* projection, int64_t inputs, int64_t outputs) {
    TinyAdapter adapter;
    adapter.add(0, "q_proj", 3, 64, 128).add(layer, projection, 3, inputs, outputs);
    const std::string wanted = adapter.source.modules.back().a.name +
                               ": expected a projection of attention or of a dense MLP on the device cuda, got " +
                               projection + ", which adapters change on the CPU only";
    std::string message;
    try {
      session.engine().load_adapter(adapter.source);
    } catch (const Error& error) {
      EXPECT(error.code() == ErrorCode::kUnsupportedModel);
      message = error.what();
    }
    EXPECT_EQ(message, "tensor " + wanted);
  };
  expect_refusal(-1, "lm_head", 64, 300);
  expect_refusal(-1, "embed_tokens", 300, 64);
  expect_refusal(1, "router", 64, 3);
  expect_refusal(1, "experts.down_proj", shape.expert_size, 64);
  expect_refusal(1, "experts.1.up_proj", 64, shape.expert_size);
}

TEST(cuda_adapters_of_recurrent_layers_are_refused_with_their_tensor) {
  TinyShape shape = splittable_shape();
  shape.first_mixer = Mixer::kDeltaNet;
  const TinyModel model(shape, DType::kF16);
  Session session(on_device(model, 1, false));
  TinyAdapter adapter;
  adapter.add(1, "o_proj", 3, 128, 64).add(0, "o_proj", 3, 128, 64);
  std::string message;
  try {
    session.engine().load_adapter(adapter.source);
  } catch (const Error& error) {
    message = error.what();
  }
  EXPECT_EQ(
      message,
      "tensor layers.0.o_proj.lora_A: expected a projection of attention or of a dense MLP on the device cuda, got "
      "o_proj of a recurrent layer, which adapters change on the CPU only");
}

}  // namespace
}  // namespace capstan::testing
