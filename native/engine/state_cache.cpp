#include "native/engine/state_cache.h"

#include <algorithm>
#include <utility>

#include "native/base/check.h"

namespace capstan {

StateCache::StateCache(int num_slots, int block_size, bool has_prefix_cache, int snapshot_interval)
    : slots_(num_slots, 0, has_prefix_cache),
      block_size_(block_size),
      has_prefix_cache_(has_prefix_cache),
      interval_((snapshot_interval + block_size - 1) / block_size * block_size) {}

int StateCache::match_prefix(const Sequence& seq, int max_blocks) const {
  int length = max_blocks;
  while (length > 0 && slots_.find(seq.prefix_keys[static_cast<size_t>(length)], {}) < 0)
    --length;
  return length;
}

void StateCache::admit(Sequence& seq, int num_blocks) {
  if (!has_slots()) return;
  CAPSTAN_CHECK(seq.states.own < 0);
  if (num_blocks == 0) {
    seq.states.own = slots_.take();
    return;
  }
  const int32_t snapshot = slots_.find(seq.prefix_keys[static_cast<size_t>(num_blocks)], {});
  CAPSTAN_CHECK(snapshot >= 0);
  slots_.set_transient(snapshot, false);  // a snapshot that was of use is kept
  slots_.add_user(snapshot);
  seq.states.newest = snapshot;
  ++num_hits_;
  if (slots_.num_available() > 0) {
    seq.states.own = slots_.take();
  } else {
    // No other slot is left, so the sequence advances in that of the snapshot.
    slots_.unpublish(snapshot);
    seq.states.own = snapshot;
  }
}

// Whether a snapshot here outlives the next one of the same sequence.
bool StateCache::is_lasting(const Sequence& seq, int position) const {
  const int prompt_end = (seq.num_prompt_tokens - 1) / block_size_ * block_size_;
  return position % interval_ == 0 || position == prompt_end || position == seq.states.branch;
}

// Returns where the step takes snapshots, ascending. When slots are short, the first ones are left out.
std::vector<int> StateCache::choose_snapshots(const ScheduledSequence& scheduled) const {
  std::vector<int> positions;
  if (!has_prefix_cache_) return positions;
  const Sequence& seq = *scheduled.seq;
  const int begin = scheduled.first_position, end = begin + scheduled.num_tokens;
  for (int position = (begin / block_size_ + 1) * block_size_; position <= end; position += block_size_) {
    if (!is_lasting(seq, position) && !(scheduled.samples && position == end)) continue;
    const bool is_known = static_cast<size_t>(position / block_size_) < seq.prefix_keys.size();
    if (!is_known || slots_.find(key_at(seq, position), {}) < 0) positions.push_back(position);
  }
  const int num_too_many = static_cast<int>(positions.size()) - slots_.num_available();
  if (num_too_many > 0) positions.erase(positions.begin(), positions.begin() + num_too_many);
  return positions;
}

void StateCache::plan(ScheduledSequence& scheduled) {
  if (!has_slots()) return;
  StateSlots& states = scheduled.seq->states;
  commit_drafts(*scheduled.seq);
  scheduled.state_read = states.newest;
  if (states.newest >= 0 && states.newest != states.own) released_.push_back(states.newest);
  states.newest = states.own;
  const int begin = scheduled.first_position, end = begin + scheduled.num_tokens;
  for (const int position : choose_snapshots(scheduled)) {
    const int32_t slot = slots_.take();
    scheduled.state_writes.push_back({position - 1 - begin, slot});
    states.pending.push_back({position, slot});
    if (position < end) continue;
    slots_.add_user(slot);
    states.newest = slot;
  }
  if (states.newest == states.own) scheduled.state_writes.push_back({scheduled.num_tokens - 1, states.own});
}

bool StateCache::add_draft(ScheduledSequence& scheduled) {
  if (!has_slots()) return true;
  if (slots_.num_available() == 0) return false;
  scheduled.state_writes.push_back({scheduled.num_tokens, slots_.take()});
  scheduled.seq->states.drafts.push_back(scheduled.state_writes.back().slot);
  return true;
}

void StateCache::cut_drafts(ScheduledSequence& scheduled, int count) {
  if (!has_slots()) return;
  scheduled.state_writes.resize(scheduled.state_writes.size() - static_cast<size_t>(count));
  reject(*scheduled.seq, count);
}

void StateCache::launched() {
  for (const int32_t slot : released_)
    slots_.remove_user(slot);
  released_.clear();
}

void StateCache::reject(Sequence& seq, int count) {
  if (!has_slots()) return;
  std::vector<int32_t>& drafts = seq.states.drafts;
  for (; count > 0; --count, drafts.pop_back())
    slots_.remove_user(drafts.back());
}

// The drafts that are left hold. The state after the last one is that of the sequence. Another one may be a snapshot.
void StateCache::commit_drafts(Sequence& seq) {
  StateSlots& states = seq.states;
  if (states.drafts.empty()) return;
  const std::vector<int32_t> drafts = std::exchange(states.drafts, {});
  if (states.newest != states.own) slots_.remove_user(states.newest);
  const int first_position =
      seq.num_computed_tokens - static_cast<int>(drafts.size()) + 1;  // of the state of drafts[0]
  const int boundary = std::min(seq.num_computed_tokens, seq.num_tokens()) / block_size_ * block_size_;
  for (size_t i = 0; i + 1 < drafts.size(); ++i) {
    if (has_prefix_cache_ && first_position + static_cast<int>(i) == boundary)
      states.pending.push_back({boundary, drafts[i]});
    else
      slots_.remove_user(drafts[i]);
  }
  slots_.remove_user(states.own);
  states.own = states.newest = drafts.back();
}

// ---- the prefix cache ----

void StateCache::publish(Sequence& seq, int num_tokens) {
  for (const Snapshot& snapshot : seq.states.pending) {
    if (snapshot.position > num_tokens) continue;
    const PrefixKey& key = key_at(seq, snapshot.position);
    const bool lasts = is_lasting(seq, snapshot.position);
    slots_.publish(snapshot.slot, key, {});
    if (!lasts) {
      drop_rolling(seq);
      slots_.set_transient(snapshot.slot, true);
      seq.states.rolling = {snapshot.position, snapshot.slot};
    }
    slots_.remove_user(snapshot.slot);
  }
  std::erase_if(seq.states.pending, [&](const Snapshot& snapshot) { return snapshot.position <= num_tokens; });
}

// Drops the last snapshot at the end of a block, if it is still there and no other sequence has used it.
void StateCache::drop_rolling(Sequence& seq) {
  const Snapshot rolling = std::exchange(seq.states.rolling, {});
  if (rolling.slot < 0 || slots_.find(key_at(seq, rolling.position), {}) != rolling.slot) return;
  if (slots_.is_transient(rolling.slot) && !slots_.is_used(rolling.slot)) slots_.unpublish(rolling.slot);
}

void StateCache::unpublish(Sequence& seq) {
  for (const Snapshot& snapshot : std::exchange(seq.states.pending, {}))
    slots_.remove_user(snapshot.slot);
  reject(seq, static_cast<int>(seq.states.drafts.size()));
  for (const PrefixKey& key : seq.prefix_keys) {
    const int32_t slot = slots_.find(key, {});
    if (slot < 0) continue;
    const bool has_other_users = slot == seq.states.newest ? slots_.is_shared(slot) : slots_.is_used(slot);
    if (!has_other_users) slots_.unpublish(slot);
  }
}

void StateCache::free(Sequence& seq) {
  StateSlots& states = seq.states;
  if (states.own < 0) return;
  commit_drafts(seq);
  publish(seq, std::min(seq.num_computed_tokens, seq.num_tokens()));
  const Snapshot& rolling = states.rolling;
  if (rolling.slot >= 0 && slots_.find(key_at(seq, rolling.position), {}) == rolling.slot)
    slots_.set_transient(rolling.slot, false);
  for (const Snapshot& snapshot : states.pending)
    slots_.remove_user(snapshot.slot);
  if (states.newest >= 0 && states.newest != states.own) slots_.remove_user(states.newest);
  slots_.remove_user(states.own);
  states = {};
}

void StateCache::check_integrity(std::span<Sequence* const> users) const {
  std::vector<int32_t> num_users(static_cast<size_t>(slots_.num_blocks()));
  const auto add = [&](int32_t slot) { ++num_users.at(static_cast<size_t>(slot)); };
  for (const Sequence* seq : users) {
    const StateSlots& states = seq->states;
    if (!has_slots()) continue;
    CAPSTAN_CHECK((states.newest < 0) == (seq->num_computed_tokens == 0));
    add(states.own);
    if (states.newest >= 0 && states.newest != states.own) add(states.newest);
    for (const int32_t slot : states.drafts)
      add(slot);
    for (const Snapshot& snapshot : states.pending)
      add(snapshot.slot);
  }
  for (const int32_t slot : released_)
    add(slot);
  slots_.check_integrity(num_users);
}

}  // namespace capstan
