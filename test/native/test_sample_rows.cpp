// The sampler against a plain reference in double precision, over many shapes of rows and all parameters. Every
// instruction set and number of threads must give the same bits.
#include <algorithm>
#include <bit>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>

#include "native/backend/cpu/isa.h"
#include "native/backend/cpu/sample.h"
#include "native/base/random.h"
#include "test/native/testing.h"

namespace capstan {
namespace {

using Random = std::mt19937;

int64_t random_int(Random& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}
float random_float(Random& random, float low, float high) {
  return std::uniform_real_distribution<float>(low, high)(random);
}
bool happens(Random& random, double probability) {
  return std::bernoulli_distribution(probability)(random);
}

// ---- the reference ----

struct Reference {
  bool has_numeric_error = false;
  std::optional<int32_t> token_id;  // not set when rounding may decide
  double logprob = 0;
  int32_t rank = 0;
  std::vector<std::pair<int32_t, double>> top;
};

std::vector<float> reference_scores(std::span<const float> logits, const SampleRow& row) {
  std::vector<float> scores(logits.begin(), logits.end());
  const auto repeat = [&](float& score) {
    score = score > 0 ? score / row.repetition_penalty : score * row.repetition_penalty;
  };
  for (size_t id = 0; id < scores.size(); ++id)
    if (!row.allowed_mask.empty() && (row.allowed_mask[id / 32] >> (id % 32) & 1) == 0) scores[id] = kMasked;
  for (const int32_t id : row.banned_ids)
    scores[static_cast<size_t>(id)] = kMasked;
  for (const auto& [id, bias] : row.logit_bias)
    scores[static_cast<size_t>(id)] += bias;
  for (const int32_t id : row.counts.prompt_ids)
    repeat(scores[static_cast<size_t>(id)]);
  for (const auto& [id, times] : row.counts.completion_counts) {
    float& score = scores[static_cast<size_t>(id)];
    if (std::ranges::find(row.counts.prompt_ids, id) == row.counts.prompt_ids.end()) repeat(score);
    score -= row.presence_penalty + row.frequency_penalty * static_cast<float>(times);
  }
  if (row.temperature != 0)
    for (float& score : scores)
      score /= row.temperature;
  return scores;
}

// Ids that are not masked, the best first.
std::vector<int32_t> ranked_ids(std::span<const float> scores) {
  std::vector<int32_t> ids;
  for (size_t id = 0; id < scores.size(); ++id)
    if (scores[id] != kMasked) ids.push_back(static_cast<int32_t>(id));
  std::ranges::stable_sort(
      ids, [&](int32_t a, int32_t b) { return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)]; });
  return ids;
}

// Returns how many of `ids` reach top_p.
size_t count_top_p(std::span<const float> scores, std::span<const int32_t> ids, double top_p) {
  const auto mass = [&](int32_t id) {
    return std::exp(static_cast<double>(scores[static_cast<size_t>(id)]) - scores[static_cast<size_t>(ids[0])]);
  };
  double total = 0, reached = 0;
  for (const int32_t id : ids)
    total += mass(id);
  for (size_t i = 0; i < ids.size(); ++i)
    if ((reached += mass(ids[i])) >= top_p * total) return i + 1;
  return ids.size();
}

int32_t draw_among(std::span<const float> scores, std::span<const int32_t> ids, const SampleRow& row) {
  double best = -std::numeric_limits<double>::infinity();
  int32_t best_id = -1;
  for (const int32_t id : ids) {
    const uint32_t word = noise_word(row.seed, row.position, row.choice_idx, static_cast<uint32_t>(id));
    const double noisy = scores[static_cast<size_t>(id)] - std::log(-std::log((word + 0.5) * 0x1p-32));
    if (noisy > best || (noisy == best && id < best_id)) best = noisy, best_id = id;
  }
  return best_id;
}

void set_token(std::span<const float> logits, const SampleRow& row, Reference& result) {
  const std::vector<float> scores = reference_scores(logits, row);
  std::vector<int32_t> ids = ranked_ids(scores);
  result.has_numeric_error = ids.empty();
  if (ids.empty()) return;
  if (row.temperature == 0) {
    result.token_id = ids[0];
    return;
  }
  if (row.top_k > 0 && static_cast<size_t>(row.top_k) < ids.size()) ids.resize(static_cast<size_t>(row.top_k));
  size_t least = ids.size(), most = ids.size();
  if (row.top_p < 1) {
    constexpr double kRounding = 2e-6;
    least = count_top_p(scores, ids, row.top_p - kRounding);
    most = count_top_p(scores, ids, row.top_p + kRounding);
    // Rounding cannot decide among equal scores whose masses are exact.
    if (scores[static_cast<size_t>(ids[0])] == scores[static_cast<size_t>(ids.back())])
      least = most = count_top_p(scores, ids, row.top_p);
  }
  const float floor = row.min_p > 0 ? scores[static_cast<size_t>(ids[0])] + std::log(row.min_p) : kMasked;
  const auto drawn = [&](size_t count) {
    while (scores[static_cast<size_t>(ids[count - 1])] < floor)
      --count;
    return draw_among(scores, std::span(ids).first(count), row);
  };
  const int32_t id = drawn(least);
  if (most == least || drawn(most) == id) result.token_id = id;
}

void set_logprobs(std::span<const float> logits, const SampleRow& row, int32_t token_id, Reference& result) {
  const double best = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits)
    sum += std::exp(logit - best);
  const double normalizer = best + std::log(sum);
  const std::vector<int32_t> ids = ranked_ids(logits);
  result.logprob = logits[static_cast<size_t>(token_id)] - normalizer;
  result.rank = static_cast<int32_t>(std::ranges::find(ids, token_id) - ids.begin()) + 1;
  for (size_t i = 0; i < std::min(ids.size(), static_cast<size_t>(row.num_logprobs)); ++i)
    result.top.emplace_back(ids[i], logits[static_cast<size_t>(ids[i])] - normalizer);
}

// ---- the samplers ----

bool are_equal(const SampleResult& a, const SampleResult& b, const SampleRow& row) {
  if (a.has_numeric_error || b.has_numeric_error) return a.has_numeric_error == b.has_numeric_error;
  if (a.token_id != b.token_id) return false;
  if (row.num_logprobs < 0) return true;
  const auto same = [](const TokenLogprob& x, const TokenLogprob& y) {
    return x.token_id == y.token_id && std::bit_cast<uint32_t>(x.logprob) == std::bit_cast<uint32_t>(y.logprob);
  };
  return std::bit_cast<uint32_t>(a.logprob) == std::bit_cast<uint32_t>(b.logprob) && a.rank == b.rank &&
         std::ranges::equal(a.top, b.top, same);
}

// One sampler for each instruction set and number of threads.
class Samplers {
 public:
  Samplers(int64_t vocab_size, int64_t num_token_ids) {
    static Team one({-1}, false), two({-1, -1}, false), four({-1, -1, -1, -1}, false);
    for (const CpuIsa isa : available_cpu_isas())
      for (Team* team : {&one, &two, &four})
        samplers_.push_back({std::string(cpu_isa_name(isa)) + " with " + std::to_string(team->size()) + " threads",
                             std::make_unique<Sampler>(cpu_kernels(isa), vocab_size, num_token_ids, *team)});
  }

  // Samples all rows in one call. Expects the same bits from all samplers.
  std::vector<SampleResult> sample(const std::vector<float>& logits, const std::vector<SampleRow>& rows,
                                   const std::string& what) {
    std::vector<SampleResult> first(rows.size());
    for (size_t i = 0; i < samplers_.size(); ++i) {
      std::vector<SampleResult> results(rows.size());
      samplers_[i].sampler->sample(logits.data(), rows, results);
      if (i == 0) first = results;
      for (size_t row = 0; row < rows.size(); ++row)
        if (!are_equal(results[row], first[row], rows[row]))
          testing::fail(
              __FILE__, __LINE__,
              what + ", row " + std::to_string(row) + ": " + samplers_[i].name + " differs from " + samplers_[0].name);
    }
    return first;
  }

 private:
  struct Named {
    std::string name;
    std::unique_ptr<Sampler> sampler;
  };
  std::vector<Named> samplers_;
};

// Expects what the reference computes. Returns false when rounding may decide which token is drawn.
bool check_result(const SampleResult& got, std::span<const float> logits, int64_t num_token_ids, const SampleRow& row,
                  const std::string& what) {
  Reference wanted;
  wanted.has_numeric_error = !std::ranges::all_of(logits, [](float logit) { return std::isfinite(logit); });
  if (!wanted.has_numeric_error && row.wants_sample)
    set_token(logits.first(static_cast<size_t>(num_token_ids)), row, wanted);
  const auto expect = [&](bool is_right, const std::string& field) {
    if (!is_right) testing::fail(__FILE__, __LINE__, what + ": wrong " + field);
  };
  expect(got.has_numeric_error == wanted.has_numeric_error, "numeric error");
  if (got.has_numeric_error || wanted.has_numeric_error) return true;
  if (!row.wants_sample) wanted.token_id = row.target_id;
  if (wanted.token_id)
    expect(got.token_id == *wanted.token_id,
           "token " + std::to_string(got.token_id) + ", not " + std::to_string(*wanted.token_id));
  if (row.num_logprobs < 0) return wanted.token_id.has_value();
  set_logprobs(logits, row, got.token_id, wanted);
  const auto is_close = [](double a, double b) { return std::abs(a - b) <= 2e-6 * std::max(1.0, std::abs(b)); };
  expect(is_close(got.logprob, wanted.logprob), "log-probability");
  expect(got.rank == wanted.rank, "rank");
  expect(got.top.size() == wanted.top.size(), "number of log-probabilities");
  for (size_t i = 0; i < std::min(got.top.size(), wanted.top.size()); ++i)
    expect(got.top[i].token_id == wanted.top[i].first && is_close(got.top[i].logprob, wanted.top[i].second),
           "log-probability " + std::to_string(i));
  return wanted.token_id.has_value();
}

// ---- rows ----

const char* const kShapes[] = {"flat",   "narrow",  "peaked",    "equal", "ties",      "two values",
                               "rising", "falling", "far apart", "zeros", "near zero", "outlier"};

std::vector<float> make_logits(const std::string& shape, int64_t count, Random& random) {
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> logits(static_cast<size_t>(count));
  for (size_t id = 0; id < logits.size(); ++id) {
    const float noise = normal(random), place = static_cast<float>(id) / static_cast<float>(count);
    float& logit = logits[id];
    if (shape == "flat") logit = noise * 0.5f;
    if (shape == "narrow") logit = 7 + noise * 0.01f;
    if (shape == "peaked") logit = noise * 2.5f + (id % 5000 == 7 ? 18.0f : 0.0f);
    if (shape == "equal") logit = -2.5f;
    if (shape == "ties") logit = std::round(noise * 2);
    if (shape == "two values") logit = noise > 1 ? 1.0f : 0.5f;
    if (shape == "rising") logit = place * 4;
    if (shape == "falling") logit = -place * 4;
    if (shape == "far apart") logit = id % 3 == 0 ? noise * 1e30f : noise;
    if (shape == "zeros") logit = noise > 0 ? 0.0f : -0.0f;
    if (shape == "near zero") logit = noise * 1e-20f;
    if (shape == "outlier") logit = 3 + noise * 0.001f + (id == logits.size() / 2 ? 12.0f : 0.0f);
  }
  return logits;
}

// A row with its lists.
struct OwnedRow {
  SampleRow row;
  std::vector<int32_t> prompt_ids, banned_ids;
  std::vector<std::pair<int32_t, int32_t>> completion_counts;
  std::vector<std::pair<int32_t, float>> logit_bias;
  std::vector<uint32_t> allowed_mask;
};

std::vector<int32_t> random_ids(Random& random, int64_t num_token_ids) {
  std::vector<int32_t> ids;
  for (int64_t i = random_int(random, 1, 20); i > 0; --i)
    ids.push_back(static_cast<int32_t>(random_int(random, 0, num_token_ids - 1)));
  std::ranges::sort(ids);
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

std::unique_ptr<OwnedRow> random_row(Random& random, int64_t vocab_size, int64_t num_token_ids) {
  auto owned = std::make_unique<OwnedRow>();
  SampleRow& row = owned->row;
  const auto any_id = [&] { return static_cast<int32_t>(random_int(random, 0, num_token_ids - 1)); };
  row.wants_sample = happens(random, 0.95);
  row.target_id = any_id();
  if (happens(random, 0.3))
    row.num_logprobs = static_cast<int>(random_int(random, 0, happens(random, 0.1) ? 2000 : 25));
  row.temperature = happens(random, 0.15) ? 0.0f : happens(random, 0.4) ? 1.0f : random_float(random, 0.1f, 2);
  if (happens(random, 0.35))
    row.top_k = static_cast<int>(random_int(random, 1, happens(random, 0.3) ? num_token_ids + 1 : 60));
  if (happens(random, 0.45)) row.top_p = happens(random, 0.3) ? 0.99f : random_float(random, 0.01f, 0.9999f);
  if (happens(random, 0.2)) row.min_p = random_float(random, 0.001f, 0.5f);
  row.seed = static_cast<uint64_t>(random()) << 32 | random();
  row.position = random();
  row.choice_idx = random() % 4;
  if (happens(random, 0.2)) {
    const bool is_sparse = happens(random, 0.4);
    for (int64_t word = 0; word < (vocab_size + 31) / 32; ++word)
      owned->allowed_mask.push_back(is_sparse ? 0 : random());
    const int32_t allowed = any_id();
    if (happens(random, 0.95)) owned->allowed_mask[static_cast<size_t>(allowed) / 32] |= 1u << allowed % 32;
    row.allowed_mask = owned->allowed_mask;
  }
  if (happens(random, 0.1)) row.banned_ids = owned->banned_ids = random_ids(random, num_token_ids);
  if (happens(random, 0.1)) {
    for (const int32_t id : random_ids(random, num_token_ids))
      owned->logit_bias.emplace_back(id, random_float(random, -5, 5));
    row.logit_bias = owned->logit_bias;
  }
  if (happens(random, 0.2)) {
    owned->prompt_ids = random_ids(random, num_token_ids);
    for (const int32_t id : random_ids(random, num_token_ids))
      owned->completion_counts.emplace_back(id, static_cast<int32_t>(random_int(random, 1, 5)));
    row.counts = {owned->prompt_ids, owned->completion_counts};
    row.repetition_penalty = happens(random, 0.5) ? 1.0f : random_float(random, 0.5f, 2);
    row.presence_penalty = random_float(random, -2, 2);
    row.frequency_penalty = random_float(random, -2, 2);
  }
  return owned;
}

// Samples `num_rows` random rows of each shape.
void check_random_rows(int64_t vocab_size, int num_rows, uint32_t seed) {
  Random random(seed);
  const int64_t num_token_ids = vocab_size - random_int(random, 0, std::min<int64_t>(vocab_size - 1, 300));
  Samplers samplers(vocab_size, num_token_ids);
  int num_sampled = 0, num_decided = 0;
  for (const std::string shape : kShapes) {
    const std::vector<float> logits = make_logits(shape, vocab_size, random);
    std::vector<std::unique_ptr<OwnedRow>> owned;
    std::vector<SampleRow> rows;
    for (int i = 0; i < num_rows; ++i) {
      owned.push_back(random_row(random, vocab_size, num_token_ids));
      rows.push_back(owned.back()->row);
    }
    const std::string what = std::to_string(vocab_size) + " logits, " + shape;
    const std::vector<SampleResult> results = samplers.sample(logits, rows, what);
    for (size_t i = 0; i < rows.size(); ++i) {
      num_decided += check_result(results[i], logits, num_token_ids, rows[i], what + ", row " + std::to_string(i));
      ++num_sampled;
    }
  }
  EXPECT(num_decided >= num_sampled * 9 / 10);
}

TEST(sampling_of_small_random_rows_equals_the_reference) {
  for (const int64_t vocab_size : {1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 255, 256, 257, 1000})
    check_random_rows(vocab_size, 120, static_cast<uint32_t>(vocab_size));
}

TEST(sampling_of_medium_random_rows_equals_the_reference) {
  for (const int64_t vocab_size : {4095, 4096, 4097, 8192, 20003})
    check_random_rows(vocab_size, 20, static_cast<uint32_t>(vocab_size));
}

// Threads share these rows. An odd number of rows leaves one to share after each thread has had its own.
TEST(sampling_of_large_random_rows_equals_the_reference) {
  for (const int64_t vocab_size : {32768, 50257, 152000})
    check_random_rows(vocab_size, 7, static_cast<uint32_t>(vocab_size));
}

TEST(rows_of_a_large_vocabulary_are_shared_by_all_threads) {
  for (uint32_t seed = 0; seed < 4; ++seed)
    check_random_rows(50257, 1, seed);
}

// Denormal numbers count as zeros in all parts of the sampler, also where one thread works for all.
TEST(every_sampler_flushes_denormal_logits) {
  constexpr int64_t kVocab = 40000;
  Samplers samplers(kVocab, kVocab);
  Random random(1);
  std::vector<float> logits = make_logits("flat", kVocab, random);
  for (float& logit : logits)
    logit = -std::abs(logit) * 1e-39f;
  logits[0] = -1;
  std::vector<SampleRow> rows(5);
  rows[0].temperature = 0;
  rows[1].top_k = 5;
  rows[2].top_p = 0.3f;
  rows[3].repetition_penalty = 1.5f;
  rows[4].num_logprobs = 3;
  for (size_t i = 0; i < rows.size(); ++i) {
    const SampleResult alone = samplers.sample(logits, {rows[i]}, "denormal logits")[0];
    EXPECT(alone.token_id > 0 && alone.token_id < kVocab);
    if (i == 0) EXPECT_EQ(alone.token_id, 1);
    if (i == 1) EXPECT(alone.token_id <= 5);
    if (i == 4) EXPECT_EQ(alone.top[0].token_id, 1);
  }
  samplers.sample(logits, rows, "denormal logits");
}

TEST(every_sampler_reports_a_logit_that_is_not_finite) {
  constexpr int64_t kVocab = 40000, kTokenIds = 39000;
  Samplers samplers(kVocab, kTokenIds);
  Random random(1);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()})
    for (const size_t place : {size_t{0}, size_t{15}, size_t{4096}, size_t{38999}, size_t{39000}, size_t{39999}}) {
      std::vector<float> logits = make_logits("flat", 2 * kVocab, random);
      logits[kVocab + place] = bad;
      // The ids that are not finite are masked in the last rows. They are still reported.
      const std::vector<uint32_t> mask(kVocab / 32, 0x00010000);
      std::vector<SampleRow> rows(10);
      for (size_t i = 0; i < rows.size(); ++i) {
        rows[i].logits_row = static_cast<int>(i) % 2;
        rows[i].temperature = i < 4 ? 0.0f : 0.8f;
        if (i >= 6) rows[i].allowed_mask = mask;
        if (i >= 8) rows[i].wants_sample = false, rows[i].target_id = 5, rows[i].num_logprobs = 3;
      }
      const std::vector<SampleResult> results = samplers.sample(logits, rows, "a bad logit");
      for (size_t i = 0; i < rows.size(); ++i)
        EXPECT_EQ(results[i].has_numeric_error, i % 2 == 1);
    }
}

// Scores this large leave only the integer part of the noise, so that many noisy scores are equal.
TEST(equal_noisy_scores_go_to_the_lowest_id) {
  constexpr int64_t kVocab = 2000;
  Samplers samplers(kVocab, kVocab);
  const std::vector<float> logits(kVocab, 0x1p52f);
  std::vector<int32_t> ids(kVocab);
  std::iota(ids.begin(), ids.end(), 0);
  std::vector<SampleRow> rows(20);
  for (size_t i = 0; i < rows.size(); ++i)
    rows[i].position = static_cast<uint32_t>(i);
  const std::vector<SampleResult> results = samplers.sample(logits, rows, "equal noisy scores");
  for (size_t i = 0; i < rows.size(); ++i)
    EXPECT_EQ(results[i].token_id, draw_among(logits, ids, rows[i]));
}

// With equal logits, the largest noise word wins, so that every lane of the vector Philox shows.
TEST(vector_noise_equals_philox) {
  constexpr int64_t kVocab = 1000;
  Samplers samplers(kVocab, kVocab);
  const std::vector<float> logits(kVocab, 1.0f);
  std::vector<SampleRow> rows(300);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].seed = i * 0x9e3779b97f4a7c15u;
    rows[i].position = static_cast<uint32_t>(i * 0x9e3779b9);
    rows[i].choice_idx = static_cast<uint32_t>(i % 5);
  }
  const std::vector<SampleResult> results = samplers.sample(logits, rows, "equal logits");
  for (size_t i = 0; i < rows.size(); ++i) {
    std::vector<uint32_t> words;
    for (uint32_t id = 0; id < kVocab; ++id)
      words.push_back(noise_word(rows[i].seed, rows[i].position, rows[i].choice_idx, id));
    EXPECT_EQ(results[i].token_id, static_cast<int32_t>(std::ranges::max_element(words) - words.begin()));
  }
}

}  // namespace
}  // namespace capstan
