// The prefix cache on disk without an engine: the test decides when the steps come and when the disk answers.
#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <numeric>
#include <thread>

#include "native/engine/disk_cache.h"
#include "native/engine/scheduler.h"
#include "test/native/gate.h"
#include "test/native/temporary_folder.h"
#include "test/native/testing.h"

namespace capstan::testing {
namespace {

constexpr int kBlockSize = 4;
constexpr size_t kPayload = 1000;

struct FixtureSetup {
  int num_blocks = 8;
  size_t payload = kPayload;
  double ms_per_token = 0;  // of a prompt; 0 = not measured
  std::function<void(disk::StoreOptions& options)> change = nullptr;
};

template <typename Condition>
void wait_until(Condition condition) {
  bool is_met = condition();
  for (int i = 0; i < 300'000 && !is_met; ++i, is_met = condition())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT(is_met);
}

// Seeds of sequences that do something else than end after their prompt.
constexpr uint64_t kKeepsRunning = 1, kIsPoisoned = 2;

// A scheduler whose sequences compute their prompt and end.
class LoadingFixture {
 public:
  explicit LoadingFixture(const TemporaryFolder& folder, FixtureSetup setup = {})
      : setup_(std::move(setup)),
        memory_(static_cast<size_t>(setup_.num_blocks) * setup_.payload),
        scheduler_({}, BlockManager({{setup_.num_blocks}}, kBlockSize, true)),
        cache_(options_of(folder), scheduler_, 8) {}

  DiskCache& cache() { return cache_; }
  Scheduler& scheduler() { return scheduler_; }

  // Submits a prompt of distinct ids.
  Sequence& submit(int32_t first_id, int num_tokens) {
    Sequence& seq = sequences_.emplace_back();
    seq.token_ids.resize(static_cast<size_t>(num_tokens));
    std::iota(seq.token_ids.begin(), seq.token_ids.end(), first_id);
    seq.num_prompt_tokens = num_tokens;
    seq.sampling.max_tokens = 100;
    scheduler_.add(seq);
    cache_.add(seq);
    return seq;
  }
  void step() {
    cache_.begin_step();
    StepPlan plan;
    if (scheduler_.plan_step(plan)) {
      scheduler_.launched(plan);
      if (setup_.ms_per_token > 0) scheduler_.measured(plan, setup_.ms_per_token * plan.num_tokens);
      for (const ScheduledSequence& scheduled : plan.sequences) {
        if (!scheduled.samples) continue;
        scheduler_.append(*scheduled.seq, 1);
        cache_.offer(*scheduled.seq);
        if (scheduled.seq->seed == kKeepsRunning) continue;
        scheduler_.finish(*scheduled.seq, scheduled.seq->seed == kIsPoisoned);
        cache_.forget(*scheduled.seq);
      }
    }
    scheduler_.check_integrity();
    cache_.end_step();
  }
  void run_to_end(Sequence& seq) {
    wait_until([&] {
      step();
      return seq.status == SequenceStatus::kFinished;
    });
  }
  Sequence& run(int32_t first_id, int num_tokens) {
    Sequence& seq = submit(first_id, num_tokens);
    run_to_end(seq);
    return seq;
  }
  void wait_for_written(int64_t count) {
    wait_until([&] { return cache_.stats().store.num_written == count; });
  }

 private:
  DiskCacheOptions options_of(const TemporaryFolder& folder) {
    DiskCacheOptions options;
    options.store.root = std::make_shared<const disk::CacheRoot>(folder.path());
    options.store.identity = "a model";
    options.store.max_bytes = int64_t{1} << 30;
    options.store.block_size = kBlockSize;
    options.store.payload_bytes = {setup_.payload};
    options.read_block = [this](int, int32_t block_id, std::span<std::byte> to) {
      std::memcpy(to.data(), &memory_[static_cast<size_t>(block_id) * setup_.payload], setup_.payload);
    };
    options.write_block = [this](int, int32_t block_id, std::span<const std::byte> from) {
      std::memcpy(&memory_[static_cast<size_t>(block_id) * setup_.payload], from.data(), setup_.payload);
    };
    if (setup_.change) setup_.change(options.store);
    return options;
  }

  FixtureSetup setup_;
  std::vector<std::byte> memory_;
  Scheduler scheduler_;
  std::deque<Sequence> sequences_;
  DiskCache cache_;
};

TEST(disk_load_keeps_the_prefix_that_it_continues) {
  const TemporaryFolder folder;
  LoadingFixture fixture(folder);
  fixture.run(0, 25);
  fixture.run(1000, 17);
  fixture.wait_for_written(10);
  // Three of the six blocks are in memory, which is full.
  EXPECT_EQ(fixture.scheduler().blocks().pool(0).num_free(), 1);
  EXPECT_EQ(fixture.run(0, 25).num_cached_tokens, 24);
  EXPECT_EQ(fixture.cache().stats().num_loaded_tokens, 12);
}

TEST(disk_load_keeps_no_other_prompt_waiting) {
  const TemporaryFolder folder;
  Gate reads;
  FixtureSetup setup;
  setup.change = [&](disk::StoreOptions& options) { options.before_read = [&] { reads.pass(); }; };
  LoadingFixture fixture(folder, setup);
  fixture.run(0, 25);
  fixture.run(2000, 25);
  fixture.wait_for_written(12);
  fixture.run(4000, 29);  // takes the place of both
  EXPECT(fixture.cache().next_step_time() == disk::Clock::time_point::max());
  reads.close();
  Sequence& first = fixture.submit(0, 25);
  Sequence& second = fixture.submit(2000, 25);
  Sequence& long_running = fixture.submit(6000, 9);
  long_running.seed = kKeepsRunning;
  fixture.step();
  EXPECT(first.disk_state == DiskState::kLoading);
  EXPECT(second.disk_state == DiskState::kQueued);
  EXPECT(long_running.status == SequenceStatus::kRunning);
  const auto next = fixture.cache().next_step_time();
  EXPECT(next > disk::Clock::now() - std::chrono::seconds(60) && next < disk::Clock::now() + std::chrono::seconds(6));
  // Now the loads and this sequence need more blocks than there are.
  Sequence& unknown = fixture.submit(8000, 5);
  fixture.step();
  EXPECT(unknown.status == SequenceStatus::kFinished);
  EXPECT(first.disk_state == DiskState::kLoading);
  fixture.scheduler().finish(long_running);
  fixture.cache().forget(long_running);
  reads.open();
  fixture.run_to_end(first);
  fixture.run_to_end(second);
  EXPECT_EQ(fixture.cache().stats().num_declined, 0);
}

TEST(disk_load_counts_the_blocks_that_are_read_before_it) {
  const TemporaryFolder folder;
  FixtureSetup setup{.num_blocks = 64};
  {
    LoadingFixture fixture(folder, setup);
    fixture.run(0, 125);
    fixture.run(2000, 5);
    fixture.run(4000, 9);
    fixture.wait_for_written(34);
  }
  // A block is computed in 40 ms and read in a few.
  setup.ms_per_token = 10;
  setup.change = [](disk::StoreOptions& options) {
    options.before_read = [] { std::this_thread::sleep_for(std::chrono::milliseconds(5)); };
  };
  LoadingFixture fixture(folder, setup);
  fixture.run(6000, 9);
  fixture.run(4000, 9);
  EXPECT_EQ(fixture.cache().stats().num_loaded_tokens, 8);
  Sequence& first = fixture.submit(0, 125);
  Sequence& second = fixture.submit(2000, 5);
  fixture.step();
  EXPECT(first.disk_state == DiskState::kLoading);
  EXPECT_EQ(fixture.cache().stats().num_declined, 1);
  EXPECT(second.status == SequenceStatus::kFinished);
  fixture.run_to_end(first);
  EXPECT_EQ(first.num_cached_tokens, 124);
}

TEST(disk_loads_take_turns_with_steps) {
  const TemporaryFolder folder;
  const FixtureSetup setup{.payload = size_t{6} << 20};
  {
    LoadingFixture fixture(folder, setup);
    fixture.run(0, 17);
    fixture.wait_for_written(4);
  }
  LoadingFixture fixture(folder, setup);
  Sequence& seq = fixture.submit(0, 17);
  fixture.step();
  EXPECT(seq.disk_state == DiskState::kLoading);
  wait_until([&] { return fixture.cache().stats().store.num_read == 4; });
  fixture.step();
  EXPECT_EQ(fixture.scheduler().blocks().pool(0).num_cached(), 3);
  const auto next = fixture.cache().next_step_time();
  EXPECT(next <= disk::Clock::now());
  fixture.run_to_end(seq);
  EXPECT_EQ(seq.num_cached_tokens, 16);
}

TEST(disk_problem_ends_when_the_disk_has_caught_up) {
  const TemporaryFolder folder;
  Gate writes;
  FixtureSetup setup;
  setup.change = [&](disk::StoreOptions& options) {
    options.buffer_bytes = 1;  // the fewest images
    options.before_write = [&] {
      writes.pass();
      return 0;
    };
  };
  LoadingFixture fixture(folder, setup);
  writes.close();
  const auto problem = [&] { return fixture.cache().stats().store.problem; };
  fixture.run(0, 25);
  EXPECT_EQ(problem(), "");
  fixture.run(2000, 25);
  EXPECT(problem().find("slower than the prompts") != std::string::npos);
  writes.open();
  wait_until([&] {
    fixture.step();
    return !fixture.cache().has_offered();
  });
  EXPECT_EQ(problem(), "");
  EXPECT(fixture.cache().stats().store.num_skipped > 0);
  // Blocks that leave the memory before they are copied say nothing about the disk.
  const int64_t before = fixture.cache().stats().store.num_skipped;
  Sequence& poisoned = fixture.submit(4000, 25);
  poisoned.seed = kIsPoisoned;
  fixture.run_to_end(poisoned);
  EXPECT_EQ(fixture.cache().stats().store.num_skipped, before + 6);
  EXPECT_EQ(problem(), "");
}

}  // namespace
}  // namespace capstan::testing
