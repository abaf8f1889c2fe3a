#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "native/sandbox/open_files.h"

/** The memory of processes. Memory that several processes share counts once. */
struct MemoryUsage {
  uint64_t num_bytes = 0;
  /** Processes map files in memory that may be larger than the mapped part. Only root can see their size. */
  bool has_hidden_files = false;
};

/**
 * Measures private pages, and files in memory: memfd, System V segments and shared anonymous mappings. Files of a tmpfs
 * do not count. Pages of files on a disk do not count, because the kernel can drop them.
 */
MemoryUsage measure_memory(const std::vector<pid_t>& pids, Budget& budget);

/**
 * Returns a number that `measure_memory` never exceeds, also with files in a tmpfs. Fast, because it counts the shared
 * memory of the whole machine.
 */
uint64_t memory_bound(const std::vector<pid_t>& pids);

/** Returns the memory that the machine has left for programs. */
uint64_t available_memory();
