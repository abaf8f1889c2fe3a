#pragma once
// Turns the bytes of tokens into text deltas of complete UTF-8 characters. Finds stop strings across tokens, and holds
// text back only while it may still become a stop string.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "native/base/pattern_matcher.h"

namespace capstan {

// The bytes of each token id. Shared by all sequences of an engine.
struct Vocabulary {
  std::string bytes;
  std::vector<uint32_t> offsets;    // (num_ids + 1)
  std::vector<uint8_t> is_special;  // (num_ids) 0 ordinary, 1 special, 2 a marker that is never skipped

  int64_t num_ids() const { return static_cast<int64_t>(is_special.size()); }
  std::string_view bytes_of(int32_t id) const {
    return std::string_view(bytes).substr(offsets[static_cast<size_t>(id)],
                                          offsets[static_cast<size_t>(id) + 1] - offsets[static_cast<size_t>(id)]);
  }
};

// Finds the first of several strings in a stream of bytes.
class StopMatcher {
 public:
  explicit StopMatcher(std::span<const std::string> stop_strings);
  // Takes one byte. Returns the index of the stop string that it completes (the longest, if several), or -1.
  int advance(char byte);
  // Bytes at the end of the stream that may still become a stop string.
  size_t num_held() const { return num_held_; }
  size_t length(int idx) const { return patterns_[static_cast<size_t>(idx)].matcher.size(); }
  void reset();

 private:
  struct Pattern {
    PatternMatcher<char> matcher;
    size_t num_matched = 0;
  };
  std::vector<Pattern> patterns_;
  size_t num_held_ = 0;
};

// The text of one sequence.
class TextOutput {
 public:
  TextOutput() : matcher_({}) {}
  TextOutput(std::span<const std::string> stop_strings, bool includes_stop, bool strips_leading_space)
      : matcher_(stop_strings), includes_stop_(includes_stop), strips_space_(strips_leading_space) {}

  // Adds the bytes of a token. Returns the index of the stop string that they complete, or -1. After a stop string
  // nothing more may be added. `may_stop` is false while min_tokens disables stop strings.
  int add(std::string_view bytes, bool may_stop);
  // Ends the text: releases the text held back and replaces an incomplete character by U+FFFD.
  void finish();
  // Returns and removes the text that is not held back.
  std::string take();

 private:
  int add_character(std::string_view bytes, bool may_stop);

  StopMatcher matcher_;
  bool includes_stop_ = false;
  bool strips_space_ = false;
  std::string partial_;  // 0 to 3 bytes of an incomplete character
  std::string text_;     // complete characters not taken yet; the last matcher_.num_held() bytes are held back
  bool is_finished_ = false;
};

}  // namespace capstan
