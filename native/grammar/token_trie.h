#pragma once
// Tokens by their bytes, as a trie in an array that is walked from front to back. A node's descendants follow it
// directly, so one jump skips them.
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "native/grammar/grammar.h"

namespace capstan::grammar {

class MaskStore;

class TokenTrie {
 public:
  struct Node {
    uint32_t skip = 0;         // index of the first node after this one's descendants
    uint32_t first_token = 0;  // index into token_ids; the node's tokens end where those of the next node begin
    uint16_t depth = 0;        // from 1
    uint8_t byte = 0;
    uint8_t reach = 0;  // length of the longest token at this node or below, limited to kMaxReach
  };
  static constexpr uint8_t kMaxReach = 255;
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
  // Returns whether a token of more than `num_bytes` bytes is at this node or below.
  bool reaches_beyond(uint32_t idx, size_t num_bytes) const {
    return nodes_[idx].reach > num_bytes || nodes_[idx].reach == kMaxReach;
  }
  size_t size_bytes() const { return nodes_.size() * sizeof(Node) + token_ids_.size() * sizeof(int32_t); }

 private:
  void fill_reach();

  std::vector<Node> nodes_;         // (num_nodes + 1), the last one a sentinel
  std::vector<int32_t> token_ids_;  // in the order of the nodes
  int max_depth_ = 0;
};

// The tokens of a vocabulary, for grammars. Built once per vocabulary and shared by all grammars.
class TokenTable {
 public:
  // offsets (num_ids + 1): token i has the bytes from offsets[i] to offsets[i + 1]. is_marker (num_ids). Empty tokens,
  // tokens of more than kMaxTokenBytes bytes and `eos_ids` match no bytes. Markers match only as one token, where a
  // grammar spells them out.
  TokenTable(std::string_view bytes, std::span<const uint32_t> offsets, std::span<const uint8_t> is_marker,
             std::span<const int32_t> eos_ids, size_t max_cache_bytes = kDefaultCacheBytes);

  ~TokenTable();

  static constexpr size_t kMaxTokenBytes = 1024;
  static constexpr size_t kDefaultCacheBytes = size_t{64} << 20;  // default memory limit of grammars and masks

  int64_t num_ids() const { return static_cast<int64_t>(offsets_.size()) - 1; }
  size_t num_mask_words() const { return (static_cast<size_t>(num_ids()) + 31) / 32; }
  const TokenTrie& trie() const { return trie_; }
  std::span<const int32_t> eos_ids() const { return eos_ids_; }
  bool is_eos(int32_t id) const;
  std::span<const Marker> markers() const { return markers_; }
  bool is_marker(int32_t id) const;
  // Returns the tokens that match more than `num_bytes` bytes.
  std::span<const int32_t> longer_than(size_t num_bytes) const {
    return {longest_.data(), num_bytes < num_longer_.size() ? num_longer_[num_bytes] : 0};
  }
  // The memory of all grammars of this vocabulary.
  MaskStore& masks() const { return *masks_; }
  // Returns the bytes of a token; empty when it matches no bytes.
  std::string_view bytes_of(int32_t id) const;

 private:
  std::string bytes_;
  std::vector<uint32_t> offsets_;
  std::vector<bool> is_matchable_;
  std::vector<int32_t> eos_ids_;    // ascending, below num_ids
  std::vector<Marker> markers_;     // ascending by id
  std::vector<int32_t> longest_;    // ids that match bytes, longest first
  std::vector<size_t> num_longer_;  // (bytes of the longest token) number of tokens with more bytes than the index
  TokenTrie trie_;
  const std::unique_ptr<MaskStore> masks_;
};

}  // namespace capstan::grammar
