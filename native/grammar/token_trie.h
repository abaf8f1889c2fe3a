#pragma once
// Tokens by their bytes, in an array that is walked from front to back: a node's children follow it, and what fails is skipped in one jump.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace capstan::grammar {

class TokenTrie {
 public:
  struct Node {
    uint32_t skip = 0;         // the first node behind this one's descendants
    uint32_t first_token = 0;  // of token_ids; its own tokens end where the next node's begin
    uint16_t depth = 0;        // from 1
    uint8_t byte = 0;
  };
  using Entry = std::pair<std::string_view, int32_t>;  // bytes (not empty), token id

  TokenTrie() = default;
  explicit TokenTrie(std::vector<Entry> entries);

  bool is_empty() const { return num_nodes() == 0; }
  uint32_t num_nodes() const { return nodes_.empty() ? 0 : static_cast<uint32_t>(nodes_.size() - 1); }
  const Node& node(uint32_t idx) const { return nodes_[idx]; }
  std::span<const int32_t> tokens_of(uint32_t idx) const { return tokens_between(idx, idx + 1); }
  std::span<const int32_t> tokens_between(uint32_t begin, uint32_t end) const {
    return {token_ids_.data() + nodes_[begin].first_token, token_ids_.data() + nodes_[end].first_token};
  }
  int max_depth() const { return max_depth_; }
  size_t size_bytes() const { return nodes_.size() * sizeof(Node) + token_ids_.size() * sizeof(int32_t); }

 private:
  std::vector<Node> nodes_;         // (num_nodes + 1), the last one a sentinel
  std::vector<int32_t> token_ids_;  // in the order of the nodes
  int max_depth_ = 0;
};

// The tokens that a grammar can match. Built once per vocabulary, shared by all grammars.
class TokenTable {
 public:
  // Token i has bytes [offsets[i], offsets[i + 1]); offsets (num_ids + 1), is_special (num_ids). Special tokens, empty ones, those of
  // more than kMaxTokenBytes bytes and those of `eos_ids` match nothing.
  TokenTable(std::string_view bytes, std::span<const uint32_t> offsets, std::span<const uint8_t> is_special, std::span<const int32_t> eos_ids);

  static constexpr size_t kMaxTokenBytes = 1024;

  int64_t num_ids() const { return static_cast<int64_t>(offsets_.size()) - 1; }
  size_t num_mask_words() const { return (static_cast<size_t>(num_ids()) + 31) / 32; }
  const TokenTrie& trie() const { return trie_; }
  std::span<const int32_t> eos_ids() const { return eos_ids_; }
  bool is_eos(int32_t id) const;
  // Empty where the token matches nothing.
  std::string_view bytes_of(int32_t id) const;

 private:
  std::string bytes_;
  std::vector<uint32_t> offsets_;
  std::vector<bool> is_matchable_;
  std::vector<int32_t> eos_ids_;  // ascending, below num_ids
  TokenTrie trie_;
};

}  // namespace capstan::grammar
