// The complete engine with a prefix cache on disk: blocks survive a restart, and change no bit of any token or
// log-probability.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>

#include "native/engine/load.h"
#include "test/native/picking_engine.h"
#include "test/native/temporary_folder.h"
#include "test/native/testing.h"
#include "test/native/tiny_model.h"

namespace capstan::testing {
namespace {

namespace fs = std::filesystem;

LoadRequest on_disk(LoadRequest request, const TemporaryFolder& folder) {
  request.disk_cache = {folder.path(), int64_t{1} << 30, "tiny", true};
  return request;
}

DiskCacheStats disk_stats(Session& session) {
  return session.engine().stats().disk_cache.value();
}

// Six prompts of up to 288 tokens. Half of them share a prefix.
Prompts long_prompts() {
  std::mt19937 random(5);
  Prompts prompts;
  for (int i = 0; i < 6; ++i) {
    std::vector<int32_t> prompt(static_cast<size_t>(48 * (i + 1)));
    for (int32_t& id : prompt)
      id = static_cast<int32_t>(random() % 300);
    if (i > 3) std::copy_n(prompts[2].begin(), 140, prompt.begin());
    prompts.push_back(prompt);
  }
  return prompts;
}

std::vector<fs::path> block_files(const TemporaryFolder& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder.path()))
    if (entry.path().extension() == ".0") files.push_back(entry.path());
  std::ranges::sort(files);
  return files;
}

TEST(disk_cache_gives_the_same_bits_after_a_restart) {
  const Prompts prompts = long_prompts();
  TinyShape qwen3{.has_bias = false, .has_qk_norm = true, .is_tied = true};
  for (const auto& [shape, dtype, cache, ranks] : {std::tuple{TinyShape{}, DType::kBf16, DType::kBf16, 1},
                                                   {TinyShape{}, DType::kF32, DType::kF32, 2},
                                                   {qwen3, DType::kF16, DType::kF16, 1},
                                                   {TinyShape{}, DType::kBf16, DType::kInt8, 2}}) {
    const TemporaryFolder folder;
    const TinyModel model(shape, dtype);
    LoadRequest request = model.request();
    request.device.world_size = ranks;
    request.is_kv_dtype_given = true;
    request.kv_cache_dtype = cache;
    const auto solo = solo_answers(request, kMaxTokens, prompts);
    request = on_disk(request, folder);
    {
      Session session(request);
      expect_same(batched_answers(session, kMaxTokens, prompts), solo, "cold");
    }
    Session session(request);
    EXPECT(disk_stats(session).store.num_blocks > 40);
    expect_same(batched_answers(session, kMaxTokens, prompts), solo, "from the disk");
    const DiskCacheStats stats = disk_stats(session);
    EXPECT(stats.num_hits > 0);
    EXPECT(stats.num_loaded_tokens > 500);
    EXPECT(stats.store.bytes_read > 0);
    EXPECT(session.engine().stats().cached_tokens >= stats.num_loaded_tokens);
    EXPECT_EQ(stats.store.num_damaged, 0);
  }
}

// Whatever stands in the files, the answers are right.
TEST(disk_cache_ignores_damaged_files) {
  const Prompts prompts = long_prompts();
  const TinyModel model(TinyShape{}, DType::kBf16);
  const auto solo = solo_answers(model.request(), kMaxTokens, prompts);
  std::mt19937_64 random(9);
  const TemporaryFolder folder;
  for (int round = 0; round < 4; ++round) {
    {
      Session session(on_disk(model.request(), folder));
      expect_same(batched_answers(session, kMaxTokens, prompts), solo, "damaged");
      if (round > 0) EXPECT(disk_stats(session).store.num_damaged > 0);
    }
    const auto files = block_files(folder);
    EXPECT(files.size() > 40);
    for (const fs::path& file : files) {
      if (random() % 3 != 0) continue;
      std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
      stream.seekp(static_cast<std::streamoff>(random() % fs::file_size(file)));
      stream.put(static_cast<char>(random()));
      stream.put(static_cast<char>(random()));
    }
    // A whole file in the place of another.
    fs::copy_file(files[0], files[1], fs::copy_options::overwrite_existing);
  }
}

TEST(disk_cache_is_only_read_by_the_same_model_and_options) {
  const Prompts prompts = long_prompts();
  const TemporaryFolder folder;
  const TinyModel model(TinyShape{}, DType::kBf16), other_weights(TinyShape{.has_qk_norm = true}, DType::kBf16);
  {
    Session session(on_disk(model.request(), folder));
    batched_answers(session, kMaxTokens, prompts);
  }
  std::vector<std::pair<LoadRequest, std::string>> others(7, {model.request(), "tiny"});
  others[0].first.is_kv_dtype_given = true;
  others[0].first.kv_cache_dtype = DType::kF16;
  others[1].first.block_size = 32;
  others[2].first.quantization = Quantization::kInt8;
  others[3].first.compute = ComputeChoice::kF32;
  others[4].first.device.isa = "portable";
  others[5].second = "another architecture";
  others[6].first.is_kv_dtype_given = true;
  others[6].first.kv_cache_dtype = DType::kInt8;
  others.emplace_back(other_weights.request(), "tiny");
  for (const auto& [plain, digest] : others) {
    const auto solo = solo_answers(plain, kMaxTokens, prompts);
    LoadRequest request = on_disk(plain, folder);
    request.disk_cache.model_digest = digest;
    Session session(request);
    EXPECT_EQ(disk_stats(session).store.num_blocks, 0);
    expect_same(batched_answers(session, kMaxTokens, prompts), solo, "other options");
    EXPECT_EQ(disk_stats(session).num_hits, 0);
  }
  // A copy of the files is the same model.
  const TemporaryFolder elsewhere;
  LoadRequest copy = on_disk(model.request(), folder);
  fs::copy_file(copy.files[0], elsewhere.path() + "/weights");
  copy.files[0] = elsewhere.path() + "/weights";
  Session session(copy);
  EXPECT(disk_stats(session).store.num_blocks > 40);
}

// The digests are those of the weights that are read, or there is no engine.
TEST(disk_cache_notices_files_that_change_while_they_are_loaded) {
  const Prompts prompts = long_prompts();
  const TinyModel model(TinyShape{}, DType::kBf16), other(TinyShape{}, DType::kF32);
  const auto solo = solo_answers(model.request(), kMaxTokens, prompts);
  const TemporaryFolder folder, elsewhere;
  LoadRequest request = on_disk(model.request(), folder);
  const std::string original = request.files[0];
  request.files[0] = elsewhere.path() + "/weights";
  const auto load_with = [&](const std::function<void()>& change) {
    fs::copy_file(original, request.files[0], fs::copy_options::overwrite_existing);
    bool is_changed = false;
    return load_engine(
        request,
        [&](int64_t, int64_t) {
          if (!std::exchange(is_changed, true)) change();
        },
        [](std::vector<Event>&&) {});
  };
  EXPECT_ERROR("io_error", load_with([&] { std::ofstream(request.files[0], std::ios::app) << "more"; }));
  // Another file in its place.
  load_with([&] {
    fs::copy_file(other.request().files[0], request.files[0] + "-new");
    fs::rename(request.files[0] + "-new", request.files[0]);
  });
  fs::copy_file(original, request.files[0], fs::copy_options::overwrite_existing);
  Session session(request);
  expect_same(batched_answers(session, kMaxTokens, prompts), solo, "after a change");
}

TEST(disk_cache_keeps_salts_apart) {
  const TemporaryFolder folder;
  const TinyModel model(TinyShape{}, DType::kBf16);
  Request request;
  request.prompt_token_ids = long_prompts()[5];
  request.sampling.max_tokens = 2;
  request.cache_salt = "owner 1";
  {
    Session session(on_disk(model.request(), folder));
    session.wait(session.submit(request));
  }
  Session session(on_disk(model.request(), folder));
  request.cache_salt = "owner 2";
  EXPECT_EQ(session.wait(session.submit(request)).finish->num_cached_tokens, 0);
  request.cache_salt.clear();
  EXPECT_EQ(session.wait(session.submit(request)).finish->num_cached_tokens, 0);
  request.cache_salt = "owner 1";
  EXPECT_EQ(session.wait(session.submit(request)).finish->num_cached_tokens, 272);
  EXPECT_EQ(disk_stats(session).num_loaded_tokens, 272);
}

// With few blocks in memory, prompts push each other out and come back from the disk.
TEST(disk_cache_extends_a_small_memory) {
  const Prompts prompts = long_prompts();
  const TemporaryFolder folder;
  const TinyModel model(TinyShape{}, DType::kBf16);
  const auto solo = solo_answers(model.request(), kMaxTokens, prompts);
  LoadRequest request = on_disk(model.request(), folder);
  request.kv_cache_bytes = 24 * 8192;
  Session session(request);
  for (int round = 0; round < 3; ++round) {
    for (size_t i = 0; i < prompts.size(); ++i) {
      const int64_t before = disk_stats(session).num_loaded_tokens;
      const Answer answer = session.wait(session.submit(prompts[i], kMaxTokens, temperature_of(i)));
      EXPECT(answer == solo[i]);
      // No block that is loaded takes the place of another one of the prompt.
      EXPECT(answer.finish->num_cached_tokens >= disk_stats(session).num_loaded_tokens - before);
    }
    expect_same(batched_answers(session, kMaxTokens, prompts), solo, "small memory");
  }
  EXPECT(disk_stats(session).num_hits > 0);
}

// Sequences end while their blocks are on the way.
TEST(disk_cache_survives_aborts) {
  const Prompts prompts = long_prompts();
  const TemporaryFolder folder;
  const TinyModel model(TinyShape{}, DType::kBf16);
  const auto solo = solo_answers(model.request(), kMaxTokens, prompts);
  {
    Session session(on_disk(model.request(), folder));
    batched_answers(session, kMaxTokens, prompts);
  }
  for (int round = 0; round < 8; ++round) {
    Session session(on_disk(model.request(), folder));
    std::vector<RequestId> aborted;
    for (const auto& prompt : prompts) {
      aborted.push_back(session.submit(prompt, kMaxTokens));
      if (round % 2 == 0) session.engine().abort(aborted.back());
    }
    for (const RequestId id : aborted)
      session.engine().abort(id);
    for (const RequestId id : aborted)
      session.wait(id);
    if (round > 3) expect_same(batched_answers(session, kMaxTokens, prompts), solo, "after aborts");
  }
}

TEST(disk_cache_refuses_what_it_does_not_keep) {
  const TemporaryFolder folder;
  const TinyModel model(TinyShape{}, DType::kBf16), windowed(TinyShape{.sliding_window = 40}, DType::kBf16);
  EXPECT_ERROR("invalid_argument", Session(on_disk(windowed.request(), folder)));
  LoadRequest request = on_disk(model.request(), folder);
  request.has_prefix_cache = false;
  EXPECT_ERROR("invalid_argument", const Session session(request));
  request = on_disk(model.request(), folder);
  request.disk_cache.max_bytes = 100;
  EXPECT_ERROR("invalid_argument", const Session session(request));
  request.disk_cache = {"/proc/nowhere", 1 << 30, ""};
  EXPECT_ERROR("invalid_argument", const Session session(request));
}

}  // namespace
}  // namespace capstan::testing
