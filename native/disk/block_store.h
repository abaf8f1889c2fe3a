#pragma once
// The blocks of one model on disk: an index in memory, a thread that writes and a thread that reads.
//
// The owner calls from one thread, the engine's, and never waits for the disk: what it hands over and takes back goes
// through rings of images that are allocated once. When the disk is slow or full, blocks are not written.
//
// Several processes may use one store. Files never change, so each sees whole blocks. A process learns of the others'
// blocks when it lists the folder again: at its start, and after each sixteenth of the limit that it has written.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "native/disk/block_image.h"
#include "native/disk/cache_folder.h"
#include "native/disk/ring.h"

namespace capstan::disk {

using Clock = std::chrono::steady_clock;

struct StoreOptions {
  std::shared_ptr<const CacheRoot> root;
  std::string identity;                    // everything that the bits of a block depend on
  int64_t max_bytes = 0;                   // of all stores below the root
  int block_size = 0;                      // tokens
  std::vector<size_t> payload_bytes;       // by KV group
  size_t buffer_bytes = size_t{64} << 20;  // of the images on their way to the disk, and of those from it
  std::function<void()> on_news;           // called on the store's threads after each change that the owner sees
  // Called on the writing thread before each write. Tests hold writes up, or make them fail with an error number.
  std::function<int()> before_write;
  std::function<void()> before_read;  // called on the reading thread before each read
  // How long a store that closes writes what was handed over.
  std::chrono::milliseconds close_patience{2000};
};

struct StoreStats {
  int64_t num_blocks = 0, bytes = 0;  // on the disk; bytes: of all stores below the root
  int64_t num_read = 0, bytes_read = 0, num_written = 0, bytes_written = 0;
  int64_t num_evicted = 0;
  int64_t num_damaged = 0;  // removed instead of read
  int64_t num_skipped = 0;  // not written, because the disk is slow or full
  std::string problem;      // why blocks are not written or read; empty = they are
};

// Consecutive blocks of a prefix that are to be read.
struct LoadJob {
  std::vector<BlockId> blocks;
  std::vector<int32_t> tokens;  // (blocks, block_size)
  Clock::time_point deadline;   // blocks that are not read by then are left out
  std::atomic<bool> is_cancelled{false};
};

struct LoadedBlock {
  std::shared_ptr<LoadJob> job;
  size_t idx = 0;
  Image image;  // null: nothing more of this job comes
};

class BlockStore {
 public:
  // Throws kInvalidArgument or kIo when the folder cannot be used.
  explicit BlockStore(StoreOptions options);
  // Waits until the images that are handed over are written, for at most close_patience and one write or read.
  ~BlockStore();
  BlockStore(const BlockStore&) = delete;
  BlockStore& operator=(const BlockStore&) = delete;

  const ImageShape& shape() const { return shape_; }
  const Hash128& secret() const { return shape_.secret; }

  // ---- called by the owner's thread ----

  // Whether a block is on the disk. Returns nothing when another thread uses the index at this moment.
  std::optional<bool> holds(const BlockId& id);
  // Returns how many blocks, from the first on, are on the disk.
  size_t count_held(std::span<const BlockId> blocks);
  // Makes blocks the most recently used ones.
  void touch(std::span<const BlockId> blocks);

  // Returns whether blocks are written at present.
  bool accepts_writes() const {
    return !has_write_failed_.load() &&
           (!is_paused_.load() || Clock::now().time_since_epoch().count() > pause_end_.load());
  }
  // Returns an image to fill, or null when all of them wait for the disk. Then on_news is called when one is free.
  Image take_image();
  // Hands an image over that seal_image has not completed yet: only its payload is filled in.
  void write(const BlockId& id, std::span<const int32_t> tokens, Image image);
  // Counts blocks that the owner could not hand over in time.
  void count_skipped(int64_t count);
  // Says whether blocks are lost because the disk is slower than the prompts.
  void set_slow(bool is_slow) { is_slow_.store(is_slow); }

  // Returns false when too many jobs wait, or when nothing is read any more.
  bool load(std::shared_ptr<LoadJob> job);
  // Returns the next block that was read, in the order of the jobs and of their blocks.
  bool take_loaded(LoadedBlock& block);
  void recycle(Image image);
  // Returns the measured rate of reading; 0 = not measured lately.
  double read_bytes_per_ms() const;

  StoreStats stats() const;

 private:
  struct WriteItem {
    BlockId id;
    Image image;
  };
  struct Entry {
    BlockId id;
    int64_t last_use = 0, saved_use = 0;  // seconds; saved_use: what the file says
  };
  struct KeyHash {
    size_t operator()(const Hash128& key) const { return static_cast<size_t>(key[0]); }
  };
  using Entries = std::list<Entry>;

  template <class Work>
  void attempt(std::atomic<bool>& has_failed, const char* consequence, Work work);
  void write_main();
  void read_main();
  void write_block(WriteItem& item);
  bool make_room(int64_t bytes);
  void rescan();
  void save_uses();
  void pause(int error);
  void run_job(const std::shared_ptr<LoadJob>& job);
  void read_blocks(const std::shared_ptr<LoadJob>& job);
  bool read_block(LoadJob& job, size_t idx, Image& image);
  Image wait_for_image(const LoadJob& job);
  void remove_damaged(const BlockId& id);
  void push_loaded(LoadedBlock block);
  // The next three need index_mutex_.
  void insert(const BlockId& id, int64_t last_use);
  void erase(const BlockId& id);
  void use(Entries::iterator entry, int64_t now);

  StoreOptions options_;
  StoreFolder folder_;
  ImageShape shape_;
  std::vector<size_t> file_bytes_;  // by KV group

  // ---- the index: held for a moment only, never during input or output ----
  mutable std::mutex index_mutex_;
  Entries entries_;                                                             // the most recently used first
  std::vector<std::unordered_map<Hash128, Entries::iterator, KeyHash>> index_;  // by KV group
  std::vector<FoundFile> others_;  // blocks of other stores, the least recently used last
  int64_t total_bytes_ = 0;
  std::vector<Entry> touched_;  // whose files do not know of their last use

  // ---- writing ----
  Ring<WriteItem> to_write_;
  Ring<Image> free_images_;
  std::atomic<uint32_t> write_signal_{0};
  std::atomic<bool> is_paused_{false}, wants_image_{false}, is_slow_{false};
  std::atomic<bool> has_write_failed_{false};  // for good
  std::atomic<Clock::rep> pause_end_{0};
  int64_t bytes_since_scan_ = 0;  // used by the writing thread

  // ---- reading ----
  Ring<std::shared_ptr<LoadJob>> jobs_;
  Ring<LoadedBlock> loaded_;
  Ring<Image> free_load_images_;
  Image spare_load_image_;    // used by the reading thread
  size_t num_open_jobs_ = 0;  // used by the owner
  std::atomic<uint32_t> read_signal_{0};
  std::atomic<bool> has_read_failed_{false};   // for good
  std::atomic<double> read_rate_{0};           // bytes per ms
  std::atomic<Clock::rep> read_rate_time_{0};  // of the last measurement

  mutable std::mutex stats_mutex_;
  StoreStats stats_;
  std::string failure_;  // of a thread; empty = none

  std::atomic<bool> is_closing_{false};
  std::atomic<Clock::rep> close_end_{0};  // nothing is written after it
  std::thread writer_, reader_;
};

}  // namespace capstan::disk
