#include "native/disk/block_store.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include "native/base/check.h"
#include "native/base/thread.h"

namespace capstan::disk {
namespace {

constexpr size_t kMaxJobs = 64;
constexpr size_t kMinImages = 2, kMaxImages = 4096;
constexpr size_t kMaxBlocks = size_t{1} << 20;  // of one store
constexpr size_t kMaxTouched = 4096;
constexpr int64_t kSavedUseSeconds = 60;  // a file may be this much behind in its last use
constexpr auto kPause = std::chrono::seconds(60);
constexpr int64_t kMinScanBytes = int64_t{64} << 20;
constexpr double kNewestRate = 0.5;                      // weight of the newest measurement
constexpr auto kRateLifetime = std::chrono::minutes(1);  // a disk that was slow is tried again after this

int64_t now_seconds() {
  return static_cast<int64_t>(time(nullptr));
}

// Returns the number of images for each direction.
size_t num_images(const ImageShape& shape, size_t buffer_bytes) {
  return std::clamp(buffer_bytes / shape.max_file_bytes(), kMinImages, kMaxImages);
}

void wake(std::atomic<uint32_t>& signal) {
  signal.fetch_add(1);
  signal.notify_one();
}

}  // namespace

BlockStore::BlockStore(StoreOptions options)
    : options_(std::move(options)),
      folder_(options_.root, options_.identity),
      shape_{folder_.secret(), options_.block_size, options_.payload_bytes},
      index_(options_.payload_bytes.size()),
      to_write_(num_images(shape_, options_.buffer_bytes)),
      free_images_(num_images(shape_, options_.buffer_bytes)),
      jobs_(kMaxJobs),
      loaded_(num_images(shape_, options_.buffer_bytes) + kMaxJobs + 1),
      free_load_images_(num_images(shape_, options_.buffer_bytes)) {
  for (int group = 0; group < static_cast<int>(shape_.payload_bytes.size()); ++group)
    file_bytes_.push_back(shape_.file_bytes(group));
  const size_t count = num_images(shape_, options_.buffer_bytes), bytes = shape_.max_file_bytes();
  const int64_t least = disk_bytes(bytes) * static_cast<int64_t>(kMinImages);
  if (options_.max_bytes < least)
    throw Error(ErrorCode::kInvalidArgument, "prefixCacheDiskBytes: expected at least " + std::to_string(least) +
                                                 " with this model (two blocks of the KV cache), got " +
                                                 std::to_string(options_.max_bytes));
  for (size_t i = 0; i < count; ++i) {
    // Pages that are never used take no memory.
    free_images_.push(Image(new std::byte[bytes]));
    free_load_images_.push(Image(new std::byte[bytes]));
  }
  rescan();
  make_room(0);
  writer_ = start_thread([this] { write_main(); });
  try {
    reader_ = start_thread([this] { read_main(); });
  } catch (...) {
    is_closing_.store(true);
    wake(write_signal_);
    writer_.join();
    throw;
  }
}

BlockStore::~BlockStore() {
  close_end_.store((Clock::now() + options_.close_patience).time_since_epoch().count());
  is_closing_.store(true);
  wake(write_signal_);
  wake(read_signal_);
  writer_.join();
  reader_.join();
}

// ---- the index ----

void BlockStore::insert(const BlockId& id, int64_t last_use) {
  auto& index = index_[static_cast<size_t>(id.group)];
  if (index.contains(id.key)) return;
  entries_.push_front({id, last_use, last_use});
  index.emplace(id.key, entries_.begin());
  total_bytes_ += disk_bytes(file_bytes_[static_cast<size_t>(id.group)]);
}

void BlockStore::erase(const BlockId& id) {
  auto& index = index_[static_cast<size_t>(id.group)];
  const auto found = index.find(id.key);
  if (found == index.end()) return;
  entries_.erase(found->second);
  index.erase(found);
  total_bytes_ -= disk_bytes(file_bytes_[static_cast<size_t>(id.group)]);
}

void BlockStore::use(Entries::iterator entry, int64_t now) {
  entries_.splice(entries_.begin(), entries_, entry);
  entry->last_use = now;
  if (now - entry->saved_use < kSavedUseSeconds || touched_.size() >= kMaxTouched) return;
  entry->saved_use = now;
  touched_.push_back(*entry);
}

std::optional<bool> BlockStore::holds(const BlockId& id) {
  const std::unique_lock lock(index_mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return std::nullopt;
  return index_[static_cast<size_t>(id.group)].contains(id.key);
}

size_t BlockStore::count_held(std::span<const BlockId> blocks) {
  if (has_read_failed_.load()) return 0;
  const std::lock_guard lock(index_mutex_);
  const auto is_held = [&](const BlockId& id) { return index_[static_cast<size_t>(id.group)].contains(id.key); };
  return static_cast<size_t>(std::ranges::find_if_not(blocks, is_held) - blocks.begin());
}

void BlockStore::touch(std::span<const BlockId> blocks) {
  const int64_t now = now_seconds();
  bool has_touched = false;
  {
    const std::lock_guard lock(index_mutex_);
    // The end of a prefix is evicted before its beginning.
    for (size_t i = blocks.size(); i-- > 0;) {
      auto& index = index_[static_cast<size_t>(blocks[i].group)];
      const auto found = index.find(blocks[i].key);
      if (found != index.end()) use(found->second, now);
    }
    has_touched = !touched_.empty();
  }
  if (has_touched) wake(write_signal_);
}

// Lists the files again, because other processes add and remove some.
void BlockStore::rescan() {
  bytes_since_scan_ = 0;
  std::vector<FoundFile> found = folder_.scan(file_bytes_);
  // The oldest first, so that the newest ends in front.
  std::ranges::stable_sort(found, {}, &FoundFile::last_use);
  std::vector<std::unordered_map<Hash128, bool, KeyHash>> seen(index_.size());
  std::vector<FoundFile> others;
  int64_t other_bytes = 0;
  for (FoundFile& file : found) {
    if (file.store == folder_.name()) {
      seen[static_cast<size_t>(file.group)].emplace(file.key, true);
      continue;
    }
    other_bytes += file.bytes;
    others.push_back(std::move(file));
    file.group = -1;
  }
  std::ranges::reverse(others);
  const std::lock_guard lock(index_mutex_);
  others_.swap(others);
  total_bytes_ = other_bytes;
  for (const Entry& entry : entries_)
    total_bytes_ += disk_bytes(file_bytes_[static_cast<size_t>(entry.id.group)]);
  for (const FoundFile& file : found)
    if (file.group >= 0) insert({file.key, {}, file.group}, file.last_use);
  std::vector<BlockId> gone;
  for (const Entry& entry : entries_)
    if (!seen[static_cast<size_t>(entry.id.group)].contains(entry.id.key)) gone.push_back(entry.id);
  for (const BlockId& id : gone)
    erase(id);
}

// Removes the least recently used blocks, of whatever store, until `bytes` more fit.
bool BlockStore::make_room(int64_t bytes) {
  for (;;) {
    std::optional<FoundFile> other;
    std::optional<BlockId> own;
    {
      const std::lock_guard lock(index_mutex_);
      const bool is_full = bytes > 0 && entries_.size() >= kMaxBlocks;
      if (!is_full && total_bytes_ + bytes <= options_.max_bytes) return true;
      if (!others_.empty() && (entries_.empty() || others_.back().last_use <= entries_.back().last_use)) {
        other = std::move(others_.back());
        others_.pop_back();
        total_bytes_ -= other->bytes;
      } else if (!entries_.empty()) {
        own = entries_.back().id;
        erase(*own);
      } else {
        return false;
      }
    }
    if (other) folder_.remove(*other);
    if (own) folder_.remove(own->key, own->group);
    const std::lock_guard lock(stats_mutex_);
    ++stats_.num_evicted;
  }
}

// ---- writing ----

Image BlockStore::take_image() {
  Image image;
  if (free_images_.pop(image)) return image;
  wants_image_.store(true);
  // The writing thread may have freed one before it could see the wish.
  if (free_images_.pop(image)) wants_image_.store(false);
  return image;
}

void BlockStore::write(const BlockId& id, std::span<const int32_t> tokens, Image image) {
  // The checksum is computed on the writing thread.
  std::memcpy(image.get(), tokens.data(), tokens.size_bytes());
  CAPSTAN_CHECK(to_write_.push({id, std::move(image)}));
  wake(write_signal_);
}

void BlockStore::count_skipped(int64_t count) {
  const std::lock_guard lock(stats_mutex_);
  stats_.num_skipped += count;
}

// Does a part of a thread's work. An error must not end the process: it ends this direction.
template <class Work>
void BlockStore::attempt(std::atomic<bool>& has_failed, const char* consequence, Work work) {
  if (has_failed.load()) return;
  std::string failure;
  try {
    try {
      work();
      return;
    } catch (const std::exception& error) {
      has_failed.store(true);
      failure = error.what() + std::string(": no more blocks are ") + consequence + options_.root->path();
    }
  } catch (...) {
    has_failed.store(true);  // there is no memory for the message
  }
  const std::lock_guard lock(stats_mutex_);
  failure_ = std::move(failure);
}

void BlockStore::write_main() {
  for (;;) {
    const uint32_t seen = write_signal_.load();
    WriteItem item;
    if (to_write_.pop(item)) {
      const bool is_late = is_closing_.load() && Clock::now().time_since_epoch().count() > close_end_.load();
      bool is_done = is_late;
      if (!is_late) {
        attempt(has_write_failed_, "written to ", [&] {
          write_block(item);
          is_done = true;
        });
      }
      if (!is_done) count_skipped(1);
      free_images_.push(std::move(item.image));
      if (wants_image_.exchange(false) && options_.on_news) options_.on_news();
      continue;
    }
    attempt(has_write_failed_, "written to ", [this] { save_uses(); });
    if (is_closing_.load()) return;
    write_signal_.wait(seen);
  }
}

void BlockStore::write_block(WriteItem& item) {
  if (!accepts_writes()) {
    const std::lock_guard lock(stats_mutex_);
    ++stats_.num_skipped;
    return;
  }
  const size_t size = file_bytes_[static_cast<size_t>(item.id.group)];
  const std::span image(item.image.get(), size);
  std::vector<int32_t> tokens(static_cast<size_t>(shape_.block_size));
  std::memcpy(tokens.data(), image.data(), tokens.size() * sizeof(int32_t));
  seal_image(shape_, item.id, tokens, image);
  if (bytes_since_scan_ > std::max(kMinScanBytes, options_.max_bytes / 16)) rescan();
  if (!make_room(disk_bytes(size))) return;
  int error = options_.before_write ? options_.before_write() : 0;
  if (error == 0) error = folder_.write(item.id.key, item.id.group, image);
  if (error != 0) return pause(error);
  bytes_since_scan_ += disk_bytes(size);
  {
    const std::lock_guard lock(index_mutex_);
    insert(item.id, now_seconds());
  }
  const bool was_paused = is_paused_.exchange(false);
  const std::lock_guard lock(stats_mutex_);
  if (was_paused) stats_.problem.clear();
  ++stats_.num_written;
  stats_.bytes_written += static_cast<int64_t>(size);
}

// Writes nothing for a while after an error.
void BlockStore::pause(int error) {
  pause_end_.store((Clock::now() + kPause).time_since_epoch().count());
  is_paused_.store(true);
  const std::lock_guard lock(stats_mutex_);
  ++stats_.num_skipped;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): glibc's is safe for known numbers
  stats_.problem = std::string(std::strerror(error)) + ": the prefix cache cannot be written to " +
                   options_.root->path() + "; it is tried again every minute";
}

void BlockStore::save_uses() {
  std::vector<Entry> touched;
  {
    const std::lock_guard lock(index_mutex_);
    touched.swap(touched_);
  }
  for (const Entry& entry : touched)
    folder_.touch(entry.id.key, entry.id.group);
}

// ---- reading ----

bool BlockStore::load(std::shared_ptr<LoadJob> job) {
  if (has_read_failed_.load() || num_open_jobs_ == kMaxJobs || !jobs_.push(std::move(job))) return false;
  ++num_open_jobs_;
  wake(read_signal_);
  return true;
}

bool BlockStore::take_loaded(LoadedBlock& block) {
  if (!loaded_.pop(block)) return false;
  if (!block.image) --num_open_jobs_;
  return true;
}

void BlockStore::recycle(Image image) {
  free_load_images_.push(std::move(image));
  wake(read_signal_);
}

double BlockStore::read_bytes_per_ms() const {
  const Clock::duration age = Clock::now().time_since_epoch() - Clock::duration(read_rate_time_.load());
  return age < kRateLifetime ? read_rate_.load() : 0;
}

void BlockStore::read_main() {
  for (;;) {
    const uint32_t seen = read_signal_.load();
    if (is_closing_.load()) return;
    std::shared_ptr<LoadJob> job;
    if (jobs_.pop(job))
      run_job(job);
    else
      read_signal_.wait(seen);
  }
}

void BlockStore::run_job(const std::shared_ptr<LoadJob>& job) {
  attempt(has_read_failed_, "read from ", [&] { read_blocks(job); });
  push_loaded({job, job->blocks.size(), nullptr});
}

void BlockStore::read_blocks(const std::shared_ptr<LoadJob>& job) {
  double read_ms = 0, bytes = 0;
  for (size_t i = 0; i < job->blocks.size(); ++i) {
    Image image = wait_for_image(*job);
    if (!image) break;
    const auto begin = Clock::now();
    const bool is_read = read_block(*job, i, image);
    read_ms += std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
    bytes += static_cast<double>(file_bytes_[static_cast<size_t>(job->blocks[i].group)]);
    if (!is_read) {
      spare_load_image_ = std::move(image);
      break;
    }
    push_loaded({job, i, std::move(image)});
  }
  if (read_ms > 0) {
    const double rate = bytes / read_ms, old = read_bytes_per_ms();
    read_rate_.store(old == 0 ? rate : old + kNewestRate * (rate - old));
    read_rate_time_.store(Clock::now().time_since_epoch().count());
  }
}

// Returns null when the job is to end.
Image BlockStore::wait_for_image(const LoadJob& job) {
  for (;;) {
    const uint32_t seen = read_signal_.load();
    if (is_closing_.load() || job.is_cancelled.load() || Clock::now() > job.deadline) return nullptr;
    if (spare_load_image_) return std::move(spare_load_image_);
    Image image;
    if (free_load_images_.pop(image)) return image;
    read_signal_.wait(seen);
  }
}

bool BlockStore::read_block(LoadJob& job, size_t idx, Image& image) {
  const BlockId& id = job.blocks[idx];
  const std::span bytes(image.get(), file_bytes_[static_cast<size_t>(id.group)]);
  if (options_.before_read) options_.before_read();
  const int error = folder_.read(id.key, id.group, bytes);
  if (error != 0 && error != EBADMSG) {
    // Another process has removed it, or the disk fails.
    const std::lock_guard lock(index_mutex_);
    erase(id);
    return false;
  }
  const auto size = static_cast<size_t>(shape_.block_size);
  const auto tokens = std::span(job.tokens).subspan(idx * size, size);
  const ImageState state = error != 0 ? ImageState::kDamaged : check_image(shape_, id, tokens, bytes);
  if (state == ImageState::kDamaged) remove_damaged(id);
  if (state != ImageState::kGood) return false;
  const std::lock_guard lock(stats_mutex_);
  ++stats_.num_read;
  stats_.bytes_read += static_cast<int64_t>(bytes.size());
  return true;
}

void BlockStore::remove_damaged(const BlockId& id) {
  {
    const std::lock_guard lock(index_mutex_);
    erase(id);
  }
  folder_.remove(id.key, id.group);
  const std::lock_guard lock(stats_mutex_);
  ++stats_.num_damaged;
}

// NOTE: the ring has a place for each image and each job.
void BlockStore::push_loaded(LoadedBlock block) {
  CAPSTAN_CHECK(loaded_.push(std::move(block)));
  if (options_.on_news) options_.on_news();
}

StoreStats BlockStore::stats() const {
  StoreStats stats;
  {
    const std::lock_guard lock(stats_mutex_);
    stats = stats_;
    const bool has_failed = has_write_failed_.load() || has_read_failed_.load();
    if (has_failed) stats.problem = failure_.empty() ? "a thread of the prefix cache on disk failed" : failure_;
  }
  if (stats.problem.empty() && is_slow_.load())
    stats.problem = "the disk is slower than the prompts: some blocks of the prefix cache are not written to " +
                    options_.root->path();
  const std::lock_guard lock(index_mutex_);
  stats.num_blocks = static_cast<int64_t>(entries_.size());
  stats.bytes = total_bytes_;
  return stats;
}

}  // namespace capstan::disk
