#pragma once
// Sets of code points as sorted, disjoint ranges, and their UTF-8 as sequences of byte ranges.
#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "native/grammar/grammar.h"

namespace capstan::grammar {

using CodePointSet = std::vector<CodePointRange>;

// Returns the ranges sorted and merged, without surrogates and without code points above kMaxCodePoint.
CodePointSet normalized(CodePointSet ranges);
// `set` must be normalized.
CodePointSet complement(const CodePointSet& set);
CodePointSet intersection(const CodePointSet& a, const CodePointSet& b);

// A sequence of one to four byte ranges. The UTF-8 of each code point of a set matches exactly one of its sequences.
struct ByteRanges {
  int length = 0;
  std::array<std::array<uint8_t, 2>, 4> ranges{};  // (length) first and last byte
};
std::vector<ByteRanges> utf8_ranges(const CodePointSet& set);

// Returns the value of a hexadecimal digit, or -1.
int hex_digit(char c);

void append_utf8(std::string& out, uint32_t code_point);
// Returns the code point at `pos` and advances `pos` past it. Throws kInvalidArgument, with `label` and the position,
// when the bytes are not valid UTF-8.
uint32_t read_utf8(std::string_view text, size_t& pos, std::string_view label);

}  // namespace capstan::grammar
