#pragma once
// A grammar as data: named rules over bytes and code points. The text formats (GBNF, regular expressions) and the JSON
// Schema front end all end here; `automaton.h` is what it compiles to. Nothing in this folder knows the engine.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace capstan::grammar {

// ---- limits: what a caller may send; beyond them an invalid_argument that names the limit ----
constexpr size_t kMaxGrammarBytes = size_t{1} << 20;  // of a GBNF text or a regular expression
constexpr size_t kMaxRules = 20'000;
constexpr size_t kMaxExprs = 1'000'000;         // nodes of all rules together
constexpr int kMaxNesting = 200;                // of groups; parsers and compiler recurse this deep
constexpr uint32_t kMaxRepeat = 2'000'000'000;  // counters, so large ones cost nothing
constexpr size_t kMaxStates = 500'000;          // of the automaton
constexpr size_t kMaxBuildWork = 40'000'000;    // elementary steps of building it: about a second

constexpr uint32_t kUnbounded = UINT32_MAX;
constexpr uint32_t kMaxCodePoint = 0x10FFFF;

struct CodePointRange {
  uint32_t first = 0, last = 0;  // inclusive
  bool operator==(const CodePointRange&) const = default;
};

enum class ExprKind : uint8_t {
  kLiteral,   // `text`, bytes; a marker of the vocabulary may stand for its spelling in it
  kBytes,     // one byte of `ranges`
  kClass,     // one code point of `ranges`, as UTF-8; surrogates never match
  kSequence,  // all of `items` in order; none = the empty string
  kChoice,    // one of `items`; none = nothing matches
  kRepeat,    // items[0], `min` to `max` times
  kRule,      // the rule named `text`
  kUntil,     // UTF-8 up to the first place where `text` ends, and that
  kWithout,   // UTF-8 in which `text` does not occur
  kRegex,     // the regular expression `text`, read as `regex` says when the grammar is compiled
};

struct RegexOptions {
  bool is_search = false;       // may match anywhere unless anchored, as JSON Schema's `pattern`; else the whole text
  bool is_json_string = false;  // matches the inside of a JSON string literal whose value the pattern matches
  uint32_t min_length = 0,
           max_length = kUnbounded;  // in code points; refused where the pattern itself does not keep to them
  std::string label = "regex";       // what error messages call it
};

struct Expr {
  ExprKind kind = ExprKind::kSequence;
  std::string text;
  std::vector<CodePointRange> ranges;
  std::vector<Expr> items;
  uint32_t min = 0, max = kUnbounded;
  std::shared_ptr<const RegexOptions> regex = nullptr;
};

struct Rule {
  std::string name;
  Expr expr;
  bool is_plain = false;  // markers stand for nothing in it
};

// A token that text is not made of: a grammar takes it only where it spells it.
struct Marker {
  std::string text;
  int32_t token_id = -1;
};

struct Grammar {
  std::string root = "root";
  std::vector<Rule> rules;
};

Expr literal(std::string_view bytes);
Expr code_point_class(std::vector<CodePointRange> ranges);
Expr sequence(std::vector<Expr> items);
Expr choice(std::vector<Expr> items);
Expr repeat(Expr item, uint32_t min, uint32_t max);
Expr rule_ref(std::string_view name);
// Both take a text that is valid UTF-8.
Expr until(std::string_view text);
Expr without(std::string_view text);
Expr regex(std::string_view pattern, RegexOptions options);

// Throws invalid_argument.
[[noreturn]] void refuse(const std::string& message);

// llama.cpp's grammar format: `name ::= alternatives`, "literals", [classes], ., ( ), | and the suffixes * + ? {m} {m,}
// {m,n}; # comments.
Grammar parse_gbnf(std::string_view text);

// ECMAScript's syntax without what a finite automaton lacks: characters, ., [classes], \d \w \s and their negations, \t
// \n \r \f \v \0 \cX \xHH \uHHHH \u{H}, groups (capturing or not), |, greedy and lazy quantifiers, ^ and $ at the ends
// of the whole pattern or of its top alternatives.
Expr parse_regex(std::string_view pattern, const RegexOptions& options = {});
// Replaces every kRegex.
void expand_regexes(Grammar& grammar);

}  // namespace capstan::grammar
