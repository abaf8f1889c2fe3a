#include "native/engine/disk_cache.h"

#include <algorithm>
#include <utility>

#include "native/base/check.h"

namespace capstan {
namespace {

// Bytes copied for the disk, and as many from it, between two steps, so that the copies hardly delay the next one.
constexpr int64_t kCopyBytesPerStep = int64_t{16} << 20;
// How long a prompt waits for its blocks while the speed of the model is unknown, and the shortest wait.
constexpr auto kUnknownWait = std::chrono::seconds(5);
constexpr double kShortestWaitMs = 20;

}  // namespace

DiskCache::DiskCache(DiskCacheOptions options, Scheduler& scheduler, int max_num_seqs)
    : options_(std::move(options)),
      scheduler_(scheduler),
      blocks_(scheduler.blocks()),
      max_num_seqs_(max_num_seqs),
      store_(options_.store) {
  CAPSTAN_CHECK(blocks_.num_groups() == 1 && !blocks_.states().has_slots());
  blocks_.set_secret(store_.secret());
}

// ---- loading ----

void DiskCache::add(Sequence& seq) {
  // Other choices share the blocks of the first one.
  if (seq.leader != nullptr || !seq.uses_prefix_cache()) return;
  seq.disk_state = DiskState::kUnchecked;
  unchecked_.insert(std::ranges::upper_bound(unchecked_, seq.priority, {}, &Sequence::priority), &seq);
}

// A sequence that has begun, or ended, waits no more.
void DiskCache::settle(Sequence& seq) {
  seq.disk_state = DiskState::kNone;
}

void DiskCache::forget(Sequence& seq) {
  if (seq.disk_state == DiskState::kUnchecked || seq.disk_state == DiskState::kQueued) std::erase(unchecked_, &seq);
  for (Load& load : loads_) {
    if (load.seq != &seq) continue;
    load.job->is_cancelled.store(true);
    load.seq = nullptr;
  }
  settle(seq);
}

// Ends the wait of the load's sequence. Admission then finds the blocks that have arrived.
void DiskCache::settle(Load& load) {
  if (load.seq == nullptr) return;
  if (load.num_loaded > 0) {
    ++num_hits_;
    num_loaded_tokens_ += int64_t{load.num_loaded} * blocks_.block_size();
    blocks_.renew(*load.seq, load.first_block + load.num_loaded);
  }
  settle(*load.seq);
  load.seq = nullptr;
}

void DiskCache::begin_step() {
  take_loaded();
  const auto now = disk::Clock::now();
  for (Load& load : loads_) {
    if (load.seq == nullptr || now < load.job->deadline) continue;
    load.job->is_cancelled.store(true);
    settle(load);
  }
  // One more than can run, because an urgent sequence preempts another.
  const auto num_looked_up =
      std::min(unchecked_.size(), static_cast<size_t>(max_num_seqs_ - scheduler_.num_running() + 1));
  // Loads begin in the order of the queue. A sequence that has to wait keeps none up that loads nothing.
  bool may_load = true;
  for (Sequence* seq : std::span(unchecked_).first(num_looked_up)) {
    if (may_load || seq->disk_state == DiskState::kUnchecked) look_up(*seq, may_load);
    may_load &= seq->disk_state != DiskState::kQueued;
  }
  std::erase_if(unchecked_, [](const Sequence* seq) {
    return seq->disk_state == DiskState::kNone || seq->disk_state == DiskState::kLoading;
  });
}

disk::Clock::time_point DiskCache::next_step_time() const {
  if (has_more_loaded_) return disk::Clock::now();
  auto time = disk::Clock::time_point::max();
  for (const Load& load : loads_)
    if (load.seq != nullptr) time = std::min(time, load.job->deadline);
  const bool has_unchecked = time == disk::Clock::time_point::max() && !unchecked_.empty();
  return has_unchecked ? disk::Clock::now() : time;
}

void DiskCache::take_loaded() {
  disk::LoadedBlock loaded;
  const disk::LoadJob* renewed = nullptr;
  int64_t bytes_left = kCopyBytesPerStep;
  has_more_loaded_ = false;
  while (store_.take_loaded(loaded)) {
    const auto load = std::ranges::find(loads_, loaded.job, &Load::job);
    CAPSTAN_CHECK(load != loads_.end());
    const disk::LoadJob& job = *loaded.job;
    if (loaded.image) {
      // A block takes the place of the oldest one, which must be none that it continues.
      if (load->seq != nullptr && renewed != &job) blocks_.renew(*load->seq, load->first_block + load->num_loaded);
      renewed = &job;
      const disk::BlockId& id = job.blocks[loaded.idx];
      const auto size = static_cast<size_t>(blocks_.block_size());
      const disk::ImageShape& shape = store_.shape();
      const std::span payload(loaded.image.get() + shape.payload_at(), shape.payload_bytes[0]);
      const int32_t block_id =
          blocks_.insert_cached(id.key, std::span(job.tokens).subspan(loaded.idx * size, size),
                                [&](int32_t block) { options_.write_block(id.group, block, payload); });
      ++load->num_taken;
      if (block_id >= 0) ++load->num_loaded;
      store_.recycle(std::move(loaded.image));
      bytes_left -= static_cast<int64_t>(payload.size());
      if (bytes_left > 0) continue;
      has_more_loaded_ = true;  // perhaps
      return;
    }
    settle(*load);
    loads_.erase(load);
  }
}

// Returns the ids of the full blocks before the last token, which is always computed.
std::vector<disk::BlockId> DiskCache::block_ids(Sequence& seq) const {
  const std::vector<PrefixKey>& keys = blocks_.prefix_keys(seq);
  const auto count = static_cast<size_t>((seq.num_tokens() - 1) / blocks_.block_size());
  std::vector<disk::BlockId> ids(count);
  for (size_t i = 0; i < count; ++i)
    ids[i] = {keys[i + 1], keys[i], 0};
  return ids;
}

int DiskCache::num_blocks_in_flight() const {
  // A disk that hangs never ends its job, so one that no sequence waits for does not count.
  size_t count = 0;
  for (const Load& load : loads_)
    if (load.seq != nullptr) count += load.job->blocks.size() + static_cast<size_t>(load.num_unused);
  return static_cast<int>(count);
}

// Queues the sequence when the loads in flight, or those of sequences before it, take all blocks.
void DiskCache::look_up(Sequence& seq, bool may_load) {
  const std::vector<disk::BlockId> ids = block_ids(seq);
  const int num_cached = blocks_.num_cached_blocks(seq);
  const auto in_memory = std::span(ids).first(static_cast<size_t>(num_cached));
  auto num_blocks = static_cast<int>(store_.count_held(std::span(ids).subspan(in_memory.size())));
  double compute_ms = 0;
  if (num_blocks > 0 && !pays_off(num_cached, num_blocks, compute_ms)) {
    ++num_declined_;
    num_blocks = 0;
  }
  const int num_in_flight = num_blocks_in_flight();
  const BlockPool& pool = blocks_.pool(0);
  const auto is_unused = [&](const disk::BlockId& id) { return !pool.is_used(pool.find(id.key)); };
  const auto num_unused = static_cast<int>(std::ranges::count_if(in_memory, is_unused));
  const int num_available = pool.num_available() - num_unused - num_in_flight;
  const bool is_fitting = num_blocks <= std::max(num_available, 0) || num_in_flight == 0;
  if (num_blocks > 0 && !(may_load && is_fitting)) {
    seq.disk_state = DiskState::kQueued;
    return;
  }
  num_blocks = std::clamp(num_available, 0, num_blocks);
  store_.touch(std::span(ids).first(in_memory.size() + static_cast<size_t>(num_blocks)));
  settle(seq);
  if (num_blocks > 0) begin_load({&seq, nullptr, num_cached, num_unused}, num_blocks, compute_ms);
}

// Sets the expected time of the computation; 0 = unknown.
bool DiskCache::pays_off(int first_block, int num_blocks, double& compute_ms) const {
  const int size = blocks_.block_size();
  compute_ms = scheduler_.prefill_ms(first_block * size, num_blocks * size);
  const double rate = store_.read_bytes_per_ms();
  if (compute_ms == 0 || rate == 0 || options_.always_loads) return true;
  // One thread reads, so the blocks of the open loads come first.
  int num_read = num_blocks;
  for (const Load& load : loads_)
    if (load.seq != nullptr) num_read += static_cast<int>(load.job->blocks.size()) - load.num_taken;
  return static_cast<double>(num_read) * static_cast<double>(store_.shape().file_bytes(0)) / rate < compute_ms;
}

void DiskCache::begin_load(Load load, int num_blocks, double compute_ms) {
  Sequence& seq = *load.seq;
  const int first_block = load.first_block;
  const std::vector<disk::BlockId> ids = block_ids(seq);
  const auto size = static_cast<ptrdiff_t>(blocks_.block_size());
  auto job = std::make_shared<disk::LoadJob>();
  job->blocks.assign(ids.begin() + first_block, ids.begin() + first_block + num_blocks);
  job->tokens.assign(seq.token_ids.begin() + first_block * size,
                     seq.token_ids.begin() + (first_block + num_blocks) * size);
  const auto wait = std::chrono::duration<double, std::milli>(std::max(compute_ms, kShortestWaitMs));
  job->deadline =
      disk::Clock::now() + (compute_ms == 0 ? kUnknownWait : std::chrono::duration_cast<disk::Clock::duration>(wait));
  if (options_.always_loads) job->deadline = disk::Clock::now() + std::chrono::hours(1);
  if (!store_.load(job)) return;
  seq.disk_state = DiskState::kLoading;
  load.job = std::move(job);
  loads_.push_back(std::move(load));
}

// ---- writing ----

void DiskCache::offer(Sequence& seq) {
  if (!seq.uses_prefix_cache() || !store_.accepts_writes()) return;
  const int num_full = std::min(seq.num_computed_tokens, seq.num_tokens()) / blocks_.block_size();
  if (seq.num_offered_blocks >= num_full) return;
  const std::vector<PrefixKey>& keys = blocks_.prefix_keys(seq);
  for (; seq.num_offered_blocks < num_full; ++seq.num_offered_blocks) {
    const auto block = static_cast<size_t>(seq.num_offered_blocks);
    offered_.push_back({keys[block + 1], keys[block], 0});
  }
}

// NOTE: no step is in flight, so the contents of all cached blocks are complete.
void DiskCache::end_step() {
  const BlockPool& pool = blocks_.pool(0);
  const disk::ImageShape& shape = store_.shape();
  int64_t bytes_left = kCopyBytesPerStep;
  int64_t num_lost = 0;
  if (!store_.accepts_writes()) offered_.clear();
  while (!offered_.empty() && (bytes_left > 0 || !scheduler_.has_work())) {
    const disk::BlockId id = offered_.front();
    const int32_t block_id = pool.find(id.key);
    if (block_id < 0 || store_.holds(id).value_or(false)) {
      num_lost += block_id < 0 ? 1 : 0;
      offered_.pop_front();
      continue;
    }
    disk::Image image = store_.take_image();
    is_disk_behind_ = !image;
    if (is_disk_behind_) break;
    options_.read_block(id.group, block_id, std::span(image.get() + shape.payload_at(), shape.payload_bytes[0]));
    store_.write(id, pool.token_ids(block_id), std::move(image));
    offered_.pop_front();
    bytes_left -= static_cast<int64_t>(shape.payload_bytes[0]);
  }
  // A block that is written after its eviction from memory has nothing to write.
  const auto most = static_cast<size_t>(pool.num_blocks());
  for (; offered_.size() > most; ++num_lost)
    offered_.pop_front();
  if (num_lost > 0) store_.count_skipped(num_lost);
  if (offered_.empty()) is_disk_behind_ = false;
  // It stays a problem until the disk has caught up.
  if (num_lost > 0 && is_disk_behind_) store_.set_slow(true);
  if (offered_.empty()) store_.set_slow(false);
}

DiskCacheStats DiskCache::stats() const {
  return {store_.stats(), num_hits_.load(), num_loaded_tokens_.load(), num_declined_.load()};
}

}  // namespace capstan
