#include "native/engine/output.h"

#include <algorithm>

namespace capstan {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// How `bytes` begins: a whole character of `length` bytes; the start of one (is_partial); or `length` bytes that are
// none (the longest part that could have begun one, as Unicode recommends to replace).
struct Utf8Head {
  size_t length;
  bool is_valid;
  bool is_partial;
};

Utf8Head utf8_head(std::string_view bytes) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return {1, true, false};
  if (first < 0xC2 || first > 0xF4) return {1, false, false};
  const size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  // The second byte's range excludes overlong forms, surrogates and what lies beyond U+10FFFF.
  const uint8_t low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const uint8_t high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  for (size_t i = 1; i < length; ++i) {
    if (i == bytes.size()) return {i, false, true};
    const bool is_continuation = i == 1 ? byte(i) >= low && byte(i) <= high : (byte(i) & 0xC0) == 0x80;
    if (!is_continuation) return {i, false, false};
  }
  return {length, true, false};
}

}  // namespace

StopMatcher::StopMatcher(std::span<const std::string> stop_strings) {
  for (const std::string& text : stop_strings) {
    Pattern pattern{text, std::vector<uint32_t>(text.size(), 0), 0};
    for (uint32_t i = 1, border = 0; i < text.size(); ++i) {
      while (border > 0 && text[i] != text[border])
        border = pattern.fallback[border - 1];
      if (text[i] == text[border]) ++border;
      pattern.fallback[i] = border;
    }
    patterns_.push_back(std::move(pattern));
  }
}

int StopMatcher::advance(char byte) {
  int completed = -1;
  num_held_ = 0;
  for (size_t i = 0; i < patterns_.size(); ++i) {
    Pattern& pattern = patterns_[i];
    while (pattern.state > 0 && pattern.text[pattern.state] != byte)
      pattern.state = pattern.fallback[pattern.state - 1];
    if (pattern.text[pattern.state] == byte) ++pattern.state;
    num_held_ = std::max<size_t>(num_held_, pattern.state);
    if (pattern.state == pattern.text.size()) {
      if (completed < 0 || pattern.text.size() > length(completed)) completed = static_cast<int>(i);
      pattern.state = pattern.fallback[pattern.state - 1];
    }
  }
  return completed;
}

void StopMatcher::reset() {
  num_held_ = 0;
  for (Pattern& pattern : patterns_)
    pattern.state = 0;
}

int TextOutput::add_character(std::string_view bytes, bool may_stop) {
  text_.append(bytes);
  if (!may_stop) return -1;
  int completed = -1;
  // A stop string ends at a character's end: only the last byte can complete one.
  for (const char byte : bytes)
    completed = matcher_.advance(byte);
  if (completed >= 0) {
    if (!includes_stop_) text_.resize(text_.size() - matcher_.length(completed));
    matcher_.reset();
    partial_.clear();
    is_finished_ = true;
  }
  return completed;
}

int TextOutput::add(std::string_view bytes, bool may_stop) {
  if (strips_space_ && !bytes.empty()) {
    if (bytes[0] == ' ') bytes.remove_prefix(1);
    strips_space_ = false;
  }
  partial_.append(bytes);
  size_t begin = 0;
  while (begin < partial_.size()) {
    const std::string_view rest = std::string_view(partial_).substr(begin);
    const Utf8Head head = utf8_head(rest);
    if (head.is_partial) break;
    // add_character may clear partial_, so it gets a copy of at most four bytes.
    const std::string character(head.is_valid ? rest.substr(0, head.length) : kReplacement);
    begin += head.length;
    if (const int completed = add_character(character, may_stop); completed >= 0) return completed;
  }
  partial_.erase(0, begin);
  return -1;
}

void TextOutput::finish() {
  if (is_finished_) return;
  if (!partial_.empty()) text_.append(kReplacement);
  partial_.clear();
  matcher_.reset();
  is_finished_ = true;
}

std::string TextOutput::take() {
  // What is held back may begin in the middle of a character that a stop string begins with; let whole characters go
  // only.
  size_t count = text_.size() - std::min(text_.size(), matcher_.num_held());
  while (count > 0 && count < text_.size() && (static_cast<uint8_t>(text_[count]) & 0xC0) == 0x80)
    --count;
  std::string taken = text_.substr(0, count);
  text_.erase(0, count);
  return taken;
}

}  // namespace capstan
