#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

/** The entries that one measure may still look at, so that a program cannot make a measurement take forever. */
struct Budget {
  uint64_t num_left;
  /** Returns false when no entry is left. */
  bool take() {
    if (num_left == 0) return false;
    num_left--;
    return true;
  }
};

/** Calls `use` with each name in a folder. `fd` is an open folder, which this closes, or negative. */
void for_each_name(int fd, const std::function<void(const std::string&)>& use);

/** Calls `use` for each open file of the processes, until the budget ends. A file may come more than once. */
void for_each_open_file(const std::vector<pid_t>& pids, Budget& budget,
                        const std::function<void(const struct stat&)>& use);

/** A part of a file in the memory of a process. */
struct Mapping {
  uint64_t num_bytes;
  dev_t device;
  ino_t inode;
  /** The path that the process sees. The kernel adds ` (deleted)` for a file without a name. */
  std::string path;
  /** The file itself, in /proc. Only root may look at it. */
  std::string file;
  bool is_deleted() const;
};

/** Parses a line of /proc/PID/maps, PID being `process`. Returns false for memory without a file. */
bool parse_mapping(const std::string& line, const std::string& process, Mapping& mapping);

/** Calls `use` for each mapped file of the processes, until the budget ends. */
void for_each_mapping(const std::vector<pid_t>& pids, Budget& budget, const std::function<void(const Mapping&)>& use);

/**
 * Whether the processes may hold files that no measure sees: descriptors that were sent through a socket and not
 * received, or those of a process that this user may not look at, such as one whose program is only executable for it.
 */
bool may_hide_files(const std::vector<pid_t>& pids, Budget& budget);
