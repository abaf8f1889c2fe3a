#include "native/grammar/mask_store.h"

#include "native/base/error.h"

namespace capstan::grammar {
namespace {

// About what the list, the index and the allocator add to a mask, which counts with the masks of a small vocabulary.
constexpr size_t kEntryBytes = 256;

size_t size_of(const LocalMask& mask) {
  return mask.size_bytes() + kEntryBytes;
}

}  // namespace

std::shared_ptr<const LocalMask> MaskStore::find(Owner owner, const MaskKey& key) {
  const std::lock_guard lock(mutex_);
  const auto index = indexes_.find(owner);
  if (index == indexes_.end()) return nullptr;
  const auto at = index->second.find(key);
  if (at == index->second.end()) return nullptr;
  auto mask = at->second->mask;
  touch(index->second, key);
  return mask;
}

// Using a mask also uses its base. So a base is evicted after all masks that share it, which would keep it in memory.
void MaskStore::touch(Index& index, const MaskKey& key) {
  const auto at = index.find(key);
  if (at == index.end()) return;
  entries_.splice(entries_.begin(), entries_, at->second);
  const LocalMask& mask = *at->second->mask;
  if (mask.base) touch(index, mask.base_key);
}

void MaskStore::add(Owner owner, const MaskKey& key, std::shared_ptr<const LocalMask> mask) {
  const std::lock_guard lock(mutex_);
  const size_t size = size_of(*mask);
  if (size + automaton_bytes_ + set_bytes_ > max_bytes_) return;
  // A mask whose base is not kept would keep it in memory uncounted.
  if (mask->base && (!indexes_.contains(owner) || !indexes_[owner].contains(mask->base_key))) return;
  entries_.push_front({owner, key, std::move(mask)});
  if (!indexes_[owner].emplace(key, entries_.begin()).second) return entries_.pop_front();
  size_bytes_ += size;
  touch(indexes_[owner], key);
  evict();
}

void MaskStore::add_automaton(size_t bytes) {
  constexpr size_t kShare = 2;  // one automaton may take half of the limit
  if (bytes > max_bytes_ / kShare)
    refuse("The compiled grammar takes " + std::to_string(bytes) + " bytes, and grammarCacheBytes allows " +
           std::to_string(max_bytes_ / kShare) + ": simplify it, or raise grammarCacheBytes");
  const std::lock_guard lock(mutex_);
  if (automaton_bytes_ + bytes > max_bytes_)
    throw Error(ErrorCode::kQueueFull,
                "The grammars that are being compiled or in use take " + std::to_string(automaton_bytes_ + bytes) +
                    " of at most " + std::to_string(max_bytes_) + " bytes: retry later, or raise grammarCacheBytes");
  automaton_bytes_ += bytes;
  evict();
}

void MaskStore::remove_automaton(size_t bytes) {
  const std::lock_guard lock(mutex_);
  automaton_bytes_ -= bytes;
}

bool MaskStore::resize_sets(size_t old_bytes, size_t bytes) {
  constexpr size_t kShare = 4;  // the sets may take a quarter of the limit
  const std::lock_guard lock(mutex_);
  const size_t all_bytes = set_bytes_ - old_bytes + bytes;
  if (bytes > 0 && all_bytes > max_bytes_ / kShare) return false;
  set_bytes_ = all_bytes;
  evict();
  return true;
}

void MaskStore::evict() {
  while (size_bytes_ > 0 && size_bytes_ + automaton_bytes_ + set_bytes_ > max_bytes_)
    remove(std::prev(entries_.end()));
}

void MaskStore::forget(Owner owner) {
  const std::lock_guard lock(mutex_);
  const auto index = indexes_.extract(owner);
  if (index.empty()) return;
  for (const auto& [key, at] : index.mapped()) {
    size_bytes_ -= size_of(*at->mask);
    entries_.erase(at);
  }
}

void MaskStore::remove(Entries::iterator at) {
  size_bytes_ -= size_of(*at->mask);
  const auto index = indexes_.find(at->owner);
  index->second.erase(at->key);
  if (index->second.empty()) indexes_.erase(index);
  entries_.erase(at);
}

size_t MaskStore::size_bytes() const {
  const std::lock_guard lock(mutex_);
  return size_bytes_;
}

size_t MaskStore::total_bytes() const {
  const std::lock_guard lock(mutex_);
  return size_bytes_ + automaton_bytes_ + set_bytes_;
}

size_t MaskStore::size_bytes(Owner owner) const {
  const std::lock_guard lock(mutex_);
  size_t sum = 0;
  for (const Entry& entry : entries_)
    if (entry.owner == owner) sum += size_of(*entry.mask);
  return sum;
}

}  // namespace capstan::grammar
