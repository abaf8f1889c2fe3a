#include "native/grammar/code_points.h"

#include <algorithm>

#include "native/base/utf8.h"

namespace capstan::grammar {
namespace {

constexpr uint32_t kSurrogateFirst = 0xD800, kSurrogateLast = 0xDFFF;
constexpr uint32_t kLastOfLength[] = {0x7F, 0x7FF, 0xFFFF, kMaxCodePoint};

int encode(uint32_t c, uint8_t (&bytes)[4]) {
  if (c <= 0x7F) return bytes[0] = static_cast<uint8_t>(c), 1;
  const int length = c <= 0x7FF ? 2 : c <= 0xFFFF ? 3 : 4;
  static constexpr uint8_t kLead[] = {0, 0, 0xC0, 0xE0, 0xF0};
  for (int i = length - 1; i > 0; --i, c >>= 6)
    bytes[i] = static_cast<uint8_t>(0x80 | (c & 0x3F));
  bytes[0] = static_cast<uint8_t>(kLead[length] | c);
  return length;
}

// Splits the range until first and last differ only in complete trailing bytes, so that the range of each byte does not
// depend on the other bytes.
void split(uint32_t first, uint32_t last, std::vector<ByteRanges>& out) {
  for (const uint32_t bound : kLastOfLength)
    if (first <= bound && bound < last) return split(first, bound, out), split(bound + 1, last, out);
  for (int i = 1; i < 4; ++i) {
    const uint32_t mask = (1u << (6 * i)) - 1;
    if (last <= 0x7F || (first & ~mask) == (last & ~mask)) break;
    if ((first & mask) != 0) return split(first, first | mask, out), split((first | mask) + 1, last, out);
    if ((last & mask) != mask) return split(first, (last & ~mask) - 1, out), split(last & ~mask, last, out);
  }
  uint8_t low[4], high[4];
  ByteRanges ranges;
  ranges.length = encode(first, low);
  encode(last, high);
  for (int i = 0; i < ranges.length; ++i)
    ranges.ranges[static_cast<size_t>(i)] = {low[i], high[i]};
  out.push_back(ranges);
}

}  // namespace

CodePointSet intersection(const CodePointSet& a, const CodePointSet& b) {
  CodePointSet out;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const CodePointRange both{std::max(a[i].first, b[j].first), std::min(a[i].last, b[j].last)};
    if (both.first <= both.last) out.push_back(both);
    if (a[i].last < b[j].last)
      ++i;
    else
      ++j;
  }
  return out;
}

CodePointSet normalized(CodePointSet ranges) {
  std::ranges::sort(ranges, {}, &CodePointRange::first);
  CodePointSet merged;
  for (const CodePointRange& range : ranges) {
    if (range.first > range.last) continue;
    if (!merged.empty() && range.first <= uint64_t{merged.back().last} + 1)
      merged.back().last = std::max(merged.back().last, range.last);
    else
      merged.push_back(range);
  }
  return intersection(merged, {{0, kSurrogateFirst - 1}, {kSurrogateLast + 1, kMaxCodePoint}});
}

CodePointSet complement(const CodePointSet& set) {
  CodePointSet out;
  uint32_t next = 0;
  for (const CodePointRange& range : set) {
    if (range.first > next) out.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kMaxCodePoint) out.push_back({next, kMaxCodePoint});
  return normalized(std::move(out));
}

std::vector<ByteRanges> utf8_ranges(const CodePointSet& set) {
  std::vector<ByteRanges> out;
  for (const CodePointRange& range : set)
    split(range.first, range.last, out);
  return out;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

void append_utf8(std::string& out, uint32_t code_point) {
  uint8_t bytes[4];
  const int length = encode(code_point, bytes);
  for (int i = 0; i < length; ++i)
    out += static_cast<char>(bytes[i]);
}

uint32_t read_utf8(std::string_view text, size_t& pos, std::string_view label) {
  const Utf8Head head = pos < text.size() ? read_utf8_head(text.substr(pos)) : Utf8Head{};
  if (head.status != Utf8Status::kCharacter)
    refuse(std::string(label) + ": the byte at position " + std::to_string(pos) + " is not UTF-8");
  pos += head.length;
  return head.code_point;
}

}  // namespace capstan::grammar
