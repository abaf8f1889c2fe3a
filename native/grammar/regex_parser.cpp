// The parser of regular expressions.
#include <algorithm>

#include "native/grammar/patterns.h"

namespace capstan::grammar {
namespace {

const CodePointSet kDigits = {{'0', '9'}};
const CodePointSet kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CodePointSet kSpace = {{'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
                             {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
const CodePointSet kLineEnds = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

Expr any_text(uint32_t min_length) {
  return repeat(code_point_class({{0, kMaxCodePoint}}), min_length, kUnbounded);
}
Expr assertion(ExprKind kind) {
  return {kind, {}, {}, {}};
}
Expr single(uint32_t c) {
  return code_point_class({{c, c}});
}

class RegexParser {
 public:
  RegexParser(std::string_view text, bool is_search, const std::string& label, const UnicodeProperties& properties)
      : text_(text), is_search_(is_search), label_(label), properties_(properties) {}

  Expr parse() {
    std::vector<Expr> alternatives;
    do
      alternatives.push_back(parse_top_alternative());
    while (take("|"));
    if (pos_ < text_.size()) fail("unmatched )");
    return choice(std::move(alternatives));
  }

 private:
  [[noreturn]] void fail(const std::string& message) const {
    refuse(label_ + ": " + message + " at position " + std::to_string(std::min(pos_, text_.size())));
  }
  [[noreturn]] void fail_unsupported(const std::string& what) const {
    refuse(label_ + ": " + what + " not supported at position " + std::to_string(std::min(pos_, text_.size())));
  }
  bool is_at_end() const { return pos_ >= text_.size(); }
  char peek() const { return is_at_end() ? '\0' : text_[pos_]; }
  bool take(std::string_view wanted) {
    if (text_.substr(pos_, wanted.size()) != wanted) return false;
    pos_ += wanted.size();
    return true;
  }

  // A search matches any text at an end without an anchor.
  Expr parse_top_alternative() {
    const bool has_start = take("^");
    const size_t num_starts = num_starts_;
    std::vector<Expr> items = parse_items(0);
    const bool has_end = !items.empty() && items.back().kind == ExprKind::kTextEnd;
    if (has_end) items.pop_back();
    if (is_search_ && !has_end) items.push_back(any_text(0));
    if (has_start || !is_search_) return sequence(std::move(items));
    // An anchor further in matches only if no text precedes the alternative.
    if (num_starts_ == num_starts) {
      items.insert(items.begin(), any_text(0));
      return sequence(std::move(items));
    }
    Expr whole = sequence(std::move(items));
    Expr later = sequence({any_text(1), whole});
    return choice({std::move(whole), std::move(later)});
  }

  Expr parse_alternatives(int depth) {
    if (depth > kMaxNesting) fail("groups are nested deeper than " + std::to_string(kMaxNesting) + " levels");
    std::vector<Expr> items;
    do
      items.push_back(sequence(parse_items(depth)));
    while (take("|"));
    return choice(std::move(items));
  }

  std::vector<Expr> parse_items(int depth) {
    std::vector<Expr> items;
    while (!is_at_end() && peek() != '|' && peek() != ')')
      items.push_back(parse_quantified(depth));
    return items;
  }

  Expr parse_quantified(int depth) {
    Expr item = parse_atom(depth);
    const bool is_anchor = item.kind == ExprKind::kTextStart || item.kind == ExprKind::kTextEnd;
    if (is_anchor && is_at_quantifier()) fail("nothing to repeat");
    const bool is_quantified = parse_quantifier(item);
    // A lazy quantifier matches the same texts as a greedy one.
    if (is_quantified && take("?")) return item;
    if (is_quantified && is_at_quantifier()) fail("nothing to repeat");
    return item;
  }

  bool is_at_quantifier() const { return peek() == '*' || peek() == '+' || peek() == '?' || is_at_bounds(); }

  bool parse_quantifier(Expr& item) {
    uint32_t min = 0, max = kUnbounded;
    if (take("+"))
      min = 1;
    else if (take("?"))
      max = 1;
    else if (is_at_bounds())
      parse_bounds(min, max);
    else if (!take("*"))
      return false;
    item = repeat(std::move(item), min, max);
    return true;
  }

  // Whether {m}, {m,} or {m,n} follows. Any other brace is a literal character.
  bool is_at_bounds() const {
    size_t i = pos_;
    const auto digits = [&] {
      const size_t begin = i;
      while (i < text_.size() && text_[i] >= '0' && text_[i] <= '9')
        ++i;
      return i > begin;
    };
    if (peek() != '{') return false;
    ++i;
    if (!digits()) return false;
    if (i < text_.size() && text_[i] == ',') {
      ++i;
      digits();
    }
    return i < text_.size() && text_[i] == '}';
  }

  void parse_bounds(uint32_t& min, uint32_t& max) {
    take("{");
    min = max = parse_count();
    if (take(",")) max = peek() == '}' ? kUnbounded : parse_count();
    if (max < min) fail("a repetition's maximum is below its minimum");
    take("}");
  }

  uint32_t parse_count() {
    uint64_t value = 0;
    for (; peek() >= '0' && peek() <= '9'; ++pos_) {
      value = value * 10 + static_cast<uint64_t>(peek() - '0');
      if (value > kMaxRepeat) fail("expected a repetition of at most " + std::to_string(kMaxRepeat));
    }
    return static_cast<uint32_t>(value);
  }

  Expr parse_atom(int depth) {
    if (take("(")) return parse_group(depth);
    if (take("[")) return parse_class();
    if (take(".")) return code_point_class(complement(kLineEnds));
    if (take("\\")) return code_point_class(parse_escape(false));
    if (take("$")) return assertion(ExprKind::kTextEnd);
    if (take("^")) return ++num_starts_, assertion(ExprKind::kTextStart);
    if (is_at_quantifier()) fail("nothing to repeat");
    return single(read_utf8(text_, pos_, label_));
  }

  Expr parse_group(int depth) {
    ExprKind kind = ExprKind::kSequence;
    if (take("?:")) {
    } else if (take("?=")) {
      kind = ExprKind::kLookahead;
    } else if (take("?!")) {
      kind = ExprKind::kNegativeLookahead;
    } else if (take("?<=") || take("?<!")) {
      fail_unsupported("lookbehind is");
    } else if (take("?<")) {
      while (!is_at_end() && peek() != '>')
        ++pos_;
      if (!take(">")) fail("expected > after a group name");
    } else if (peek() == '?') {
      fail("this kind of group is not supported");
    }
    Expr group = parse_alternatives(depth + 1);
    if (!take(")")) fail("expected ) at the end of a group");
    if (kind == ExprKind::kSequence) return group;
    Expr ahead = assertion(kind);
    ahead.items.push_back(std::move(group));
    return ahead;
  }

  Expr parse_class() {
    const bool is_negated = take("^");
    CodePointSet set;
    while (!take("]")) {
      if (is_at_end()) fail("expected ] at the end of a class");
      CodePointSet item = parse_class_item();
      if (peek() == '-' && pos_ + 1 < text_.size() && text_[pos_ + 1] != ']') {
        ++pos_;
        const CodePointSet end = parse_class_item();
        if (!is_single(item) || !is_single(end)) fail("a class range must run from one character to another");
        if (end[0].last < item[0].first) fail("a class range ends before it begins");
        item[0].last = end[0].last;
      }
      set.insert(set.end(), item.begin(), item.end());
    }
    set = normalized(std::move(set));
    return code_point_class(is_negated ? complement(set) : std::move(set));
  }

  static bool is_single(const CodePointSet& set) { return set.size() == 1 && set[0].first == set[0].last; }

  CodePointSet parse_class_item() {
    if (take("\\")) return parse_escape(true);
    const uint32_t c = read_utf8(text_, pos_, label_);
    return {{c, c}};
  }

  CodePointSet parse_escape(bool is_in_class) {
    if (is_at_end()) fail("expected a character after \\");
    const uint32_t c = read_utf8(text_, pos_, label_);
    const auto one = [](uint32_t value) { return CodePointSet{{value, value}}; };
    switch (c) {
      case 'd':
        return kDigits;
      case 'D':
        return complement(kDigits);
      case 'w':
        return kWord;
      case 'W':
        return complement(kWord);
      case 's':
        return kSpace;
      case 'S':
        return complement(kSpace);
      case 't':
        return one('\t');
      case 'n':
        return one('\n');
      case 'r':
        return one('\r');
      case 'f':
        return one('\f');
      case 'v':
        return one('\v');
      case 'x':
        return one(parse_hex(2));
      case 'u':
        return one(parse_unicode());
      case 'c':
        if (!((peek() >= 'a' && peek() <= 'z') || (peek() >= 'A' && peek() <= 'Z')))
          fail("expected a letter after \\c");
        return one(static_cast<uint32_t>(text_[pos_++]) & 31);
      case 'b':
        if (is_in_class) return one('\b');
        fail_unsupported("word boundaries are");
      case 'B':
        fail_unsupported("word boundaries are");
      case 'k':
        fail_unsupported("backreferences are");
      case 'p':
        return parse_property();
      case 'P':
        return complement(parse_property());
      default:
        break;
    }
    if (c == '0' && !(peek() >= '0' && peek() <= '9')) return one(0);
    if (c >= '0' && c <= '9') fail_unsupported("backreferences are");
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) fail("unknown escape");
    return one(c);
  }

  const CodePointSet& parse_property() {
    const size_t end = text_.find('}', pos_);
    if (!take("{") || end == std::string_view::npos) fail("expected {, the name of a Unicode property and }");
    const auto property = properties_.find(text_.substr(pos_, end - pos_));
    if (property == properties_.end()) fail("unknown Unicode property");
    pos_ = end + 1;
    return property->second;
  }

  uint32_t parse_unicode() {
    if (!take("{")) {
      const uint32_t high = parse_hex(4);
      // Two escapes of a surrogate pair are one code point.
      if (high < 0xD800 || high > 0xDBFF || !take("\\u")) return high;
      const uint32_t low = parse_hex(4);
      if (low < 0xDC00 || low > 0xDFFF) fail("unpaired surrogate");
      return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
    }
    uint32_t value = 0;
    while (peek() != '}') {
      value = value << 4 | parse_hex(1);
      if (value > kMaxCodePoint) fail("expected a code point of at most 10FFFF");
    }
    ++pos_;
    return value;
  }

  uint32_t parse_hex(int num_digits) {
    uint32_t value = 0;
    for (int i = 0; i < num_digits; ++i, ++pos_) {
      const int digit = hex_digit(peek());
      if (digit < 0) fail("expected a hexadecimal digit");
      value = value << 4 | static_cast<uint32_t>(digit);
    }
    return value;
  }

  std::string_view text_;
  const bool is_search_;
  const std::string& label_;
  const UnicodeProperties& properties_;
  size_t num_starts_ = 0;  // anchors ^ that are not at the start of a top-level alternative
  size_t pos_ = 0;
};

}  // namespace

Expr parse_pattern(std::string_view text, bool is_search, const std::string& label,
                   const UnicodeProperties& properties) {
  if (text.size() > kMaxGrammarBytes)
    refuse(label + ": expected at most " + std::to_string(kMaxGrammarBytes) + " bytes, got " +
           std::to_string(text.size()));
  return RegexParser(text, is_search, label, properties).parse();
}

bool has_assertion(const Expr& pattern) {
  switch (pattern.kind) {
    case ExprKind::kLookahead:
    case ExprKind::kNegativeLookahead:
    case ExprKind::kTextStart:
    case ExprKind::kTextEnd:
      return true;
    default:
      return std::ranges::any_of(pattern.items, has_assertion);
  }
}

}  // namespace capstan::grammar
