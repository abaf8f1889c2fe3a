// Engines whose KV cache holds codes in 8 bits: the same bits in every order, half the memory, and who refuses it.
#include <string>
#include <utility>
#include <vector>

#include "native/backend/cpu/cpu_backend.h"
#include "native/base/error.h"
#include "native/engine/load.h"
#include "test/native/testing.h"
#include "test/native/tiny_model.h"

namespace capstan::testing {
namespace {

// Bytes of a block of 16 tokens of TinyShape: 2 layers × K and V × 2 heads × 16 × (32 codes and a scale).
constexpr int64_t kBlockBytes = 2 * 2 * 2 * 16 * (32 + 4);

LoadRequest with_int8_cache(LoadRequest request) {
  request.is_kv_dtype_given = true;
  request.kv_cache_dtype = DType::kInt8;
  return request;
}

TEST(int8_cache_takes_half_the_memory) {
  const TinyModel model(TinyShape{.head_dim = 64}, DType::kBf16);
  LoadRequest request = model.request();
  request.compute = ComputeChoice::kBf16;
  const auto block_bytes = [](const LoadRequest& load) {
    const EngineInfo info = Session(load).info();
    return info.kv_cache_bytes / info.num_blocks;
  };
  EXPECT_EQ(block_bytes(request), int64_t{2 * 2 * 2 * 16 * 64 * 2});
  EXPECT_EQ(block_bytes(with_int8_cache(request)), int64_t{2 * 2 * 2 * 16 * (64 + 4)});
  EXPECT_EQ(std::string(dtype_name(Session(with_int8_cache(request)).info().kv_cache_dtype)), std::string("int8"));
}

TEST(int8_cache_gives_the_same_bits_in_batches_chunks_and_after_preemptions) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    const TinyModel model(TinyShape{}, dtype);
    LoadRequest request = with_int8_cache(model.request());
    if (dtype == DType::kBf16) request.compute = ComputeChoice::kBf16;
    const auto solo = solo_answers(request, 80);
    Session session(request);
    expect_same(batched_answers(session, 80), solo, "batched, cold");
    expect_same(batched_answers(session, 80), solo, "batched, cached");
    EXPECT(session.engine().stats().cached_tokens > 0);
    LoadRequest chunked = request;
    chunked.max_num_seqs = 4;
    chunked.max_num_batched_tokens = 17;
    Session in_chunks(chunked);
    expect_same(batched_answers(in_chunks, 80), solo, "chunked");
    LoadRequest short_of_blocks = request;
    short_of_blocks.max_model_len = 288;
    short_of_blocks.kv_cache_bytes = 24 * kBlockBytes;
    Session preempting(short_of_blocks);
    expect_same(batched_answers(preempting, 80), solo, "preempted");
    EXPECT(preempting.engine().stats().num_preemptions > 0);
  }
}

TEST(int8_cache_with_windows_gives_the_same_bits_in_every_order) {
  const TinyModel model(TinyShape{.num_layers = 3}, DType::kBf16);
  LoadRequest request = with_int8_cache(model.request());
  const std::vector<int> windows{40, 0, 20};
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
}

TEST(int8_cache_bits_do_not_depend_on_threads_ranks_blocks_or_instruction_sets) {
  const TinyModel model(TinyShape{.intermediate_size = 256}, DType::kF32);
  const LoadRequest request = with_int8_cache(model.request());
  const auto solo = solo_answers(request);
  const auto expect_equal = [&](const LoadRequest& load, const char* what) {
    Session session(load);
    expect_same(batched_answers(session), solo, what);
  };
  for (const auto& [threads, ranks] : std::vector<std::pair<int, int>>{{3, 1}, {2, 2}, {4, 4}}) {
    LoadRequest load = request;
    load.device.num_threads = threads;
    load.device.world_size = ranks;
    expect_equal(load, "threads and ranks");
  }
  for (const int block_size : {32, 64}) {
    LoadRequest load = request;
    load.block_size = block_size;
    expect_equal(load, "block size");
  }
  for (const CpuIsa isa : available_cpu_isas()) {
    LoadRequest load = request;
    load.device.isa = cpu_isa_name(isa);
    expect_equal(load, cpu_isa_name(isa));
  }
}

TEST(int8_cache_serves_drafts_with_the_same_answers) {
  TinyShape shape;
  shape.has_mtp = true;
  const TinyModel model(shape, DType::kBf16);
  LoadRequest plain = with_int8_cache(model.request());
  plain.spec.has_mtp = false;
  plain.spec.layers.pop_back();
  const auto solo = solo_answers(plain, 60);
  const auto expect_drafts = [&](LoadRequest load, const char* what) {
    load.max_num_seqs = 2;  // large steps have no drafts
    Session session(load);
    expect_same(batched_answers(session, 60), solo, what);
    EXPECT(session.engine().stats().num_draft_tokens > 0);
  };
  LoadRequest looked_up = plain;
  looked_up.speculation = {.num_tokens = 4, .max_ngram = 3, .min_ngram = 1};
  expect_drafts(looked_up, "prompt look-up");
  LoadRequest drafted = with_int8_cache(model.request());
  drafted.speculation.num_tokens = 3;
  expect_drafts(drafted, "MTP");
}

TEST(int8_cache_is_named_where_fp8_is_refused) {
  const TinyModel model(TinyShape{}, DType::kBf16);
  LoadRequest request = with_int8_cache(model.request());
  request.kv_cache_dtype = DType::kFp8E4m3;
  try {
    Session session(request);
    EXPECT(false && "the CPU has no fp8 cache");
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()),
              std::string("kvCacheDtype: expected auto, f32, f16, bf16 or int8 on cpu, got fp8"));
  }
}

}  // namespace
}  // namespace capstan::testing
