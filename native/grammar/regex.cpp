// The regular expression parser, with the options that JSON Schema needs: search, JSON string escapes, length bounds.
#include <algorithm>
#include <optional>

#include "native/grammar/code_points.h"

namespace capstan::grammar {
namespace {

const CodePointSet kDigits = {{'0', '9'}};
const CodePointSet kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CodePointSet kSpace = {{'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
                             {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
const CodePointSet kLineEnds = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

Expr any_text() {
  return repeat(code_point_class({{0, kMaxCodePoint}}), 0, kUnbounded);
}
Expr single(uint32_t c) {
  return code_point_class({{c, c}});
}

class RegexParser {
 public:
  RegexParser(std::string_view text, const RegexOptions& options) : text_(text), options_(options) {}

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
    refuse(options_.label + ": " + message + " at position " + std::to_string(std::min(pos_, text_.size())));
  }
  bool is_at_end() const { return pos_ >= text_.size(); }
  char peek() const { return is_at_end() ? '\0' : text_[pos_]; }
  bool take(std::string_view wanted) {
    if (text_.substr(pos_, wanted.size()) != wanted) return false;
    pos_ += wanted.size();
    return true;
  }

  // Anchors are allowed at the ends of a top-level alternative. A search matches any text at an end without an anchor.
  Expr parse_top_alternative() {
    std::vector<Expr> items;
    if (!take("^") && options_.is_search) items.push_back(any_text());
    items.push_back(parse_sequence(0));
    if (!take("$") && options_.is_search) items.push_back(any_text());
    if (!is_at_end() && peek() != '|' && peek() != ')') fail("an anchor is only supported at the ends of the pattern");
    return sequence(std::move(items));
  }

  Expr parse_alternatives(int depth) {
    if (depth > kMaxNesting) fail("groups are nested deeper than " + std::to_string(kMaxNesting) + " levels");
    std::vector<Expr> items;
    do
      items.push_back(parse_sequence(depth));
    while (take("|"));
    return choice(std::move(items));
  }

  Expr parse_sequence(int depth) {
    std::vector<Expr> items;
    while (!is_at_end() && peek() != '|' && peek() != ')' && peek() != '$')
      items.push_back(parse_quantified(depth));
    if (depth > 0 && peek() == '$') fail("an anchor is only supported at the ends of the pattern");
    return sequence(std::move(items));
  }

  Expr parse_quantified(int depth) {
    Expr item = parse_atom(depth);
    const bool is_quantified = parse_quantifier(item);
    // A lazy quantifier matches the same texts as a greedy one.
    if (is_quantified && take("?")) return item;
    if (is_quantified && (peek() == '*' || peek() == '+' || peek() == '?' || is_at_bounds())) fail("nothing to repeat");
    return item;
  }

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
    if (peek() == '^') fail("an anchor is only supported at the ends of the pattern");
    if (peek() == '*' || peek() == '+' || peek() == '?' || is_at_bounds()) fail("nothing to repeat");
    return single(read_utf8(text_, pos_, options_.label));
  }

  Expr parse_group(int depth) {
    if (take("?:")) {
    } else if (take("?=") || take("?!") || take("?<=") || take("?<!")) {
      fail("lookaround is not supported");
    } else if (take("?<")) {
      while (!is_at_end() && peek() != '>')
        ++pos_;
      if (!take(">")) fail("expected > after a group name");
    } else if (peek() == '?') {
      fail("this kind of group is not supported");
    }
    Expr group = parse_alternatives(depth + 1);
    if (!take(")")) fail("expected ) at the end of a group");
    return group;
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
    const uint32_t c = read_utf8(text_, pos_, options_.label);
    return {{c, c}};
  }

  CodePointSet parse_escape(bool is_in_class) {
    if (is_at_end()) fail("expected a character after \\");
    const uint32_t c = read_utf8(text_, pos_, options_.label);
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
        fail("word boundaries are not supported");
      case 'B':
        fail("word boundaries are not supported");
      case 'k':
        fail("backreferences are not supported");
      case 'p':
      case 'P':
        fail("Unicode property classes are not supported");
      default:
        break;
    }
    if (c == '0' && !(peek() >= '0' && peek() <= '9')) return one(0);
    if (c >= '0' && c <= '9') fail("backreferences are not supported");
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) fail("unknown escape");
    return one(c);
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
  const RegexOptions& options_;
  size_t pos_ = 0;
};

// ---- lengths ----

struct LengthRange {
  uint64_t min = 0, max = 0;  // in code points; kInfinite = unbounded
};
constexpr uint64_t kInfinite = uint64_t{1} << 60;

// Multiplies, limited to kInfinite.
uint64_t times(uint64_t a, uint64_t b) {
  if (a == 0 || b == 0) return 0;
  return a >= kInfinite / b ? kInfinite : a * b;
}

LengthRange length_range(const Expr& expr) {
  switch (expr.kind) {
    case ExprKind::kClass:
      return {1, 1};
    case ExprKind::kSequence: {
      LengthRange sum;
      for (const Expr& item : expr.items) {
        const LengthRange part = length_range(item);
        sum = {std::min(kInfinite, sum.min + part.min), std::min(kInfinite, sum.max + part.max)};
      }
      return sum;
    }
    case ExprKind::kChoice: {
      LengthRange range{kInfinite, 0};
      for (const Expr& item : expr.items) {
        const LengthRange part = length_range(item);
        range = {std::min(range.min, part.min), std::max(range.max, part.max)};
      }
      return range;
    }
    case ExprKind::kRepeat: {
      const LengthRange item = length_range(expr.items[0]);
      return {times(item.min, expr.min),
              expr.max == kUnbounded ? times(item.max, kInfinite) : times(item.max, expr.max)};
    }
    default:
      return {0, kInfinite};
  }
}

// Applies length bounds to a pattern that repeats one class, such as `^.*$`: the bounds become those of the repetition.
// Returns false for any other pattern.
bool apply_lengths(Expr& expr, uint32_t min, uint32_t max) {
  if (expr.kind == ExprKind::kSequence) {
    std::erase_if(expr.items, [](const Expr& item) { return item.kind == ExprKind::kSequence && item.items.empty(); });
    if (expr.items.size() == 1) return apply_lengths(expr.items[0], min, max);
  }
  if (expr.kind != ExprKind::kRepeat || expr.items[0].kind != ExprKind::kClass) return false;
  expr.min = std::max(expr.min, min);
  expr.max = std::min(expr.max, max);
  return expr.min <= expr.max;
}

// ---- JSON strings ----

// Returns the escape of a code point inside a JSON string, the short one if it exists.
std::string json_escape(uint32_t c) {
  static constexpr std::string_view kShort = "\"\\\b\f\n\r\t", kLetters = "\"\\bfnrt";
  const size_t at = kShort.find(static_cast<char>(c));
  if (at != std::string_view::npos) return {'\\', kLetters[at]};
  static constexpr char kHex[] = "0123456789abcdef";
  return {'\\', 'u', '0', '0', kHex[c >> 4], kHex[c & 15]};
}

void escape_for_json(Expr& expr) {
  for (Expr& item : expr.items)
    escape_for_json(item);
  if (expr.kind != ExprKind::kClass) return;
  static const CodePointSet kEscaped = {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};
  std::vector<Expr> items;
  for (const CodePointRange& range : intersection(expr.ranges, kEscaped))
    for (uint32_t c = range.first; c <= range.last; ++c)
      items.push_back(literal(json_escape(c)));
  if (items.empty()) return;
  items.push_back(code_point_class(intersection(expr.ranges, complement(kEscaped))));
  expr = choice(std::move(items));
}

}  // namespace

Expr parse_regex(std::string_view pattern, const RegexOptions& options) {
  if (pattern.size() > kMaxGrammarBytes)
    refuse(options.label + ": expected at most " + std::to_string(kMaxGrammarBytes) + " bytes, got " +
           std::to_string(pattern.size()));
  Expr expr = RegexParser(pattern, options).parse();
  const LengthRange lengths = length_range(expr);
  const bool keeps_lengths =
      lengths.min >= options.min_length && (options.max_length == kUnbounded || lengths.max <= options.max_length);
  if (!keeps_lengths && !apply_lengths(expr, options.min_length, options.max_length))
    refuse(options.label + ": minLength and maxLength are not supported with a pattern that allows other lengths");
  if (options.is_json_string) escape_for_json(expr);
  return expr;
}

static void expand_regexes_of(Expr& expr) {
  if (expr.kind == ExprKind::kRegex) {
    expr = parse_regex(expr.text, *std::shared_ptr(expr.regex));
    return;
  }
  for (Expr& item : expr.items)
    expand_regexes_of(item);
}

void expand_regexes(Grammar& grammar) {
  for (Rule& rule : grammar.rules)
    expand_regexes_of(rule.expr);
}

}  // namespace capstan::grammar
