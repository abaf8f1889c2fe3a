#include "native/grammar/mask_store.h"

namespace capstan::grammar {

std::shared_ptr<const LocalMask> MaskStore::find(Owner owner, const MaskKey& key) {
  const std::lock_guard lock(mutex_);
  const auto index = indexes_.find(owner);
  if (index == indexes_.end()) return nullptr;
  const auto touch = [&](const MaskKey& wanted) -> const LocalMask* {
    const auto at = index->second.find(wanted);
    if (at == index->second.end()) return nullptr;
    entries_.splice(entries_.begin(), entries_, at->second);
    return at->second->mask.get();
  };
  const LocalMask* mask = touch(key);
  if (mask == nullptr) return nullptr;
  const auto found = entries_.front().mask;
  // Using a mask also uses its base, so a base that many masks share is evicted last.
  if (mask->base) touch(mask->base_key);
  return found;
}

void MaskStore::add(Owner owner, const MaskKey& key, std::shared_ptr<const LocalMask> mask) {
  const std::lock_guard lock(mutex_);
  const size_t size = mask->size_bytes();
  entries_.push_front({owner, key, std::move(mask)});
  if (!indexes_[owner].emplace(key, entries_.begin()).second) {
    entries_.pop_front();
    return;
  }
  size_bytes_ += size;
  while (size_bytes_ > max_bytes_ && entries_.size() > 1)
    remove(std::prev(entries_.end()));
}

void MaskStore::forget(Owner owner) {
  const std::lock_guard lock(mutex_);
  const auto index = indexes_.extract(owner);
  if (index.empty()) return;
  for (const auto& [key, at] : index.mapped()) {
    size_bytes_ -= at->mask->size_bytes();
    entries_.erase(at);
  }
}

void MaskStore::remove(Entries::iterator at) {
  size_bytes_ -= at->mask->size_bytes();
  const auto index = indexes_.find(at->owner);
  index->second.erase(at->key);
  if (index->second.empty()) indexes_.erase(index);
  entries_.erase(at);
}

size_t MaskStore::size_bytes() const {
  const std::lock_guard lock(mutex_);
  return size_bytes_;
}

size_t MaskStore::size_bytes(Owner owner) const {
  const std::lock_guard lock(mutex_);
  size_t sum = 0;
  for (const Entry& entry : entries_)
    if (entry.owner == owner) sum += entry.mask->size_bytes();
  return sum;
}

}  // namespace capstan::grammar
