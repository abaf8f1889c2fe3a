#include "native/grammar/mask_cache.h"

#include <algorithm>

namespace capstan::grammar {

size_t MaskCache::SetHash::operator()(const ConfigSet& set) const {
  uint64_t hash = set.is_at_bottom;
  for (const Config& config : set.configs) {
    hash = (hash ^ (uint64_t{config.state} << 32 | config.stack)) * 0x9E3779B97F4A7C15;
    hash ^= hash >> 29;
  }
  return static_cast<size_t>(hash);
}

MaskKey MaskCache::key_of(const Config& config, const Frame& top) const {
  MaskKey key{config.state, MaskKey::kNoCall, 0, 0};
  if (config.stack == kBottom) return key;
  const CallEdge& call = machine_.automaton().calls[top.call];
  if (!call.is_counted()) return key;
  // A token of n bytes ends n rounds at most.
  const auto far = static_cast<uint32_t>(tokens_.trie().max_depth()) + 1;
  key.call = top.call;
  key.rounds_left_min = top.count < call.min ? std::min(call.min - top.count, far) : 0;
  key.rounds_left_max = call.max == kUnbounded ? far : std::min(call.max - top.count, far);
  return key;
}

std::shared_ptr<const LocalMask> MaskCache::get(const MaskKey& key, const Frame& top) {
  const std::lock_guard lock(mutex_);
  if (const auto at = masks_.find(key); at != masks_.end()) return at->second;
  auto mask = make(key, top);
  if (size_bytes_ + mask->size_bytes() > kMaxBytes) {
    masks_.clear();
    size_bytes_ = 0;
  }
  size_bytes_ += mask->size_bytes();
  masks_.emplace(key, mask);
  return mask;
}

size_t MaskCache::size_bytes() const {
  const std::lock_guard lock(mutex_);
  return size_bytes_;
}

void MaskCache::warm_up(std::chrono::steady_clock::time_point deadline) {
  const Automaton& automaton = machine_.automaton();
  const auto is_late = [&] { return std::chrono::steady_clock::now() >= deadline; };
  for (uint32_t state = 0; state < automaton.states.size() && !is_late(); ++state)
    if (!automaton.edges_of(state).empty()) get({state, MaskKey::kNoCall, 0, 0}, Frame{});
  for (uint32_t id = 0; id < automaton.calls.size() && !is_late(); ++id) {
    const CallEdge& call = automaton.calls[id];
    const Config config{automaton.rule_starts[call.rule], kBottom + 1};  // some stack, whose top is the call
    if (call.is_counted() && !automaton.edges_of(config.state).empty()) get(key_of(config, {id, 1, kBottom}), {id, 1, kBottom});
  }
}

void MaskCache::forget_sets() {
  machine_.clear();
  sets_.clear();
  transitions_.clear();
  set_ids_.clear();
}

int32_t MaskCache::id_of(const ConfigSet& set) {
  const auto [at, is_new] = set_ids_.try_emplace(set, static_cast<int32_t>(sets_.size()));
  if (is_new) {
    sets_.push_back(set);
    transitions_.emplace_back().fill(kUnknown);
  }
  return at->second;
}

int32_t MaskCache::next(int32_t set, uint8_t byte) {
  const int32_t known = transitions_[static_cast<size_t>(set)][byte];
  if (known != kUnknown) return known;
  if (work_ > kMaxWork) return kDead;
  const bool is_alive = machine_.step(sets_[static_cast<size_t>(set)], byte, scratch_);
  work_ += 1 + sets_[static_cast<size_t>(set)].configs.size() + scratch_.configs.size();
  const int32_t id = is_alive ? id_of(scratch_) : kDead;
  transitions_[static_cast<size_t>(set)][byte] = id;
  return id;
}

std::shared_ptr<const LocalMask> MaskCache::make(const MaskKey& key, const Frame& top) {
  if (sets_.size() > kMaxSets) forget_sets();
  work_ = 0;
  const StackId stack = key.call == MaskKey::kNoCall ? kBottom : machine_.push({top.call, top.count, kBottom});
  ConfigSet start;
  start.configs.push_back({key.state, stack});

  const TokenTrie& trie = tokens_.trie();
  std::vector<int32_t> set_at(static_cast<size_t>(trie.max_depth()) + 1);  // by depth
  set_at[0] = id_of(start);
  std::vector<int32_t> taken;
  std::vector<uint32_t> exits;  // nodes behind whose byte the rule may be over
  for (uint32_t idx = 0; idx < trie.num_nodes();) {
    const TokenTrie::Node& node = trie.node(idx);
    const int32_t set = next(set_at[node.depth - 1u], node.byte);
    if (set == kDead) {
      idx = node.skip;
      continue;
    }
    set_at[node.depth] = set;
    const auto tokens = trie.tokens_of(idx);
    taken.insert(taken.end(), tokens.begin(), tokens.end());
    if (sets_[static_cast<size_t>(set)].is_at_bottom && node.skip > idx + 1) exits.push_back(idx);
    ++idx;
  }

  auto mask = std::make_shared<LocalMask>();
  std::vector<uint32_t> words(tokens_.num_mask_words());
  for (const int32_t id : taken) words[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
  std::vector<TokenTrie::Entry> suffixes;
  for (const uint32_t exit : exits)
    for (const int32_t id : trie.tokens_between(exit + 1, trie.node(exit).skip))
      if ((words[static_cast<size_t>(id) / 32] >> (id % 32) & 1) == 0) suffixes.emplace_back(tokens_.bytes_of(id).substr(trie.node(exit).depth), id);
  mask->suffixes = TokenTrie(std::move(suffixes));
  if (taken.size() < words.size())
    mask->ids = std::move(taken);
  else
    mask->words = std::move(words);
  return mask;
}

}  // namespace capstan::grammar
