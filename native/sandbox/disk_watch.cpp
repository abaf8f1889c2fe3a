#include "native/sandbox/disk_watch.h"

#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <thread>

#include "native/sandbox/disk_usage.h"
#include "native/sandbox/process_tree.h"

namespace {

/**
 * Between two measures: at least a second, and 20 times what the last one took, so that it takes at most that share of
 * a processor core. But not longer, however long a program makes a measure take.
 */
constexpr std::chrono::nanoseconds kMinPause = std::chrono::seconds(1), kMaxPause = std::chrono::seconds(5);
constexpr int kPauseShare = 20;
/** The runtime bounds the cache itself, and measuring many files takes long. */
constexpr int kCacheEvery = 10;
/** A descriptor that is sent is on its way for a moment. Only a program that hides it leaves it there. */
constexpr int kMaxHidden = 2;

}  // namespace

DiskWatch::DiskWatch(const Spec& spec) : spec_(spec) {}

void DiskWatch::start() {
  if (spec_.cache_bytes > 0) {
    Budget budget{spec_.disk_entries};
    cache_leftover_ = folder_bytes(spec_.cache, budget);
  }
  if (spec_.disk_bytes == 0) return;
  Budget budget{spec_.disk_entries};
  const DiskUsage usage = measure_disk(spec_.home, spec_.cache, spec_.inner_home(), owner(), {}, budget);
  if (usage.is_incomplete)
    throw std::runtime_error("home: expected at most " + std::to_string(spec_.disk_entries) +
                             " files and folders, got more: remove some, or use an input for them");
  if (usage.num_bytes == std::numeric_limits<uint64_t>::max())
    throw std::runtime_error(
        "home: a folder cannot be read, or is inside more than 256 others: remove it, or change its permissions");
  initial_ = usage.num_bytes;
}

void DiskWatch::run(pid_t supervisor) {
  while (!is_over()) {
    const auto began = std::chrono::steady_clock::now();
    verdict_ = measure(supervisor);
    const auto took = std::chrono::steady_clock::now() - began;
    std::this_thread::sleep_for(std::clamp<std::chrono::nanoseconds>(took * kPauseShare, kMinPause, kMaxPause));
  }
}

const char* DiskWatch::measure(pid_t supervisor) {
  const std::vector<pid_t> pids = descendants(supervisor);
  Budget budget{spec_.disk_entries};
  const DiskUsage usage = measure_disk(spec_.home, spec_.cache, spec_.inner_home(), owner(), pids, budget);
  if (usage.num_bytes > initial_ && usage.num_bytes - initial_ > spec_.disk_bytes) return "bytes";
  if (usage.is_incomplete) return "entries";
  if (is_cache_over()) return "cache";
  // A program may hide files for a while. It may not fill the disk with them.
  const bool is_hiding = is_almost_full() && (usage.has_hidden_files || may_hide_files(pids, budget));
  num_hidden_ = is_hiding ? num_hidden_ + 1 : 0;
  return num_hidden_ > kMaxHidden ? "hidden" : kEnough;
}

bool DiskWatch::is_cache_over() {
  if (spec_.cache_bytes == 0 || ++num_measures_ % kCacheEvery != 0) return false;
  const uint64_t limit = cache_limit(), allowed = std::max(limit, cache_leftover_);
  // With one entry more than this, the folder is over its limit.
  Budget budget{allowed / kMinEntryBytes + 1};
  const uint64_t bytes = folder_bytes(spec_.cache, budget);
  if (bytes <= limit) cache_leftover_ = 0;
  return bytes > allowed;
}

uint64_t DiskWatch::cache_limit() const {
  std::ifstream file(spec_.dir + "/cache_limit");
  uint64_t bytes = 0;
  return file >> bytes && bytes > 0 ? bytes : spec_.cache_bytes;
}

uid_t DiskWatch::owner() const {
  return spec_.is_isolated && geteuid() == 0 ? spec_.uid : geteuid();
}

bool DiskWatch::is_almost_full() const {
  struct statvfs disk{};
  return statvfs(spec_.home.c_str(), &disk) == 0 &&
         static_cast<uint64_t>(disk.f_bavail) * disk.f_frsize < spec_.disk_reserve_bytes;
}
