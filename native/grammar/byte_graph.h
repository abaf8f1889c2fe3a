#pragma once
// The spellings of sets of code points as one acyclic automaton over bytes. Equal remainders of spellings are one node,
// so the sets share their ends.
#include <map>
#include <vector>

#include "native/grammar/automaton.h"
#include "native/grammar/code_points.h"

namespace capstan::grammar {

class ByteGraph {
 public:
  static constexpr uint32_t kEnd = 0;  // after the last byte

  // Returns the node from which all paths to kEnd spell the code points of a normalized set: as UTF-8, or as the inside
  // of a JSON string literal. Adds the bytes that it reads to `work`.
  uint32_t add(const CodePointSet& set, bool is_json_string, size_t& work);
  // The edges are ascending and disjoint; their targets are nodes.
  const std::vector<ByteEdge>& edges_of(uint32_t node) const { return nodes_[node]; }
  size_t num_nodes() const { return nodes_.size(); }

 private:
  struct ByteRange {
    uint8_t first = 0, last = 0;
    auto operator<=>(const ByteRange&) const = default;
  };
  using Spelling = std::vector<ByteRange>;

  uint32_t node_of(std::span<const Spelling> spellings, size_t pos);

  std::vector<std::vector<ByteEdge>> nodes_{{}};
  std::map<std::vector<uint64_t>, uint32_t> ids_;  // by edges
};

// Returns the escape of a code point inside a JSON string, the short one if it exists.
std::string json_escape(uint32_t code_point);
// The code points that are escaped inside a JSON string.
const CodePointSet& json_escaped();

}  // namespace capstan::grammar
