#pragma once
// The prefix cache on disk. Blocks that a sequence has computed are written, and a prompt that begins with blocks on
// the disk waits until they are in memory again. From there on they are ordinary cached blocks: admission finds them.
//
// A load pays off when the disk delivers the blocks faster than the model computes them. Both rates are measured; while
// one is unknown, the blocks are loaded. A prompt waits at most as long as its computation would take.
//
// Threads: all functions run on the engine's thread, except stats(). None of them waits for the disk.
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "native/disk/block_store.h"
#include "native/engine/scheduler.h"

namespace capstan {

struct DiskCacheOptions {
  disk::StoreOptions store;
  // Copy a block of a KV group out of or into the device's memory, between steps.
  std::function<void(int group, int32_t block_id, std::span<std::byte> to)> read_block;
  std::function<void(int group, int32_t block_id, std::span<const std::byte> from)> write_block;
  bool always_loads = false;  // also what takes longer than its computation, for tests
};

struct DiskCacheStats {
  disk::StoreStats store;
  int64_t num_hits = 0;           // sequences for which blocks were loaded
  int64_t num_loaded_tokens = 0;  // of these blocks
  int64_t num_declined = 0;       // sequences whose blocks were computed, because that takes less time
};

class DiskCache {
 public:
  // The blocks of `scheduler` get keys that depend on the store. Throws what BlockStore throws.
  DiskCache(DiskCacheOptions options, Scheduler& scheduler, int max_num_seqs);

  // Takes a sequence that waits for admission. It is not admitted until its blocks are looked up.
  void add(Sequence& seq);
  // Takes over the blocks that were loaded, and looks up those of the sequences that may be admitted next.
  void begin_step();
  // Offers the computed blocks of a sequence whose logits are valid.
  void offer(Sequence& seq);
  // Passes offered blocks to the disk: as many as it can take if there are no steps to run.
  void end_step();
  // Call when a sequence ends.
  void forget(Sequence& seq);
  // Whether sequences wait for the disk.
  bool has_waiting() const { return !loads_.empty(); }
  // Returns when begin_step has something to do, if the disk has no news before.
  disk::Clock::time_point next_step_time() const;
  bool has_offered() const { return !offered_.empty() && store_.accepts_writes(); }

  DiskCacheStats stats() const;

 private:
  struct Load {
    Sequence* seq;  // null after its end, or when it waits no more
    std::shared_ptr<disk::LoadJob> job;
    int first_block = 0;  // the ones before it are in memory
    int num_unused = 0;   // of these: blocks that no sequence used at the begin
    int num_taken = 0;    // blocks that were read
    int num_loaded = 0;   // of these: that went into memory
  };

  void take_loaded();
  void look_up(Sequence& seq, bool may_load);
  bool pays_off(int first_block, int num_blocks, double& compute_ms) const;
  void begin_load(Load load, int num_blocks, double compute_ms);
  std::vector<disk::BlockId> block_ids(Sequence& seq) const;
  int num_blocks_in_flight() const;
  void settle(Sequence& seq);
  void settle(Load& load);

  const DiskCacheOptions options_;
  Scheduler& scheduler_;
  BlockManager& blocks_;
  const int max_num_seqs_;
  disk::BlockStore store_;
  std::vector<Sequence*> unchecked_;  // unchecked or queued, the most urgent first
  std::vector<Load> loads_;           // in the order of their jobs
  bool has_more_loaded_ = false;      // blocks are left for the next step
  bool is_disk_behind_ = false;       // no image was free for an offered block
  std::deque<disk::BlockId> offered_;
  std::atomic<int64_t> num_hits_{0}, num_loaded_tokens_{0}, num_declined_{0};
};

}  // namespace capstan
