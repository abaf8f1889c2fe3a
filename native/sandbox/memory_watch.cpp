#include "native/sandbox/memory_watch.h"

#include <sys/statfs.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "native/sandbox/memory_usage.h"
#include "native/sandbox/process_tree.h"

namespace {

/** Between two measures: four times what the last one took, within these bounds. */
constexpr std::chrono::nanoseconds kMinPause = std::chrono::milliseconds(500), kMaxPause = std::chrono::seconds(2);
constexpr int kPauseShare = 4;
/** A descriptor that is sent is on its way for a moment. Only a program that hides it leaves it there. */
constexpr int kMaxHidden = 2;

/** Returns the bytes of the files that isolated processes keep in memory. They count for no process. */
uint64_t scratch_bytes(pid_t first_process) {
  struct statfs info{};
  if (statfs(("/proc/" + std::to_string(first_process) + "/root/dev/shm").c_str(), &info) != 0) return 0;
  return (info.f_blocks - info.f_bfree) * static_cast<uint64_t>(info.f_bsize);
}

}  // namespace

MemoryWatch::MemoryWatch(const Spec& spec) : spec_(spec) {}

void MemoryWatch::run(pid_t supervisor, pid_t first_process) {
  while (!is_over_) {
    const auto began = std::chrono::steady_clock::now();
    is_over_ = measure(supervisor, first_process);
    const auto took = std::chrono::steady_clock::now() - began;
    std::this_thread::sleep_for(std::clamp<std::chrono::nanoseconds>(took * kPauseShare, kMinPause, kMaxPause));
  }
}

bool MemoryWatch::measure(pid_t supervisor, pid_t first_process) {
  const std::vector<pid_t> pids = descendants(supervisor);
  // The exact measure looks at all descriptors and mappings, so it runs only near the limit.
  if (memory_bound(pids) <= spec_.memory_bytes) return false;
  Budget budget{spec_.disk_entries};
  const MemoryUsage usage = measure_memory(pids, budget);
  const uint64_t scratch = spec_.is_isolated ? scratch_bytes(first_process) : 0;
  if (usage.num_bytes + scratch > spec_.memory_bytes || budget.num_left == 0) return true;
  const bool is_hiding =
      available_memory() < spec_.memory_reserve_bytes && (usage.has_hidden_files || may_hide_files(pids, budget));
  num_hidden_ = is_hiding ? num_hidden_ + 1 : 0;
  return num_hidden_ > kMaxHidden;
}
