// The profile of the steps: its parts add up to the time, it changes no bit, and it knows what the products take.
#include <numeric>
#include <type_traits>

#include "native/backend/cpu/team.h"
#include "native/base/step_profile.h"
#include "test/native/decoder_fixture.h"
#include "test/native/testing.h"

namespace capstan::testing {
namespace {

// A step with a profile allocates nothing.
static_assert(std::is_trivially_copyable_v<StepProfile>);

const StepPartTotals& part_of(const StepProfile& profile, StepKind kind, StepPart part) {
  return profile.totals().kinds[static_cast<size_t>(kind)].parts[static_cast<size_t>(part)];
}

int64_t sum_of_parts(const StepKindTotals& kind) {
  return std::accumulate(kind.parts.begin(), kind.parts.end(), int64_t{0},
                         [](int64_t sum, const StepPartTotals& part) { return sum + part.ns; });
}

// Returns when the clock has advanced.
void pass_time() {
  for (const int64_t begin = StepProfile::now_ns(); StepProfile::now_ns() == begin;) {
  }
}

TEST(step_profile_parts_add_up_to_the_steps) {
  StepProfile profile;
  profile.begin();
  for (int step = 0; step < 6; ++step) {
    {
      const PartScope idle(&profile, StepPart::kIdle);
      pass_time();
    }
    const PartScope model(&profile, StepPart::kModel);
    pass_time();
    {
      const PartScope head(&profile, StepPart::kHead);
      const PartScope norms(&profile, StepPart::kNorms);
      pass_time();
    }
    pass_time();
    profile.end_step(static_cast<StepKind>(step % 3), step);
  }
  int64_t num_tokens = 0;
  for (const StepKindTotals& kind : profile.totals().kinds) {
    EXPECT_EQ(kind.num_steps, 2);
    EXPECT(kind.ns > 0);
    EXPECT_EQ(sum_of_parts(kind), kind.ns);
    EXPECT_EQ(kind.parts[static_cast<size_t>(StepPart::kIdle)].ns, 0);
    EXPECT(kind.parts[static_cast<size_t>(StepPart::kModel)].ns > 0);
    EXPECT(kind.parts[static_cast<size_t>(StepPart::kNorms)].ns > 0);
    num_tokens += kind.num_tokens;
  }
  EXPECT(profile.totals().idle_ns > 0);
  EXPECT_EQ(num_tokens, 15);
}

TEST(step_profile_counts_what_drafts_run_as_drafts) {
  StepProfile profile;
  profile.begin();
  {
    const PartScope schedule(&profile, StepPart::kSchedule);
    {
      const PartScope drafts(&profile, StepPart::kDrafts);
      const PartScope head(&profile, StepPart::kHead);
      pass_time();
    }
    pass_time();
  }
  profile.end_step(StepKind::kDecode, 1);
  EXPECT(part_of(profile, StepKind::kDecode, StepPart::kDrafts).ns > 0);
  EXPECT(part_of(profile, StepKind::kDecode, StepPart::kSchedule).ns > 0);
  EXPECT_EQ(part_of(profile, StepKind::kDecode, StepPart::kHead).ns, 0);
}

TEST(step_profile_counts_the_waits_of_a_team) {
  for (const int threads : {1, 3}) {
    StepProfile profile;
    Team team(std::vector<int>(static_cast<size_t>(threads), -1), false, &profile);
    profile.begin();
    std::atomic<int> num_items{0};
    {
      const PartScope head(&profile, StepPart::kHead);
      for (int call = 0; call < 100; ++call)
        team.for_pieces(50, 3, [&](int, int64_t begin, int64_t end) { num_items += static_cast<int>(end - begin); });
      EXPECT_ERROR("out_of_memory", team.run([](int) { throw Error(ErrorCode::kOutOfMemory, "no"); }));
    }
    profile.end_step(StepKind::kDecode, 1);
    EXPECT_EQ(num_items.load(), 5000);
    const StepPartTotals& head = part_of(profile, StepKind::kDecode, StepPart::kHead);
    EXPECT(head.wait_ns >= 0 && head.wait_ns <= head.ns);
    // One thread waits for no other.
    EXPECT(threads > 1 || head.wait_ns == 0);
  }
}

TEST(step_profile_changes_no_bit_and_knows_the_work) {
  const DecoderShape shape;
  DecoderFixture fixture(shape);
  const std::vector<std::vector<int32_t>> prompts = {{5, 6, 7, 8, 9, 10, 11}, {1, 2, 3}};
  for (const CpuIsa isa : available_cpu_isas()) {
    for (const int world_size : {1, 2}) {
      RunOptions options;
      options.isa = isa;
      options.world_size = world_size;
      options.num_threads = 2;
      const LogProbs plain = fixture.run(options, prompts);
      StepProfile profile;
      options.make_backend = [&](const RunOptions& run, std::unique_ptr<Comm> comm) {
        CpuBackendOptions backend;
        backend.isa = run.isa;
        backend.weight_dtype = run.weight_dtype;
        backend.cpus.assign(static_cast<size_t>(run.num_threads), -1);
        backend.may_spin = false;
        if (comm == nullptr || comm->rank() == 0) backend.profile = &profile;
        return make_cpu_backend(backend, std::move(comm));
      };
      profile.begin();
      EXPECT(fixture.run(options, prompts) == plain);
      profile.end_step(StepKind::kPrefill, 10);
      const auto work_of = [&](StepPart part) { return part_of(profile, StepKind::kPrefill, part).work; };
      const auto ops_of = [&](StepPart part) { return work_of(part).ops[static_cast<size_t>(MathKind::kF32)]; };
      const double rows = 10, hidden = 64, inner = 96, layers = 2, heads = 4, head_dim = 16, vocab = 128;
      EXPECT_EQ(ops_of(StepPart::kGateUp) * world_size, 2 * rows * 2 * inner * hidden * layers);
      EXPECT_EQ(ops_of(StepPart::kDown) * world_size, 2 * rows * inner * hidden * layers);
      EXPECT_EQ(ops_of(StepPart::kHead) * world_size, 2 * rows * vocab * hidden);
      EXPECT_EQ(work_of(StepPart::kDown).bytes * world_size, 4 * inner * hidden * layers);
      const double num_products = 7 * 8 / 2 + 3 * 4 / 2;  // of queries with the keys that they see
      EXPECT_EQ(ops_of(StepPart::kAttention) * world_size, 4 * num_products * heads * head_dim * layers);
      EXPECT_EQ(work_of(StepPart::kAttention).bytes * world_size, rows * 2 * 2 * head_dim * 4 * layers);
      EXPECT_EQ(work_of(StepPart::kNorms).bytes, 0);
    }
  }
}

}  // namespace
}  // namespace capstan::testing
