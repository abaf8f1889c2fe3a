#pragma once
// Shared parts of the grammar tests: small matchers, vocabularies, and an oracle that matches expressions by brute
// force.
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "native/grammar/matcher.h"

namespace capstan::testing {

using grammar::CompiledGrammar;
using grammar::Expr;
using grammar::Grammar;
using grammar::GrammarMatcher;
using grammar::TokenTable;

std::shared_ptr<const CompiledGrammar> compile_gbnf(std::string_view text,
                                                    std::shared_ptr<const TokenTable> tokens = nullptr);
std::shared_ptr<const CompiledGrammar> compile_regex(std::string_view pattern,
                                                     const grammar::RegexOptions& options = {},
                                                     std::shared_ptr<const TokenTable> tokens = nullptr);
// Returns whether the grammar matches the complete text.
bool matches(const std::shared_ptr<const CompiledGrammar>& grammar, std::string_view text);
// Returns whether the text is the beginning of a match.
bool is_prefix(const std::shared_ptr<const CompiledGrammar>& grammar, std::string_view text);
// Return the error message of compiling, or an empty string.
std::string gbnf_error(std::string_view text);
std::string regex_error(std::string_view pattern, const grammar::RegexOptions& options = {});

// Returns the ends of all matches of `expr` in `text` from `pos`, by the definition of the expressions, without an
// automaton. No rule may be left-recursive.
std::set<size_t> oracle_ends(const Grammar& grammar, const Expr& expr, std::string_view text, size_t pos);
bool oracle_matches(const Grammar& grammar, std::string_view text);

// Returns a table of these tokens. "" is a token without bytes. The last id is EOS.
std::shared_ptr<const TokenTable> make_tokens(const std::vector<std::string>& tokens,
                                              std::vector<uint8_t> is_special = {},
                                              size_t max_cache_bytes = TokenTable::kDefaultCacheBytes);
// Returns all strings over `alphabet` of 1 to `max_length` characters, shuffled.
std::vector<std::string> all_strings(std::string_view alphabet, size_t max_length);
bool has_bit(const std::vector<uint32_t>& mask, int64_t id);
// Returns a text that the grammar matches: random bytes, and after `num_bytes` the shortest way to the end.
std::string random_text(GrammarMatcher matcher, std::mt19937& random, size_t num_bytes);

// A JSON grammar in GBNF.
extern const char* const kJsonGbnf;

}  // namespace capstan::testing
