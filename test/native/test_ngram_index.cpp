// Prompt look-up: which tokens are proposed, and when none are.
#include <algorithm>
#include <random>

#include "native/engine/ngram_index.h"
#include "test/native/testing.h"

namespace capstan {
namespace {

using Ids = std::vector<int32_t>;

Ids proposed(const NgramIndex& index, const Ids& tokens, int count) {
  Ids ids;
  index.propose(tokens, count, ids);
  return ids;
}

// The place of the longest end of `tokens` that occurred before, the most recent one if there are several, or 0.
int best_place(const Ids& tokens, int min_ngram, int max_ngram) {
  const int end = static_cast<int>(tokens.size());
  for (int length = std::min(max_ngram, end - 1); length >= min_ngram; --length)
    for (int place = end - 1; place >= length; --place)
      if (std::equal(tokens.begin() + place - length, tokens.begin() + place, tokens.end() - length)) return place;
  return 0;
}

TEST(ngram_index_finds_the_longest_and_most_recent_place) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    const int min_ngram = 1 + static_cast<int>(random() % 3), max_ngram = min_ngram + static_cast<int>(random() % 4);
    NgramIndex index({.num_tokens = 4, .max_ngram = max_ngram, .min_ngram = min_ngram});
    const auto num_ids = 6 + random() % 30;
    Ids tokens;
    // At most kMaxCandidates + 1 tokens, so that the look-up compares all places.
    while (tokens.size() < NgramIndex::kMaxCandidates + 1) {
      for (auto left = 1 + random() % 3; left > 0; --left)
        tokens.push_back(static_cast<int32_t>(random() % num_ids));
      index.update(tokens, 0);
      const int place = best_place(tokens, min_ngram, max_ngram);
      if (place == 0)
        EXPECT_EQ(index.num_proposed(), 0);
      else
        EXPECT_EQ(proposed(index, tokens, 1)[0], tokens[static_cast<size_t>(place)]);
    }
  }
}

TEST(ngram_index_continues_a_repetition_beyond_the_known_tokens) {
  NgramIndex index({.num_tokens = 8, .max_ngram = 3, .min_ngram = 2});
  const Ids tokens = {9, 1, 2, 3, 1, 2, 3, 1, 2};
  index.update(tokens, static_cast<int>(tokens.size()));
  EXPECT(proposed(index, tokens, 7) == (Ids{3, 1, 2, 3, 1, 2, 3}));
}

// Tokens arrive one by one or many at once, and the index grows several times.
TEST(ngram_index_does_not_depend_on_the_size_of_updates) {
  const SpeculationOptions options{.num_tokens = 4, .max_ngram = 3, .min_ngram = 2};
  std::mt19937 random(5);
  Ids tokens;
  for (int i = 0; i < 3000; ++i)
    tokens.push_back(static_cast<int32_t>(random() % 40));
  NgramIndex at_once(options), one_by_one(options);
  at_once.update(tokens, 100);
  for (size_t count = 100; count <= tokens.size(); ++count)
    one_by_one.update(std::span(tokens).first(count), 100);
  EXPECT_EQ(at_once.num_proposed(), one_by_one.num_proposed());
  if (at_once.num_proposed() > 0) EXPECT(proposed(at_once, tokens, 4) == proposed(one_by_one, tokens, 4));
}

TEST(ngram_index_stops_when_predictions_fail_and_returns_when_they_hold) {
  NgramIndex index({.num_tokens = 6, .max_ngram = 1, .min_ngram = 1});
  Ids tokens = {1};
  const auto add = [&](int32_t id) {
    tokens.push_back(id);
    index.update(tokens, 1);
  };
  // Token 1 is always followed by another token than the last time.
  int num_rounds = 0;
  for (; num_rounds < 100 && (num_rounds < 2 || index.num_proposed() > 0); ++num_rounds) {
    add(100 + num_rounds);
    add(1);
  }
  EXPECT(num_rounds > 2 && num_rounds < 8);
  // Nothing was proposed, but the predictions hold from now on.
  for (int i = 0; i < 20; ++i)
    add(1);
  EXPECT_EQ(index.num_proposed(), 6);
}

}  // namespace
}  // namespace capstan
