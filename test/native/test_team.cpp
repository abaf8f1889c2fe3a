#include "native/backend/cpu/team.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "test/native/testing.h"

namespace capstan::testing {
namespace {

const std::vector<int> kUnpinned3 = {-1, -1, -1};

TEST(team_runs_every_part_once) {
  for (const bool may_spin : {false, true}) {
    Team team(kUnpinned3, may_spin);
    std::vector<int> counts(3);
    for (int call = 0; call < 2000; ++call)
      team.run([&](int thread) { ++counts[thread]; });
    for (const int count : counts)
      EXPECT_EQ(count, 2000);
  }
}

TEST(team_destroyed_right_after_a_call_runs_no_part_twice) {
  for (int round = 0; round < 10000; ++round) {
    std::atomic<int> parts{0};
    {
      Team team(kUnpinned3, false);
      team.run([&](int) { ++parts; });
    }
    EXPECT_EQ(parts.load(), 3);
  }
}

TEST(team_pieces_cover_the_range_once) {
  Team team(kUnpinned3, false);
  for (const int64_t count : {0, 1, 2, 5, 6, 7, 100, 1001}) {
    for (const auto& [grain, least] : {std::pair<int64_t, int64_t>{1, 1}, {3, 3}, {6, 1}, {6, 3}, {50, 2}}) {
      std::vector<std::atomic<int>> times(static_cast<size_t>(count));
      team.for_pieces(count, grain, least, [&](int, int64_t begin, int64_t end) {
        EXPECT(begin < end && end - begin <= std::max(grain, least + least / 2));
        for (int64_t i = begin; i < end; ++i)
          ++times[i];
      });
      for (const auto& time : times)
        EXPECT_EQ(time.load(), 1);
      for (auto& time : times)
        time = 0;
      team.for_ranges(count, 2, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i)
          ++times[i];
      });
      for (const auto& time : times)
        EXPECT_EQ(time.load(), 1);
    }
  }
}

TEST(team_rethrows_errors_and_stays_usable) {
  Team team(kUnpinned3, false);
  for (int thrower = 0; thrower < 3; ++thrower) {
    EXPECT_ERROR("out_of_memory", team.run([&](int thread) {
      if (thread == thrower) throw Error(ErrorCode::kOutOfMemory, "no");
    }));
    int sum = 0;
    team.for_ranges(1, 2, [&](int64_t, int64_t) { ++sum; });
    EXPECT_EQ(sum, 1);
  }
}

TEST(team_flushes_denormals_and_restores_the_caller) {
  Team team(kUnpinned3, false);
  volatile float tiny = 1e-38f, half = 0.5f;
  std::vector<float> products(3);
  team.run([&](int thread) {
    volatile float x = tiny;
    products[thread] = x * half * half;
  });
#if defined(__x86_64__) || defined(__aarch64__)
  for (const float product : products)
    EXPECT_EQ(product, 0.0f);
#endif
  EXPECT(tiny * half * half > 0.0f);
}

}  // namespace
}  // namespace capstan::testing
