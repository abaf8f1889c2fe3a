// Adapters (LoRA): the product with B compared with its definition, and adapters that the engine refuses.
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <set>
#include <thread>

#include "native/backend/cpu/act_tiles.h"
#include "native/backend/cpu/isa.h"
#include "native/backend/cpu/lora.h"
#include "test/native/checkpoint.h"
#include "test/native/picking_engine.h"
#include "test/native/testing.h"
#include "test/native/tiny_adapter.h"
#include "test/native/tiny_model.h"

namespace capstan::testing {
namespace {

constexpr int64_t kInputs = 40, kFeatures = 44;  // the features end within a panel

// A projection with two factors: one for features 0 to 19, and one for the rest.
struct Update {
  MemoryCheckpoint checkpoint;
  std::vector<float> a[2], b[2];
  std::shared_ptr<LoraMemory> memory;
  LoraSource source;

  explicit Update(uint64_t seed, int r0, int r1) {
    source.memory = &memory;
    const int r[2] = {r0, r1};
    const int64_t first[2] = {0, 20}, count[2] = {20, kFeatures - 20};
    for (int i = 0; i < 2; ++i) {
      a[i] = random_values(seed + i, r[i] * kInputs, 0.3f);
      b[i] = random_values(seed + 10 + i, count[i] * r[i], 0.5f);
      const FileTensor& file_a = checkpoint.add("a" + std::to_string(i), DType::kF32, r[i], kInputs, a[i]);
      const FileTensor& file_b = checkpoint.add("b" + std::to_string(i), DType::kF32, count[i], r[i], b[i]);
      source.factors.push_back({whole(file_a), {{first[i], whole(file_b)}}, 0.5f + static_cast<float>(i)});
    }
  }

  // scale · B · t for a row, by its definition. t is (r0 + r1).
  std::vector<double> expected(const std::vector<float>& t) const {
    std::vector<double> out;
    size_t begin = 0;
    for (int i = 0; i < 2; ++i) {
      const size_t r = a[i].size() / kInputs;
      for (size_t row = 0; row < b[i].size() / r; ++row) {
        double sum = 0;
        for (size_t k = 0; k < r; ++k)
          sum += double{b[i][row * r + k]} * t[begin + k];
        out.push_back(sum);
      }
      begin += r;
    }
    return out;
  }
};

CpuMatrix plain_matrix() {
  CpuMatrix matrix;
  matrix.rows = kFeatures;
  matrix.cols = kInputs;
  matrix.num_panels = (kFeatures + kPanelFeatures - 1) / kPanelFeatures;
  return matrix;
}

TEST(lora_updates_equal_their_definition_on_all_instruction_sets) {
  const CpuMatrix matrix = plain_matrix();
  for (const CpuIsa isa : available_cpu_isas()) {
    const CpuKernels& kernels = cpu_kernels(isa);
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBf16}) {
      for (const auto& [r0, r1] : {std::pair{3, 5}, std::pair{16, 1}}) {
        const Update update(7, r0, r1);
        const auto lora = pack_lora(update.source, matrix, dtype, kernels);
        std::vector<float> t = random_values(3, r0 + r1, 1.0f);
        const std::vector<double> expected = update.expected(t);
        t.resize(static_cast<size_t>(lora->a->num_panels * kPanelFeatures));
        std::vector<float> out(static_cast<size_t>(matrix.num_panels * kPanelFeatures));
        kernels.lora_update({&lora->parts[0].view, t.data()}, matrix.num_panels, out.data());
        const double tolerance = dtype == DType::kF32 ? 1e-5 : dtype == DType::kF16 ? 5e-3 : 4e-2;
        for (size_t i = 0; i < expected.size(); ++i)
          EXPECT_NEAR(out[i], expected[i], tolerance);
      }
    }
  }
}

// Rows in a tile share the reads of B only if they have the same adapter.
TEST(lora_rows_do_not_depend_on_the_rows_beside_them) {
  CpuMatrix matrix = plain_matrix();
  const Update first(7, 4, 4), second(90, 7, 2);
  for (const CpuIsa isa : available_cpu_isas()) {
    const CpuKernels& kernels = cpu_kernels(isa);
    const std::unique_ptr<CpuLora> loras[2] = {pack_lora(first.source, matrix, DType::kBf16, kernels),
                                               pack_lora(second.source, matrix, DType::kBf16, kernels)};
    constexpr int kRows = 11;
    const int adapter_of[kRows] = {0, 0, 0, 0, 0, -1, 1, 1, 0, 1, -1};
    const std::vector<float> weights = random_values(5, matrix.num_panels * kPanelFeatures * kInputs, 0.2f);
    // Kernels read rows up to a multiple of 16.
    const std::vector<float> x = random_values(6, kRows * kInputs + 16, 1.0f), t = random_values(8, kRows * 16, 1.0f);
    const auto run = [&](int first, int count, bool has_lora) {
      std::vector<uint32_t> words(static_cast<size_t>(count * kInputs));
      ActTiles acts = plain_act_tiles(kernels, ActFormat::kF32, count, kInputs, 1);
      acts.data = words.data();
      for (int row = 0; row < count; ++row)
        kernels.pack_rows(x.data() + (first + row) * kInputs, kInputs, kInputs, acts, row, 1);
      std::vector<LoraRow> rows(static_cast<size_t>(count));
      for (int row = 0; row < count; ++row)
        if (const int adapter = adapter_of[first + row]; adapter >= 0)
          rows[static_cast<size_t>(row)] = {&loras[adapter]->parts[0].view, t.data() + (first + row) * 16};
      std::vector<float> out(static_cast<size_t>(count * 48));
      GemmArgs args;
      args.acts = acts;
      args.weights = weights.data();
      args.weight_dtype = DType::kF32;
      args.panel_end = matrix.num_panels;
      args.num_features = kFeatures;
      args.out = out.data();
      args.out_stride = 48;
      args.lora = has_lora ? rows.data() : nullptr;
      kernels.gemm(args);
      return out;
    };
    const std::vector<float> all = run(0, kRows, true), without = run(0, kRows, false);
    for (int row = 0; row < kRows; ++row) {
      const bool is_plain = adapter_of[row] < 0;
      const std::vector<float> alone = run(row, 1, true);
      EXPECT(std::memcmp(alone.data(), all.data() + row * 48, kFeatures * sizeof(float)) == 0);
      EXPECT(is_plain ==
             (std::memcmp(without.data() + row * 48, all.data() + row * 48, kFeatures * sizeof(float)) == 0));
    }
  }
}

LoadRequest with_adapters(LoadRequest request) {
  request.has_adapters = true;
  request.max_loras = 3;
  request.max_lora_rank = 8;
  return request;
}

Request request_of(const std::vector<int32_t>& prompt, uint64_t adapter_id) {
  Request request;
  request.prompt_token_ids = prompt;
  request.sampling.temperature = 0;
  request.sampling.max_tokens = 8;
  request.sampling.num_logprobs = kNumAlternatives;
  request.adapter_id = adapter_id;
  return request;
}

using AddModules = void (*)(TinyAdapter& one, TinyAdapter& two);

void add_projections(TinyAdapter& one, TinyAdapter& two) {
  one.add(0, "q_proj", 3, 64, 128).add(0, "down_proj", 8, 128, 64).add(1, "gate_proj", 2, 64, 128);
  two.add(1, "v_proj", 8, 64, 64).add(1, "up_proj", 5, 64, 128).add(0, "o_proj", 4, 128, 64);
}

void add_vocabulary(TinyAdapter& one, TinyAdapter& two) {
  one.add(-1, "lm_head", 3, 64, 300).add(0, "q_proj", 3, 64, 128);
  two.add(-1, "embed_tokens", 5, 300, 64);
}

// The second layer has five experts of 64 features and a shared one of 96.
void add_experts(TinyAdapter& one, TinyAdapter& two) {
  one.add(1, "experts.gate_up_proj", 5 * 3, 64, 128).add(1, "experts.down_proj", 5 * 2, 64, 64);
  one.add(1, "shared_gate", 4, 64, 1).add(1, "shared_expert.down_proj", 8, 96, 64);
  two.add(1, "experts.0.up_proj", 8, 64, 64).add(1, "experts.3.down_proj", 1, 64, 64).add(1, "router", 3, 64, 5);
  two.add(1, "shared_expert.gate_proj", 5, 64, 96).add(1, "shared_expert.up_proj", 2, 64, 96);
}

// Rows that only one of them changes, beside those of the other in the same experts.
void add_attention_beside_experts(TinyAdapter& one, TinyAdapter& two) {
  one.add(1, "experts.down_proj", 5 * 2, 64, 64);
  two.add(1, "q_proj", 3, 64, 128);
}

void add_attention(TinyAdapter& one, TinyAdapter& two) {
  one.add(1, "o_proj", 3, 128, 64);
  two.add(1, "q_proj", 3, 64, 128);
}

void expect_own_answers(const TinyShape& shape, AddModules add_modules) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    const TinyModel model(shape, dtype);
    std::vector<Answer> of_one_rank;
    for (const int world_size : {1, 2}) {
      LoadRequest request = with_adapters(model.request());
      request.device.world_size = world_size;
      request.device.num_threads = world_size;
      Session session(request);
      TinyAdapter one(1), two(50);
      add_modules(one, two);
      const uint64_t ids[3] = {0, session.engine().load_adapter(one.source), session.engine().load_adapter(two.source)};
      std::vector<Answer> alone, mixed;
      for (const std::vector<int32_t>& prompt : some_prompts())
        for (const uint64_t id : ids)
          alone.push_back(session.wait(session.submit(request_of(prompt, id))));
      std::vector<RequestId> requests;
      session.events().close();
      for (const std::vector<int32_t>& prompt : some_prompts())
        for (const uint64_t id : ids)
          requests.push_back(session.submit(request_of(prompt, id)));
      session.events().open();
      for (const RequestId id : requests)
        mixed.push_back(session.wait(id));
      expect_same(mixed, alone, "mixed adapters");
      EXPECT(!(alone[0] == alone[1]) && !(alone[1] == alone[2]) && !(alone[0] == alone[2]));
      if (world_size == 1)
        of_one_rank = alone;
      else
        expect_same(alone, of_one_rank, "two ranks");
      Session plain(model.request());
      EXPECT(plain.wait(plain.submit(request_of(some_prompts()[4], 0))) == alone[4 * 3]);
    }
  }
}

TEST(adapters_change_the_answers_of_their_requests_only) {
  TinyShape tied, mixture;
  tied.is_tied = true;
  tied.embedding_scale = 1.5;
  mixture.num_experts = 5, mixture.top_k = 2, mixture.shared_expert_size = 96;
  expect_own_answers(TinyShape{}, add_projections);
  expect_own_answers(TinyShape{}, add_vocabulary);
  expect_own_answers(tied, add_vocabulary);
  for (const AddModules add_modules : {add_experts, add_attention_beside_experts, add_attention})
    expect_own_answers(mixture, add_modules);
}

// B of a gated matrix has an even number of rows, so the kernel reads one more lane than a factor of odd rank has.
TEST(an_adapter_that_overflows_changes_no_later_request) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    const TinyModel model(TinyShape{}, dtype);
    TinyAdapter small(1), large(50);
    for (int layer = 0; layer < 2; ++layer)
      for (const char* projection : {"gate_proj", "up_proj"}) {
        small.add(layer, projection, 1, 64, 128);
        large.add(layer, projection, 8, 64, 128, 5e37f);
      }
    Session fresh(with_adapters(model.request())), used(with_adapters(model.request()));
    const uint64_t id = fresh.engine().load_adapter(small.source);
    const Answer expected = fresh.wait(fresh.submit(request_of(some_prompts()[4], id)));
    EXPECT(expected.finish->reason == FinishReason::kLength);
    const uint64_t first = used.engine().load_adapter(large.source), second = used.engine().load_adapter(small.source);
    EXPECT(used.wait(used.submit(request_of(some_prompts()[4], first))).finish->reason == FinishReason::kError);
    EXPECT(used.wait(used.submit(request_of(some_prompts()[4], second))) == expected);
  }
}

// Each load reads the available memory, so it must see what the others have taken.
TEST(an_engine_loads_one_adapter_at_a_time) {
  std::atomic<int> num_loading = 0, num_overlaps = 0;
  PickingSetup setup;
  setup.max_adapters = 64;
  setup.load_adapter = [&](const AdapterSource&) {
    if (num_loading++ > 0) ++num_overlaps;
    for (int i = 0; i < 100; ++i)
      std::this_thread::yield();
    --num_loading;
    return std::make_shared<const Adapter>();
  };
  PickingEngine picking(setup);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int load = 0; load < 16; ++load)
        picking.engine().load_adapter({});
    });
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_EQ(num_overlaps.load(), 0);
  EXPECT_ERROR("invalid_argument", picking.engine().load_adapter({}));
}

TEST(models_that_do_not_generate_text_have_no_adapters) {
  const TinyModel model(TinyShape{}, DType::kF32);
  LoadRequest request = with_adapters(model.request());
  request.spec.pooling = Pooling::kLast;
  EXPECT_ERROR("invalid_argument", Session{request});
}

TEST(adapters_are_refused_with_their_tensor) {
  const TinyModel model(TinyShape{}, DType::kF32);
  Session session(with_adapters(model.request()));
  const auto refusal = [&](const TinyAdapter& adapter) -> std::string {
    try {
      session.engine().load_adapter(adapter.source);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  TinyAdapter wide(1), wrong(2), unknown(3), twice(4), invalid(5), deep(6);
  wide.add(0, "q_proj", 9, 64, 128);
  EXPECT(has(refusal(wide), "layers.0.q_proj.lora_A: expected a rank of at most maxLoraRank (8), got 9"));
  wrong.add(1, "down_proj", 4, 64, 64);
  EXPECT(has(refusal(wrong), "layers.1.down_proj.lora_A: expected shape (4, 128), got (4, 64)"));
  unknown.add(0, "lm_head", 4, 64, 300);
  EXPECT(has(refusal(unknown), "expected a projection of layer 0, got lm_head"));
  TinyAdapter outside(9), router(10);
  outside.add(-1, "q_proj", 4, 64, 128);
  EXPECT(has(refusal(outside), "expected a projection outside of the layers, got q_proj"));
  router.add(0, "router", 4, 64, 4);
  EXPECT(has(refusal(router), "expected a projection of layer 0, got router"));
  deep.add(2, "q_proj", 4, 64, 128);
  EXPECT(has(refusal(deep), "expected a layer below 2, got 2"));
  twice.add(0, "q_proj", 4, 64, 128).source.modules.push_back(twice.source.modules[0]);
  EXPECT(has(refusal(twice), "expected one entry for q_proj of its layer, got two"));
  invalid.add(0, "q_proj", 4, 64, 128, INFINITY);
  EXPECT(has(refusal(invalid), "layers.0.q_proj.lora_A: expected finite values, got NaN or Inf"));
  TinyAdapter attention(7), mlp(8);
  attention.add(0, "v_proj", 8, 64, 64).add(0, "qkv_proj", 8, 64, 256);
  EXPECT(has(refusal(attention), "layers.0.qkv_proj.lora_A: expected qkv_proj or its parts, got v_proj too"));
  mlp.add(1, "gate_up_proj", 8, 64, 256).add(1, "gate_proj", 8, 64, 128).add(1, "up_proj", 8, 64, 128);
  EXPECT(has(refusal(mlp), "layers.1.gate_up_proj.lora_A: expected gate_up_proj or its parts, got gate_proj too"));
}

TEST(adapters_have_the_experts_one_by_one_or_all_at_once) {
  TinyShape shape;
  shape.num_experts = 3, shape.top_k = 2;
  const TinyModel model(shape, DType::kF32);
  Session session(with_adapters(model.request()));
  TinyAdapter both(1), deep(2);
  both.add(1, "experts.down_proj", 3 * 2, 64, 64).add(1, "experts.2.up_proj", 2, 64, 64);
  EXPECT_ERROR("invalid_model", session.engine().load_adapter(both.source));
  deep.add(1, "experts.down_proj", 3 * 9, 64, 64);  // the maximum rank is 8
  EXPECT_ERROR("invalid_model", session.engine().load_adapter(deep.source));
}

TEST(an_adapter_of_a_gate_that_the_model_does_not_have_is_refused) {
  TinyShape shape;
  shape.is_gemma4 = true;
  shape.num_experts = 3, shape.top_k = 2, shape.shared_expert_size = 96;
  const TinyModel model(shape, DType::kF32);
  Session session(with_adapters(model.request()));
  TinyAdapter adapter(1);
  adapter.add(1, "shared_gate", 2, 64, 1);
  std::string message;
  try {
    session.engine().load_adapter(adapter.source);
  } catch (const Error& error) {
    EXPECT(error.code() == ErrorCode::kInvalidModel);
    message = error.what();
  }
  EXPECT_EQ(message,
            "tensor layers.1.shared_gate.lora_A: expected a projection of the model, got one that it does not have");
}

TEST(adapters_are_unloaded_after_their_last_sequence) {
  const TinyModel model(TinyShape{}, DType::kF32);
  Session session(with_adapters(model.request()));
  TinyAdapter adapter(1);
  adapter.add(0, "q_proj", 4, 64, 128);
  std::set<uint64_t> ids;
  for (int i = 0; i < 3; ++i)
    ids.insert(session.engine().load_adapter(adapter.source));
  EXPECT_EQ(ids.size(), size_t{3});
  EXPECT_ERROR("invalid_argument", session.engine().load_adapter(adapter.source));
  const uint64_t id = *ids.begin();
  const Answer alone = session.wait(session.submit(request_of(some_prompts()[2], id)));
  session.events().close();
  const RequestId running = session.submit(request_of(some_prompts()[2], id));
  session.engine().unload_adapter(id);
  EXPECT_ERROR("invalid_argument", session.submit(request_of(some_prompts()[2], id)));
  session.events().open();
  EXPECT(session.wait(running) == alone);
  EXPECT(!ids.contains(session.engine().load_adapter(adapter.source)));
  Session plain(model.request());
  EXPECT_ERROR("invalid_argument", plain.engine().load_adapter(adapter.source));
}

}  // namespace
}  // namespace capstan::testing
