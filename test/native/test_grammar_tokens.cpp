// Grammars over tokens: masks, accepting, rollback. The trie, the mask cache and the stacks behind it against brute force.
#include <algorithm>

#include "test/native/grammar_fixture.h"
#include "test/native/testing.h"

namespace capstan::testing {
namespace {

std::vector<uint32_t> mask_of(GrammarMatcher& matcher, const TokenTable& tokens) {
  std::vector<uint32_t> mask(tokens.num_mask_words(), 0xDEADBEEF);
  matcher.fill_mask(mask);
  return mask;
}

// Pieces of JSON as a BPE vocabulary has them: structure glued to text, parts of characters, runs.
std::vector<std::string> json_pieces(std::mt19937& random) {
  std::vector<std::string> pieces;
  for (int byte = 0; byte < 256; ++byte) pieces.emplace_back(1, static_cast<char>(byte));
  const std::vector<std::string> parts = {"{",  "}", "[", "]", ",", ":", "\"", " ", "\n", "a", "name", "true", "null", "12", "0", "-", ".5", "e+", "\\", "\\n", "\\u00", "é", "\xF0\x9F", "\x98\x80", "x y"};
  for (int i = 0; i < 1500; ++i) {
    std::string piece;
    for (size_t n = 2 + random() % 4; n > 0; --n) piece += parts[random() % parts.size()];
    pieces.push_back(piece);
  }
  pieces.push_back("");
  pieces.push_back("true");  // a second token of the same bytes
  pieces.push_back("<eos>");
  return pieces;
}

// Walks random tokens of the masks; at each step every bit must say what accepting the token's bytes says. Returns the number of steps.
int check_masks(const std::shared_ptr<const CompiledGrammar>& grammar, const std::vector<std::string>& pieces, std::mt19937& random, int max_steps) {
  const TokenTable& tokens = *grammar->tokens();
  GrammarMatcher matcher(grammar);
  for (int step = 0; step < max_steps; ++step) {
    const auto mask = mask_of(matcher, tokens);
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < tokens.num_ids(); ++id) {
      const bool is_eos = id == tokens.num_ids() - 1;
      const bool is_allowed = is_eos ? matcher.can_end() : !tokens.bytes_of(id).empty() && GrammarMatcher(matcher).accept_bytes(pieces[static_cast<size_t>(id)]);
      if (has_bit(mask, id) != is_allowed) fail(__FILE__, __LINE__, "token " + show(id) + " at step " + show(step));
      if (is_allowed && !is_eos) allowed.push_back(id);
    }
    if (allowed.empty()) return step;
    const int32_t id = allowed[random() % allowed.size()];
    EXPECT(matcher.accept(id));
  }
  return max_steps;
}

TEST(grammar_masks_agree_with_brute_force) {
  std::mt19937 random(11);
  const auto pieces = json_pieces(random);
  const auto tokens = make_tokens(pieces);
  const std::vector<std::string> grammars = {
      kJsonGbnf,
      "root ::= \"{\\\"name\\\":\\\"\" [a-z ]{0,8} \"\\\",\\\"n\\\":[\" num (\",\" num){1,3} \"]}\"\nnum ::= \"-\"? [0-9]{1,4}",
      "root ::= (word \" \"){2,5} word\nword ::= [a-z]{1,3} | \"[\" word* \"]\"",
      "root ::= item+\nitem ::= \"a\" | \"[\" item{2,3} \"]\" | \"{\" item? \"}\"",
      "root ::= ([a-z]{2} \",\"?){3,40} \"!\"?",
      "root ::= . (\"a\" | \"aa\" | \"name\"){2,4} root?",
  };
  int num_steps = 0;
  for (const std::string& text : grammars) {
    const auto grammar = compile_gbnf(text, tokens);
    for (int walk = 0; walk < 4; ++walk) num_steps += check_masks(grammar, pieces, random, 12);
  }
  EXPECT(num_steps > 150);
}

TEST(grammar_masks_agree_on_random_automata) {
  std::mt19937 random(5);
  auto pieces = all_strings("ab,", 4);
  pieces.push_back("<eos>");
  const auto tokens = make_tokens(pieces);
  const std::vector<std::string> atoms = {"\"a\"", "\"b\"", "\",\"", "[ab]", "x", "x", "y", "\"ab\""};
  const std::vector<std::string> suffixes = {"", "", "", "?", "*", "{2}", "{1,3}", "{2,9}", "{3,}"};
  for (int round = 0; round < 60; ++round) {
    const auto item = [&](size_t num_atoms) { return " " + atoms[random() % num_atoms] + suffixes[random() % suffixes.size()]; };
    const std::string text = "root ::=" + item(8) + item(8) + " |" + item(8) + item(8) + item(8) + "\nx ::= \"a\"" + item(7) + " |" + item(4) + "\ny ::= \"b\" x?" + item(4) + " | x" + item(4) + "\n";
    check_masks(compile_gbnf(text, tokens), pieces, random, 8);
  }
}

TEST(grammar_tokens_accept_what_their_bytes_accept) {
  std::mt19937 random(2);
  const auto pieces = json_pieces(random);
  const auto tokens = make_tokens(pieces);
  const auto json = compile_gbnf(kJsonGbnf, tokens);
  for (int round = 0; round < 30; ++round) {
    const std::string text = random_text(GrammarMatcher(json), random, 40);
    GrammarMatcher matcher(json);
    for (size_t pos = 0; pos < text.size();) {
      std::vector<int32_t> fitting;
      for (int32_t id = 0; id < tokens->num_ids(); ++id) {
        const auto bytes = tokens->bytes_of(id);
        if (!bytes.empty() && text.compare(pos, bytes.size(), bytes) == 0) fitting.push_back(id);
      }
      const int32_t id = fitting[random() % fitting.size()];
      EXPECT(has_bit(mask_of(matcher, *tokens), id));
      EXPECT(matcher.accept(id));
      pos += tokens->bytes_of(id).size();
    }
    EXPECT(matcher.can_end());
  }
}

TEST(grammar_eos_ends_only_complete_texts) {
  const auto tokens = make_tokens({"a", "b", "", "ab", "<special>", "</s>"}, {0, 0, 0, 0, 1, 0});
  GrammarMatcher matcher(compile_gbnf("root ::= \"ab\"+ | \"<special>\" | \"</s>\"", tokens));
  const auto ids = [&] {
    std::string out;
    const auto mask = mask_of(matcher, *tokens);
    for (int64_t id = 0; id < 32; ++id)
      if (has_bit(mask, id)) out += show(id);
    return out;
  };
  EXPECT_EQ(ids(), std::string("03"));
  EXPECT(!matcher.accept(5));
  EXPECT(!matcher.accept(2));
  EXPECT(!matcher.accept(4));
  EXPECT(!matcher.accept(-1));
  EXPECT(!matcher.accept(6));
  EXPECT(matcher.accept(3));
  EXPECT_EQ(ids(), std::string("035"));
  EXPECT(matcher.accept(0));
  EXPECT_EQ(ids(), std::string("1"));
  EXPECT(!matcher.accept(3));
  EXPECT(matcher.accept(1));
  EXPECT(matcher.accept(5));
  EXPECT(matcher.is_terminated());
  EXPECT(!matcher.can_end());
  EXPECT(!matcher.accept(3));
  EXPECT_EQ(ids(), std::string(""));
}

TEST(grammar_that_matches_only_nothing_allows_only_eos) {
  const auto tokens = make_tokens({"a", "</s>"});
  GrammarMatcher matcher(compile_gbnf("root ::= \"\"", tokens));
  EXPECT(matcher.can_end());
  EXPECT_EQ(mask_of(matcher, *tokens)[0], 2u);
}

TEST(grammar_rollback_and_copies_return_to_the_same_masks) {
  std::mt19937 random(9);
  const auto pieces = json_pieces(random);
  const auto tokens = make_tokens(pieces);
  GrammarMatcher matcher(compile_gbnf(kJsonGbnf, tokens));
  std::vector<std::vector<uint32_t>> masks;
  const std::vector<int32_t> ids = {'[', '{', '"', 'k', '"', ':', '1', '}', ',', '"', 'v', '"', ']', static_cast<int32_t>(pieces.size()) - 1};
  for (const int32_t id : ids) {
    masks.push_back(mask_of(matcher, *tokens));
    EXPECT(matcher.accept(id));
  }
  EXPECT(!matcher.rollback(GrammarMatcher::kMaxRollback + 2));
  GrammarMatcher copy = matcher;
  EXPECT(copy.rollback(4));
  EXPECT(mask_of(copy, *tokens) == masks[ids.size() - 4]);
  EXPECT(matcher.is_terminated());
  for (size_t n = ids.size(); n > 0; --n) {
    EXPECT(matcher.rollback(1));
    EXPECT(mask_of(matcher, *tokens) == masks[n - 1]);
  }
  EXPECT(!matcher.rollback(1));
}

TEST(grammar_stacks_survive_compaction) {
  const auto tokens = make_tokens({"[", "]", "1", ",", "[1,", "],", "</s>"});
  // Elements are counted, so every one of them makes new stacks.
  const auto grammar = compile_gbnf("root ::= \"[\" (root \",\" | \"1,\"){0,1000000} \"1\"? \"]\"", tokens);
  GrammarMatcher matcher(grammar);
  constexpr int kDepth = 30;
  for (int i = 0; i < kDepth; ++i) EXPECT(matcher.accept(0));
  for (int i = 0; i < 60'000; ++i) EXPECT(matcher.accept_bytes("[],"));
  EXPECT_EQ(matcher.bytes_to_end(), uint64_t{2 * kDepth - 1});
  EXPECT(matcher.rollback(3));
  EXPECT(matcher.accept(4));
  EXPECT(matcher.accept(1));
  for (int i = 1; i < kDepth; ++i) EXPECT(matcher.accept_bytes(",]"));
  EXPECT(!matcher.can_end());
  EXPECT(matcher.accept_bytes(",]"));
  EXPECT(matcher.can_end());
}

}  // namespace
}  // namespace capstan::testing
