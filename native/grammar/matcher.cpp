#include "native/grammar/matcher.h"

#include <algorithm>

#include "native/base/check.h"

namespace capstan::grammar {

CompiledGrammar::CompiledGrammar(Grammar grammar, std::shared_ptr<const TokenTable> tokens)
    : automaton_(compile(std::move(grammar))), tokens_(std::move(tokens)), masks_(tokens_ ? std::make_unique<MaskCache>(automaton_, *tokens_) : nullptr) {}

GrammarMatcher::GrammarMatcher(std::shared_ptr<const CompiledGrammar> grammar) : grammar_(std::move(grammar)), machine_(grammar_->automaton()) {
  current_ = machine_.start();
}

void GrammarMatcher::fill_mask(std::span<uint32_t> mask) {
  const TokenTable& tokens = *grammar_->tokens();
  CAPSTAN_CHECK(mask.size() >= tokens.num_mask_words());
  std::ranges::fill(mask, 0);
  if (is_terminated_) return;
  const auto allow = [&](int32_t id) { mask[static_cast<size_t>(id) / 32] |= 1u << (id % 32); };
  for (const MaskGroup& group : group_configs()) {
    const auto local = grammar_->masks().get(group.key, group.top);
    for (size_t i = 0; i < local->words.size(); ++i) mask[i] |= local->words[i];
    for (const int32_t id : local->ids) allow(id);
    if (local->suffixes.is_empty()) continue;
    for (const int32_t id : dependent_tokens(group, local->suffixes)) allow(id);
  }
  if (current_.is_at_bottom)
    for (const int32_t id : tokens.eos_ids()) allow(id);
}

std::vector<GrammarMatcher::MaskGroup> GrammarMatcher::group_configs() const {
  std::vector<MaskGroup> groups;
  std::unordered_map<MaskKey, size_t, MaskKeyHash> indexes;
  for (const Config& config : current_.configs) {
    const Frame& top = machine_.frame(config.stack);
    const MaskKey key = grammar_->masks().key_of(config, top);
    const auto [at, is_new] = indexes.try_emplace(key, groups.size());
    if (is_new) groups.push_back({key, {}, top});
    groups[at->second].bases.push_back(key.call == MaskKey::kNoCall ? config.stack : top.parent);
  }
  return groups;
}

// The tokens of `suffixes` whose bytes go on where the callers of the group's rule wait.
const std::vector<int32_t>& GrammarMatcher::dependent_tokens(const MaskGroup& group, const TokenTrie& suffixes) {
  if (dependents_.size() >= kMaxDependents) dependents_.clear();
  const auto [at, is_new] = dependents_.try_emplace(group);
  std::vector<int32_t>& ids = at->second;
  if (!is_new) return ids;
  if (sets_.size() <= static_cast<size_t>(suffixes.max_depth())) sets_.resize(static_cast<size_t>(suffixes.max_depth()) + 1);
  machine_.expand_returns(group.bases, sets_[0]);
  const auto first = machine_.first_bytes(sets_[0]);
  for (uint32_t idx = 0; idx < suffixes.num_nodes();) {
    const TokenTrie::Node& node = suffixes.node(idx);
    // Most fail at their first byte, which costs a bit test.
    const bool may_start = node.depth > 1 || (first[node.byte / 64] >> (node.byte % 64) & 1) != 0;
    if (!may_start || !machine_.step(sets_[node.depth - 1u], node.byte, sets_[node.depth])) {
      idx = node.skip;
      continue;
    }
    const auto taken = suffixes.tokens_of(idx);
    ids.insert(ids.end(), taken.begin(), taken.end());
    ++idx;
  }
  return ids;
}

bool GrammarMatcher::accept(int32_t token_id) {
  if (is_terminated_) return false;
  if (grammar_->tokens()->is_eos(token_id)) return is_terminated_ = can_end();
  const std::string_view bytes = grammar_->tokens()->bytes_of(token_id);
  return !bytes.empty() && accept_bytes(bytes);
}

bool GrammarMatcher::accept_bytes(std::string_view bytes) {
  if (is_terminated_) return false;
  ConfigSet at = current_, next;
  for (const char byte : bytes) {
    if (!machine_.step(at, static_cast<uint8_t>(byte), next)) return false;
    std::swap(at, next);
  }
  remember();
  current_ = std::move(at);
  if (machine_.num_frames() > max_frames_) compact();
  return true;
}

void GrammarMatcher::remember() {
  if (history_.size() >= kMaxRollback) history_.pop_front();
  history_.push_back(current_);
}

bool GrammarMatcher::rollback(size_t num_tokens) {
  if (num_tokens > history_.size() + (is_terminated_ ? 1 : 0)) return false;
  if (num_tokens > 0 && is_terminated_) {
    is_terminated_ = false;
    --num_tokens;
  }
  for (; num_tokens > 0; --num_tokens) {
    current_ = std::move(history_.back());
    history_.pop_back();
  }
  return true;
}

void GrammarMatcher::compact() {
  std::vector<ConfigSet*> sets{&current_};
  for (ConfigSet& past : history_) sets.push_back(&past);
  machine_.compact(sets);
  max_frames_ = std::max(kCompactFrames, 2 * machine_.num_frames());
  dependents_.clear();
}

uint64_t GrammarMatcher::bytes_to_end(const ConfigSet& set) const {
  if (set.is_at_bottom) return 0;
  uint64_t fewest = kUnreachable;
  for (const Config& config : set.configs) fewest = std::min(fewest, machine_.bytes_to_end(config));
  return fewest;
}

std::array<uint64_t, 4> GrammarMatcher::closing_bytes() {
  const auto next = next_bytes();
  std::array<uint64_t, 4> closing{};
  uint64_t fewest = kUnreachable;
  ConfigSet after;
  for (size_t byte = 0; byte < 256; ++byte) {
    if ((next[byte / 64] >> (byte % 64) & 1) == 0) continue;
    machine_.step(current_, static_cast<uint8_t>(byte), after);
    const uint64_t distance = bytes_to_end(after);
    if (distance > fewest) continue;
    if (distance < fewest) closing = {};
    fewest = distance;
    closing[byte / 64] |= uint64_t{1} << (byte % 64);
  }
  return closing;
}

}  // namespace capstan::grammar
