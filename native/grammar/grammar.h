#pragma once
// A grammar as data: named rules over bytes and code points. GBNF texts, regular expressions and the JSON Schema front
// end all produce it; compile() in `automaton.h` turns it into an automaton. This folder does not depend on the engine.
#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace capstan::grammar {

// ---- limits of a caller's grammar; above them, invalid_argument with the name of the limit ----
constexpr size_t kMaxGrammarBytes = size_t{1} << 20;  // of a GBNF text or a regular expression
constexpr size_t kMaxRules = 20'000;
constexpr size_t kMaxExprs = 1'000'000;         // expression nodes of all rules
constexpr int kMaxNesting = 200;                // of groups; the parsers and the compiler recurse this deep
constexpr uint32_t kMaxRepeat = 2'000'000'000;  // repeats are counters, so large ones cost nothing
constexpr size_t kMaxStates = 500'000;          // of the automaton
constexpr size_t kMaxBuildWork = 40'000'000;    // elementary build steps, about one second

constexpr uint32_t kUnbounded = UINT32_MAX;
constexpr uint32_t kMaxCodePoint = 0x10FFFF;

struct CodePointRange {
  uint32_t first = 0, last = 0;  // inclusive
  auto operator<=>(const CodePointRange&) const = default;
};

enum class ExprKind : uint8_t {
  kLiteral,    // the bytes of `text`; a marker token may stand for its spelling
  kBytes,      // one byte of `ranges`
  kClass,      // one code point of `ranges`, as UTF-8; surrogates never match
  kSequence,   // all of `items` in order; no items = the empty string
  kChoice,     // one of `items`; no items = matches nothing
  kRepeat,     // items[0], `min` to `max` times
  kRule,       // the rule named `text`
  kUntil,      // UTF-8 up to and including the first occurrence of `text`
  kWithout,    // UTF-8 that does not contain `text`
  kRegex,      // the regular expression `text` with the options `regex`, parsed by compile()
  kAutomaton,  // the texts of `automaton`
  // Only in parsed patterns, see patterns.h. They match the empty text at some places.
  kLookahead,          // where items[0] follows
  kNegativeLookahead,  // where items[0] does not follow
  kTextStart,
  kTextEnd,
};

// A further pattern that the text must match.
struct RegexPart {
  std::string pattern;
  bool is_search = false;
  std::string label = "regex";
};

struct RegexOptions {
  bool is_search = false;       // true: may match anywhere unless anchored, like JSON Schema's `pattern`
  bool is_json_string = false;  // matches the inside of a JSON string literal whose value matches the pattern
  // In code points. A large maximum may become smaller where it must be counted together with a pattern.
  uint32_t min_length = 0, max_length = kUnbounded;
  std::string label = "regex";  // the name of the pattern in error messages
  std::vector<RegexPart> also = {};
  std::vector<std::string> except = {};  // texts that do not match
};

struct PatternAutomaton;

struct Expr {
  ExprKind kind = ExprKind::kSequence;
  std::string text;
  std::vector<CodePointRange> ranges;
  std::vector<Expr> items;
  uint32_t min = 0, max = kUnbounded;
  std::shared_ptr<const RegexOptions> regex = nullptr;
  std::shared_ptr<const PatternAutomaton> automaton = nullptr;
};

struct Rule {
  std::string name;
  Expr expr;
  bool is_plain = false;  // marker tokens do not match in this rule
};

// A special token, such as <tool_call>. It matches as one token only where the grammar spells out its text.
struct Marker {
  std::string text;
  int32_t token_id = -1;
};

// The code points of Unicode properties by name, such as `L` or `Script=Greek`. Each set must be normalized.
using UnicodeProperties = std::map<std::string, std::vector<CodePointRange>, std::less<>>;

struct Grammar {
  std::string root = "root";
  std::vector<Rule> rules;
  UnicodeProperties properties = {};  // those that the regular expressions name
};

Expr literal(std::string_view bytes);
Expr code_point_class(std::vector<CodePointRange> ranges);
Expr sequence(std::vector<Expr> items);
Expr choice(std::vector<Expr> items);
Expr repeat(Expr item, uint32_t min, uint32_t max);
Expr rule_ref(std::string_view name);
// `text` must be valid UTF-8.
Expr until(std::string_view text);
Expr without(std::string_view text);
Expr regex(std::string_view pattern, RegexOptions options);

// Throws kInvalidArgument with `message`.
[[noreturn]] void refuse(const std::string& message);

// Parses llama.cpp's grammar format: `name ::= alternatives`, "literals", [classes], ., ( ), |, the suffixes * + ? {m}
// {m,} {m,n} and # comments. Throws kInvalidArgument with line and column.
Grammar parse_gbnf(std::string_view text);

// Parses the part of ECMAScript's syntax that a finite automaton can match: characters, ., [classes], \d \w \s and
// their negations, \p{…} and \P{…} of the grammar's properties, \t \n \r \f \v \0 \cX \xHH \uHHHH \u{H}, groups
// (capturing or not), |, greedy and lazy quantifiers, ^, $ and lookahead outside of repetitions. Throws
// kInvalidArgument with the position.
Expr parse_regex(std::string_view pattern, const RegexOptions& options = {});
// Replaces every kRegex by its parsed expression.
void expand_regexes(Grammar& grammar);

}  // namespace capstan::grammar
