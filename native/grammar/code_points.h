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

// Sorts, merges, cuts off what lies beyond kMaxCodePoint and takes the surrogates out.
CodePointSet normalized(CodePointSet ranges);
// Of a normalized set.
CodePointSet complement(const CodePointSet& set);
CodePointSet intersection(const CodePointSet& a, const CodePointSet& b);

// One to four byte ranges; a code point's UTF-8 matches exactly one of the sequences of its set.
struct ByteRanges {
  int length = 0;
  std::array<std::array<uint8_t, 2>, 4> ranges{};  // (length) first and last byte
};
std::vector<ByteRanges> utf8_ranges(const CodePointSet& set);

void append_utf8(std::string& out, uint32_t code_point);
// Reads the code point at `pos` and moves behind it; a byte that begins none is refused by name and position.
uint32_t read_utf8(std::string_view text, size_t& pos, std::string_view label);

}  // namespace capstan::grammar
