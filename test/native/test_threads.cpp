// Loads on a machine that has no threads left, or whose files are damaged. A load works or fails with an error, and
// frees everything.
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>

#include "native/engine/model_runner.h"
#include "native/model/rope.h"
#include "test/native/testing.h"
#include "test/native/tiny_model.h"

namespace {

// Number of threads that still start, or -1 for all.
std::atomic<int> num_left_to_start{-1};

}  // namespace

// Replaces the function of the C library for the whole program.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*), void* data) {
  static const auto real = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  int left = num_left_to_start.load();
  while (left > 0 && !num_left_to_start.compare_exchange_weak(left, left - 1)) {
  }
  return left == 0 ? EAGAIN : real(thread, attributes, start, data);
}

namespace capstan {
namespace {

using namespace testing;

size_t num_entries(const char* folder) {
  return static_cast<size_t>(std::ranges::distance(std::filesystem::directory_iterator(folder)));
}

size_t num_threads() {
  return num_entries("/proc/self/task");
}

size_t num_open_files() {
  return num_entries("/proc/self/fd");
}

// The kernel removes a joined thread from the list a moment later.
bool falls_to(size_t wanted) {
  for (int i = 0; i < 30'000; ++i) {
    if (num_threads() <= wanted) return true;
    ::usleep(1000);
  }
  return false;
}

LoadRequest request_of_two_ranks(const TinyModel& model) {
  LoadRequest request = model.request();
  request.device.world_size = 2;
  request.device.num_threads = 4;
  return request;
}

TEST(load_without_threads_left_fails_and_frees_everything) {
  const TinyModel model(TinyShape{}, DType::kF32);
  const LoadRequest request = request_of_two_ranks(model);
  {
    const Session session(request);
  }
  const size_t threads_before = num_threads(), files_before = num_open_files();
  int num_failed = 0;
  for (bool has_failed = true; has_failed && num_failed < 100; num_failed += has_failed) {
    num_left_to_start.store(num_failed);
    std::string message;
    try {
      Session session(request);
      num_left_to_start.store(-1);
      EXPECT_EQ(session.wait(session.submit({1, 2, 3}, 4)).token_ids.size(), size_t{4});
    } catch (const Error& error) {
      EXPECT(error.code() == ErrorCode::kOutOfMemory);
      message = error.what();
      EXPECT(message.find("a thread could not be started") != std::string::npos);
    }
    num_left_to_start.store(-1);
    has_failed = !message.empty();
    EXPECT(falls_to(threads_before));
    EXPECT_EQ(num_open_files(), files_before);
    Session session(request);
    EXPECT_EQ(session.wait(session.submit({1, 2, 3}, 4)).token_ids.size(), size_t{4});
  }
  // A thread of each rank's team, the second rank of three phases of the load and of the runner, two for masks, and the
  // engine's.
  EXPECT_EQ(num_failed, 9);
}

// Loads the ranks of a model and starts their threads.
std::unique_ptr<ModelRunner> make_runner(const LoadRequest& request) {
  constexpr int kMaxModelLen = 64;
  const CheckpointFiles files(request.files);
  const TensorTable tensors = files.make_table(request.tensors);
  DeviceGroup group = make_device_group(request.device);
  DeviceLimits limits;
  limits.max_num_tokens = limits.block_size = 16;
  limits.max_num_seqs = 1;
  limits.num_blocks = {1};
  limits.kv_cache_dtype = DType::kF32;
  std::vector<Rank> ranks(group.backends.size());
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const ShardPlan plan = make_shard_plan(request.spec, static_cast<int>(rank), request.device.world_size);
    Backend& backend = *(ranks[rank].backend = std::move(group.backends[rank]));
    ranks[rank].weights = load_weights(request.spec, plan, tensors, {}, backend, [](int64_t) {});
    DeviceModel model = make_device_model(request.spec, plan, request.spec.vocab_size, kMaxModelLen);
    backend.reserve(model, limits);
    model.rope_tables[0].values = make_rope_table(request.spec.ropes[0], kMaxModelLen);
    backend.prepare(model, limits);
  }
  return std::make_unique<ModelRunner>(std::move(ranks), std::move(group.control), limits.max_num_seqs);
}

// One token of one sequence.
std::unique_ptr<Batch> make_step() {
  auto batch = std::make_unique<Batch>();
  batch->input_ids = {1};
  batch->positions = batch->logits_rows = {0};
  batch->kv_arrays = {{{0}, {0}}};
  batch->cu_seqlens_q = {0, 1};
  batch->context_lens = {1};
  batch->max_blocks_per_seq = 1;
  batch->sample_rows.resize(1);
  batch->results.resize(1);
  batch->set_kv_groups();
  return batch;
}

// Rank 1 waits for rank 0, which computes in collect().
TEST(runner_gives_up_a_step_that_is_never_collected) {
  const TinyModel model(TinyShape{}, DType::kF32);
  for (const bool is_abandoned : {true, false}) {
    auto step = make_step();
    const auto runner = make_runner(request_of_two_ranks(model));
    runner->launch(*step);
    runner->collect(*step);
    EXPECT(!step->results[0].has_numeric_error);
    runner->launch(*step);
    if (!is_abandoned) continue;
    runner->abandon();
    step.reset();
  }
}

TEST(failed_loads_leave_no_file_open) {
  const TinyModel model(TinyShape{}, DType::kF32);
  const size_t files_before = num_open_files();
  LoadRequest missing = model.request();
  missing.files.push_back("/nowhere/model-00002-of-00002.safetensors");
  EXPECT_ERROR("io_error", Session{missing});
  EXPECT_EQ(num_open_files(), files_before);
  LoadRequest outside = model.request();
  outside.tensors.back().offset = uint64_t{1} << 62;
  EXPECT_ERROR("invalid_model", Session{outside});
  EXPECT_EQ(num_open_files(), files_before);
  EXPECT(::ftruncate(model.fd(), 16) == 0);
  EXPECT_ERROR("invalid_model", Session{model.request()});
  EXPECT_EQ(num_open_files(), files_before);
}

}  // namespace
}  // namespace capstan
