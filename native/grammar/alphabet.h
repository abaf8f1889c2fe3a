#pragma once
// The symbols of some patterns: classes of code points that the patterns treat alike. An automaton over symbols needs
// one edge where one over code points needs an edge for each range of a set.
#include <map>
#include <set>
#include <string>
#include <vector>

#include "native/grammar/code_points.h"

namespace capstan::grammar {

// Thrown when the work that is left does not suffice.
struct TooLarge {};
inline void spend(size_t& work_left, size_t amount) {
  if (amount > work_left) throw TooLarge();
  work_left -= amount;
}

// Ascending, disjoint ranges of symbols.
using SymbolSet = std::vector<CodePointRange>;

class Alphabet {
 public:
  // Spends from `work_left`, which must outlive the alphabet.
  Alphabet(const std::vector<Expr>& patterns, const std::vector<std::vector<uint32_t>>& texts, size_t& work_left);

  uint32_t num_symbols() const { return static_cast<uint32_t>(symbols_.size()); }
  // `ranges` must be those of a class of the patterns.
  const SymbolSet& symbols_of(const CodePointSet& ranges) const;
  // `code_point` must be part of the texts.
  const SymbolSet& symbol_of(uint32_t code_point) const { return symbols_of({{code_point, code_point}}); }
  CodePointSet code_points_of(const SymbolSet& symbols) const;

 private:
  void collect(const Expr& pattern);
  void split();

  size_t& work_left_;
  std::map<CodePointSet, SymbolSet> sets_;  // by the code points of a class or of a text
  std::vector<CodePointSet> symbols_;       // all code points except surrogates
};

}  // namespace capstan::grammar
