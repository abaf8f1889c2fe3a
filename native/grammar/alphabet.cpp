#include "native/grammar/alphabet.h"

#include <algorithm>
#include <iterator>

namespace capstan::grammar {

Alphabet::Alphabet(const std::vector<Expr>& patterns, const std::vector<std::vector<uint32_t>>& texts,
                   size_t& work_left)
    : work_left_(work_left) {
  sets_[normalized({{0, kMaxCodePoint}})];
  for (const Expr& pattern : patterns)
    collect(pattern);
  std::set<uint32_t> code_points;
  for (const std::vector<uint32_t>& text : texts) {
    spend(work_left_, text.size());
    code_points.insert(text.begin(), text.end());
  }
  for (const uint32_t code_point : code_points)
    sets_[{{code_point, code_point}}];
  split();
}

void Alphabet::collect(const Expr& pattern) {
  spend(work_left_, 1 + pattern.ranges.size());
  if (pattern.kind == ExprKind::kClass) sets_[normalized(pattern.ranges)];
  for (const Expr& item : pattern.items)
    collect(item);
}

// Cuts the code points at the bounds of all ranges. The parts that belong to the same sets are one symbol.
void Alphabet::split() {
  std::vector<uint32_t> bounds;
  for (const auto& [code_points, symbols] : sets_)
    for (const CodePointRange& range : code_points) {
      bounds.push_back(range.first);
      bounds.push_back(range.last + 1);
    }
  spend(work_left_, bounds.size());
  std::ranges::sort(bounds);
  bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());
  const auto part_at = [&](uint32_t bound) {
    return static_cast<size_t>(std::ranges::lower_bound(bounds, bound) - bounds.begin());
  };

  std::vector<std::vector<SymbolSet*>> owners(bounds.size());  // by part, which begins at a bound
  for (auto& [code_points, symbols] : sets_)
    for (const CodePointRange& range : code_points) {
      const size_t begin = part_at(range.first), end = part_at(range.last + 1);
      spend(work_left_, 1 + end - begin);
      for (size_t part = begin; part < end; ++part)
        owners[part].push_back(&symbols);
    }
  std::map<std::vector<SymbolSet*>, uint32_t> ids;
  for (size_t part = 0; part + 1 < bounds.size(); ++part) {
    if (owners[part].empty()) continue;  // surrogates
    const auto [at, is_new] = ids.try_emplace(owners[part], num_symbols());
    if (is_new) {
      symbols_.emplace_back();
      for (SymbolSet* set : owners[part]) {
        if (set->empty() || set->back().last + 1 != at->second) set->push_back({at->second, at->second});
        set->back().last = at->second;
      }
    }
    symbols_[at->second].push_back({bounds[part], bounds[part + 1] - 1});
  }
}

const SymbolSet& Alphabet::symbols_of(const CodePointSet& ranges) const {
  spend(work_left_, 1 + ranges.size());
  return sets_.at(normalized(ranges));
}

CodePointSet Alphabet::code_points_of(const SymbolSet& symbols) const {
  CodePointSet out;
  for (const CodePointRange& range : symbols)
    for (uint32_t symbol = range.first; symbol <= range.last; ++symbol)
      out.insert(out.end(), symbols_[symbol].begin(), symbols_[symbol].end());
  spend(work_left_, out.size());
  return normalized(std::move(out));
}

}  // namespace capstan::grammar
