// The prefix cache on disk without an engine: the test decides when the steps come and when the disk answers.
#include <algorithm>
#include <cstring>
#include <deque>
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

template <typename Condition>
void wait_until(Condition condition) {
  bool is_met = condition();
  for (int i = 0; i < 300'000 && !is_met; ++i, is_met = condition())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT(is_met);
}

// A scheduler whose sequences compute their prompt and end.
class LoadingFixture {
 public:
  explicit LoadingFixture(const TemporaryFolder& folder, int num_blocks = 8)
      : memory_(static_cast<size_t>(num_blocks) * kPayload),
        scheduler_({}, BlockManager({{num_blocks}}, kBlockSize, true)),
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
      for (const ScheduledSequence& scheduled : plan.sequences) {
        if (!scheduled.samples) continue;
        scheduler_.append(*scheduled.seq, 1);
        cache_.offer(*scheduled.seq);
        scheduler_.finish(*scheduled.seq);
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
    options.store.payload_bytes = {kPayload};
    options.read_block = [this](int, int32_t block_id, std::span<std::byte> to) {
      std::memcpy(to.data(), &memory_[static_cast<size_t>(block_id) * kPayload], kPayload);
    };
    options.write_block = [this](int, int32_t block_id, std::span<const std::byte> from) {
      std::memcpy(&memory_[static_cast<size_t>(block_id) * kPayload], from.data(), kPayload);
    };
    return options;
  }

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

}  // namespace
}  // namespace capstan::testing
