#include <array>

#include "native/base/check.h"
#include "native/grammar/rule_nfa.h"

namespace capstan::grammar {
namespace {

constexpr size_t kMaxSearchBytes = 4096;
constexpr int kInvalid = -1;

// Where in a character a text is: at a boundary, before one to three plain continuation bytes, or before the narrower
// second byte of these.
enum Utf8State : int {
  kBoundary,
  kOneLeft,
  kTwoLeft,
  kThreeLeft,
  kAfterE0,
  kAfterED,
  kAfterF0,
  kAfterF4,
  kNumUtf8States
};

int next_utf8(int state, uint8_t byte) {
  const auto within = [byte](uint8_t first, uint8_t last, int next) {
    return first <= byte && byte <= last ? next : kInvalid;
  };
  switch (state) {
    case kOneLeft:
      return within(0x80, 0xBF, kBoundary);
    case kTwoLeft:
      return within(0x80, 0xBF, kOneLeft);
    case kThreeLeft:
      return within(0x80, 0xBF, kTwoLeft);
    case kAfterE0:
      return within(0xA0, 0xBF, kOneLeft);
    case kAfterED:
      return within(0x80, 0x9F, kOneLeft);
    case kAfterF0:
      return within(0x90, 0xBF, kTwoLeft);
    case kAfterF4:
      return within(0x80, 0x8F, kTwoLeft);
    default:
      break;
  }
  if (byte < 0x80) return kBoundary;
  if (byte < 0xC2 || byte > 0xF4) return kInvalid;
  if (byte < 0xE0) return kOneLeft;
  if (byte < 0xF0) return byte == 0xE0 ? kAfterE0 : byte == 0xED ? kAfterED : kTwoLeft;
  return byte == 0xF0 ? kAfterF0 : byte == 0xF4 ? kAfterF4 : kThreeLeft;
}

class Search {
 public:
  Search(RuleNfa& nfa, std::string_view text, SearchEnd end, uint32_t to, BuildBudget& budget)
      : nfa_(nfa), text_(text), end_(end), to_(to), budget_(budget) {
    if (text_.size() > kMaxSearchBytes)
      refuse("grammar: a text to search for has more than " + std::to_string(kMaxSearchBytes) + " bytes");
    fill_tables();
    // With nothing matched the place in a character is free; with something matched the text tells it.
    for (int utf8 = 0; utf8 < kNumUtf8States; ++utf8)
      add_state(0, utf8);
    for (size_t matched = 1; matched < text_.size(); ++matched)
      add_state(matched, utf8_[matched]);
  }

  uint32_t build(std::span<const Marker* const> markers) {
    for (const Place& place : places_) {
      add_byte_edges(place);
      for (const Marker* marker : markers)
        add_token_edge(place, *marker);
      if (end_ == SearchEnd::kWithout && place.utf8 == kBoundary) nfa_.states[place.state].empty.push_back(to_);
    }
    return places_[kBoundary].state;
  }

 private:
  static constexpr uint32_t kNowhere = UINT32_MAX;
  struct Place {
    size_t matched;  // bytes of the text
    int utf8;
    uint32_t state;
  };

  void fill_tables() {
    utf8_.push_back(kBoundary);
    for (const char byte : text_) {
      utf8_.push_back(next_utf8(utf8_.back(), static_cast<uint8_t>(byte)));
      if (utf8_.back() == kInvalid) break;
    }
    if (utf8_.back() != kBoundary) refuse("grammar: a text to search for is not UTF-8");
    next_.resize(text_.size());
    size_t border = 0;  // where the text read without its first byte leads
    for (size_t matched = 0; matched < text_.size(); ++matched) {
      const auto byte = static_cast<uint8_t>(text_[matched]);
      if (matched > 0) next_[matched] = next_[border];
      next_[matched][byte] = static_cast<uint16_t>(matched + 1);
      if (matched > 0) border = next_[border][byte];
    }
  }

  void add_state(size_t matched, int utf8) {
    budget_.spend(1);
    nfa_.states.emplace_back();
    places_.push_back({matched, utf8, static_cast<uint32_t>(nfa_.states.size() - 1)});
  }

  const Place& place_of(size_t matched, int utf8) const {
    return places_[matched == 0 ? static_cast<size_t>(utf8) : kNumUtf8States - 1 + matched];
  }

  // kNowhere where the byte is no UTF-8 or the text must not be.
  uint32_t target(const Place& place, uint8_t byte) const {
    const int utf8 = next_utf8(place.utf8, byte);
    if (utf8 == kInvalid) return kNowhere;
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
  std::vector<int> utf8_;                        // (length + 1) by bytes matched
  std::vector<std::array<uint16_t, 256>> next_;  // (length) bytes matched, by bytes matched before and byte
  std::vector<Place> places_;                    // those with nothing matched first; their states follow each other
};

}  // namespace

void add_search(RuleNfa& nfa, std::string_view text, SearchEnd end, uint32_t from, uint32_t to,
                std::span<const Marker* const> markers, BuildBudget& budget) {
  CAPSTAN_CHECK(!text.empty());
  const uint32_t begin = Search(nfa, text, end, to, budget).build(markers);
  nfa.states[from].empty.push_back(begin);
}

}  // namespace capstan::grammar
