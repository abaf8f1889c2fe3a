#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "native/sandbox/open_files.h"

/** What an entry takes at least: an empty file takes an inode. */
constexpr uint64_t kMinEntryBytes = 4096;

/** What a replica takes on the disk of its home. */
struct DiskUsage {
  /**
   * At least 4 KiB for each entry of the home. The largest number when a folder is nested too deeply, or when this user
   * owns it but may not read it. So a replica cannot hide files there.
   */
  uint64_t num_bytes = 0;
  /** The measure ended before it had looked at everything, so there is more. */
  bool is_incomplete = false;
  /** The replica maps deleted files of its home, whose size only root can see. */
  bool has_hidden_files = false;
};

/**
 * Measures the folder `home` and the deleted files that the processes hold on its disk. Follows no links.
 * @param cache The folder that outlives the replica, or empty. It may be on another disk.
 * @param inner_home The path of the home that the processes see.
 * @param owner The user of the processes. Deleted files of others do not count: an input may have been replaced.
 */
DiskUsage measure_disk(const std::string& home, const std::string& cache, const std::string& inner_home, uid_t owner,
                       const std::vector<pid_t>& pids, Budget& budget);

/** Returns what a folder takes, as in DiskUsage::num_bytes. */
uint64_t folder_bytes(const std::string& folder, Budget& budget);
