// The complete engine on tiny random models. Options, memory, other requests in the batch, chunks, cache hits, threads
// and ranks must not change a bit of any token or log-probability.
#include <unistd.h>

#include <limits>
#include <thread>

#include "native/engine/load.h"
#include "test/native/testing.h"
#include "test/native/tiny_model.h"

namespace capstan {
namespace {

using namespace testing;

std::vector<std::pair<TinyShape, DType>> models() {
  TinyShape qwen3{.has_bias = false, .has_qk_norm = true, .is_tied = true};
  TinyShape windowed{.num_heads = 6, .num_kv_heads = 2, .head_dim = 24, .sliding_window = 40};
  windowed.intermediate_size = 172;
  return {{TinyShape{}, DType::kBf16},
          {TinyShape{}, DType::kF32},
          {qwen3, DType::kBf16},
          {windowed, DType::kBf16},
          {windowed, DType::kF16}};
}

TEST(model_batch_of_one_equals_batch_of_many) {
  for (const auto& [shape, dtype] : models()) {
    const TinyModel model(shape, dtype);
    const auto solo = solo_answers(model.request());
    Session session(model.request());
    expect_same(batched_answers(session), solo, "batched, cold");
    expect_same(batched_answers(session), solo, "batched, cached");
    EXPECT(session.engine().stats().cached_tokens > 0);
  }
}

TEST(model_chunked_prefill_equals_unchunked) {
  for (const auto& [shape, dtype] : models()) {
    const TinyModel model(shape, dtype);
    const auto solo = solo_answers(model.request());
    for (const int budget : {4, 17, 64}) {
      LoadRequest request = model.request();
      request.max_num_seqs = 4;
      request.max_num_batched_tokens = budget;
      Session session(request);
      expect_same(batched_answers(session), solo, "chunked");
    }
  }
}

TEST(model_preempted_equals_not_preempted) {
  const TinyModel model(TinyShape{}, DType::kBf16);
  const auto solo = solo_answers(model.request(), 80);
  LoadRequest request = model.request();
  request.max_model_len = 288;
  // Few blocks more than one sequence needs. A block of 16 tokens has 2 layers × K and V × 2 heads × 32 × 2 bytes × 16.
  request.kv_cache_bytes = 24 * 8192;
  Session session(request);
  expect_same(batched_answers(session, 80), solo, "preempted");
  EXPECT(session.engine().stats().num_preemptions > 0);
}

// Layers with two windows, with and without a layer that sees all tokens. Each window has its own block tables.
TEST(model_with_windows_gives_the_same_bits_in_every_order) {
  const TinyModel model(TinyShape{.num_layers = 3}, DType::kBf16);
  for (const std::vector<int>& windows : {std::vector{40, 0, 20}, std::vector{33, 33, 33}}) {
    LoadRequest request = model.request();
    for (size_t layer = 0; layer < windows.size(); ++layer)
      request.spec.layers[layer].window = windows[layer];
    const auto solo = solo_answers(request, 80);
    LoadRequest chunked = request;
    chunked.max_num_seqs = 4;
    chunked.max_num_batched_tokens = 17;
    Session session(chunked);
    expect_same(batched_answers(session, 80), solo, "chunked");
    expect_same(batched_answers(session, 80), solo, "chunked, cached");
    EXPECT(session.engine().stats().cached_tokens > 0);
    LoadRequest short_of_blocks = request;
    short_of_blocks.max_model_len = 288;
    short_of_blocks.max_num_batched_tokens = 64;
    short_of_blocks.kv_cache_bytes = (windows[1] == 0 ? 24 : 10) * 12288;
    Session preempting(short_of_blocks);
    expect_same(batched_answers(preempting, 80), solo, "preempted");
    EXPECT(preempting.engine().stats().num_preemptions > 0);
    LoadRequest two_ranks = chunked;
    two_ranks.device.num_threads = two_ranks.device.world_size = 2;
    Session ranks(two_ranks);
    expect_same(batched_answers(ranks, 80), solo, "two ranks");
    LoadRequest speculative = chunked;
    speculative.speculation.num_tokens = 4;
    Session drafting(speculative);
    expect_same(batched_answers(drafting, 80), solo, "speculative");
  }
}

TEST(model_threads_and_ranks_change_no_bit) {
  TinyShape shape;
  shape.num_kv_heads = 2;
  shape.intermediate_size = 256;
  for (const DType dtype : {DType::kBf16, DType::kF32}) {
    const TinyModel model(shape, dtype);
    const auto solo = solo_answers(model.request());
    for (const auto& [threads, ranks] : std::vector<std::pair<int, int>>{{2, 1}, {3, 1}, {2, 2}, {4, 2}, {4, 4}}) {
      LoadRequest request = model.request();
      request.device.num_threads = threads;
      request.device.world_size = ranks;
      Session session(request);
      EXPECT_EQ(session.info().world_size, ranks);
      expect_same(batched_answers(session), solo, "threads and ranks");
    }
  }
}

TEST(model_f32_instruction_sets_agree_to_the_bit) {
  const TinyModel model(TinyShape{}, DType::kF32);
  const auto solo = solo_answers(model.request());
  for (const std::string& isa : available_isas()) {
    LoadRequest request = model.request();
    request.device.isa = isa;
    Session session(request);
    expect_same(batched_answers(session), solo, isa.c_str());
  }
}

TEST(model_block_size_changes_no_bit) {
  const TinyModel model(TinyShape{}, DType::kBf16);
  const auto solo = solo_answers(model.request());
  for (const int block_size : {32, 64}) {
    LoadRequest request = model.request();
    request.block_size = block_size;
    Session session(request);
    expect_same(batched_answers(session), solo, "block size");
  }
}

TEST(load_refuses_impossible_splits_with_the_numbers) {
  const TinyModel model(TinyShape{.num_heads = 6, .num_kv_heads = 3}, DType::kBf16);
  for (const int ranks : {2, 4}) {
    LoadRequest request = model.request();
    request.device.world_size = ranks;
    EXPECT_ERROR("invalid_argument", Session{request});
  }
}

TEST(load_accepts_paired_rows_of_whole_heads_of_q_and_k_only) {
  const TinyModel model(TinyShape{}, DType::kBf16);
  const auto with_pairs = [&](const std::string& name, int size) {
    LoadRequest request = model.request();
    for (TensorEntry& tensor : request.tensors)
      if (tensor.name == name) tensor.paired_head_dim = size;
    return request;
  };
  const int head_dim = model.request().spec.head_dim;
  Session{with_pairs("layers.0.q_proj.weight", head_dim)};
  EXPECT_ERROR("invalid_model", Session{with_pairs("layers.0.q_proj.weight", 2 * head_dim)});
  EXPECT_ERROR("invalid_model", Session{with_pairs("layers.0.v_proj.weight", head_dim)});
}

TEST(load_refuses_scales_that_are_not_finite) {
  const TinyModel model(TinyShape{}, DType::kBf16);
  const auto check = [&](double ModelSpec::* scale, double value) {
    ModelSpec spec = model.request().spec;
    spec.*scale = value;
    check_spec(spec);
  };
  for (double ModelSpec::* scale : {&ModelSpec::embedding_scale, &ModelSpec::residual_scale, &ModelSpec::logit_scale,
                                    &ModelSpec::attention_scale, &ModelSpec::attention_soft_cap,
                                    &ModelSpec::logit_soft_cap, &ModelSpec::norm_offset, &ModelSpec::rms_norm_eps}) {
    check(scale, 0.5);
    for (const double value : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(), 1e39})
      EXPECT_ERROR("invalid_model", check(scale, value));
  }
  for (double RopeSpec::* factor : {&RopeSpec::theta, &RopeSpec::factor, &RopeSpec::attention_factor}) {
    ModelSpec spec = model.request().spec;
    spec.ropes[0].*factor = std::numeric_limits<double>::infinity();
    EXPECT_ERROR("invalid_model", check_spec(spec));
  }
}

// Names the tensors of a dense model as those of a mixture of two experts that are alike.
LoadRequest as_mixture(const TinyModel& model) {
  LoadRequest request = model.request();
  request.spec.moe = {.num_experts = 2, .top_k = 1, .intermediate_size = request.spec.intermediate_size};
  const std::vector<TensorEntry> dense = request.tensors;
  const auto add = [&](TensorEntry entry, const std::string& name) {
    entry.name = name;
    request.tensors.push_back(entry);
  };
  for (size_t layer = 0; layer < request.spec.layers.size(); ++layer) {
    request.spec.layers[layer].is_moe = true;
    const std::string prefix = "layers." + std::to_string(layer) + ".";
    for (const TensorEntry& entry : dense) {
      for (const char* name : {"gate_proj.weight", "up_proj.weight", "down_proj.weight"})
        for (const char* expert : {"experts.0.", "experts.1."})
          if (entry.name == prefix + name) add(entry, prefix + expert + name);
      if (entry.name != "embed_tokens.weight") continue;
      add(entry, prefix + "router.weight");
      request.tensors.back().shape = {2, request.spec.hidden_size};
    }
  }
  return request;
}

TEST(model_without_a_shared_expert_ignores_its_gate) {
  const TinyModel model(TinyShape{}, DType::kF32);
  LoadRequest request = as_mixture(model);
  const std::vector<Answer> wanted = solo_answers(request);
  for (const char* layer : {"layers.0.", "layers.1."}) {
    request.tensors.push_back(request.tensors[0]);
    request.tensors.back().name = layer + std::string("shared_gate.weight");
    request.tensors.back().shape = {1, request.spec.hidden_size};
  }
  expect_same(solo_answers(request), wanted, "a gate without a shared expert");
}

TEST(model_knows_the_scales_of_q_before_loading) {
  const TinyModel model(TinyShape{}, DType::kBf16);
  ModelSpec spec = model.request().spec;
  const ShardPlan plan = make_shard_plan(spec, 0, 1);
  EXPECT(!make_device_model(spec, plan, 300, 0).rope_tables[0].has_query_scales);
  spec.ropes[0].query_scale_growth = 0.1;
  EXPECT(make_device_model(spec, plan, 300, 0).rope_tables[0].has_query_scales);
}

TEST(load_refuses_tensors_that_the_files_do_not_contain) {
  const TinyModel model(TinyShape{}, DType::kBf16);
  LoadRequest missing = model.request();
  std::erase_if(missing.tensors, [](const TensorEntry& tensor) { return tensor.name == "layers.1.up_proj.weight"; });
  EXPECT_ERROR("invalid_model", Session{missing});
  LoadRequest misshapen = model.request();
  misshapen.tensors[0].shape = {299, 64};
  EXPECT_ERROR("invalid_model", Session{misshapen});
  LoadRequest outside = model.request();
  outside.tensors[0].offset = uint64_t{1} << 62;
  EXPECT_ERROR("invalid_model", Session{outside});
  LoadRequest nowhere = model.request();
  nowhere.files = {"/nowhere/model.safetensors"};
  EXPECT_ERROR("io_error", Session{nowhere});
}

TEST(load_refuses_contexts_that_do_not_fit) {
  const TinyModel model(TinyShape{}, DType::kBf16);
  LoadRequest small = model.request();
  small.kv_cache_bytes = 8192;
  EXPECT_ERROR("out_of_memory", Session{small});
  LoadRequest huge = model.request();
  huge.kv_cache_bytes = int64_t{1} << 50;
  EXPECT_ERROR("out_of_memory", Session{huge});
  LoadRequest longer = model.request();
  longer.max_model_len = 401;
  EXPECT_ERROR("invalid_argument", Session{longer});
  LoadRequest lowered = model.request();
  lowered.max_model_len = 0;
  lowered.kv_cache_bytes = 10 * 8192;
  Session session(lowered);
  EXPECT_EQ(session.info().max_model_len, 160);
  EXPECT_EQ(session.info().notes.size(), size_t{1});
}

TEST(load_reports_weights_that_lose_bits) {
  const TinyModel wide(TinyShape{}, DType::kF32), narrow(TinyShape{}, DType::kBf16);
  LoadRequest request = wide.request();
  EXPECT(Session(request).info().notes.empty());
  request.device.weight_dtype = DType::kBf16;
  Session session(request);
  EXPECT(session.info().notes.size() == 1 && session.info().notes[0].find("kept as bf16") != std::string::npos);
  EXPECT(Session(narrow.request()).info().notes.empty());
}

TEST(load_finds_nan_in_weights) {
  const TinyModel model(TinyShape{}, DType::kBf16);
  const LoadRequest request = model.request();
  for (const size_t i : {size_t{0}, size_t{1}, request.tensors.size() - 1}) {
    const TensorEntry& tensor = request.tensors[i];
    const uint16_t nan = 0x7fc1;
    uint16_t kept = 0;
    const auto at = static_cast<off_t>(tensor.offset + 10);
    EXPECT(::pread(model.fd(), &kept, 2, at) == 2 && ::pwrite(model.fd(), &nan, 2, at) == 2);
    try {
      Session session(request);
      EXPECT(false && "NaN found");
    } catch (const Error& error) {
      EXPECT(error.code() == ErrorCode::kInvalidModel &&
             std::string(error.what()).find(tensor.name) != std::string::npos);
    }
    EXPECT(::pwrite(model.fd(), &kept, 2, at) == 2);
  }
}

TEST(load_survives_a_file_that_is_truncated_afterwards) {
  const TinyModel model(TinyShape{}, DType::kBf16);
  Session session(model.request());
  EXPECT(::ftruncate(model.fd(), 16) == 0);
  EXPECT_EQ(session.wait(session.submit({1, 2, 3}, 4)).token_ids.size(), size_t{4});
}

TEST(load_can_be_cancelled) {
  const TinyModel model(TinyShape{}, DType::kBf16);
  const auto cancel = [](int64_t, int64_t) { throw Error(ErrorCode::kAborted, "enough"); };
  EXPECT_ERROR("aborted", load_engine(model.request(), cancel, [](std::vector<Event>&&) {}));
}

// The tokenizer loads beside the weights, so the engine is made with what follows.
TEST(load_takes_a_tokenizer_that_follows) {
  const TinyModel model(TinyShape{}, DType::kBf16);
  LoadRequest request = model.request();
  const TokenizerTables tables = std::exchange(request.tokenizer, {});
  int64_t bytes_done = 0, bytes_then = -1;
  const auto observe = [&](int64_t done, int64_t) { bytes_done = done; };
  const auto follow = [&] {
    bytes_then = bytes_done;
    return tables;
  };
  const LoadedEngine loaded = load_engine(request, observe, [](std::vector<Event>&&) {}, follow);
  EXPECT(bytes_then > 0);
  EXPECT_EQ(bytes_then, bytes_done);
  EXPECT_EQ(loaded.info.weight_bytes, Session(model.request()).info().weight_bytes);
}

TEST(load_ends_when_the_tokenizer_fails) {
  const TinyModel model(TinyShape{}, DType::kBf16);
  LoadRequest request = model.request();
  request.tokenizer = {};
  const auto fail = []() -> TokenizerTables { throw Error(ErrorCode::kAborted, "no tokenizer"); };
  EXPECT_ERROR("aborted", load_engine(request, [](int64_t, int64_t) {}, [](std::vector<Event>&&) {}, fail));
}

TEST(load_reports_steady_progress) {
  TinyShape shape;
  shape.vocab_size = 3000, shape.intermediate_size = 256;
  const TinyModel model(shape, DType::kBf16);
  LoadRequest request = model.request();
  expect_steady_progress(request);
  request.device.world_size = request.device.num_threads = 2;
  expect_steady_progress(request);
}

TEST(model_completes_with_two_engines_of_four_ranks_on_two_cores) {
  TinyShape shape;
  shape.intermediate_size = 256;
  const TinyModel model(shape, DType::kBf16);
  LoadRequest request = model.request();
  const auto solo = solo_answers(request);
  request.device.world_size = 4;
  request.device.num_threads = 4;
  Session first(request), second(request);
  std::vector<Answer> second_answers;
  std::thread other([&] { second_answers = batched_answers(second); });
  expect_same(batched_answers(first), solo, "first of two engines");
  other.join();
  expect_same(second_answers, solo, "second of two engines");
}

}  // namespace
}  // namespace capstan
