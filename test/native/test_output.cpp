#include <random>

#include "native/engine/output.h"
#include "test/native/testing.h"

namespace capstan {
namespace {

struct Result {
  std::string text;
  int stop_idx = -1;
  std::vector<std::string> deltas;
};

// Adds `pieces` as tokens. Ends at a stop string, as the engine does.
Result run(const std::vector<std::string>& pieces, const std::vector<std::string>& stops, bool includes_stop = false,
           bool strips_space = false) {
  TextOutput output(stops, includes_stop, strips_space);
  Result result;
  for (const std::string& piece : pieces) {
    result.stop_idx = output.add(piece, true);
    result.deltas.push_back(output.take());
    if (result.stop_idx >= 0) break;
  }
  output.finish();
  result.deltas.push_back(output.take());
  for (const std::string& delta : result.deltas)
    result.text += delta;
  return result;
}

bool is_complete_utf8(const std::string& text) {
  for (size_t i = 0; i < text.size();) {
    const auto first = static_cast<uint8_t>(text[i]);
    const size_t length = first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
    if ((first & 0xC0) == 0x80 || i + length > text.size()) return false;
    i += length;
  }
  return true;
}

std::vector<std::string> random_split(const std::string& text, std::mt19937& random) {
  std::vector<std::string> pieces;
  for (size_t i = 0; i < text.size();) {
    const size_t length = std::min<size_t>(text.size() - i, random() % 4);
    pieces.push_back(text.substr(i, length));
    i += length;
  }
  return pieces;
}

TEST(output_holds_back_split_characters) {
  const Result result = run({"a\xF0\x9F", "\x98\x80", "b"}, {});
  EXPECT_EQ(result.deltas[0], std::string("a"));
  EXPECT_EQ(result.deltas[1], std::string("\xF0\x9F\x98\x80"));
  EXPECT_EQ(result.text, std::string("a\xF0\x9F\x98\x80"
                                     "b"));
}

TEST(output_replaces_invalid_utf8) {
  const std::string bad = "\xEF\xBF\xBD";
  EXPECT_EQ(run({"\xFF", "x"}, {}).text, bad + "x");
  EXPECT_EQ(run({"\xE2\x82"}, {}).text, bad);                  // incomplete at the end
  EXPECT_EQ(run({"\xE2\x82", "A"}, {}).text, bad + "A");       // one per longest prefix of a character
  EXPECT_EQ(run({"\xC0\x80"}, {}).text, bad + bad);            // overlong
  EXPECT_EQ(run({"\xED\xA0\x80"}, {}).text, bad + bad + bad);  // a surrogate
}

TEST(output_finds_stop_strings_across_tokens) {
  const Result result = run({"hel", "lo EN", "D of", " it"}, {"END"});
  EXPECT_EQ(result.text, std::string("hello "));
  EXPECT_EQ(result.stop_idx, 0);
  EXPECT_EQ(run({"hel", "lo EN", "D of"}, {"END"}, true).text, std::string("hello END"));
}

TEST(output_holds_back_only_text_that_may_become_a_stop_string) {
  const Result result = run({"x", "aab", "aa", "c"}, {"aabaab"});
  EXPECT_EQ(result.deltas[0], std::string("x"));
  EXPECT_EQ(result.deltas[1], std::string(""));
  EXPECT_EQ(result.deltas[2], std::string(""));
  EXPECT_EQ(result.text, std::string("xaabaac"));
}

TEST(output_releases_held_text_at_the_end) {
  EXPECT_EQ(run({"so ", "EN"}, {"END"}).text, std::string("so EN"));
}

TEST(output_takes_the_first_stop_string_of_several) {
  const Result result = run({"one two three"}, {"three", "two"});
  EXPECT_EQ(result.stop_idx, 1);
  EXPECT_EQ(result.text, std::string("one "));
  // Two end at the same byte: the longer one wins, because it began first.
  EXPECT_EQ(run({"abcd"}, {"cd", "bcd"}).text, std::string("a"));
}

TEST(output_strips_one_leading_space) {
  EXPECT_EQ(run({"", " a", " b"}, {}, false, true).text, std::string("a b"));
  EXPECT_EQ(run({"a", " b"}, {}, false, true).text, std::string("a b"));
}

TEST(output_is_the_same_for_any_split) {
  std::mt19937 random(7);
  const std::string whole =
      "caf\xC3\xA9 \xF0\x9F\x98\x80\xF0\x9F\x98\x81 stop \xE4\xBD\xA0\xE5\xA5\xBD stomp \xC3\xA9nd <|stop|> tail";
  const std::vector<std::vector<std::string>> stop_sets = {
      {}, {"<|stop|>"}, {"\xE4\xBD\xA0\xE5\xA5\xBD"}, {"stomper", "tails"}, {"\xF0\x9F\x98\x81 s"}};
  for (const auto& stops : stop_sets) {
    const Result reference = run({whole}, stops);
    for (int round = 0; round < 300; ++round) {
      const Result result = run(random_split(whole, random), stops);
      EXPECT_EQ(result.text, reference.text);
      EXPECT_EQ(result.stop_idx, reference.stop_idx);
      for (const std::string& delta : result.deltas)
        EXPECT(is_complete_utf8(delta));
    }
  }
}

}  // namespace
}  // namespace capstan
