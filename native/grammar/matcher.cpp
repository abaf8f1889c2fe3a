#include "native/grammar/matcher.h"

#include <algorithm>

#include "native/base/check.h"

namespace capstan::grammar {
namespace {

bool has_bit(std::span<const uint32_t> mask, int32_t id) {
  return (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0;
}
void set_bit(std::span<uint32_t> mask, int32_t id) {
  mask[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
}
void clear_bit(std::span<uint32_t> mask, int32_t id) {
  mask[static_cast<size_t>(id) / 32] &= ~(1u << (id % 32));
}

// Returns false, with nothing left, when `work` is more than what is left.
bool spend(size_t& work_left, size_t work) {
  const bool is_enough = work < work_left;
  work_left -= std::min(work_left, work);
  return is_enough;
}

// The work of copying a mask.
size_t copy_work(const LocalMask& mask) {
  constexpr size_t kWordsPerUnit = 64, kIdsPerUnit = 16;
  return mask.words.size() / kWordsPerUnit + (mask.ids.size() + mask.removed.size()) / kIdsPerUnit +
         (mask.base ? copy_work(*mask.base) : 0);
}

// Adds the configurations of `other` to `set`, up to the limit.
void join(ConfigSet& set, const ConfigSet& other) {
  set.is_at_bottom |= other.is_at_bottom;
  const size_t num_added = std::min(other.configs.size(), kMaxConfigs - std::min(kMaxConfigs, set.configs.size()));
  const auto begin = other.configs.begin();
  set.configs.insert(set.configs.end(), begin, begin + static_cast<ptrdiff_t>(num_added));
  std::ranges::sort(set.configs);
  set.configs.erase(std::unique(set.configs.begin(), set.configs.end()), set.configs.end());
}

}  // namespace

CompiledGrammar::CompiledGrammar(Grammar grammar, std::shared_ptr<const TokenTable> tokens)
    : automaton_(compile(std::move(grammar), tokens ? tokens->markers() : std::span<const Marker>())),
      tokens_(std::move(tokens)),
      masks_(tokens_ ? std::make_unique<MaskCache>(automaton_, *tokens_) : nullptr) {}

GrammarMatcher::GrammarMatcher(std::shared_ptr<const CompiledGrammar> grammar)
    : grammar_(std::move(grammar)), machine_(grammar_->automaton()) {
  current_ = machine_.start();
}

void GrammarMatcher::fill_mask(std::span<uint32_t> mask, const std::stop_token& stop) {
  fill(mask, nullptr, stop);
}

bool GrammarMatcher::try_fill_mask(std::span<uint32_t> mask, size_t& work_left) {
  const size_t most = std::min(kQuickWork, work_left);
  size_t quick_work = most;
  const bool is_done = fill(mask, &quick_work, {});
  work_left -= most - quick_work;
  return is_done;
}

bool GrammarMatcher::fill(std::span<uint32_t> mask, size_t* quick_work, const std::stop_token& stop) {
  const TokenTable& tokens = *grammar_->tokens();
  CAPSTAN_CHECK(mask.size() >= tokens.num_mask_words());
  std::ranges::fill(mask, 0);
  if (is_terminated_) return true;
  if (quick_work != nullptr && !spend(*quick_work, current_.configs.size())) return false;
  size_t work = 0;
  for (const MaskGroup& group : group_configs()) {
    if (stop.stop_requested()) return false;
    const auto local = quick_work != nullptr ? grammar_->masks().get_quickly(group.key, group.top, *quick_work)
                                             : grammar_->masks().get(group.key, group.top);
    if (!local || (quick_work != nullptr && !spend(*quick_work, copy_work(*local)))) return false;
    fill_local(mask, *local);
    const Dependents* dependents = dependent_tokens(group, *local, quick_work);
    if (dependents == nullptr) return false;
    for (const int32_t id : dependents->ids)
      set_bit(mask, id);
    work += local->work + dependents->work;
    if (work > kMaxFillWork) break;
  }
  if (current_.is_at_bottom)
    for (const int32_t id : tokens.eos_ids())
      set_bit(mask, id);
  return true;
}

void GrammarMatcher::fill_local(std::span<uint32_t> mask, const LocalMask& local) {
  if (local.base) {
    // An id that another group accepts stays.
    std::vector<int32_t> removed;
    for (const int32_t id : local.removed)
      if (!has_bit(mask, id)) removed.push_back(id);
    fill_local(mask, *local.base);
    for (const int32_t id : removed)
      clear_bit(mask, id);
  }
  for (size_t i = 0; i < local.words.size(); ++i)
    mask[i] |= local.words[i];
  for (const int32_t id : local.ids)
    set_bit(mask, id);
}

// Returns the stack below the frames that the mask of a configuration depends on.
StackId GrammarMatcher::base_of(const Config& config) const {
  const Frame& top = machine_.frame(config.stack);
  const bool is_counted = config.stack != kBottom && machine_.automaton().calls[top.call].is_counted();
  return is_counted ? top.parent : config.stack;
}

std::vector<GrammarMatcher::MaskGroup> GrammarMatcher::group_configs() const {
  std::vector<MaskGroup> groups;
  std::unordered_map<MaskKey, size_t, MaskKeyHash> indexes;
  for (const Config& config : current_.configs) {
    const Frame& top = machine_.frame(config.stack);
    const MaskKey key = grammar_->masks().key_of(config, top);
    const auto [at, is_new] = indexes.try_emplace(key, groups.size());
    if (is_new) groups.push_back({key, {}, top});
    groups[at->second].bases.push_back(base_of(config));
  }
  return groups;
}

// Returns the tokens that leave the group's rule and continue in its callers. Returns null when that takes more than
// `quick_work`; subtracts the work from it.
const GrammarMatcher::Dependents* GrammarMatcher::dependent_tokens(const MaskGroup& group, const LocalMask& local,
                                                                   size_t* quick_work) {
  static const Dependents kNone;
  const TokenTrie* base_suffixes = local.base ? &local.base->suffixes : nullptr;
  if (local.suffixes.is_empty() && (base_suffixes == nullptr || base_suffixes->is_empty())) return &kNone;
  if (const auto known = dependents_.find(group); known != dependents_.end()) return &known->second;

  if (quick_work != nullptr && !spend(*quick_work, group.bases.size())) return nullptr;
  Dependents dependents;
  const size_t num_frames = machine_.num_frames(), max_work = quick_work != nullptr ? *quick_work : MaskCache::kMaxWork;
  machine_.expand_returns(group.bases, sets_.empty() ? sets_.emplace_back() : sets_[0]);
  dependents.work = machine_.effort();
  const bool is_done =
      add_dependents(local.suffixes, SIZE_MAX, max_work, dependents) &&
      (base_suffixes == nullptr || add_dependents(*base_suffixes, local.base_bytes, max_work, dependents));
  // Drops the frames of the trial, so that the stacks depend on the text only.
  machine_.drop_frames(num_frames);
  if (quick_work != nullptr) {
    *quick_work -= std::min(*quick_work, dependents.work);
    if (!is_done) return nullptr;
  }
  if (dependents_.size() >= kMaxDependents || num_dependent_ids_ >= kMaxDependentIds) {
    dependents_.clear();
    num_dependent_ids_ = 0;
  }
  num_dependent_ids_ += dependents.ids.size();
  return &dependents_.emplace(group, std::move(dependents)).first->second;
}

// Adds the tokens of `suffixes` that continue from sets_[0] and have at most `max_bytes` bytes. Returns false, with the
// rest left out, when that takes more than `max_work`.
bool GrammarMatcher::add_dependents(const TokenTrie& suffixes, size_t max_bytes, size_t max_work,
                                    Dependents& dependents) {
  if (sets_.size() <= static_cast<size_t>(suffixes.max_depth()))
    sets_.resize(static_cast<size_t>(suffixes.max_depth()) + 1);
  const auto first = machine_.first_bytes(sets_[0]);
  for (uint32_t idx = 0; idx < suffixes.num_nodes();) {
    const TokenTrie::Node& node = suffixes.node(idx);
    // Most suffixes fail at their first byte, which a bit test finds.
    if (node.depth == 1 && (first[node.byte / 64] >> (node.byte % 64) & 1) == 0) {
      idx = node.skip;
      continue;
    }
    if (dependents.work > max_work) return false;
    const bool is_alive = machine_.step(sets_[node.depth - 1u], node.byte, sets_[node.depth]);
    dependents.work += 1 + sets_[node.depth - 1u].configs.size() + machine_.effort();
    if (!is_alive) {
      idx = node.skip;
      continue;
    }
    for (const int32_t id : suffixes.tokens_of(idx))
      if (grammar_->tokens()->bytes_of(id).size() <= max_bytes) dependents.ids.push_back(id);
    ++idx;
  }
  return true;
}

bool GrammarMatcher::accept(int32_t token_id, const std::stop_token& stop) {
  size_t unlimited = SIZE_MAX;
  if (const auto is_accepted = try_accept(token_id, unlimited)) return *is_accepted;
  return accept_bytes(grammar_->tokens()->bytes_of(token_id), stop);
}

std::optional<bool> GrammarMatcher::try_accept(int32_t token_id, size_t& work_left) {
  if (is_terminated_) return false;
  if (grammar_->tokens()->is_eos(token_id)) return is_terminated_ = can_end();
  const size_t num_frames = machine_.num_frames();
  ConfigSet at = current_;
  const std::optional<bool> is_accepted = step_over(token_id, at, work_left);
  if (is_accepted.value_or(false))
    advance_to(std::move(at));
  else
    machine_.drop_frames(num_frames);
  return is_accepted;
}

std::optional<bool> GrammarMatcher::may_accept(int32_t token_id, size_t& work_left) {
  if (is_terminated_) return false;
  if (grammar_->tokens()->is_eos(token_id)) return can_end();
  const size_t num_frames = machine_.num_frames();
  ConfigSet at = current_;
  const std::optional<bool> is_accepted = step_over(token_id, at, work_left);
  machine_.drop_frames(num_frames);
  return is_accepted;
}

bool GrammarMatcher::accept_bytes(std::string_view bytes, const std::stop_token& stop) {
  if (is_terminated_) return false;
  size_t unlimited = SIZE_MAX;
  ConfigSet at = current_;
  const std::optional<bool> is_accepted = step_over(bytes, at, unlimited);
  if (!(is_accepted ? *is_accepted : step_in_parts(bytes, at, stop))) return false;
  advance_to(std::move(at));
  return true;
}

std::optional<bool> GrammarMatcher::step_over(int32_t token_id, ConfigSet& at, size_t& work_left) {
  if (work_left == 0) return std::nullopt;
  if (grammar_->tokens()->is_marker(token_id)) {
    ConfigSet next;
    const bool is_alive = machine_.step_token(at, token_id, next);
    spend(work_left, machine_.effort());
    at = std::move(next);
    return is_alive;
  }
  const std::string_view bytes = grammar_->tokens()->bytes_of(token_id);
  if (bytes.empty()) return false;
  return step_over(bytes, at, work_left);
}

// Returns nothing when the work is used up, or when the sets lacked configurations before they died.
std::optional<bool> GrammarMatcher::step_over(std::string_view bytes, ConfigSet& at, size_t& work_left) {
  ConfigSet next;
  bool is_cut = false;
  for (const char byte : bytes) {
    if (work_left == 0) return std::nullopt;
    const bool is_alive = machine_.step(at, static_cast<uint8_t>(byte), next);
    spend(work_left, 1 + at.configs.size() + machine_.effort());
    is_cut = is_cut || machine_.is_cut();
    if (!is_alive) return is_cut ? std::nullopt : std::optional(false);
    std::swap(at, next);
  }
  return true;
}

// Like step_over without limits of work, for sets that exceed their own limits. Follows the configurations as their
// masks do, so that it finds every token of a mask: one by one, the rule apart from what follows its end. Splits each
// set that becomes too large.
bool GrammarMatcher::step_in_parts(std::string_view bytes, ConfigSet& at, const std::stop_token& stop) {
  struct Part {
    ConfigSet set;
    StackId base;
    size_t pos;
  };
  std::vector<Part> parts;
  for (auto config = current_.configs.rbegin(); config != current_.configs.rend(); ++config)
    parts.push_back({{{*config}, false}, base_of(*config), 0});
  const size_t num_frames = machine_.num_frames();
  size_t work_left = kMaxFillWork;
  while (!parts.empty() && work_left > 0 && !stop.stop_requested()) {
    Part part = std::move(parts.back());
    parts.pop_back();
    const bool is_alive = machine_.step(part.set, static_cast<uint8_t>(bytes[part.pos]), at, part.base);
    spend(work_left, 1 + part.set.configs.size() + machine_.effort());
    if (machine_.is_cut() && part.set.configs.size() > 1) {
      for (auto config = part.set.configs.rbegin(); config != part.set.configs.rend(); ++config)
        parts.push_back({{{*config}, false}, part.base, part.pos});
      continue;
    }
    if (!is_alive) continue;
    ConfigSet after;
    if (at.is_at_bottom && part.base != kBottom) {
      machine_.expand_returns({&part.base, 1}, after);
      spend(work_left, 1 + machine_.effort());
      at.is_at_bottom = false;
    }
    if (part.pos + 1 == bytes.size()) {
      join(at, after);
      return true;
    }
    if (!after.configs.empty()) parts.push_back({std::move(after), kBottom, part.pos + 1});
    if (!at.configs.empty()) parts.push_back({at, part.base, part.pos + 1});
  }
  machine_.drop_frames(num_frames);
  return false;
}

void GrammarMatcher::advance_to(ConfigSet&& next) {
  if (history_.size() >= kMaxRollback) history_.pop_front();
  history_.push_back(std::move(current_));
  current_ = std::move(next);
  if (machine_.num_frames() > max_frames_) compact();
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

GrammarMatcher::Trial::Trial(GrammarMatcher& matcher)
    : matcher_(matcher), start_(matcher.current_), num_frames_(matcher.machine_.num_frames()) {}

GrammarMatcher::Trial::~Trial() {
  matcher_.current_ = std::move(start_);
  matcher_.drop_frames(num_frames_);
}

bool GrammarMatcher::Trial::step(int32_t token_id, size_t& work_left) {
  if (matcher_.is_terminated_ || matcher_.grammar_->tokens()->is_eos(token_id)) return false;
  return matcher_.step_over(token_id, matcher_.current_, work_left).value_or(false);
}

// Drops the newest stacks of the machine and what is known about them.
void GrammarMatcher::drop_frames(size_t num_kept) {
  if (machine_.num_frames() == num_kept) return;
  machine_.drop_frames(num_kept);
  const auto is_dropped = [&](StackId stack) { return stack >= num_kept; };
  std::erase_if(dependents_, [&](const auto& entry) {
    if (!std::ranges::any_of(entry.first.bases, is_dropped)) return false;
    num_dependent_ids_ -= entry.second.ids.size();
    return true;
  });
}

void GrammarMatcher::compact() {
  std::vector<ConfigSet*> sets{&current_};
  for (ConfigSet& past : history_)
    sets.push_back(&past);
  machine_.compact(sets);
  max_frames_ = std::max(kCompactFrames, 2 * machine_.num_frames());
  dependents_.clear();
  num_dependent_ids_ = 0;
}

uint64_t GrammarMatcher::bytes_to_end(const ConfigSet& set) const {
  if (set.is_at_bottom) return 0;
  uint64_t fewest = kUnreachable;
  for (const Config& config : set.configs)
    fewest = std::min(fewest, machine_.bytes_to_end(config));
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
