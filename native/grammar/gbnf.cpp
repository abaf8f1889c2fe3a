// The GBNF parser: recursive descent, one method per production.
#include <optional>

#include "native/grammar/code_points.h"

namespace capstan::grammar {
namespace {

constexpr int kMaxSuffixes = 8;  // of one item; each adds a level of nesting

bool is_name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

class GbnfParser {
 public:
  explicit GbnfParser(std::string_view text) : text_(text) {}

  Grammar parse() {
    Grammar grammar;
    for (skip_space(true); pos_ < text_.size(); skip_space(true))
      grammar.rules.push_back(parse_rule());
    if (grammar.rules.empty()) fail("expected a rule");
    if (grammar.rules.size() > kMaxRules)
      refuse("grammar: expected at most " + std::to_string(kMaxRules) + " rules, got " +
             std::to_string(grammar.rules.size()));
    return grammar;
  }

 private:
  [[noreturn]] void fail(const std::string& message) const {
    size_t line = 1, column = 1;
    for (size_t i = 0; i < pos_ && i < text_.size(); ++i) {
      column = text_[i] == '\n' ? 1 : column + 1;
      line += text_[i] == '\n';
    }
    refuse("grammar: line " + std::to_string(line) + ", column " + std::to_string(column) + ": " + message);
  }

  char peek() const { return pos_ < text_.size() ? text_[pos_] : '\0'; }
  bool take(std::string_view wanted) {
    if (text_.substr(pos_, wanted.size()) != wanted) return false;
    pos_ += wanted.size();
    return true;
  }
  void expect(std::string_view wanted) {
    if (!take(wanted)) fail("expected " + std::string(wanted));
  }

  void skip_space(bool with_newlines) {
    while (pos_ < text_.size()) {
      const char c = text_[pos_];
      if (c == '#')
        while (pos_ < text_.size() && text_[pos_] != '\n' && text_[pos_] != '\r')
          ++pos_;
      else if (c == ' ' || c == '\t' || (with_newlines && (c == '\n' || c == '\r')))
        ++pos_;
      else
        return;
    }
  }

  // A rule ends at the end of its line, unless the next line begins with `|`.
  void skip_to_bar(bool is_nested) {
    skip_space(is_nested);
    const size_t end_of_sequence = pos_;
    skip_space(true);
    if (peek() != '|') pos_ = end_of_sequence;
  }

  std::string parse_name() {
    const size_t begin = pos_;
    while (pos_ < text_.size() && is_name_char(text_[pos_]))
      ++pos_;
    if (pos_ == begin) fail("expected a rule name");
    return std::string(text_.substr(begin, pos_ - begin));
  }

  Rule parse_rule() {
    Rule rule;
    rule.name = parse_name();
    skip_space(false);
    expect("::=");
    skip_space(true);
    rule.expr = parse_alternatives(0);
    if (pos_ < text_.size() && peek() != '\n' && peek() != '\r') fail("expected the end of rule " + rule.name);
    return rule;
  }

  Expr parse_alternatives(int depth) {
    if (depth > kMaxNesting) fail("groups are nested deeper than " + std::to_string(kMaxNesting) + " levels");
    std::vector<Expr> items;
    do {
      skip_space(depth > 0 || !items.empty());
      items.push_back(parse_sequence(depth));
      skip_to_bar(depth > 0);
    } while (take("|"));
    return choice(std::move(items));
  }

  Expr parse_sequence(int depth) {
    std::vector<Expr> items;
    while (std::optional<Expr> item = parse_item(depth)) {
      items.push_back(parse_suffixes(std::move(*item)));
      skip_space(depth > 0);
    }
    return sequence(std::move(items));
  }

  std::optional<Expr> parse_item(int depth) {
    const char c = peek();
    if (take("\"")) return parse_literal();
    if (take("[")) return parse_class();
    if (take(".")) return code_point_class({{0, kMaxCodePoint}});
    if (take("(")) {
      Expr group = parse_alternatives(depth + 1);
      skip_space(true);
      expect(")");
      return group;
    }
    if (c == '<' || c == '!') fail("token references are not supported");
    if (!is_name_char(c)) return std::nullopt;
    return rule_ref(parse_name());
  }

  Expr parse_literal() {
    Expr expr{ExprKind::kLiteral, {}, {}, {}};
    while (!take("\"")) {
      // \x is one byte, so a literal can hold bytes that are not UTF-8.
      if (take("\\x"))
        expr.text += static_cast<char>(parse_hex(2));
      else
        append_utf8(expr.text, parse_char());
    }
    return expr;
  }

  Expr parse_class() {
    const bool is_negated = take("^");
    CodePointSet set;
    while (!take("]")) {
      CodePointRange range;
      range.first = range.last = parse_char();
      if (peek() == '-' && pos_ + 1 < text_.size() && text_[pos_ + 1] != ']') {
        ++pos_;
        range.last = parse_char();
        if (range.last < range.first) fail("a class range ends before it begins");
      }
      set.push_back(range);
    }
    set = normalized(std::move(set));
    return code_point_class(is_negated ? complement(set) : std::move(set));
  }

  uint32_t parse_char() {
    if (pos_ >= text_.size()) fail("unexpected end of the grammar");
    if (!take("\\")) return read_utf8(text_, pos_, "grammar");
    const char c = peek();
    ++pos_;
    switch (c) {
      case 'x':
        return parse_hex(2);
      case 'u':
        return parse_hex(4);
      case 'U':
        return parse_hex(8);
      case 't':
        return '\t';
      case 'r':
        return '\r';
      case 'n':
        return '\n';
      case '\\':
      case '"':
      case '[':
      case ']':
      case '-':
      case '^':
        return static_cast<uint8_t>(c);
      default:
        --pos_;
        fail("unknown escape");
    }
  }

  uint32_t parse_hex(int num_digits) {
    uint32_t value = 0;
    for (int i = 0; i < num_digits; ++i, ++pos_) {
      const char c = peek();
      const int digit = hex_digit(c);
      if (digit < 0) fail("expected " + std::to_string(num_digits) + " hexadecimal digits");
      value = value << 4 | static_cast<uint32_t>(digit);
    }
    if (value > kMaxCodePoint) fail("expected a code point of at most 10FFFF");
    return value;
  }

  Expr parse_suffixes(Expr item) {
    for (int num_suffixes = 0;; ++num_suffixes) {
      skip_blanks_before_suffix();
      if (take("*"))
        item = repeat(std::move(item), 0, kUnbounded);
      else if (take("+"))
        item = repeat(std::move(item), 1, kUnbounded);
      else if (take("?"))
        item = repeat(std::move(item), 0, 1);
      else if (take("{"))
        item = parse_bounds(std::move(item));
      else
        return item;
      if (num_suffixes >= kMaxSuffixes) fail("too many repetition suffixes");
    }
  }

  // `"a" *` repeats "a", as in llama.cpp.
  void skip_blanks_before_suffix() {
    const size_t begin = pos_;
    skip_space(false);
    const char c = peek();
    if (c != '*' && c != '+' && c != '?' && c != '{') pos_ = begin;
  }

  Expr parse_bounds(Expr item) {
    skip_space(true);
    const bool has_min = peek() != ',';
    const uint32_t min = has_min ? parse_count() : 0;
    uint32_t max = min;
    skip_space(true);
    if (take(",")) {
      skip_space(true);
      max = peek() == '}' ? kUnbounded : parse_count();
      skip_space(true);
    }
    expect("}");
    if (max < min) fail("a repetition's maximum is below its minimum");
    return repeat(std::move(item), min, max);
  }

  uint32_t parse_count() {
    if (peek() < '0' || peek() > '9') fail("expected a number");
    uint64_t value = 0;
    for (; peek() >= '0' && peek() <= '9'; ++pos_) {
      value = value * 10 + static_cast<uint64_t>(peek() - '0');
      if (value > kMaxRepeat) fail("expected a repetition of at most " + std::to_string(kMaxRepeat));
    }
    return static_cast<uint32_t>(value);
  }

  std::string_view text_;
  size_t pos_ = 0;
};

}  // namespace

Grammar parse_gbnf(std::string_view text) {
  if (text.size() > kMaxGrammarBytes)
    refuse("grammar: expected at most " + std::to_string(kMaxGrammarBytes) + " bytes, got " +
           std::to_string(text.size()));
  return GbnfParser(text).parse();
}

}  // namespace capstan::grammar
