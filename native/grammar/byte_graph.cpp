#include "native/grammar/byte_graph.h"

#include <algorithm>

namespace capstan::grammar {

std::string json_escape(uint32_t code_point) {
  static constexpr std::string_view kShort = "\"\\\b\f\n\r\t", kLetters = "\"\\bfnrt";
  const size_t at = kShort.find(static_cast<char>(code_point));
  if (at != std::string_view::npos) return {'\\', kLetters[at]};
  static constexpr char kHex[] = "0123456789abcdef";
  return {'\\', 'u', '0', '0', kHex[code_point >> 4], kHex[code_point & 15]};
}

const CodePointSet& json_escaped() {
  static const CodePointSet kEscaped = {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};
  return kEscaped;
}

uint32_t ByteGraph::add(const CodePointSet& set, bool is_json_string, size_t& work) {
  std::vector<Spelling> spellings;
  const auto add_bytes = [&](const auto& bytes, size_t length) {
    Spelling& spelling = spellings.emplace_back();
    for (size_t i = 0; i < length; ++i)
      spelling.push_back(bytes(i));
    work += length;
  };
  for (const ByteRanges& bytes : utf8_ranges(is_json_string ? intersection(set, complement(json_escaped())) : set))
    add_bytes([&](size_t i) { return ByteRange{bytes.ranges[i][0], bytes.ranges[i][1]}; },
              static_cast<size_t>(bytes.length));
  for (const CodePointRange& range : is_json_string ? intersection(set, json_escaped()) : CodePointSet{})
    for (uint32_t c = range.first; c <= range.last; ++c) {
      const std::string escape = json_escape(c);
      const auto byte_at = [&](size_t i) { return static_cast<uint8_t>(escape[i]); };
      add_bytes([&](size_t i) { return ByteRange{byte_at(i), byte_at(i)}; }, escape.size());
    }
  std::ranges::sort(spellings);
  return node_of(spellings, 0);
}

// Returns the node of the bytes from `pos` on. The spellings are ascending and equal up to there. Two ranges at one
// place are equal or disjoint.
uint32_t ByteGraph::node_of(std::span<const Spelling> spellings, size_t pos) {
  if (spellings[0].size() == pos) return kEnd;
  std::vector<ByteEdge> edges;
  for (size_t begin = 0, end = 0; begin < spellings.size(); begin = end) {
    const ByteRange range = spellings[begin][pos];
    while (end < spellings.size() && spellings[end][pos] == range)
      ++end;
    const uint32_t target = node_of(spellings.subspan(begin, end - begin), pos + 1);
    if (!edges.empty() && edges.back().target == target && edges.back().last + 1 == range.first)
      edges.back().last = range.last;
    else
      edges.push_back({range.first, range.last, target});
  }
  std::vector<uint64_t> key;
  for (const ByteEdge& edge : edges)
    key.push_back(uint64_t{edge.target} << 16 | uint64_t{edge.first} << 8 | edge.last);
  const auto [at, is_new] = ids_.try_emplace(std::move(key), static_cast<uint32_t>(nodes_.size()));
  if (is_new) nodes_.push_back(std::move(edges));
  return at->second;
}

}  // namespace capstan::grammar
