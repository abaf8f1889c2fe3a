#include "native/engine/output.h"

#include <algorithm>

#include "native/base/utf8.h"

namespace capstan {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

}  // namespace

StopMatcher::StopMatcher(std::span<const std::string> stop_strings) {
  for (const std::string& text : stop_strings)
    patterns_.push_back({PatternMatcher<char>(text)});
}

int StopMatcher::advance(char byte) {
  int completed = -1;
  num_held_ = 0;
  for (size_t i = 0; i < patterns_.size(); ++i) {
    auto& [matcher, num_matched] = patterns_[i];
    num_matched = matcher.advance(num_matched, byte);
    num_held_ = std::max(num_held_, num_matched);
    if (num_matched == matcher.size() && (completed < 0 || matcher.size() > length(completed)))
      completed = static_cast<int>(i);
  }
  return completed;
}

void StopMatcher::reset() {
  num_held_ = 0;
  for (Pattern& pattern : patterns_)
    pattern.num_matched = 0;
}

int TextOutput::add_character(std::string_view bytes, bool may_stop) {
  text_.append(bytes);
  if (!may_stop) return -1;
  int completed = -1;
  // Stop strings are UTF-8, so only the last byte of a character can complete one.
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
    const Utf8Head head = read_utf8_head(rest);
    if (head.status == Utf8Status::kIncomplete) break;
    const bool is_valid = head.status == Utf8Status::kCharacter;
    // add_character may clear partial_, so it gets a copy of at most four bytes.
    const std::string character(is_valid ? rest.substr(0, head.length) : kReplacement);
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
  // The text held back may begin inside a character. Return complete characters only.
  size_t count = text_.size() - std::min(text_.size(), matcher_.num_held());
  while (count > 0 && count < text_.size() && (static_cast<uint8_t>(text_[count]) & 0xC0) == 0x80)
    --count;
  std::string taken = text_.substr(0, count);
  text_.erase(0, count);
  return taken;
}

}  // namespace capstan
