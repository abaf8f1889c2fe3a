// Grammars over tokens: masks, accepting and rollback. Compares the trie, the mask cache and the stacks with brute
// force.
#include <algorithm>

#include "native/grammar/mask_store.h"

#include "test/native/grammar_fixture.h"
#include "test/native/testing.h"

namespace capstan::testing {
namespace {

std::vector<uint32_t> mask_of(GrammarMatcher& matcher, const TokenTable& tokens) {
  std::vector<uint32_t> mask(tokens.num_mask_words(), 0xDEADBEEF);
  matcher.fill_mask(mask);
  return mask;
}

// Returns pieces of JSON like those of a BPE vocabulary: punctuation joined to text, parts of characters, runs.
std::vector<std::string> json_pieces(std::mt19937& random) {
  std::vector<std::string> pieces;
  for (int byte = 0; byte < 256; ++byte)
    pieces.emplace_back(1, static_cast<char>(byte));
  const std::vector<std::string> parts = {"{",  "}",    "[",     "]",    ",",        ":",        "\"", " ",  "\n",
                                          "a",  "name", "true",  "null", "12",       "0",        "-",  ".5", "e+",
                                          "\\", "\\n",  "\\u00", "é",    "\xF0\x9F", "\x98\x80", "x y"};
  for (int i = 0; i < 1500; ++i) {
    std::string piece;
    for (size_t n = 2 + random() % 4; n > 0; --n)
      piece += parts[random() % parts.size()];
    pieces.push_back(piece);
  }
  pieces.push_back("");
  pieces.push_back("true");  // a second token of the same bytes
  pieces.push_back("<eos>");
  return pieces;
}

// Walks along random allowed tokens. At each step, the bit of every token must equal the result of accepting it.
// Returns the number of steps.
int check_masks(const std::shared_ptr<const CompiledGrammar>& grammar, const std::vector<std::string>& pieces,
                std::mt19937& random, int max_steps) {
  const TokenTable& tokens = *grammar->tokens();
  GrammarMatcher matcher(grammar);
  for (int step = 0; step < max_steps; ++step) {
    const auto mask = mask_of(matcher, tokens);
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < tokens.num_ids(); ++id) {
      const bool is_allowed = GrammarMatcher(matcher).accept(id);
      if (has_bit(mask, id) != is_allowed)
        fail(__FILE__, __LINE__, "token \"" + pieces[static_cast<size_t>(id)] + "\" at step " + show(step));
      if (is_allowed && !tokens.is_eos(id)) allowed.push_back(id);
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
    for (int walk = 0; walk < 4; ++walk)
      num_steps += check_masks(grammar, pieces, random, 12);
  }
  EXPECT(num_steps > 150);
}

TEST(grammar_masks_of_random_automata_agree_with_brute_force) {
  std::mt19937 random(5);
  auto pieces = all_strings("ab,", 4);
  pieces.push_back("<eos>");
  const auto tokens = make_tokens(pieces);
  const std::vector<std::string> atoms = {"\"a\"", "\"b\"", "\",\"", "[ab]", "x", "x", "y", "\"ab\""};
  const std::vector<std::string> suffixes = {"", "", "", "?", "*", "{2}", "{1,3}", "{2,9}", "{3,}"};
  for (int round = 0; round < 60; ++round) {
    const auto item = [&](size_t num_atoms) {
      return " " + atoms[random() % num_atoms] + suffixes[random() % suffixes.size()];
    };
    const std::string text = "root ::=" + item(8) + item(8) + " |" + item(8) + item(8) + item(8) + "\nx ::= \"a\"" +
                             item(7) + " |" + item(4) + "\ny ::= \"b\" x?" + item(4) + " | x" + item(4) + "\n";
    check_masks(compile_gbnf(text, tokens), pieces, random, 8);
  }
}

TEST(grammar_accepts_tokens_like_their_bytes) {
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

TEST(grammar_allows_eos_only_after_complete_texts) {
  const auto tokens = make_tokens({"a", "b", "", "ab", "<special>", "</s>"}, {0, 0, 0, 0, 1, 0});
  GrammarMatcher matcher(compile_gbnf("root ::= \"ab\"+ | \"<special>\" | \"</s>\"", tokens));
  const auto ids = [&] {
    std::string out;
    const auto mask = mask_of(matcher, *tokens);
    for (int64_t id = 0; id < 32; ++id)
      if (has_bit(mask, id)) out += show(id);
    return out;
  };
  EXPECT_EQ(ids(), std::string("034"));  // never EOS as text
  EXPECT(!matcher.accept(5));
  EXPECT(!matcher.accept(2));
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

// Returns the texts of the tokens that the grammar accepts.
std::string allowed(GrammarMatcher& matcher, const TokenTable& tokens, const std::vector<std::string>& texts) {
  std::string out;
  const auto mask = mask_of(matcher, tokens);
  for (size_t id = 0; id < texts.size(); ++id) {
    if (has_bit(mask, static_cast<int64_t>(id))) out += (out.empty() ? "" : " ") + texts[id];
    size_t unlimited = SIZE_MAX;
    EXPECT(matcher.may_accept(static_cast<int32_t>(id), unlimited) ==
           std::optional(has_bit(mask, static_cast<int64_t>(id))));
  }
  return out;
}

TEST(grammar_accepts_markers_only_where_it_spells_them) {
  const std::vector<std::string> texts = {"x", "<", "t>", "\"", "[T]", "<t>", "</t>", "EOS"};
  const auto tokens = make_tokens(texts, {0, 0, 0, 0, 1, 1, 2, 0});
  const auto matcher_of = [&](grammar::Expr expr, bool is_plain = false) {
    Grammar source;
    source.rules.push_back({"root", std::move(expr), is_plain});
    return GrammarMatcher(std::make_shared<const CompiledGrammar>(source, tokens));
  };
  using grammar::literal, grammar::sequence, grammar::until, grammar::without;
  GrammarMatcher spelled = matcher_of(literal("x<t>x[T]"));
  EXPECT_EQ(allowed(spelled, *tokens, texts), std::string("x"));
  EXPECT(spelled.accept(0));
  EXPECT_EQ(allowed(spelled, *tokens, texts), std::string("< <t>"));
  GrammarMatcher in_pieces = spelled;
  EXPECT(in_pieces.accept(1) && in_pieces.accept(2) && spelled.accept(5));
  EXPECT_EQ(allowed(in_pieces, *tokens, texts), std::string("x"));
  EXPECT(in_pieces.accept(0) && spelled.accept(0));
  EXPECT_EQ(allowed(spelled, *tokens, texts), std::string("[T]"));
  EXPECT(spelled.rollback(2));
  EXPECT_EQ(allowed(spelled, *tokens, texts), std::string("< <t>"));
  // The same text in a plain rule.
  GrammarMatcher plain = matcher_of(literal("<t>"), true);
  EXPECT_EQ(allowed(plain, *tokens, texts), std::string("<"));
  GrammarMatcher any =
      matcher_of(grammar::repeat(grammar::code_point_class({{0, grammar::kMaxCodePoint}}), 0, grammar::kUnbounded));
  EXPECT_EQ(allowed(any, *tokens, texts), std::string("x < t> \" EOS"));

  // Free text, and a call after each opening marker.
  GrammarMatcher tags = matcher_of(
      sequence({grammar::repeat(sequence({until("<t>"), literal("x</t>")}), 0, grammar::kUnbounded), without("<t>")}));
  EXPECT_EQ(allowed(tags, *tokens, texts), std::string("x < t> \" <t> EOS"));
  EXPECT(tags.accept(1));
  EXPECT_EQ(allowed(tags, *tokens, texts), std::string("x < t> \" <t> EOS"));  // "<<t>" and "<t>"
  EXPECT(tags.accept(2));
  EXPECT_EQ(allowed(tags, *tokens, texts), std::string("x"));
  EXPECT(tags.accept(0));
  EXPECT_EQ(allowed(tags, *tokens, texts), std::string("< </t>"));
  EXPECT(tags.accept(6));
  EXPECT_EQ(allowed(tags, *tokens, texts), std::string("x < t> \" <t> EOS"));
  EXPECT(tags.accept(5));
  EXPECT(!tags.can_end());

  // A search accepts a marker that is part of its text.
  GrammarMatcher longer = matcher_of(sequence({until("<t>x"), literal("x")}));
  EXPECT(longer.accept(5));
  EXPECT_EQ(allowed(longer, *tokens, texts), std::string("x < t> \" <t>"));
  EXPECT(longer.accept(0));
  EXPECT_EQ(allowed(longer, *tokens, texts), std::string("x"));
  GrammarMatcher never = matcher_of(without("<t>"));
  EXPECT_EQ(allowed(never, *tokens, texts), std::string("x < t> \" EOS"));
}

TEST(grammar_masks_of_searches_agree_with_brute_force) {
  std::mt19937 random(21);
  const auto pieces = json_pieces(random);
  const auto tokens = make_tokens(pieces);
  for (const char* text : {"true", "\"}", "é", "\n\n"}) {
    Grammar source;
    source.rules.push_back(
        {"root",
         grammar::sequence({grammar::repeat(grammar::sequence({grammar::until(text), grammar::rule_ref("list")}), 0,
                                            grammar::kUnbounded),
                            grammar::without(text)})});
    source.rules.push_back(
        {"list", grammar::sequence({grammar::literal("["), grammar::repeat(grammar::rule_ref("list"), 0, 3),
                                    grammar::literal("]")})});
    const auto grammar = std::make_shared<const CompiledGrammar>(source, tokens);
    for (int walk = 0; walk < 4; ++walk)
      check_masks(grammar, pieces, random, 12);
  }
}

// Returns many short tokens and some long ones, as in real vocabularies.
std::vector<std::string> pieces_with_long_ones() {
  auto pieces = all_strings("ab\"", 6);
  for (size_t length = 7; length < 60; length += 1 + length / 8)
    for (const char* end : {"", "\"", "\"b"})
      pieces.push_back(std::string(length, 'a') + end);
  pieces.push_back("<eos>");
  return pieces;
}

TEST(grammar_masks_near_repetition_bounds_agree_with_brute_force_and_share_memory) {
  const auto pieces = pieces_with_long_ones();
  const auto tokens = make_tokens(pieces);
  std::mt19937 random(17);
  for (const char* text :
       {"root ::= \"\\\"\" [ab]{0,150} \"\\\"\" [ab]?", "root ::= \"\\\"\" [ab]{70,150} \"\\\"\" \"b\"",
        "root ::= \"a\"? [ab]{90} (\"\\\"\" | \"b\")", "root ::= (\"a\" | \"aa\" | \"b\"){20,80} \"\\\"\""}) {
    const auto grammar = compile_gbnf(text, tokens);
    for (int walk = 0; walk < 6; ++walk)
      check_masks(grammar, pieces, random, 160);
  }
  // All counts except the last few share a mask, apart from its long tokens.
  const auto bounded = compile_gbnf("root ::= [ab]{0,400}", tokens);
  GrammarMatcher matcher(bounded);
  std::vector<uint32_t> mask(tokens->num_mask_words());
  matcher.fill_mask(mask);
  const size_t first_bytes = bounded->masks().size_bytes();
  int num_quick = 0;
  for (int i = 0; i < 400; ++i) {
    EXPECT(matcher.accept_bytes("a"));
    size_t unlimited = SIZE_MAX;
    num_quick += matcher.try_fill_mask(mask, unlimited);
    matcher.fill_mask(mask);
  }
  EXPECT(num_quick > 360);
  EXPECT(bounded->masks().size_bytes() < 40 * first_bytes);
}

TEST(grammar_masks_do_not_depend_on_earlier_masks) {
  auto pieces = all_strings("ab", 9);
  pieces.push_back("<eos>");
  const auto tokens = make_tokens(pieces);
  // So ambiguous that the sets drop configurations.
  const char* text = "root ::= (\"a\"{1,900} \"b\"? | \"a\" x{0,70} | x){1,900} \"!\"\nx ::= (\"a\" | \"aa\" x?){1,40}";
  const auto forward = compile_gbnf(text, tokens), backward = compile_gbnf(text, tokens);
  std::vector<std::vector<uint32_t>> masks;
  GrammarMatcher matcher(forward);
  constexpr int kTokens = 12;
  std::vector<GrammarMatcher> states;
  GrammarMatcher other(backward);
  for (int i = 0; i < kTokens; ++i) {
    masks.push_back(mask_of(matcher, *tokens));
    states.push_back(other);
    EXPECT(matcher.accept_bytes("a") && other.accept_bytes("a"));
  }
  for (int i = kTokens - 1; i >= 0; --i)
    EXPECT(mask_of(states[static_cast<size_t>(i)], *tokens) == masks[static_cast<size_t>(i)]);
}

TEST(grammar_mask_store_keeps_recently_used_masks) {
  using grammar::LocalMask, grammar::MaskKey, grammar::MaskStore;
  const auto mask_of_bytes = [](size_t num_bytes) {
    auto mask = std::make_shared<LocalMask>();
    mask->words.resize(num_bytes / 4);
    return mask;
  };
  MaskStore store(10'000);
  const int first = 0, second = 0;
  const auto key = [](uint32_t state) { return MaskKey{state, MaskKey::kNoCall, 0, 0}; };
  store.add(&first, key(1), mask_of_bytes(3000));
  auto near = std::make_shared<LocalMask>();
  near->base = store.find(&first, key(1));
  near->base_key = key(1);
  store.add(&first, key(2), near);
  store.add(&second, key(1), mask_of_bytes(3000));
  EXPECT(store.find(&first, key(2)) == near);
  EXPECT(store.find(&second, key(2)) == nullptr);
  store.add(&second, key(2), mask_of_bytes(3000));
  EXPECT(store.find(&first, key(2)) == near);
  store.add(&second, key(3), mask_of_bytes(3000));
  EXPECT(store.size_bytes() <= 10'000);
  EXPECT(store.find(&second, key(1)) == nullptr);  // the least recently used
  EXPECT(store.find(&first, key(1)) != nullptr);   // the base of a mask that was used
  store.forget(&second);
  EXPECT_EQ(store.size_bytes(), store.size_bytes(&first));
  EXPECT(store.find(&second, key(3)) == nullptr);
  // A mask larger than the store is not kept and evicts nothing.
  store.add(&second, key(4), mask_of_bytes(20'000));
  EXPECT(store.find(&second, key(4)) == nullptr);
  EXPECT(store.find(&first, key(2)) == near);
  // Nor is one whose base is not kept.
  store.add(&second, key(5), near);
  EXPECT(store.find(&second, key(5)) == nullptr);
  // An automaton evicts masks until it fits.
  store.add_automaton(5'000);
  store.add_automaton(4'000);
  EXPECT(store.find(&first, key(1)) == nullptr);
  EXPECT_EQ(store.total_bytes(), 9'000 + store.size_bytes());
  // One too large for its share, or beside the others, changes nothing.
  store.remove_automaton(4'000);
  store.add(&second, key(6), mask_of_bytes(3000));
  EXPECT_EQ(thrown_code([&] { store.add_automaton(5'001); }), std::string("invalid_argument"));
  store.add_automaton(1'000);
  EXPECT_EQ(thrown_code([&] { store.add_automaton(4'500); }), std::string("queue_full"));
  EXPECT_EQ(store.total_bytes(), 6'000 + store.size_bytes());
  EXPECT(store.find(&second, key(6)) != nullptr);
  store.remove_automaton(6'000);
  // Sets may take a quarter.
  EXPECT(store.resize_sets(0, 2'500) && !store.resize_sets(2'500, 2'501));
  EXPECT_EQ(store.total_bytes(), 2'500 + store.size_bytes());
  // The store drops the masks of a grammar that is destroyed.
  const auto tokens = make_tokens({"a", "b", "<eos>"});
  {
    GrammarMatcher matcher(compile_gbnf("root ::= \"a\"*", tokens));
    mask_of(matcher, *tokens);
    EXPECT(tokens->masks().size_bytes() > 0);
  }
  EXPECT_EQ(tokens->masks().total_bytes(), size_t{0});
}

TEST(grammar_masks_are_the_same_with_little_memory) {
  auto pieces = all_strings("ab", 8);
  for (const std::string piece : {"!", "<eos>"})
    pieces.push_back(piece);
  constexpr size_t kLittle = 16 << 10;
  const auto roomy = make_tokens(pieces), scarce = make_tokens(pieces, {}, kLittle);
  for (int i = 0; i < 20; ++i) {
    const std::string text = "root ::= (\"a\" | \"b\"){3," + std::to_string(50 + i) + "} tail \"!\"\ntail ::= \"ab\"{" +
                             std::to_string(i) + ",} | \"ba\" tail \"b\"";
    GrammarMatcher expected(compile_gbnf(text, roomy)), matcher(compile_gbnf(text, scarce));
    for (int at = 0; at < 60; ++at) {
      EXPECT(mask_of(matcher, *scarce) == mask_of(expected, *roomy));
      EXPECT(scarce->masks().total_bytes() <= kLittle);
      const bool is_accepted = expected.accept_bytes("ab");
      EXPECT_EQ(matcher.accept_bytes("ab"), is_accepted);
      if (!is_accepted) break;
    }
  }
  EXPECT(roomy->masks().total_bytes() == 0);
}

TEST(grammar_of_the_empty_text_allows_only_eos) {
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
  const std::vector<int32_t> ids = {'[', '{', '"', 'k', '"', ':', '1',
                                    '}', ',', '"', 'v', '"', ']', static_cast<int32_t>(pieces.size()) - 1};
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
  // Elements are counted, so each element makes new stacks.
  const auto grammar = compile_gbnf("root ::= \"[\" (root \",\" | \"1,\"){0,1000000} \"1\"? \"]\"", tokens);
  GrammarMatcher matcher(grammar);
  constexpr int kDepth = 30;
  for (int i = 0; i < kDepth; ++i)
    EXPECT(matcher.accept(0));
  for (int i = 0; i < 60'000; ++i)
    EXPECT(matcher.accept_bytes("[],"));
  EXPECT_EQ(matcher.bytes_to_end(), uint64_t{2 * kDepth - 1});
  EXPECT(matcher.rollback(3));
  EXPECT(matcher.accept(4));
  EXPECT(matcher.accept(1));
  for (int i = 1; i < kDepth; ++i)
    EXPECT(matcher.accept_bytes(",]"));
  EXPECT(!matcher.can_end());
  EXPECT(matcher.accept_bytes(",]"));
  EXPECT(matcher.can_end());
}

}  // namespace
}  // namespace capstan::testing
