// Hostile grammars: refused with the name of the limit, or harmless. Either way they compile quickly.
#include <algorithm>
#include <chrono>
#include <ctime>

#include "test/native/grammar_fixture.h"
#include "test/native/testing.h"

namespace capstan::testing {
namespace {

// Returns processor time, which does not depend on other processes.
double cpu_seconds(const std::function<void()>& work) {
  const std::clock_t begin = std::clock();
  work();
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

std::string repeated(const std::string& text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i)
    out += text;
  return out;
}

TEST(grammar_refuses_left_recursion_and_names_the_rule) {
  for (const char* text : {"root ::= root \"a\" | \"b\"", "root ::= (\"\" | \"x\"?) root \"a\" | \"b\"",
                           "root ::= (root{2,5} \"a\") | \"b\""})
    EXPECT_EQ(
        gbnf_error(text),
        std::string(
            "grammar: rule root begins with itself; left recursion is not supported, write a repetition instead"));
  EXPECT(gbnf_error("root ::= expr expr\nexpr ::= term \"+\" | \"1\"\nterm ::= e{0,3} expr\ne ::= \"\" | \"2\"")
             .find("begins with itself") != std::string::npos);
  EXPECT(gbnf_error("root ::= \"a\" root \"b\" | \"c\"").empty());
}

TEST(grammar_errors_name_the_limit) {
  EXPECT(gbnf_error("root ::= \"a\"{0,99999999999}").find("at most 2000000000") != std::string::npos);
  EXPECT(gbnf_error("root ::= " + repeated("(", 300) + "\"a\"" + repeated(")", 300)).find("nested deeper than 200") !=
         std::string::npos);
  EXPECT(regex_error(repeated("(", 300) + "a" + repeated(")", 300)).find("nested deeper than 200") !=
         std::string::npos);
  EXPECT(gbnf_error("root ::= \"a\"" + repeated("*", 100)).find("too many repetition suffixes") != std::string::npos);
  EXPECT(gbnf_error("root ::= \"" + std::string(grammar::kMaxGrammarBytes, 'a') + "\"").find("at most 1048576 bytes") !=
         std::string::npos);
  EXPECT(regex_error(std::string(grammar::kMaxGrammarBytes + 1, 'a')).find("at most 1048576 bytes") !=
         std::string::npos);
  std::string rules = "root ::= r0\n";
  for (int i = 0; i < 25'000; ++i)
    rules +=
        "r" + std::to_string(i) + " ::= \"a\" r" + std::to_string(i) + "b?\nr" + std::to_string(i) + "b ::= \"c\"\n";
  EXPECT(gbnf_error(rules).find("at most 20000 rules") != std::string::npos);
  Grammar deep;
  deep.rules.push_back({"root", grammar::literal("a")});
  for (int i = 0; i < 5000; ++i)
    deep.rules[0].expr = grammar::repeat(std::move(deep.rules[0].expr), 0, 1);
  EXPECT_ERROR("invalid_argument", grammar::compile(deep));
  EXPECT(gbnf_error("root ::= " + repeated("\"a\"? ", 60'000)).find("too large to compile") != std::string::npos);
}

TEST(grammar_compiles_or_refuses_hostile_grammars_quickly) {
  std::string ladder = "root ::= r0\n", chain = "root ::= r0\n", doubling = "root ::= d0\n";
  for (int i = 0; i < 40; ++i)
    ladder += "r" + std::to_string(i) + " ::= r" + std::to_string(i + 1) + " \"x\" | r" + std::to_string(i + 1) +
              " \"y\" | \"z\"\n";
  for (int i = 0; i < 15'000; ++i)
    chain += "r" + std::to_string(i) + " ::= r" + std::to_string(i + 1) + " \"x\"\n";
  for (int i = 0; i < 40; ++i)
    doubling += "d" + std::to_string(i) + " ::= d" + std::to_string(i + 1) + " d" + std::to_string(i + 1) + "\n";
  ladder += "r40 ::= \"a\"\n";
  chain += "r15000 ::= \"a\"\n";
  doubling += "d40 ::= \"a\"?\n";
  const std::vector<std::string> grammars = {
      "root ::= ((\"\"*)*)* \"a\"",
      "root ::= ((\"a\"*)*)*",
      "root ::= ((\"a\"{0,1000000000}){0,1000000000}){0,1000000000} \"b\"",
      "root ::= (\"a\" | \"aa\" | \"aaa\"){1000,2000000000}",
      "root ::= ([ab]* \"a\" [ab] [ab] [ab] [ab] [ab] [ab] [ab] [ab] [ab] [ab] [ab] [ab] [ab] [ab] [ab] [ab]) \"!\"",
      "root ::= root2 root2\nroot2 ::= \"(\" root2* \")\" | \"a\"",
      ladder,
      chain,
      doubling,
      "root ::= \"a\" root root | \"a\" root | \"a\"",
      "root ::= x{0,1000000}\nx ::= y{0,1000000}\ny ::= \"a\" | \"aa\"",
      "root ::= " + repeated("\"a\"? ", 1500),
      "root ::= " + repeated("(\"a\" | \"b\"", 100) + repeated(")*", 100)};
  auto pieces = all_strings("ab!", 6);
  pieces.push_back("<eos>");
  const auto tokens = make_tokens(pieces);
  for (const std::string& text : grammars) {
    const double seconds = cpu_seconds([&] {
      std::shared_ptr<const CompiledGrammar> grammar;
      try {
        grammar = compile_gbnf(text, tokens);
      } catch (const Error& error) {
        EXPECT_EQ(error_code_name(error.code()), std::string("invalid_argument"));
        return;
      }
      GrammarMatcher matcher(grammar);
      std::vector<uint32_t> mask(tokens->num_mask_words());
      for (int i = 0; i < 40; ++i) {
        matcher.fill_mask(mask);
        if (!matcher.accept_bytes("a")) break;
      }
    });
    // A generous limit for slow machines and sanitizers.
    if (seconds > 60) fail(__FILE__, __LINE__, "took " + show(seconds) + " s: " + text.substr(0, 80));
  }
}

TEST(grammar_matches_deep_texts_without_deep_recursion) {
  GrammarMatcher matcher(compile_gbnf("root ::= \"[\" root \"]\" | \"x\""));
  constexpr int kDepth = 100'000;
  EXPECT(matcher.accept_bytes(std::string(kDepth, '[')));
  EXPECT_EQ(matcher.bytes_to_end(), uint64_t{kDepth + 1});
  EXPECT(matcher.accept_bytes("x" + std::string(kDepth, ']')));
  EXPECT(matcher.can_end());
  GrammarMatcher tail(compile_gbnf("root ::= \"a\" root | \"b\""));
  EXPECT(tail.accept_bytes(std::string(kDepth, 'a') + "b"));
  EXPECT(tail.can_end());
}

TEST(grammar_parsers_survive_broken_texts) {
  std::mt19937 random(4);
  const std::string seed = std::string(kJsonGbnf) + "\nother ::= .{2,} \"\\u00e9\" ( \"a\" | [^b-d] )+ # c";
  const std::string alphabet = "\"\\[](){}|*+?.-^#:=\n ax09,\xC3\xFF";
  for (int round = 0; round < 1500; ++round) {
    std::string text = seed;
    for (size_t n = 1 + random() % 4; n > 0; --n) {
      const size_t at = random() % text.size();
      if (random() % 2 == 0)
        text[at] = alphabet[random() % alphabet.size()];
      else
        text.erase(at, random() % 9);
    }
    try {
      grammar::parse_gbnf(text);
      grammar::parse_regex(text.substr(random() % text.size(), 30));
    } catch (const Error& error) {
      EXPECT_EQ(error_code_name(error.code()), std::string("invalid_argument"));
    }
  }
}

// ---- the cost of masks ----

TEST(grammar_states_with_many_calls_push_few_frames) {
  std::string text = "root ::= ";
  for (int i = 2; i < 20'000; ++i)
    text += "\"b\" root{1," + std::to_string(i) + "} \"x\" | ";
  text += "\"c\"";
  const auto grammar = compile_gbnf(text);
  grammar::StackMachine machine(grammar->automaton());
  grammar::ConfigSet set = machine.start(), next;
  for (int i = 0; i < 5; ++i) {
    EXPECT(machine.step(set, 'b', next));
    std::swap(set, next);
    EXPECT(machine.effort() < 100'000);
  }
  EXPECT(machine.is_cut());
  EXPECT(machine.num_frames() < 20'000);
}

// A grammar of `num_rules` alternatives. After "ab" each has three configurations, and only the last alternative, whose
// configurations are dropped first, accepts "z".
std::string many_alternatives(int num_rules) {
  std::string root = "root ::= ", rules;
  for (int i = 0; i < num_rules; ++i) {
    const std::string n = show(i), end = i == num_rules - 1 ? "z" : "w";
    root += (i > 0 ? " | r" : "r") + n;
    rules += "\nr" + n + " ::= \"!\" r" + n + " \"!\" | \"a\" \"b\" (p" + n + " | q" + n + " | s" + n + ")";
    for (const std::string rule : {"p", "q", "s"})
      rules += "\n" + rule + n + " ::= \"x\" " + rule + n + " \"u\" | \"" + (rule == "s" ? end : rule) + "\"";
  }
  return root + rules;
}

TEST(grammar_machines_count_all_their_memory) {
  // The sets of a small grammar need no table of the configurations that were seen.
  const auto small = compile_gbnf("root ::= \"a\" root | \"b\"");
  grammar::StackMachine machine(small->automaton());
  grammar::ConfigSet next;
  EXPECT(machine.step(machine.start(), 'a', next));
  EXPECT(machine.size_bytes() < 1'000);
  const auto large = compile_gbnf(many_alternatives(100));
  grammar::StackMachine other(large->automaton());
  other.start();
  EXPECT(other.size_bytes() > 16'384);
}

TEST(grammar_dropped_frames_do_not_change_later_sets) {
  const auto grammar = compile_gbnf("root ::= \"a\" root \"x\" | \"b\" root \"y\" | \"c\"");
  std::mt19937 random(4);
  grammar::StackMachine machine(grammar->automaton()), other(grammar->automaton());
  grammar::ConfigSet set = machine.start(), other_set = other.start(), tried, next;
  for (int round = 0; round < 200; ++round) {
    const size_t num_frames = machine.num_frames();
    tried = set;
    for (int i = 0; i < 300; ++i) {
      EXPECT(machine.step(tried, static_cast<uint8_t>("ab"[random() % 2]), next));
      std::swap(tried, next);
    }
    machine.drop_frames(num_frames);
    EXPECT_EQ(machine.num_frames(), num_frames);
    const auto byte = static_cast<uint8_t>("ab"[random() % 2]);
    EXPECT(machine.step(set, byte, next));
    std::swap(set, next);
    EXPECT(other.step(other_set, byte, next));
    std::swap(other_set, next);
    EXPECT(set == other_set);
  }
}

TEST(grammar_masks_of_hostile_grammars_take_bounded_time) {
  // Every token leaves the rule after its first byte, and every continuation has different stacks.
  auto pieces = all_strings("abcdefgh", 5);
  pieces.push_back("<eos>");
  const auto tokens = make_tokens(pieces);
  std::string text = "root ::= one s\none ::= [a-h]\n";
  for (const std::string rule : {"s", "t", "u"}) {
    text += rule + " ::= \"!\"";
    for (const char c : std::string("abcdefgh"))
      for (const std::string called : {"s", "t", "u"})
        text += std::string(" | \"") + c + "\" " + called + " \"" + c + rule + called + "\"";
    text += "\n";
  }
  const auto grammar = compile_gbnf(text, tokens);
  GrammarMatcher matcher(grammar);
  std::vector<uint32_t> mask(tokens->num_mask_words());
  size_t work_left = SIZE_MAX;
  EXPECT(!matcher.try_fill_mask(mask, work_left));
  matcher.fill_mask(mask);
  EXPECT(std::ranges::any_of(mask, [](uint32_t word) { return word != 0; }));
  EXPECT(tokens->masks().total_bytes() <= TokenTable::kDefaultCacheBytes);
}

TEST(grammar_masks_of_hostile_grammars_take_bounded_memory) {
  // Every prefix of a token has a different stack.
  auto pieces = all_strings("abcdefgh", 6);
  pieces.push_back("<eos>");
  const auto tokens = make_tokens(pieces);
  std::string text = "root ::= \"!\"";
  for (const char c : std::string("abcdefgh"))
    text += std::string(" | \"") + c + "\" root \"" + c + "\"";
  const auto mask_of = [](const CompiledGrammar& grammar) {
    const uint32_t start = grammar.automaton().rule_starts[grammar.automaton().root];
    return grammar.masks().get({start, grammar::MaskKey::kNoCall, 0, 0}, grammar::Frame{});
  };
  const auto grammar = compile_gbnf(text, tokens), other = compile_gbnf(text, tokens);
  const auto mask = mask_of(*grammar);
  const size_t max_working_bytes = tokens->masks().max_working_bytes();
  EXPECT_EQ(max_working_bytes, TokenTable::kDefaultCacheBytes / 4);
  EXPECT(mask->working_bytes > max_working_bytes / 2);
  EXPECT(mask->working_bytes < max_working_bytes + (size_t{1} << 20));
  // What an inexact mask leaves out does not depend on earlier masks.
  grammar->masks().warm_up(std::chrono::steady_clock::now() + std::chrono::milliseconds(100));
  EXPECT(std::ranges::any_of(mask->words, [](uint32_t word) { return word != 0; }));
  EXPECT(mask_of(*other)->words == mask->words);
}

// Thousands of configurations are possible, so every set is cut at its limit.
constexpr const char* kWideGrammar = R"(root ::= (x | y | z){1,400} "!"
x ::= ("a"{1,300} "b"? | "a" [ab]{0,70} | "ab" x?){1,300}
y ::= ("a"{1,301} "b"? | "a" [ab]{0,71} | "ab" y?){1,301}
z ::= ("a"{1,302} "c" | "a" [abc]{0,72} | "ab" z?){1,302})";

// Rules that can end before `num_rules` alternatives (r), and one with as many alternatives that can end (w). On both
// sides the calls that lead on are nested deeper than the alternatives.
std::string many_alternatives_after_a_rule(int num_rules) {
  std::string alternatives, rules;
  for (int i = 0; i < num_rules; ++i) {
    const std::string n = show(i);
    alternatives += (i > 0 ? " | t" : "t") + n;
    rules += "\nt" + n + " ::= \"c" + n + "\" | \"z\" t" + n;
  }
  for (int i = 0; i < 6; ++i)
    rules += "\nd" + show(i) + " ::= d" + show(i + 1) + " \"c\" | \"!\" d" + show(i) + " \"a\"";
  return "root ::= r t \"!\" | w d0 | \"!\" r w | \"!!\" t\nr ::= \"a\" | \"a\" d0\nw ::= \"b\" | \"b\" t\n"
         "d6 ::= \"b\" | \"b\" d6\nt ::= " +
         alternatives + rules;
}

// Returns how many of the allowed tokens exceed the limits of the sets.
int expect_masks_to_be_accepted(const std::string& text, const std::shared_ptr<const TokenTable>& tokens,
                                std::mt19937& random) {
  int num_cut = 0;
  GrammarMatcher matcher(compile_gbnf(text, tokens));
  std::vector<uint32_t> mask(tokens->num_mask_words());
  for (int step = 0; step < 6; ++step) {
    matcher.fill_mask(mask);
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < tokens->num_ids(); ++id)
      if (has_bit(mask, id)) allowed.push_back(id);
    if (allowed.empty()) break;
    std::ranges::shuffle(allowed, random);
    for (size_t i = 0; i < std::min<size_t>(allowed.size(), 60); ++i) {
      size_t unlimited = SIZE_MAX;
      num_cut += !matcher.may_accept(allowed[i], unlimited).has_value();
      if (!GrammarMatcher(matcher).accept(allowed[i]))
        fail(__FILE__, __LINE__,
             "refused \"" + std::string(tokens->bytes_of(allowed[i])) + "\": " + text.substr(0, 200));
    }
    EXPECT(matcher.accept(allowed[0]));
  }
  return num_cut;
}

TEST(grammar_accepts_every_token_of_its_masks_when_sets_are_cut) {
  auto pieces = all_strings("abcz!", 4);
  pieces.push_back("<eos>");
  const auto tokens = make_tokens(pieces);
  std::mt19937 random(8);
  EXPECT(expect_masks_to_be_accepted(many_alternatives(300), tokens, random) > 0);
  for (int walk = 0; walk < 4; ++walk)
    EXPECT(expect_masks_to_be_accepted(many_alternatives_after_a_rule(1'200), tokens, random) > 0);
  expect_masks_to_be_accepted(kWideGrammar, tokens, random);
  const std::vector<std::string> atoms = {"\"a\"", "[ab]", "\"ab\"", "x", "y"};
  for (int i = 0; i < 12; ++i) {
    const auto item = [&](size_t num_atoms) {
      return " " + atoms[random() % num_atoms] + "{" + show(random() % 3) + "," + show(100 + random() % 900) + "}";
    };
    expect_masks_to_be_accepted("root ::= (" + item(5) + " |" + item(5) + item(4) + " |" + item(5) +
                                    "){1,500} \"!\"\nx ::= \"a\"" + item(3) + " | \"b\"" + item(3) + item(3) +
                                    "\ny ::= \"a\"" + item(4) + " | \"c\"" + item(4) + "\n",
                                tokens, random);
  }
}

TEST(grammar_accepting_in_parts_ends_when_it_is_asked_to_stop) {
  auto pieces = all_strings("abcz", 4);
  pieces.push_back("<eos>");
  const auto tokens = make_tokens(pieces);
  GrammarMatcher matcher(compile_gbnf(many_alternatives(300), tokens));
  const auto id = static_cast<int32_t>(std::ranges::find(pieces, "abz") - pieces.begin());
  size_t unlimited = SIZE_MAX;
  EXPECT(!matcher.may_accept(id, unlimited).has_value());
  std::stop_source stop;
  stop.request_stop();
  EXPECT(!matcher.accept(id, stop.get_token()));
  EXPECT(matcher.accept(id));
}

TEST(grammar_markers_count_as_work) {
  const auto tokens = make_tokens({"a", "<t>", "<eos>"}, {0, 1, 0});
  GrammarMatcher matcher(compile_gbnf("root ::= \"<t>\" \"a\"", tokens));
  size_t none = 0, unlimited = SIZE_MAX;
  EXPECT(!matcher.may_accept(1, none).has_value());
  EXPECT(!matcher.try_accept(1, none).has_value());
  EXPECT(matcher.try_accept(1, unlimited) == std::optional(true));
}

TEST(grammar_work_stays_within_the_budget_that_is_given) {
  auto pieces = all_strings("abc!", 5);
  pieces.push_back("<eos>");
  const auto tokens = make_tokens(pieces);
  GrammarMatcher matcher(compile_gbnf(kWideGrammar, tokens)), other = matcher;
  std::vector<uint32_t> mask(tokens->num_mask_words()), expected(mask.size());
  const auto id_of = [&](const std::string& piece) {
    return static_cast<int32_t>(std::ranges::find(pieces, piece) - pieces.begin());
  };
  for (const char* piece : {"aa", "ab", "aaaaa", "aabab"}) {
    size_t none = 0, unlimited = SIZE_MAX;
    EXPECT(!matcher.try_accept(id_of(piece), none).has_value());
    EXPECT(!matcher.try_fill_mask(mask, none));
    EXPECT(matcher.try_accept(id_of(piece), unlimited) == std::optional(true));
    EXPECT(unlimited < SIZE_MAX);
    // A trial that used up its budget leaves nothing behind.
    EXPECT(other.accept(id_of(piece)));
    matcher.fill_mask(mask);
    other.fill_mask(expected);
    EXPECT(mask == expected);
  }
}

}  // namespace
}  // namespace capstan::testing
