#include <array>

#include "native/base/check.h"
#include "native/base/pattern_matcher.h"
#include "native/base/utf8.h"
#include "native/grammar/rule_nfa.h"

namespace capstan::grammar {
namespace {

constexpr size_t kMaxSearchBytes = 4096;

class Search {
 public:
  Search(RuleNfa& nfa, std::string_view text, SearchEnd end, uint32_t to, BuildBudget& budget)
      : nfa_(nfa), text_(text), end_(end), to_(to), budget_(budget) {
    if (text_.size() > kMaxSearchBytes)
      refuse("grammar: expected a search text of at most " + std::to_string(kMaxSearchBytes) + " bytes, got " +
             std::to_string(text_.size()));
    fill_tables();
    // With no byte matched, the position within a character can be any; otherwise the text determines it.
    for (int utf8 = 0; utf8 < kNumUtf8States; ++utf8)
      add_state(0, static_cast<Utf8State>(utf8));
    for (size_t matched = 1; matched < text_.size(); ++matched)
      add_state(matched, utf8_[matched]);
  }

  uint32_t build(std::span<const Marker* const> markers) {
    for (const Place& place : places_) {
      add_byte_edges(place);
      for (const Marker* marker : markers)
        add_token_edge(place, *marker);
      if (end_ == SearchEnd::kWithout && place.utf8 == Utf8State::kBoundary)
        nfa_.states[place.state].empty.push_back(to_);
    }
    return place_of(0, Utf8State::kBoundary).state;
  }

 private:
  static constexpr uint32_t kNowhere = UINT32_MAX;
  struct Place {
    size_t matched;  // bytes of the text
    Utf8State utf8;
    uint32_t state;
  };

  void fill_tables() {
    utf8_.push_back(Utf8State::kBoundary);
    for (const char byte : text_)
      utf8_.push_back(next_utf8_state(utf8_.back(), static_cast<uint8_t>(byte)));
    if (utf8_.back() != Utf8State::kBoundary) refuse("grammar: a search text is not valid UTF-8");
    const PatternMatcher<char> matcher(text_);
    next_.resize(text_.size());
    for (size_t matched = 0; matched < text_.size(); ++matched) {
      if (matched > 0) next_[matched] = next_[matcher.border(matched)];
      next_[matched][static_cast<uint8_t>(text_[matched])] = static_cast<uint16_t>(matched + 1);
    }
  }

  void add_state(size_t matched, Utf8State utf8) {
    budget_.spend(1);
    nfa_.states.emplace_back();
    places_.push_back({matched, utf8, static_cast<uint32_t>(nfa_.states.size() - 1)});
  }

  const Place& place_of(size_t matched, Utf8State utf8) const {
    return places_[matched == 0 ? static_cast<size_t>(utf8) : kNumUtf8States - 1 + matched];
  }

  // Returns kNowhere when the byte is not valid UTF-8, or completes a text that must not occur.
  uint32_t target(const Place& place, uint8_t byte) const {
    const Utf8State utf8 = next_utf8_state(place.utf8, byte);
    if (utf8 == Utf8State::kInvalid) return kNowhere;
    const size_t matched = next_[place.matched][byte];
    if (matched == text_.size()) return end_ == SearchEnd::kUntil ? to_ : kNowhere;
    return place_of(matched, utf8).state;
  }

  void add_byte_edges(const Place& place) {
    budget_.spend(256);
    auto& edges = nfa_.states[place.state].bytes;
    for (int byte = 0; byte < 256; ++byte) {
      const uint32_t to = target(place, static_cast<uint8_t>(byte));
      if (to == kNowhere) continue;
      if (!edges.empty() && edges.back().target == to && edges.back().last == byte - 1)
        edges.back().last = static_cast<uint8_t>(byte);
      else
        edges.push_back({static_cast<uint8_t>(byte), static_cast<uint8_t>(byte), to});
    }
  }

  void add_token_edge(const Place& from, const Marker& marker) {
    const Place* at = &from;
    budget_.spend(marker.text.size());
    for (size_t i = 0; i < marker.text.size(); ++i) {
      const uint32_t to = target(*at, static_cast<uint8_t>(marker.text[i]));
      const bool is_last = i + 1 == marker.text.size();
      if (to == kNowhere || (to == to_ && !is_last)) return;
      if (is_last) return nfa_.states[from.state].tokens.push_back({marker.token_id, to});
      at = &places_[to - places_[0].state];
    }
  }

  RuleNfa& nfa_;
  const std::string_view text_;
  const SearchEnd end_;
  const uint32_t to_;
  BuildBudget& budget_;
  std::vector<Utf8State> utf8_;                  // (length + 1) by bytes matched
  std::vector<std::array<uint16_t, 256>> next_;  // (length, 256) bytes matched after a byte, by bytes matched before
  std::vector<Place> places_;                    // places with no byte matched first; their states are consecutive
};

}  // namespace

void add_search(RuleNfa& nfa, std::string_view text, SearchEnd end, uint32_t from, uint32_t to,
                std::span<const Marker* const> markers, BuildBudget& budget) {
  CAPSTAN_CHECK(!text.empty());
  const uint32_t begin = Search(nfa, text, end, to, budget).build(markers);
  nfa.states[from].empty.push_back(begin);
}

}  // namespace capstan::grammar
