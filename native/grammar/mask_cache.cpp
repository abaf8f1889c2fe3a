#include "native/grammar/mask_cache.h"

#include <algorithm>
#include <utility>

namespace capstan::grammar {
namespace {

bool accepts(const LocalMask& mask, int32_t id) {
  const auto word = static_cast<size_t>(id) / 32;
  return mask.words.empty() ? std::ranges::find(mask.ids, id) != mask.ids.end()
                            : (mask.words[word] >> (id % 32) & 1) != 0;
}

}  // namespace

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
  // A token of n bytes completes at most n rounds, so larger counts make no difference.
  const auto max_rounds = static_cast<uint32_t>(tokens_.trie().max_depth()) + 1;
  key.call = top.call;
  key.rounds_left_min = top.count < call.min ? std::min(call.min - top.count, max_rounds) : 0;
  key.rounds_left_max = call.max == kUnbounded ? max_rounds : std::min(call.max - top.count, max_rounds);
  return key;
}

std::shared_ptr<const LocalMask> MaskCache::get(const MaskKey& key, const Frame& top) {
  if (auto mask = tokens_.masks().find(this, key)) return mask;
  const std::lock_guard lock(make_mutex_);
  // Another thread may have computed it in the meantime.
  if (auto mask = tokens_.masks().find(this, key)) return mask;
  auto mask = make(key, top, kMaxWork);
  bound_kept_sets();
  return mask;
}

std::shared_ptr<const LocalMask> MaskCache::get_quickly(const MaskKey& key, const Frame& top, size_t& work_left) {
  if (auto mask = tokens_.masks().find(this, key)) return mask;
  const auto base = base_of(key, top);
  if (!base || tokens_.longer_than(base->num_bytes).size() > kMaxQuickTokens || !tokens_.masks().find(this, base->key))
    return nullptr;
  const std::unique_lock lock(make_mutex_, std::try_to_lock);
  if (!lock) return nullptr;
  auto mask = make(key, top, work_left);
  work_left -= std::min(work_left, work_ + tokens_.num_mask_words());
  bound_kept_sets();
  return mask;
}

// A token with at most as many bytes as there are rounds left does not reach a bound of the call. It is accepted as at
// the first round or, when the call may already end, as at the first round that may be the last.
std::optional<MaskCache::BaseMask> MaskCache::base_of(const MaskKey& key, const Frame& top) const {
  if (key.call == MaskKey::kNoCall) return std::nullopt;
  const uint32_t min = machine_.automaton().calls[key.call].min;
  const Frame base_top{top.call, key.rounds_left_min > 0 ? 1 : std::max(min, 1u), top.parent};
  const MaskKey base_key = key_of({key.state, kBottom + 1}, base_top);
  if (base_key == key) return std::nullopt;
  size_t num_bytes = SIZE_MAX;
  if (key.rounds_left_min != base_key.rounds_left_min) num_bytes = key.rounds_left_min;
  if (key.rounds_left_max != base_key.rounds_left_max) num_bytes = std::min<size_t>(num_bytes, key.rounds_left_max);
  // With too many longer tokens, a separate mask is smaller.
  if (tokens_.longer_than(num_bytes).size() > tokens_.num_mask_words()) return std::nullopt;
  return BaseMask{base_key, base_top, num_bytes};
}

void MaskCache::warm_up(std::chrono::steady_clock::time_point deadline) {
  const Automaton& automaton = machine_.automaton();
  const auto is_late = [&] { return std::chrono::steady_clock::now() >= deadline; };
  for (uint32_t state = 0; state < automaton.states.size() && !is_late(); ++state)
    if (!automaton.edges_of(state).empty()) get({state, MaskKey::kNoCall, 0, 0}, Frame{});
  for (uint32_t id = 0; id < automaton.calls.size() && !is_late(); ++id) {
    const CallEdge& call = automaton.calls[id];
    const Config config{automaton.rule_starts[call.rule], kBottom + 1};  // any stack with the call on top
    if (call.is_counted() && !automaton.edges_of(config.state).empty())
      get(key_of(config, {id, 1, kBottom}), {id, 1, kBottom});
  }
}

MaskCache::MaskCache(const Automaton& automaton, const TokenTable& tokens) : tokens_(tokens), machine_(automaton) {
  tokens_.masks().add_automaton(automaton.size_bytes());
}

MaskCache::~MaskCache() {
  tokens_.masks().resize_sets(kept_bytes_, 0);
  tokens_.masks().forget(this);
  tokens_.masks().remove_automaton(machine_.automaton().size_bytes());
}

// Drops the sets when they exceed the limit of this grammar or of all grammars. Most grammars are never used again.
void MaskCache::bound_kept_sets() {
  size_t bytes = working_bytes();
  if (bytes > kMaxSetBytes || !tokens_.masks().resize_sets(kept_bytes_, bytes)) {
    forget_sets();
    bytes = 0;
    tokens_.masks().resize_sets(kept_bytes_, 0);
  }
  kept_bytes_ = bytes;
}

void MaskCache::forget_sets() {
  machine_.clear();
  states_ = {};
  set_ids_ = {};
  set_bytes_ = 0;
}

int32_t MaskCache::id_of(const ConfigSet& set, bool is_cut) {
  const auto [at, is_new] = set_ids_.try_emplace(set, static_cast<int32_t>(states_.size()));
  if (is_new) {
    DfaState& state = states_.emplace_back();
    state.set = set;
    state.next.fill(kUnknown);
    set_bytes_ += sizeof(DfaState) + 2 * sizeof(ConfigSet) + 2 * set.configs.size() * sizeof(Config);
  }
  states_[static_cast<size_t>(at->second)].is_cut |= is_cut;
  return at->second;
}

int32_t MaskCache::next(int32_t id, uint8_t byte) {
  DfaState& state = states_[static_cast<size_t>(id)];
  int32_t next_id = state.next[byte];
  if (next_id == kUnknown) {
    if (work_ > max_work_) return kDead;
    // Further sets count as dead.
    if (working_bytes() > tokens_.masks().max_working_bytes()) {
      is_inexact_ = true;
      return kDead;
    }
    const bool is_alive = machine_.step(state.set, byte, scratch_);
    next_id = is_alive ? id_of(scratch_, machine_.is_cut()) : kDead;
    state.next[byte] = next_id;
    state.effort[byte] = static_cast<uint16_t>(std::min<size_t>(machine_.effort() / kEffortUnit, UINT16_MAX));
  }
  if (state.used_round != round_) {
    state.used_round = round_;
    state.used = {};
  }
  // The work of a mask counts every transition once, as if no mask had been computed before.
  if ((state.used[byte / 64] >> (byte % 64) & 1) == 0) {
    state.used[byte / 64] |= uint64_t{1} << (byte % 64);
    work_ += 1 + kEffortUnit * state.effort[byte] + state.set.configs.size();
    if (next_id != kDead) work_ += set_of(next_id).configs.size();
    is_inexact_ |= work_ > max_work_ || (next_id != kDead && states_[static_cast<size_t>(next_id)].is_cut);
  }
  return next_id;
}

// Returns null when `max_work` is below kMaxWork and not enough for an exact mask.
std::shared_ptr<const LocalMask> MaskCache::make(const MaskKey& key, const Frame& top, size_t max_work) {
  const bool is_quick = max_work < kMaxWork;
  auto mask = std::make_shared<LocalMask>();
  if (const auto base = base_of(key, top)) {
    mask->base = tokens_.masks().find(this, base->key);
    if (!mask->base && is_quick) return nullptr;
    if (!mask->base) mask->base = make(base->key, base->top, max_work);
    mask->base_key = base->key;
    mask->base_bytes = base->num_bytes;
  }
  const size_t min_bytes = mask->base ? mask->base_bytes + 1 : 0;
  const bool is_fresh = states_.empty();
  max_work_ = max_work;
  const bool is_exact = walk(key, top, min_bytes, *mask);
  if (!is_exact && is_quick) return nullptr;
  if (!is_exact && !is_fresh) {
    // What an inexact mask leaves out depends on the existing sets. Starting without sets makes it reproducible.
    forget_sets();
    walk(key, top, min_bytes, *mask);
  }
  mask->work = work_ + (mask->base ? mask->base->work : 0);
  mask->working_bytes = working_bytes();
  tokens_.masks().add(this, key, mask);
  return mask;
}

// Fills the mask for tokens of at least `min_bytes` bytes. Returns false when the mask is inexact.
bool MaskCache::walk(const MaskKey& key, const Frame& top, size_t min_bytes, LocalMask& mask) {
  ++round_;
  work_ = 0;
  is_inexact_ = false;
  const StackId stack = key.call == MaskKey::kNoCall ? kBottom : machine_.push({top.call, top.count, kBottom});
  ConfigSet start;
  start.configs.push_back({key.state, stack});

  const TokenTrie& trie = tokens_.trie();
  std::vector<int32_t> set_at(static_cast<size_t>(trie.max_depth()) + 1);  // DFA state by depth
  set_at[0] = id_of(start, false);
  std::vector<int32_t> accepted;
  std::vector<uint32_t> exits;  // trie nodes after whose byte the rule may end
  for (uint32_t idx = 0; idx < trie.num_nodes();) {
    const TokenTrie::Node& node = trie.node(idx);
    const bool is_wanted = min_bytes == 0 || trie.reaches_beyond(idx, min_bytes - 1);
    const int32_t set = is_wanted ? next(set_at[node.depth - 1u], node.byte) : kDead;
    if (set == kDead) {
      idx = node.skip;
      continue;
    }
    set_at[node.depth] = set;
    const auto tokens = trie.tokens_of(idx);
    if (node.depth >= min_bytes) accepted.insert(accepted.end(), tokens.begin(), tokens.end());
    if (set_of(set).is_at_bottom && node.skip > idx + 1) exits.push_back(idx);
    ++idx;
  }
  for (const TokenEdge& edge : machine_.automaton().token_edges_of(key.state))
    if (min_bytes == 0) accepted.push_back(edge.token_id);

  std::vector<uint32_t> words(tokens_.num_mask_words());
  for (const int32_t id : accepted)
    words[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
  const auto is_accepted = [&](int32_t id) { return (words[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0; };
  std::vector<TokenTrie::Entry> suffixes;
  for (const uint32_t exit : exits)
    for (const int32_t id : trie.tokens_between(exit + 1, trie.node(exit).skip))
      if (!is_accepted(id) && tokens_.bytes_of(id).size() >= min_bytes)
        suffixes.emplace_back(tokens_.bytes_of(id).substr(trie.node(exit).depth), id);
  mask.suffixes = TokenTrie(std::move(suffixes));
  mask.removed.clear();
  if (mask.base) {
    for (const int32_t id : tokens_.longer_than(mask.base_bytes))
      if (!is_accepted(id) && accepts(*mask.base, id)) mask.removed.push_back(id);
  }
  if (mask.base || accepted.size() < words.size())
    mask.ids = std::move(accepted);
  else
    mask.words = std::move(words);
  return !is_inexact_;
}

}  // namespace capstan::grammar
