#pragma once
// Knuth–Morris–Pratt search for one pattern in a stream of elements.
#include <cstddef>
#include <span>
#include <vector>

namespace capstan {

// Immutable: the caller keeps the state, which is the number of leading pattern elements that the stream ends with.
template <typename T>
class PatternMatcher {
 public:
  explicit PatternMatcher(std::span<const T> pattern)
      : pattern_(pattern.begin(), pattern.end()), borders_(pattern.size(), 0) {
    for (size_t i = 1, border = 0; i < pattern_.size(); ++i) {
      while (border > 0 && pattern_[i] != pattern_[border])
        border = borders_[border - 1];
      if (pattern_[i] == pattern_[border]) ++border;
      borders_[i] = border;
    }
  }

  const std::vector<T>& pattern() const { return pattern_; }
  size_t size() const { return pattern_.size(); }
  // Length of the longest proper prefix of the first `num_matched` elements that is also their suffix.
  // `num_matched` is at least 1.
  size_t border(size_t num_matched) const { return borders_[num_matched - 1]; }

  // Returns the state after `element`, given the state before it. size() means a match; the state after a match is a
  // valid argument. An empty pattern never matches.
  size_t advance(size_t num_matched, T element) const {
    if (pattern_.empty()) return 0;
    if (num_matched == pattern_.size()) num_matched = border(num_matched);
    while (num_matched > 0 && pattern_[num_matched] != element)
      num_matched = border(num_matched);
    return pattern_[num_matched] == element ? num_matched + 1 : 0;
  }

 private:
  std::vector<T> pattern_;
  std::vector<size_t> borders_;  // (length) by index of the prefix's last element
};

}  // namespace capstan
