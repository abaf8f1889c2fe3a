#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <random>

#include "native/backend/cpu/isa.h"
#include "native/backend/cpu/sample.h"
#include "native/base/random.h"
#include "test/native/testing.h"

namespace capstan {
namespace {

std::vector<float> random_logits(size_t count, uint32_t seed, float scale = 2.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> logits(count);
  for (float& logit : logits)
    logit = normal(random);
  return logits;
}

// Samples rows of the same logits with the best instruction set and one thread.
std::vector<SampleResult> sample_rows(const std::vector<float>& logits, const std::vector<SampleRow>& rows) {
  const auto vocab_size = static_cast<int64_t>(logits.size());
  Team team({-1}, false);
  std::vector<SampleResult> results(rows.size());
  Sampler(cpu_kernels(available_cpu_isas().front()), vocab_size, vocab_size, team).sample(logits.data(), rows, results);
  return results;
}

SampleResult sample(const std::vector<float>& logits, const SampleRow& row) {
  return sample_rows(logits, {row})[0];
}

// Returns how often each id is drawn over `count` positions.
std::map<int32_t, int> draw_many(const std::vector<float>& logits, const SampleRow& row, int count) {
  std::vector<SampleRow> rows(static_cast<size_t>(count), row);
  for (int i = 0; i < count; ++i)
    rows[static_cast<size_t>(i)].position = static_cast<uint32_t>(i);
  std::map<int32_t, int> counts;
  for (const SampleResult& result : sample_rows(logits, rows))
    ++counts[result.token_id];
  return counts;
}

std::vector<double> softmax(const std::vector<float>& logits, double temperature = 1) {
  const double best = *std::max_element(logits.begin(), logits.end());
  std::vector<double> probabilities;
  double sum = 0;
  for (const float logit : logits)
    probabilities.push_back(std::exp((logit - best) / temperature));
  for (const double p : probabilities)
    sum += p;
  for (double& p : probabilities)
    p /= sum;
  return probabilities;
}

TEST(philox_matches_the_published_test_vectors) {
  // Known-answer vectors of the Random123 distribution, philox4x32-10.
  const auto zeros = philox4x32({0, 0, 0, 0}, 0);
  EXPECT(zeros == (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const auto ones = philox4x32({~0u, ~0u, ~0u, ~0u}, ~uint64_t{0});
  EXPECT(ones == (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  const auto pi = philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822);
  EXPECT(pi == (std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// Contract 5. The words are those of the published vector of zeros.
TEST(four_ids_share_one_philox_call) {
  const auto words = philox4x32({7, 3, 25, 0}, 0x299f31d0a4093822);
  for (uint32_t id = 100; id < 104; ++id)
    EXPECT_EQ(noise_word(0x299f31d0a4093822, 7, 3, id), words[id - 100]);
  EXPECT_EQ(noise_word(0, 0, 0, 0), 0x6627e8d5u);
  EXPECT_EQ(noise_word(0, 0, 0, 1), 0xe169c58du);
  EXPECT_EQ(noise_word(0, 0, 0, 2), 0xbc57ac4cu);
  EXPECT_EQ(noise_word(0, 0, 0, 3), 0x9b00dbd8u);
}

TEST(greedy_breaks_ties_by_the_lowest_id) {
  SampleRow row;
  row.temperature = 0;
  EXPECT_EQ(sample({1, 3, 3, 2}, row).token_id, 1);
}

TEST(sampling_follows_the_probabilities) {
  const auto logits = random_logits(12, 1, 1.5f);
  for (const float temperature : {0.7f, 1.0f, 1.6f}) {
    SampleRow row;
    row.temperature = temperature;
    row.seed = 42;
    constexpr int kCount = 40000;
    const auto probabilities = softmax(logits, temperature);
    auto counts = draw_many(logits, row, kCount);
    for (size_t id = 0; id < logits.size(); ++id) {
      const double expected = probabilities[id] * kCount, deviation = std::sqrt(expected * (1 - probabilities[id]));
      EXPECT_NEAR(counts[static_cast<int32_t>(id)], expected, 5 * deviation + 1);
    }
  }
}

TEST(sampling_depends_only_on_seed_position_and_choice) {
  const auto logits = random_logits(1000, 2);
  SampleRow row;
  row.seed = 7;
  row.position = 5;
  const int32_t drawn = sample(logits, row).token_id;
  EXPECT_EQ(sample(logits, row).token_id, drawn);
  int num_other = 0;
  for (uint32_t i = 0; i < 20; ++i) {
    SampleRow other = row;
    other.choice_idx = i + 1;
    num_other += sample(logits, other).token_id != drawn;
  }
  EXPECT(num_other > 10);
}

TEST(top_k_top_p_and_min_p_keep_the_right_ids) {
  const auto logits = random_logits(300, 3);
  std::vector<int32_t> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i)
    order[i] = static_cast<int32_t>(i);
  std::ranges::sort(
      order, [&](int32_t a, int32_t b) { return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)]; });
  const auto probabilities = softmax(logits);

  const auto check = [&](const SampleRow& row, size_t num_kept) {
    for (const auto& [id, times] : draw_many(logits, row, 4000))
      EXPECT(std::find(order.begin(), order.begin() + static_cast<ptrdiff_t>(num_kept), id) !=
             order.begin() + static_cast<ptrdiff_t>(num_kept));
    // The least likely kept id is drawn at least once.
    auto counts = draw_many(logits, row, 30000);
    EXPECT(counts.contains(order[num_kept - 1]));
  };
  SampleRow row;
  row.top_k = 5;
  check(row, 5);
  row = {};
  row.top_p = 0.6f;
  size_t num_kept = 0;
  for (double sum = 0; sum < 0.6; ++num_kept)
    sum += probabilities[static_cast<size_t>(order[num_kept])];
  check(row, num_kept);
  row = {};
  row.min_p = 0.3f;
  num_kept = 0;
  while (probabilities[static_cast<size_t>(order[num_kept])] >= 0.3 * probabilities[static_cast<size_t>(order[0])])
    ++num_kept;
  check(row, num_kept);
}

TEST(top_p_applies_after_top_k) {
  // Of the two best ids, the first has 0.6 / (0.6 + 0.3) = 0.67, which reaches 0.65, so one id is left. Over the full
  // vocabulary, two ids would be needed.
  const std::vector<float> logits = {std::log(0.6f), std::log(0.3f), std::log(0.1f)};
  SampleRow row;
  row.top_k = 2;
  row.top_p = 0.65f;
  EXPECT_EQ(draw_many(logits, row, 500).size(), size_t{1});
}

TEST(penalties_follow_their_formulas) {
  const std::vector<float> logits = {2.0f, -1.0f, 1.9f, 0.0f};
  const std::vector<int32_t> prompt = {0};
  const std::vector<std::pair<int32_t, int32_t>> completion = {{0, 1}, {2, 3}};
  SampleRow row;
  row.temperature = 0;
  row.repetition_penalty = 2;  // 2.0 → 1.0 (only once, although in prompt and completion), 1.9 → 0.95
  row.counts = {prompt, completion};
  EXPECT_EQ(sample(logits, row).token_id, 0);
  row.presence_penalty = 0.5f;   // 0.5 and 0.45
  row.frequency_penalty = 0.2f;  // 0.3 and -0.15
  EXPECT_EQ(sample(logits, row).token_id, 0);
  row.frequency_penalty = 0.6f;  // -0.1 and -1.35: id 3 with 0 wins
  EXPECT_EQ(sample(logits, row).token_id, 3);
  // Negative logits are multiplied.
  const std::vector<float> negative = {-1.0f, -1.5f};
  SampleRow repeated;
  repeated.temperature = 0;
  repeated.repetition_penalty = 2;
  repeated.counts.prompt_ids = prompt;
  EXPECT_EQ(sample(negative, repeated).token_id, 1);
}

TEST(masks_bans_and_biases_apply) {
  const std::vector<float> logits = {5, 4, 3, 2};
  SampleRow row;
  row.temperature = 0;
  const std::vector<int32_t> banned = {0};
  row.banned_ids = banned;
  EXPECT_EQ(sample(logits, row).token_id, 1);
  const std::vector<uint32_t> mask = {0b1100};
  row.allowed_mask = mask;
  EXPECT_EQ(sample(logits, row).token_id, 2);
  const std::vector<std::pair<int32_t, float>> bias = {{3, 1.5f}};
  row.logit_bias = bias;
  EXPECT_EQ(sample(logits, row).token_id, 3);
  const std::vector<uint32_t> nothing = {0};
  row.allowed_mask = nothing;
  EXPECT(sample(logits, row).has_numeric_error);
}

TEST(sampling_never_draws_ids_without_a_token) {
  const std::vector<float> logits = {1, 2, 9};
  Team team({-1}, false);
  Sampler sampler(kPortableKernels, 3, 2, team);
  SampleRow row;
  row.temperature = 0;
  SampleResult result;
  sampler.sample(logits.data(), {&row, 1}, {&result, 1});
  EXPECT_EQ(result.token_id, 1);
  row.temperature = 1;
  for (row.position = 0; row.position < 200; ++row.position) {
    sampler.sample(logits.data(), {&row, 1}, {&result, 1});
    EXPECT(result.token_id < 2);
  }
}

TEST(logprobs_come_from_the_raw_logits) {
  const auto logits = random_logits(500, 4);
  const auto probabilities = softmax(logits);
  SampleRow row;
  row.temperature = 0.3f;
  row.num_logprobs = 7;
  const std::vector<std::pair<int32_t, float>> bias = {{9, 50.0f}};
  row.logit_bias = bias;
  const SampleResult result = sample(logits, row);
  EXPECT_EQ(result.token_id, 9);
  EXPECT_NEAR(result.logprob, std::log(probabilities[9]), 1e-5);
  EXPECT_EQ(result.top.size(), size_t{7});
  EXPECT_EQ(result.rank, 1 + static_cast<int32_t>(
                                 std::ranges::count_if(probabilities, [&](double p) { return p > probabilities[9]; })));
  for (size_t i = 0; i + 1 < result.top.size(); ++i)
    EXPECT(result.top[i].logprob >= result.top[i + 1].logprob);
  EXPECT_NEAR(result.top[0].logprob, std::log(*std::ranges::max_element(probabilities)), 1e-5);
}

TEST(sampling_reports_numeric_errors) {
  SampleRow row;
  row.temperature = 0;
  EXPECT(sample({1, std::numeric_limits<float>::quiet_NaN(), 2}, row).has_numeric_error);
  EXPECT(sample({1, std::numeric_limits<float>::infinity(), 2}, row).has_numeric_error);
  EXPECT(!sample({1, 2}, row).has_numeric_error);
}

TEST(sampling_of_a_large_vocabulary_equals_the_formula) {
  // Pruning by the best score must not change a draw.
  const auto logits = random_logits(20000, 5, 1.0f);
  SampleRow row;
  row.seed = 99;
  for (row.position = 0; row.position < 30; ++row.position) {
    double best = -1e300;
    int32_t best_id = -1;
    for (size_t id = 0; id < logits.size(); ++id) {
      const uint32_t word = noise_word(row.seed, row.position, row.choice_idx, static_cast<uint32_t>(id));
      const double score = logits[id] - std::log(-std::log((word + 0.5) * 0x1p-32));
      if (score > best) best = score, best_id = static_cast<int32_t>(id);
    }
    EXPECT_EQ(sample(logits, row).token_id, best_id);
  }
}

}  // namespace
}  // namespace capstan
