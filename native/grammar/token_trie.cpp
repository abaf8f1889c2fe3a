#include "native/grammar/token_trie.h"

#include <algorithm>

#include "native/base/check.h"
#include "native/grammar/mask_store.h"

namespace capstan::grammar {

TokenTrie::TokenTrie(std::vector<Entry> entries) {
  std::ranges::sort(entries);
  std::vector<uint32_t> open;  // nodes of the path to the last entry
  std::string_view last;
  for (const auto& [bytes, id] : entries) {
    const size_t num_common = static_cast<size_t>(std::ranges::mismatch(bytes, last).in1 - bytes.begin());
    for (; open.size() > num_common; open.pop_back())
      nodes_[open.back()].skip = static_cast<uint32_t>(nodes_.size());
    for (size_t i = num_common; i < bytes.size(); ++i) {
      open.push_back(static_cast<uint32_t>(nodes_.size()));
      nodes_.push_back({0, static_cast<uint32_t>(token_ids_.size()), static_cast<uint16_t>(i + 1),
                        static_cast<uint8_t>(bytes[i]), 0});
    }
    token_ids_.push_back(id);
    max_depth_ = std::max(max_depth_, static_cast<int>(bytes.size()));
    last = bytes;
  }
  for (const uint32_t idx : open)
    nodes_[idx].skip = static_cast<uint32_t>(nodes_.size());
  if (!nodes_.empty())
    nodes_.push_back({static_cast<uint32_t>(nodes_.size() + 1), static_cast<uint32_t>(token_ids_.size()), 0, 0, 0});
  fill_reach();
}

void TokenTrie::fill_reach() {
  for (uint32_t idx = num_nodes(); idx-- > 0;) {
    Node& node = nodes_[idx];
    node.reach = static_cast<uint8_t>(std::min<size_t>(node.depth, kMaxReach));
    for (uint32_t child = idx + 1; child < node.skip; child = nodes_[child].skip)
      node.reach = std::max(node.reach, nodes_[child].reach);
  }
}

TokenTable::TokenTable(std::string_view bytes, std::span<const uint32_t> offsets, std::span<const uint8_t> is_marker,
                       std::span<const int32_t> eos_ids, size_t max_cache_bytes)
    : bytes_(bytes),
      offsets_(offsets.begin(), offsets.end()),
      is_matchable_(is_marker.size()),
      masks_(std::make_unique<MaskStore>(max_cache_bytes)) {
  CAPSTAN_CHECK(offsets.size() == is_marker.size() + 1 && offsets.back() <= bytes.size());
  for (const int32_t id : eos_ids)
    if (id >= 0 && id < num_ids()) eos_ids_.push_back(id);
  std::ranges::sort(eos_ids_);
  std::vector<TokenTrie::Entry> entries;
  for (int32_t id = 0; id < num_ids(); ++id) {
    const auto at = static_cast<size_t>(id);
    const size_t length = offsets_[at + 1] - offsets_[at];
    if (length == 0 || length > kMaxTokenBytes || is_eos(id)) continue;
    if (is_marker[at] != 0) {
      markers_.push_back({bytes_.substr(offsets_[at], length), id});
      continue;
    }
    is_matchable_[at] = true;
    entries.emplace_back(bytes_of(id), id);
    if (num_longer_.size() < length) num_longer_.resize(length);
    ++num_longer_[length - 1];
    longest_.push_back(id);
  }
  for (size_t length = num_longer_.size(); length-- > 1;)
    num_longer_[length - 1] += num_longer_[length];
  std::ranges::stable_sort(longest_, std::greater<>(), [this](int32_t id) { return bytes_of(id).size(); });
  trie_ = TokenTrie(std::move(entries));
}

TokenTable::~TokenTable() = default;

bool TokenTable::is_marker(int32_t id) const {
  return std::ranges::binary_search(markers_, id, {}, &Marker::token_id);
}

bool TokenTable::is_eos(int32_t id) const {
  return std::ranges::binary_search(eos_ids_, id);
}

std::string_view TokenTable::bytes_of(int32_t id) const {
  const auto at = static_cast<size_t>(id);
  if (id < 0 || id >= num_ids() || !is_matchable_[at]) return {};
  return std::string_view(bytes_).substr(offsets_[at], offsets_[at + 1] - offsets_[at]);
}

}  // namespace capstan::grammar
