#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "native/sandbox/spec.h"

/** Stops a replica that takes too much of the disk of its home. */
class DiskWatch {
 public:
  explicit DiskWatch(const Spec& spec);

  /**
   * Measures the home and the cache before the workload starts. @throws std::runtime_error when the home is too large
   * to be measured.
   */
  void start();

  /** Measures what the descendants of `supervisor` add to the home, until they exceed a limit. Runs in a thread. */
  void run(pid_t supervisor);

  /** The limit that the replica exceeds: `bytes`, `entries`, `cache` or `hidden`. `enough` while it exceeds none. */
  const char* verdict() const { return verdict_; }
  bool is_over() const { return verdict_ != kEnough; }

 private:
  static constexpr const char* kEnough = "enough";

  const char* measure(pid_t supervisor);
  bool is_cache_over();
  /** Read at each measure, because a replica that starts later may bring another limit. */
  uint64_t cache_limit() const;
  bool is_almost_full() const;
  /** The user of the processes. */
  uid_t owner() const;

  const Spec& spec_;
  uint64_t initial_ = 0;
  /** Measures in a row in which the replica held files whose size is unknown. */
  int num_hidden_ = 0;
  int num_measures_ = 0;
  /**
   * What earlier replicas left in the cache. They may have had a larger limit, and the runtime removes the rest only
   * after it has loaded its model. 0 once the cache has been within the limit.
   */
  uint64_t cache_leftover_ = 0;
  std::atomic<const char*> verdict_ = kEnough;
};
