// Tests which texts grammars match, byte by byte.
#include <algorithm>

#include "native/grammar/patterns.h"
#include "test/native/grammar_fixture.h"
#include "test/native/testing.h"

namespace capstan::testing {
namespace {

using grammar::ExprKind;

TEST(grammar_matches_only_json) {
  const auto json = compile_gbnf(kJsonGbnf);
  for (const char* text : {"{}", "[]", "0", "-1.5e+10", "\"\"", "\"a\\u00e9\\n\"",
                           "{\"a\": [1, true, null], \"b\":{\"c\":\"d\"}}", "\"é😀\"", "[[[[[]]]]]"})
    EXPECT(matches(json, text));
  for (const char* text : {"", "{", "{}}", "01", "1.", "\"\n\"", "{\"a\"}", "[1,]", "\"\\x\"", "\"\\u12\"", "tru",
                           "\"\xC3\"", "\"\xED\xA0\x80\"", "{  }"})
    EXPECT(!matches(json, text));
  EXPECT(is_prefix(json, "{\"a\": [1, tr"));
  EXPECT(!is_prefix(json, "{\"a\" 1"));
  EXPECT(is_prefix(json, "\"\xF0\x9F"));
  EXPECT(!is_prefix(json, "\"\xF0\x80"));
}

TEST(grammar_gbnf_parses_the_full_syntax) {
  EXPECT(matches(compile_gbnf("root ::= \"a\" | # or\n  \"b\"\n  | \"c\"\n"), "c"));
  EXPECT(matches(compile_gbnf("root::=(\n\"x\"\n|\n\"y\"\n)+\nother ::= \"z\""), "xyx"));
  EXPECT(matches(compile_gbnf("root ::= [a-cx-z-]* \"\\\"\\x41\\u00e9\\U0001F600\\t\""),
                 "ab-z\"A\xC3\xA9\xF0\x9F\x98\x80\t"));
  EXPECT(matches(compile_gbnf("root ::= [^\\]a]{2} .{,2} b-1{1,}\r\nb-1 ::= \"b\" \"\""),
                 "b\xE2\x82\xAC"
                 "b"));
  EXPECT(matches(compile_gbnf("root ::= \"a\"{3}"), "aaa"));
  EXPECT(!matches(compile_gbnf("root ::= \"a\"{3}"), "aa"));
  EXPECT(!matches(compile_gbnf("root ::= \"a\"{3}"), "aaaa"));
  EXPECT(matches(compile_gbnf("root ::= \"\""), ""));
  EXPECT(matches(compile_gbnf("root ::= \"\\xff\\xfe\""), "\xFF\xFE"));
}

TEST(grammar_gbnf_errors_name_line_and_column) {
  EXPECT_EQ(gbnf_error("root ::= \"a\" )"), std::string("grammar: line 1, column 14: expected the end of rule root"));
  EXPECT_EQ(gbnf_error("root ::= x"), std::string("grammar: rule x is not defined"));
  EXPECT_EQ(gbnf_error("a ::= \"b\""), std::string("grammar: rule root is not defined"));
  EXPECT_EQ(gbnf_error("root ::= \"a\"\nroot ::= \"b\""), std::string("grammar: rule root is defined twice"));
  EXPECT_EQ(gbnf_error("\n root ::= [a"), std::string("grammar: line 2, column 13: unexpected end of the grammar"));
  EXPECT_EQ(gbnf_error("root ::= \"\\q\""), std::string("grammar: line 1, column 12: unknown escape"));
  EXPECT_EQ(gbnf_error("root ::= <think>"),
            std::string("grammar: line 1, column 10: token references are not supported"));
  EXPECT_EQ(gbnf_error("root ::= \"a\"{3,2}"),
            std::string("grammar: line 1, column 18: a repetition's maximum is below its minimum"));
  EXPECT(!gbnf_error("").empty());
  EXPECT(!gbnf_error("root ::= \"\xFF\"").empty());
  EXPECT_EQ(gbnf_error("root ::= \"x\" root"), std::string("grammar: no text matches rule root"));
}

TEST(grammar_regex_matches_like_ecmascript) {
  struct Case {
    const char* pattern;
    std::vector<const char*> matching, other;
  };
  const std::vector<Case> cases = {
      {"abc", {"abc"}, {"ab", "abcd", "xabc"}},
      {"^a|b$", {"a", "b"}, {"ab", ""}},
      {"(foo|ba[rz])+?", {"foo", "barbaz"}, {"", "fo"}},
      {"\\d{3}-\\d{2,}", {"123-45", "123-4567"}, {"12-34", "123-4"}},
      {"[^\\W_]*", {"", "aZ9"}, {"_", "-"}},
      {"a{,3}", {"a{,3}"}, {"aaa"}},
      {"x{2}{y}", {"xx{y}"}, {"xxy"}},
      {".", {"é", "😀", "\r\xC2\x85" + 1}, {"\n", "", "\xE2\x80\xA8"}},
      {"[\\u00e0-\\u00ff]\\u{1F600}\\ud83d\\ude00", {"é😀😀"}, {"e😀😀"}},
      {"(?:a(?<name>b))*\\.\\x41\\cA", {"abab.A\x01", ".A\x01"}, {"abab"}},
      {"[]", {}, {"", "a"}},
      {"(a*)*(b|)+", {"", "aab", "bb"}, {"ba"}},
      {"\\s\\S[\\s\\S]", {" x\n", "\xEF\xBB\xBFyz"}, {"xyz"}},
      {"(?=.*\\d)(?=.*[A-Z]).{3,5}", {"aB3", "3BBBB"}, {"ab3", "B3", "aB3456"}},
      {"(?!.*--)[a-z-]+", {"a-b", "-"}, {"a--b", ""}},
      {"a(?!b).|x(?=y)..", {"ac", "xyz"}, {"ab", "xzy"}},
      {"(^a|^b)c|(d$|e)", {"ac", "bc", "d", "e"}, {"c", "a", "de"}},
      {"a$b", {}, {"a", "ab", "a$b"}},
      {"x(^a)", {}, {"xa", "a"}},
  };
  for (const Case& test : cases) {
    if (test.matching.empty()) {
      EXPECT_EQ(regex_error(test.pattern), std::string("grammar: no text matches rule root"));
      continue;
    }
    const auto regex = compile_regex(test.pattern);
    for (const char* text : test.matching)
      if (!matches(regex, text)) fail(__FILE__, __LINE__, std::string(test.pattern) + " should match " + text);
    for (const char* text : test.other)
      if (matches(regex, text)) fail(__FILE__, __LINE__, std::string(test.pattern) + " should not match " + text);
  }
  EXPECT(matches(compile_regex("\\0"), std::string_view("\0", 1)));
}

TEST(grammar_regex_errors_name_the_position) {
  EXPECT_EQ(regex_error("a(?<=b)"), std::string("regex: lookbehind is not supported at position 5"));
  EXPECT_EQ(regex_error("(a(?=b))*"), std::string("regex: lookahead and anchors are not supported in a repetition"));
  EXPECT_EQ(regex_error("(a)\\1"), std::string("regex: backreferences are not supported at position 5"));
  EXPECT_EQ(regex_error("a\\b"), std::string("regex: word boundaries are not supported at position 3"));
  EXPECT_EQ(regex_error("a*^b"), std::string("regex: ^ is not supported after a part that can be empty"));
  for (const char* pattern : {"(", ")", "a)", "[", "[b-a]", "*", "a**", "a{2}{3}", "\\", "(?<n", "^*", "a$+", "\\p{L}",
                              "\\p", "a{3,2}", "\\u12", "[\\d-z]", "{1}", "\xFF"})
    if (regex_error(pattern).empty()) fail(__FILE__, __LINE__, std::string(pattern) + " should be refused");
  EXPECT_EQ(regex_error("a{3,2}", {.label = "#/pattern"}).substr(0, 9), std::string("#/pattern"));
}

TEST(grammar_regex_matches_inside_json_strings) {
  const auto any = compile_regex("^[\"\\\\\\n\\x01a]+$", {.is_json_string = true});
  EXPECT(matches(any, "a\\\"\\\\\\n\\u0001"));
  EXPECT(!matches(any, "\""));
  EXPECT(!matches(any, "\n"));
  const auto search = compile_regex("b", {.is_search = true, .is_json_string = true});
  EXPECT(matches(search, "b"));
  EXPECT(matches(search, "a\\nbc"));
  EXPECT(!matches(search, "ac"));
  const grammar::RegexOptions bounded{.is_search = true, .min_length = 2, .max_length = 3};
  EXPECT(matches(compile_regex("^[a-z]*$", bounded), "ab"));
  EXPECT(!matches(compile_regex("^[a-z]*$", bounded), "abcd"));
  EXPECT(matches(compile_regex("^a.$", bounded), "ab"));
  EXPECT(matches(compile_regex("^(ab)*$", bounded), "ab"));
  EXPECT(!matches(compile_regex("^(ab)*$", bounded), "abab"));
  EXPECT(!matches(compile_regex("^(ab)*$", bounded), ""));
}

TEST(grammar_regex_intersects_patterns_and_excludes_texts) {
  const auto both = compile_regex("^foo", {.is_search = true, .max_length = 8, .also = {{"bar$", true}}});
  EXPECT(matches(both, "foobar"));
  EXPECT(matches(both, "foo, bar"));
  EXPECT(!matches(both, "foo and bar"));
  EXPECT(!matches(both, "foo"));
  const auto excluded = compile_regex("[a-z\"]*", {.is_json_string = true, .except = {"ab", "abc", "a\"", ""}});
  for (const char* text : {"a", "abcd", "b", "ac", "\\\""})
    EXPECT(matches(excluded, text));
  for (const char* text : {"ab", "abc", "a\\\"", ""})
    EXPECT(!matches(excluded, text));
  EXPECT(!regex_error("[ab]+", {.also = {{"(?<=a)b", true, "other"}}}).empty());
  EXPECT(!regex_error("[ab]+", {.also = {{"(", true, "other"}}}).empty());
}

TEST(grammar_regex_counts_long_texts_within_bounds) {
  // One repetition varies, so that a counter suffices.
  const auto counted = compile_regex("^foo.*$", {.is_search = true, .min_length = 4, .max_length = 1'000'000});
  EXPECT(!matches(counted, "foo"));
  EXPECT(matches(counted, "foo" + std::string(100'000, 'x')));
  // Otherwise a state counts each code point, and a long maximum gets shorter.
  const auto bounded = compile_regex("^(a|bc)*$", {.is_search = true, .min_length = 1, .max_length = 1'000'000});
  EXPECT(matches(bounded, std::string(4096, 'a')));
  EXPECT(!matches(bounded, std::string(4097, 'a')));
  EXPECT_EQ(regex_error("^(a{5000}b|c{6000})*$", {.min_length = 1, .max_length = 100'000}),
            std::string("regex: too large for the other patterns, the lengths or the names beside it"));
  EXPECT_EQ(regex_error("^(ab|c)*$", {.min_length = 1'000'000}),
            std::string("regex: too large for the other patterns, the lengths or the names beside it"));
}

TEST(grammar_regex_bounds_the_work_of_intersections) {
  std::string optional_items;
  for (int i = 0; i < 5000; ++i)
    optional_items += "a?";
  EXPECT(!regex_error(optional_items.c_str(), {.also = {{"a*", true}}}).empty());
  EXPECT(!regex_error("(?=.*a.{200})(?=.*b.{200}).*", {}).empty());
  std::vector<std::string> names;
  for (int i = 0; i < 3000; ++i)
    names.push_back(std::string(100, static_cast<char>('a' + i % 26)) + std::to_string(i));
  EXPECT(matches(compile_regex("[a-z0-9]*", {.except = names}), "b"));
  EXPECT(matches(compile_regex("x*", {.except = {std::string(20'000, 'x')}}), std::string(19'999, 'x')));
  EXPECT(!regex_error("x*", {.except = {std::string(300'000, 'x')}}).empty());
}

// Returns the work of a pattern's automaton.
size_t work_of(const std::string& pattern) {
  grammar::PatternBudget budget;
  const size_t work = budget.work;
  const grammar::PatternSet set{{grammar::parse_pattern(pattern, true, "pattern")}, {}, 0, grammar::kUnbounded, ""};
  grammar::intersect(set, budget);
  return work - budget.work;
}

std::string times(size_t n, const std::function<std::string(size_t)>& part) {
  std::string out;
  for (size_t i = 0; i < n; ++i)
    out += part(i);
  return out;
}

TEST(grammar_regex_counts_all_the_work_of_intersections) {
  // After each part, all later parts may follow: n states of up to n lists of up to n items.
  constexpr size_t kParts = 60, kCube = kParts * kParts * kParts;
  EXPECT(work_of("^(?!x)" + times(kParts, [](size_t) { return "(?:a|b|c)?"; }) + "$") > kCube / 6);
  EXPECT(work_of("^(?!x)" + times(kParts, [](size_t) { return "(?:[^X])?"; }) + "$") > kCube / 6);
}

TEST(grammar_regex_keeps_the_ranges_of_a_class_once) {
  const std::string large_class = times(10'000, [](size_t i) {
    std::string text;
    grammar::append_utf8(text, 0x4000 + 2 * static_cast<uint32_t>(i));
    return text;
  });
  grammar::PatternBudget budget;
  const grammar::PatternSet set{
      {grammar::parse_pattern("^(?!x)[" + large_class + "]{5000}y$", true, "")}, {}, 0, grammar::kUnbounded, ""};
  const auto automaton = grammar::intersect(set, budget);
  EXPECT(automaton && automaton->states.size() == 5'002);
  EXPECT(automaton && automaton->bytes.num_nodes() < 20);
  // The formulas and their edges take memory in proportion to the work.
  EXPECT(work_of("^(?!x)[" + large_class + "]{5000}y$") < 1'000'000);
}

TEST(grammar_regex_takes_patterns_beside_lengths) {
  struct Case {
    const char* pattern;
    uint32_t max_length;
    std::string text;     // matches, of any length
    uint32_t num_length;  // the longest one that must match
    size_t max_bytes;     // of the automaton
  };
  constexpr size_t kMegabyte = size_t{1} << 20;
  const std::vector<Case> cases = {
      {"^https?://", 4096, "https://\\né😀", 4096, kMegabyte / 8},
      {"^https:\\/\\/.*", 4096, "https://", 4096, kMegabyte / 8},
      {"^https?:\\/\\/.+", 2048, "http://", 2048, kMegabyte / 8},
      {"^https?:\\/\\/[^\\s/$.?#].[^\\s]*$", 2048, "http://", 2048, kMegabyte / 8},
      {"\\S", 4000, "\\t", 1000, 12 * kMegabyte},
      {".*foo.*", 8192, "foo", 1000, 24 * kMegabyte},
      {"^(?=.*[a-z])(?=.*[A-Z])(?=.*\\d).*$", 1000, "aB1", 250, 24 * kMegabyte},
      {"^(?=.*[a-z])(?=.*[A-Z])(?=.*\\d).*$", 10'000, "aB1", 250, 24 * kMegabyte},
      {"^(?=.*[a-z])(?=.*[A-Z])(?=.*\\d)(?=.*[^A-Za-z0-9]).{8,}$", 512, "aB1!", 128, 24 * kMegabyte},
      {"^(?=.*[a-z])(?=.*[A-Z])(?=.*\\d)(?=.*[^A-Za-z0-9]).{8,}$", 4096, "aB1!", 128, 24 * kMegabyte},
  };
  for (const Case& test : cases) {
    const grammar::RegexOptions options{.is_search = true, .is_json_string = true, .max_length = test.max_length};
    Grammar source;
    source.rules.push_back({"root", grammar::regex(test.pattern, options)});
    const auto compiled = std::make_shared<const CompiledGrammar>(source, nullptr);
    EXPECT(compiled->automaton().size_bytes() <= test.max_bytes);
    const size_t num_escapes = static_cast<size_t>(std::ranges::count(test.text, '\\'));
    size_t length = 0;  // in code points
    for (size_t pos = 0; pos < test.text.size(); ++length)
      grammar::read_utf8(test.text, pos, "text");
    const std::string longest = test.text + std::string(test.num_length - length + num_escapes, 'x');
    EXPECT(matches(compiled, longest));
    if (test.num_length == test.max_length) EXPECT(!matches(compiled, longest + "x"));
    EXPECT(!matches(compiled, test.text + std::string(test.max_length, 'x')));
  }
}

TEST(grammar_regex_bounds_lengths_exactly) {
  std::mt19937 random(3);
  const std::vector<std::string> alphabet = {"a", "b", "é", "😀", "\\n", "\\u0001"};
  const std::vector<grammar::LengthRange> ranges = {{0, 40}, {35, 50}, {33, grammar::kUnbounded}};
  for (const char* pattern : {"^ab?", "a", "^(?=.*a)(?=.*b).*$", "^[^b]*$", "^a[^b]*$", "^(?!b).*a$", "(a|bb)+",
                              "^a+b*$", "^(?!a).{3,}$", "^\\S*$"}) {
    grammar::RegexOptions options{.is_search = true, .is_json_string = true};
    const auto free = compile_regex(pattern, options);
    for (const auto& [min, max] : ranges) {
      options.min_length = static_cast<uint32_t>(min);
      options.max_length = static_cast<uint32_t>(max);
      options.also = {{"^", true}};
      const auto bounded = compile_regex(pattern, options);
      for (int round = 0; round < 60; ++round) {
        const size_t near = (random() % 2 == 0 ? min : std::min<size_t>(max, 60)) + random() % 3;
        const size_t length = random() % 2 == 0 ? random() % 60 : near;
        std::string text;
        for (size_t i = 0; i < length; ++i)
          text += alphabet[random() % (round % 3 == 0 ? 1 : alphabet.size())];
        const bool is_within = min <= length && length <= max;
        if (matches(bounded, text) != (is_within && matches(free, text)))
          fail(__FILE__, __LINE__, std::string(pattern) + ": " + text);
      }
    }
  }
}

TEST(grammar_regex_tries_share_the_work) {
  const std::string large = "(?=.*a.{200})(?=.*b.{200}).*";
  EXPECT(!regex_error("[ab]+", {.also = {{large, true, "other"}}}).empty());
  // A try that spends its share leaves enough for a lower maximum.
  const auto counted = compile_regex("^(?!x)(?:[ab]{1,100}){1,100}$", {.is_search = true, .max_length = 4096});
  EXPECT(matches(counted, "aabaab"));
  // Patterns with different lengths share the budget.
  const std::vector<std::string> patterns = {"^(?=.*[a-z])(?=.*[A-Z]).{8,}$", "^https?:\\/\\/.+\\.(png|jpe?g)$",
                                             ".*foo.*", "\\S+@\\S+", "^(?:[a-z0-9]+\\.)*[a-z]{2,}$"};
  Grammar many;
  std::vector<Expr> fields;
  for (uint32_t i = 0; i < 20; ++i)
    fields.push_back(grammar::regex(
        patterns[i % patterns.size()],
        {.is_search = true, .is_json_string = true, .max_length = 500 + 100 * i, .label = "p" + std::to_string(i)}));
  many.rules.push_back({"root", grammar::sequence(std::move(fields))});
  const auto compiled = std::make_shared<const CompiledGrammar>(many, nullptr);
  EXPECT(compiled->automaton().size_bytes() < size_t{32} << 20);
}

TEST(grammar_expands_regexes_within_rules) {
  Grammar source;
  source.rules.push_back(
      {"root", grammar::sequence(
                   {grammar::literal("<"), grammar::repeat(grammar::regex("a|bc", {}), 2, 2), grammar::literal(">")})});
  const auto compiled = std::make_shared<const CompiledGrammar>(source, nullptr);
  EXPECT(matches(compiled, "<abc>"));
  EXPECT(!matches(compiled, "<a>"));
  source.rules[0].expr.items[1] = grammar::regex("(", {.label = "#/pattern"});
  EXPECT_ERROR("invalid_argument", grammar::compile(source));
}

TEST(grammar_counts_repetitions_without_copies) {
  const auto wide = compile_gbnf("root ::= [a-z]{2,1000000000} \"!\"");
  EXPECT(wide->automaton().states.size() < 10);
  EXPECT(matches(wide, std::string(5000, 'x') + "!"));
  EXPECT(!matches(wide, "x!"));
  const auto exact = compile_gbnf("root ::= (\"ab\"{3} \",\"){2}");
  EXPECT(matches(exact, "ababab,ababab,"));
  EXPECT(!matches(exact, "ababab,abab,"));
  const auto at_least = compile_gbnf("root ::= (\"a\" | \"aa\"){4,}");
  EXPECT(!matches(at_least, "aaa"));
  EXPECT(matches(at_least, std::string(400, 'a')));
  const auto ambiguous = compile_gbnf("root ::= (\"a\" | \"aa\"){3,6} \"b\"");
  for (size_t n = 0; n < 16; ++n)
    EXPECT_EQ(matches(ambiguous, std::string(n, 'a') + "b"), n >= 3 && n <= 12);
  const auto nullable = compile_gbnf("root ::= (\"a\"? \"b\"?){2,3}");
  for (const auto& [text, is_match] :
       {std::pair{"", true}, {"ababab", true}, {"aaa", true}, {"aaaa", false}, {"bababa", false}})
    EXPECT_EQ(matches(nullable, text), is_match);
}

// ---- random grammars compared with the oracle ----

Expr random_expr(std::mt19937& random, int depth) {
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  switch (depth <= 0 ? below(3) : below(10)) {
    case 0:
      return grammar::literal(std::vector<const char*>{"", "a", "b", "ab", "ba"}[below(5)]);
    case 1:
      return grammar::code_point_class({{'a', 'a' + below(2)}});
    case 2:
      return {ExprKind::kBytes, {}, {{'b', 'b'}}, {}};
    case 3:
    case 4: {
      std::vector<Expr> items;
      for (uint32_t i = below(4); i > 0; --i)
        items.push_back(random_expr(random, depth - 1));
      return grammar::sequence(std::move(items));
    }
    case 5: {
      std::vector<Expr> items;
      for (uint32_t i = 1 + below(3); i > 0; --i)
        items.push_back(random_expr(random, depth - 1));
      return grammar::choice(std::move(items));
    }
    case 6: {
      const uint32_t min = below(3);
      return grammar::repeat(random_expr(random, depth - 1), min, below(3) == 0 ? grammar::kUnbounded : min + below(3));
    }
    case 7:
    case 8: {
      const char* text = std::vector<const char*>{"", "a", "ab", "aab", "abab", "bb"}[below(6)];
      return below(2) == 0 ? grammar::until(text) : grammar::without(text);
    }
    default:
      return grammar::rule_ref(below(2) == 0 ? "x" : "y");
  }
}

Grammar random_grammar(std::mt19937& random) {
  Grammar grammar;
  grammar.rules.push_back({"root", random_expr(random, 4)});
  // A rule calls itself only after a byte, and other rules only in one order, so no rule is left-recursive.
  grammar.rules.push_back(
      {"x", grammar::choice({grammar::sequence({grammar::literal("a"), grammar::rule_ref("x"), grammar::literal("b")}),
                             random_expr(random, 0)})});
  grammar.rules.push_back(
      {"y", grammar::sequence({random_expr(random, 0), grammar::repeat(grammar::rule_ref("x"), 0, 2)})});
  return grammar;
}

TEST(grammar_agrees_with_the_oracle) {
  std::mt19937 random(7);
  const std::vector<std::string> texts = [] {
    auto all = all_strings("ab", 7);
    all.push_back("");
    return all;
  }();
  int num_compiled = 0;
  for (int round = 0; round < 300; ++round) {
    const Grammar source = random_grammar(random);
    std::shared_ptr<const CompiledGrammar> compiled;
    try {
      compiled = std::make_shared<const CompiledGrammar>(source, nullptr);
    } catch (const Error&) {
      for (const std::string& text : texts)
        EXPECT(!oracle_matches(source, text));
      continue;
    }
    ++num_compiled;
    for (const std::string& text : texts)
      if (matches(compiled, text) != oracle_matches(source, text))
        fail(__FILE__, __LINE__, "round " + show(round) + ", text '" + text + "'");
  }
  EXPECT(num_compiled > 250);
}

Grammar one_rule(Expr expr) {
  Grammar grammar;
  grammar.rules.push_back({"root", std::move(expr)});
  return grammar;
}

TEST(grammar_searches_agree_with_the_oracle_on_utf8) {
  std::mt19937 random(8);
  const std::vector<std::string> parts = {"a",
                                          "<",
                                          "</a>",
                                          "é",
                                          "ê",
                                          "€",
                                          "€<",
                                          "😀",
                                          "\xC3",
                                          "\xA9",
                                          "\x80",
                                          "\xED\xA0\x80",
                                          "\xF4\x90\x80\x80",
                                          "\xE0\x80\x80",
                                          "\xC0\x80",
                                          "\xF0\x9F",
                                          "\xFF"};
  int num_matches = 0;
  for (const char* text : {"</a>", "é", "éê", "<<", "€<€", "😀", "aé"}) {
    const Grammar until = one_rule(grammar::until(text)), without = one_rule(grammar::without(text));
    const Grammar tags = one_rule(grammar::sequence(
        {grammar::repeat(grammar::sequence({grammar::until(text), grammar::literal("!")}), 0, grammar::kUnbounded),
         grammar::without(text)}));
    for (const Grammar& source : {until, without, tags}) {
      const auto compiled = std::make_shared<const CompiledGrammar>(source, nullptr);
      for (int round = 0; round < 300; ++round) {
        std::string sample;
        for (size_t n = random() % 5; n > 0; --n)
          sample += parts[random() % parts.size()];
        if (random() % 2 == 0) sample += text;
        if (random() % 4 == 0) sample += "!";
        const bool is_match = oracle_matches(source, sample);
        num_matches += is_match;
        if (matches(compiled, sample) != is_match) fail(__FILE__, __LINE__, std::string(text) + " in '" + sample + "'");
      }
    }
  }
  EXPECT(num_matches > 500);
}

TEST(grammar_searches_enforce_limits) {
  const auto error = [](Expr expr) {
    return testing::thrown_code([&] { CompiledGrammar(one_rule(std::move(expr)), nullptr); });
  };
  EXPECT_EQ(error(grammar::until(std::string(4096, 'x'))), std::string(""));
  EXPECT_EQ(error(grammar::until(std::string(4097, 'x'))), std::string("invalid_argument"));
  EXPECT_EQ(error(grammar::until("\xC3")), std::string("invalid_argument"));
  EXPECT_EQ(error(grammar::without("")), std::string("invalid_argument"));
  EXPECT(matches(std::make_shared<const CompiledGrammar>(one_rule(grammar::until("")), nullptr), ""));
}

TEST(grammar_random_walks_end_in_accepted_texts) {
  std::mt19937 random(3);
  const Grammar source = grammar::parse_gbnf(kJsonGbnf);
  const auto json = std::make_shared<const CompiledGrammar>(source, nullptr);
  for (int round = 0; round < 40; ++round) {
    const std::string text = random_text(GrammarMatcher(json), random, random() % 60);
    EXPECT(matches(json, text));
    EXPECT(oracle_matches(source, text));
  }
}

TEST(grammar_bytes_to_end_is_exact) {
  GrammarMatcher matcher(
      compile_gbnf("root ::= \"[\" (item \",\"){3,9} \"]\"\nitem ::= \"a\"{2,4} | \"{\" item \"}\""));
  EXPECT_EQ(matcher.bytes_to_end(), 11u);
  EXPECT(matcher.accept_bytes("[aa,{{"));
  EXPECT_EQ(matcher.bytes_to_end(), 2 + 2 + 1 + 3 + 1u);
  EXPECT(matcher.accept_bytes("aaa"));
  EXPECT_EQ(matcher.bytes_to_end(), 2 + 1 + 3 + 1u);
}

}  // namespace
}  // namespace capstan::testing
