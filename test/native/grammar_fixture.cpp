#include "test/native/grammar_fixture.h"

#include <algorithm>

#include "native/base/error.h"
#include "native/grammar/code_points.h"

namespace capstan::testing {

using grammar::ExprKind;

const char* const kJsonGbnf = R"(
root   ::= value
value  ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" ws (member ("," ws member)*)? "}"
member ::= string ":" ws value ws
array  ::= "[" ws (value ws ("," ws value ws)*)? "]"
string ::= "\"" char* "\""
char   ::= [^"\\\x00-\x1f] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4})
number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)? ([eE] [-+]? [0-9]+)?
ws     ::= [ \n]?  # bounded
)";

std::shared_ptr<const CompiledGrammar> compile_gbnf(std::string_view text, std::shared_ptr<const TokenTable> tokens) {
  return std::make_shared<const CompiledGrammar>(grammar::parse_gbnf(text), std::move(tokens));
}

std::shared_ptr<const CompiledGrammar> compile_regex(std::string_view pattern, const grammar::RegexOptions& options,
                                                     std::shared_ptr<const TokenTable> tokens) {
  Grammar grammar;
  grammar.rules.push_back({"root", grammar::parse_regex(pattern, options)});
  return std::make_shared<const CompiledGrammar>(grammar, std::move(tokens));
}

bool matches(const std::shared_ptr<const CompiledGrammar>& grammar, std::string_view text) {
  GrammarMatcher matcher(grammar);
  return matcher.accept_bytes(text) && matcher.can_end();
}

bool is_prefix(const std::shared_ptr<const CompiledGrammar>& grammar, std::string_view text) {
  return GrammarMatcher(grammar).accept_bytes(text);
}

std::string gbnf_error(std::string_view text) {
  try {
    compile_gbnf(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::string regex_error(std::string_view pattern, const grammar::RegexOptions& options) {
  try {
    compile_regex(pattern, options);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

static std::set<size_t> ends_of_all(const Grammar& grammar, const Expr& expr, std::string_view text,
                                    const std::set<size_t>& from) {
  std::set<size_t> ends;
  for (const size_t pos : from)
    ends.merge(oracle_ends(grammar, expr, text, pos));
  return ends;
}

static std::set<size_t> ends_of_repeat(const Grammar& grammar, const Expr& expr, std::string_view text, size_t pos) {
  std::set<size_t> ends, at{pos};
  // After as many rounds as the text has bytes, only empty rounds are left, and `at` stops changing.
  for (uint64_t round = 0; round <= expr.max && !at.empty(); ++round) {
    if (round >= expr.min) ends.insert(at.begin(), at.end());
    const auto next = ends_of_all(grammar, expr.items[0], text, at);
    if (round > expr.min + text.size()) break;
    at = next;
  }
  return ends;
}

static bool is_utf8(std::string_view text) {
  try {
    for (size_t pos = 0; pos < text.size();)
      grammar::read_utf8(text, pos, "oracle");
    return true;
  } catch (const Error&) {
    return false;
  }
}

std::set<size_t> oracle_ends(const Grammar& grammar, const Expr& expr, std::string_view text, size_t pos) {
  switch (expr.kind) {
    case ExprKind::kLiteral:
      return text.substr(pos, expr.text.size()) == expr.text ? std::set{pos + expr.text.size()} : std::set<size_t>{};
    case ExprKind::kBytes:
    case ExprKind::kClass: {
      if (pos >= text.size()) return {};
      const uint32_t c =
          expr.kind == ExprKind::kBytes ? static_cast<uint8_t>(text[pos++]) : grammar::read_utf8(text, pos, "oracle");
      for (const auto& range : expr.ranges)
        if (range.first <= c && c <= range.last) return {pos};
      return {};
    }
    case ExprKind::kSequence: {
      std::set<size_t> at{pos};
      for (const Expr& item : expr.items)
        at = ends_of_all(grammar, item, text, at);
      return at;
    }
    case ExprKind::kChoice: {
      std::set<size_t> ends;
      for (const Expr& item : expr.items)
        ends.merge(oracle_ends(grammar, item, text, pos));
      return ends;
    }
    case ExprKind::kRepeat:
      return ends_of_repeat(grammar, expr, text, pos);
    case ExprKind::kUntil: {
      const size_t at = text.find(expr.text, pos);
      return at != std::string_view::npos && is_utf8(text.substr(pos, at - pos)) ? std::set{at + expr.text.size()}
                                                                                 : std::set<size_t>{};
    }
    case ExprKind::kWithout: {
      std::set<size_t> ends;
      for (size_t end = pos; end <= text.size(); ++end)
        if (is_utf8(text.substr(pos, end - pos)) &&
            text.substr(pos, end - pos).find(expr.text) == std::string_view::npos)
          ends.insert(end);
      return ends;
    }
    case ExprKind::kRule:
      return oracle_ends(grammar, std::ranges::find(grammar.rules, expr.text, &grammar::Rule::name)->expr, text, pos);
    default:
      break;
  }
  return {};
}

bool oracle_matches(const Grammar& grammar, std::string_view text) {
  return oracle_ends(grammar, grammar::rule_ref(grammar.root), text, 0).contains(text.size());
}

std::shared_ptr<const TokenTable> make_tokens(const std::vector<std::string>& tokens, std::vector<uint8_t> is_special,
                                              size_t max_cache_bytes) {
  std::string bytes;
  std::vector<uint32_t> offsets{0};
  for (const std::string& token : tokens) {
    bytes += token;
    offsets.push_back(static_cast<uint32_t>(bytes.size()));
  }
  is_special.resize(tokens.size());
  const std::vector<int32_t> eos_ids{static_cast<int32_t>(tokens.size()) - 1};
  return std::make_shared<const TokenTable>(bytes, offsets, is_special, eos_ids, max_cache_bytes);
}

std::vector<std::string> all_strings(std::string_view alphabet, size_t max_length) {
  std::vector<std::string> all{""};
  for (size_t i = 0; i < all.size(); ++i)
    if (all[i].size() < max_length)
      for (const char c : alphabet)
        all.push_back(all[i] + c);
  all.erase(all.begin());
  std::ranges::shuffle(all, std::mt19937(1));
  return all;
}

bool has_bit(const std::vector<uint32_t>& mask, int64_t id) {
  return (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0;
}

std::string random_text(GrammarMatcher matcher, std::mt19937& random, size_t num_bytes) {
  constexpr size_t kMaxBytes = 5000;
  std::string text;
  while (text.size() < kMaxBytes && (text.size() < num_bytes || !matcher.can_end())) {
    const auto next = text.size() < num_bytes ? matcher.next_bytes() : matcher.closing_bytes();
    std::vector<char> choices;
    for (size_t byte = 0; byte < 256; ++byte)
      if ((next[byte / 64] >> (byte % 64) & 1) != 0) choices.push_back(static_cast<char>(byte));
    if (choices.empty()) break;
    text += choices[random() % choices.size()];
    matcher.accept_bytes({&text.back(), 1});
  }
  return text;
}

}  // namespace capstan::testing
