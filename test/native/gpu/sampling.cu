// The sampling kernel against the CPU's sampler on the same logits: the ids must be the same on every path.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "cuda/sampling.h"
#include "native/backend/cpu/sample.h"
#include "test/native/gpu/kernel_testing.h"

namespace capstan::testing {
namespace {

// Samples all rows in one call and compares them with the CPU.
void check_rows(const std::vector<float>& logits, int64_t vocab_size, int64_t num_token_ids,
                const std::vector<SampleRow>& rows, const std::string& what) {
  std::vector<SampleResult> got(rows.size());
  {
    const OnDevice<float> device_logits(logits);
    DeviceSampler sampler(vocab_size, vocab_size, num_token_ids, static_cast<int>(rows.size()),
                          static_cast<int>(rows.size()), stream());
    sampler.begin_step();
    sampler.sample(device_logits.get(), rows, got, stream());
    sampler.collect();
  }
  std::vector<SampleResult> all_wanted(rows.size());
  Team team({-1}, false);
  Sampler(kPortableKernels, vocab_size, num_token_ids, team).sample(logits.data(), rows, all_wanted);
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::string which = what + ", row " + std::to_string(i);
    const SampleResult& wanted = all_wanted[i];
    if (got[i].has_numeric_error != wanted.has_numeric_error)
      fail(__FILE__, __LINE__, which + (wanted.has_numeric_error ? ": expected no id" : ": expected an id"));
    if (wanted.has_numeric_error || got[i].has_numeric_error) continue;
    if (got[i].token_id != wanted.token_id)
      fail(__FILE__, __LINE__, which + ": " + show(got[i].token_id) + ", expected " + show(wanted.token_id));
    if (rows[i].num_logprobs < 0) continue;
    EXPECT_EQ(got[i].rank, wanted.rank);
    expect_close(got[i].logprob, wanted.logprob, 1e-4, which);
    EXPECT_EQ(got[i].top.size(), wanted.top.size());
    for (size_t top = 0; top < std::min(got[i].top.size(), wanted.top.size()); ++top)
      EXPECT_EQ(got[i].top[top].token_id, wanted.top[top].token_id);
  }
}

// All sampling parameters.
TEST(kernel_samples_like_the_cpu) {
  const int64_t vocab_size = is_full() ? 151936 : 1000, num_token_ids = vocab_size - 7;
  // The second row is full of ties, which resolve to the lowest ids.
  std::vector<float> logits = noise(5, 2 * vocab_size, 4.0f);
  for (int64_t id = 0; id < vocab_size; ++id)
    logits[static_cast<size_t>(vocab_size + id)] =
        std::min(std::round(logits[static_cast<size_t>(vocab_size + id)] / 4), 2.0f);
  const std::vector<int32_t> prompt_ids = {3, 17, 500}, banned = {9, 10};
  const std::vector<std::pair<int32_t, int32_t>> counts = {{17, 2}, {40, 1}, {990, 5}};
  const std::vector<std::pair<int32_t, float>> bias = {{4, 3.5f}, {5, -80.0f}};
  std::vector<uint32_t> mask(static_cast<size_t>(vocab_size) / 32 + 1, 0x5a5a5a5a);
  std::vector<SampleRow> rows;
  for (int i = 0; i < 200; ++i) {
    SampleRow row;
    row.logits_row = i % 2;
    row.num_logprobs = i % 4 == 0 ? i % 30 : i == 7 ? 100 : -1;
    row.temperature = i % 5 == 0 ? 0.0f : 0.3f + static_cast<float>(i % 7) * 0.4f;
    row.top_k = i % 3 == 0 ? 1 + i % 60 : 0;
    row.top_p = i % 4 == 1 ? 0.1f + static_cast<float>(i % 9) * 0.1f : 1.0f;
    row.min_p = i % 6 == 2 ? 0.05f : 0.0f;
    row.presence_penalty = i % 8 == 3 ? 0.7f : 0.0f;
    row.frequency_penalty = i % 9 == 4 ? 0.4f : 0.0f;
    row.repetition_penalty = i % 7 == 5 ? 1.3f : 1.0f;
    row.seed = static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15ull;
    row.position = static_cast<uint32_t>(i);
    row.counts = {prompt_ids, counts};
    if (i % 5 == 1) row.logit_bias = bias;
    if (i % 5 == 2) row.banned_ids = banned;
    if (i % 5 == 3) row.allowed_mask = mask;
    rows.push_back(row);
  }
  check_rows(logits, vocab_size, num_token_ids, rows, "all parameters");
}

// All paths of the kernel: with and without thresholds, many and few candidates, edited or not.
std::vector<SampleRow> sampling_paths(int64_t count) {
  std::vector<SampleRow> rows;
  const auto add = [&](float temperature, int top_k, float top_p, float min_p) {
    SampleRow row;
    row.temperature = temperature, row.top_k = top_k, row.top_p = top_p, row.min_p = min_p;
    rows.push_back(row);
  };
  add(0, 0, 1, 0);
  add(0.05f, 0, 1, 0), add(0.7f, 0, 1, 0), add(1.6f, 0, 1, 0);
  add(1, 0, 1, 0.05f), add(0.7f, 0, 0.9f, 0.1f);
  for (const float top_p : {0.01f, 0.5f, 0.95f, 0.999f})
    add(1, 0, top_p, 0);
  for (const int top_k : {1, 2, 50, 1000, 1025, 9000, static_cast<int>(count) - 1, static_cast<int>(count)})
    add(1.2f, top_k, 1, 0);
  for (const int top_k : {3, 50, 2000})
    add(0.7f, top_k, 0.8f, 0);
  const size_t num_paths = rows.size();
  for (size_t i = 0; i < num_paths; i += 4)
    rows.push_back(rows[i]), rows.back().num_logprobs = static_cast<int>(i * 3);
  return rows;
}

// With an odd vocabulary, rows start at all offsets from a 16-byte boundary.
void check_paths(const std::string& name, int64_t vocab_size, const std::vector<float>& logits,
                 const std::vector<std::string>& edits) {
  const int64_t num_token_ids = vocab_size > 40 ? vocab_size - 7 : vocab_size;
  const auto num_rows = static_cast<int>(logits.size() / static_cast<size_t>(vocab_size));
  const std::vector<int32_t> prompt_ids = {0, 1, 3, 17, 500}, banned = {0, 2, 9};
  const std::vector<std::pair<int32_t, int32_t>> counts = {{0, 2}, {1, 1}};
  const std::vector<std::pair<int32_t, float>> bias = {{0, 3.5f}, {1, -80.0f}};
  std::vector<uint32_t> mask(static_cast<size_t>(vocab_size) / 32 + 1, 0x5a5a5a5a), last_alone(mask.size()),
      none(mask.size());
  last_alone[static_cast<size_t>(num_token_ids - 1) / 32] = 1u << (num_token_ids - 1) % 32;
  for (const std::string& edit : edits) {
    std::vector<SampleRow> rows = sampling_paths(num_token_ids);
    for (size_t i = 0; i < rows.size(); ++i) {
      SampleRow& row = rows[i];
      row.logits_row = static_cast<int>(i) % num_rows;
      row.seed = i * 0x9e3779b97f4a7c15ull;
      row.position = static_cast<uint32_t>(i);
      if (edit == "mask") row.allowed_mask = mask;
      if (edit == "only the last") row.allowed_mask = last_alone;
      if (edit == "nothing") row.allowed_mask = none;
      if (edit == "bans") row.banned_ids = banned;
      if (edit == "bias") row.logit_bias = bias;
      if (edit != "penalties" || num_token_ids < 2) continue;
      row.repetition_penalty = 1.3f, row.presence_penalty = 0.5f;
      row.counts = {prompt_ids, counts};
    }
    check_rows(logits, vocab_size, num_token_ids, rows, name + " " + std::to_string(vocab_size) + " " + edit);
  }
}

constexpr int kRows = 4;
TEST(kernel_samples_rows_of_every_size) {
  for (const int64_t vocab_size : {1, 3, 33, 20003})
    check_paths("noise", vocab_size, noise(11, kRows * vocab_size, 4.0f),
                {"", "mask", "only the last", "nothing", "bans", "bias", "penalties"});
}

// Also with more candidates than the list can hold.
TEST(kernel_samples_rows_of_every_shape) {
  constexpr int64_t kVocab = 9001;
  const auto check = [](const std::string& name, auto&& change) {
    std::vector<float> logits = noise(11, kRows * kVocab, 4.0f);
    for (size_t i = 0; i < logits.size(); ++i)
      logits[i] = change(logits[i], static_cast<int64_t>(i) % kVocab);
    check_paths(name, kVocab, logits, {""});
  };
  check("flat", [](float value, int64_t) { return 7 + value * 0.01f; });
  check("equal", [](float, int64_t) { return -2.5f; });
  check("ties", [](float value, int64_t) { return std::min(std::round(value / 4), 2.0f); });
  check("one", [](float value, int64_t id) { return id == kVocab / 2 ? 60.0f : value; });
  check("all in one thread", [](float value, int64_t id) { return id % 4096 < 4 ? value + 30 : value; });
  check("far apart", [](float value, int64_t id) { return id % 3 == 0 ? value * 1e30f : value; });
}

// Many seeds: the ids that the kernel skips must never be winners.
TEST(kernel_samples_what_the_cpu_draws) {
  constexpr int64_t kVocab = 5003;
  const std::vector<float> logits = noise(12, kVocab, 2.5f);
  std::vector<SampleRow> rows;
  for (uint32_t i = 0; i < 400; ++i) {
    SampleRow row;
    row.temperature = 0.4f + static_cast<float>(i % 5) * 0.4f;
    row.top_p = i % 3 == 0 ? 0.9f : 1.0f;
    row.top_k = i % 4 == 1 ? 100 : 0;
    row.seed = i / 7;
    row.position = i;
    row.choice_idx = i % 2;
    rows.push_back(row);
  }
  check_rows(logits, kVocab, kVocab, rows, "seeds");
}

TEST(kernel_sampling_reports_non_finite_logits) {
  constexpr int64_t kVocab = 4501, kTokenIds = 4400;
  const std::vector<int32_t> banned = {7};
  for (const float non_finite : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                                 -std::numeric_limits<float>::infinity()})
    for (const int64_t place : {0, 2, 7, 2000, 4399, 4400, 4500}) {
      // The second row is non-finite and does not start at a 16-byte boundary. The first row is finite.
      std::vector<float> logits = noise(5, 2 * kVocab, 1);
      logits[static_cast<size_t>(kVocab + place)] = non_finite;
      std::vector<SampleRow> rows(10);
      for (size_t i = 0; i < rows.size(); ++i) {
        rows[i].logits_row = static_cast<int>(i) % 2;
        rows[i].temperature = i % 4 < 2 ? 0.0f : 1.0f;
        if (i >= 4) rows[i].banned_ids = banned;
        if (i >= 8) rows[i].wants_sample = false, rows[i].target_id = 3, rows[i].num_logprobs = 2;
      }
      check_rows(logits, kVocab, kTokenIds, rows, "non-finite at " + std::to_string(place));
    }
}

}  // namespace
}  // namespace capstan::testing
