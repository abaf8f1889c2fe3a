#pragma once
// From token ids to text that may leave: whole UTF-8 characters, stop strings found across tokens, text held back only
// as long as it could still become a stop string. Works on bytes; one TextOutput per sequence.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace capstan {

// id → bytes. Shared by all sequences of an engine.
struct Vocabulary {
  std::string bytes;
  std::vector<uint32_t> offsets;    // (num_ids + 1)
  std::vector<uint8_t> is_special;  // (num_ids) 0 ordinary, 1 special, 2 a marker that always stays in the text

  int64_t num_ids() const { return static_cast<int64_t>(is_special.size()); }
  std::string_view bytes_of(int32_t id) const {
    return std::string_view(bytes).substr(offsets[static_cast<size_t>(id)],
                                          offsets[static_cast<size_t>(id) + 1] - offsets[static_cast<size_t>(id)]);
  }
};

// Finds the first of several strings in a stream of bytes (Knuth–Morris–Pratt, one state per string).
class StopMatcher {
 public:
  explicit StopMatcher(std::span<const std::string> stop_strings);
  // Takes one byte; the index of the stop string that it completes (the longest, if several), or -1.
  int advance(char byte);
  // Bytes at the end of the stream that may still become a stop string.
  size_t num_held() const { return num_held_; }
  size_t length(int idx) const { return patterns_[static_cast<size_t>(idx)].text.size(); }
  void reset();

 private:
  struct Pattern {
    std::string text;
    std::vector<uint32_t> fallback;  // (length) longest proper border of each prefix
    uint32_t state = 0;              // bytes matched
  };
  std::vector<Pattern> patterns_;
  size_t num_held_ = 0;
};

class TextOutput {
 public:
  TextOutput() : matcher_({}) {}
  TextOutput(std::span<const std::string> stop_strings, bool includes_stop, bool strips_leading_space)
      : matcher_(stop_strings), includes_stop_(includes_stop), strips_space_(strips_leading_space) {}

  // Adds a token's bytes. Returns the index of the stop string they complete, or -1; afterwards nothing more may be
  // added. `may_stop` false (min tokens): stop strings are not looked for yet.
  int add(std::string_view bytes, bool may_stop);
  // Ends the text: what was held back is released; an unfinished character becomes U+FFFD.
  void finish();
  // Moves out the text that may leave.
  std::string take();

 private:
  int add_character(std::string_view bytes, bool may_stop);

  StopMatcher matcher_;
  bool includes_stop_ = false;
  bool strips_space_ = false;
  std::string partial_;  // 0 to 3 bytes of an unfinished character
  std::string text_;     // whole characters not taken yet; the last matcher_.num_held() bytes are held back
  bool is_finished_ = false;
};

}  // namespace capstan
