#include "native/sandbox/disk_usage.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <map>
#include <set>
#include <utility>

namespace {

constexpr int kMaxDepth = 256;
constexpr uint64_t kTooMuch = std::numeric_limits<uint64_t>::max();

uint64_t bytes_of(const struct stat& info) {
  return std::max(kMinEntryBytes, static_cast<uint64_t>(info.st_blocks) * 512);
}

uint64_t sum(uint64_t one, uint64_t other) {
  return one > kTooMuch - other ? kTooMuch : one + other;
}

/** Whether the owner of a folder is this user, who then closed it to hide what is in it. */
bool is_own(int folder) {
  struct stat info{};
  return fstat(folder, &info) == 0 && info.st_uid == geteuid();
}

uint64_t bytes_below(int folder, int depth, Budget& budget) {
  if (depth > kMaxDepth) {
    close(folder);
    return kTooMuch;
  }
  uint64_t total = 0;
  for_each_name(folder, [&](const std::string& name) {
    if (!budget.take()) return;
    struct stat info{};
    if (fstatat(folder, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) {
      if (errno == EACCES && is_own(folder)) total = kTooMuch;
      return;
    }
    total = sum(total, bytes_of(info));
    if (!S_ISDIR(info.st_mode)) return;
    const int below = openat(folder, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (below >= 0)
      total = sum(total, bytes_below(below, depth + 1, budget));
    else if (errno == EACCES && info.st_uid == geteuid())
      total = kTooMuch;
  });
  return total;
}

}  // namespace

uint64_t folder_bytes(const std::string& folder, Budget& budget) {
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return errno == EACCES ? kTooMuch : 0;
  return bytes_below(fd, 0, budget);
}

DiskUsage measure_disk(const std::string& home, const std::string& cache, const std::string& inner_home, uid_t owner,
                       const std::vector<pid_t>& pids, Budget& budget) {
  DiskUsage usage;
  usage.num_bytes = folder_bytes(home, budget);
  struct stat disk{};
  if (stat(home.c_str(), &disk) != 0) return usage;
  // The cache may be on another disk.
  struct stat cache_disk{};
  if (cache.empty() || stat(cache.c_str(), &cache_disk) != 0) cache_disk = disk;
  // Several processes may share one open file.
  std::set<std::pair<dev_t, ino_t>> counted;
  const auto add = [&](const struct stat& info) {
    const bool has_blocks = S_ISREG(info.st_mode) || S_ISDIR(info.st_mode);
    if (!has_blocks || info.st_nlink != 0 || (info.st_dev != disk.st_dev && info.st_dev != cache_disk.st_dev) ||
        info.st_uid != owner)
      return;
    if (counted.insert({info.st_dev, info.st_ino}).second) usage.num_bytes = sum(usage.num_bytes, bytes_of(info));
  };
  for_each_open_file(pids, budget, add);
  // The largest mapping of each hidden file, because several processes may map the same one.
  std::map<ino_t, uint64_t> hidden;
  for_each_mapping(pids, budget, [&](const Mapping& mapping) {
    struct stat info{};
    if (!mapping.is_deleted()) return;
    if (stat(mapping.file.c_str(), &info) == 0) return add(info);
    if (mapping.path.rfind(inner_home + "/", 0) != 0 || counted.count({disk.st_dev, mapping.inode}) != 0) return;
    usage.has_hidden_files = true;
    hidden[mapping.inode] = std::max(hidden[mapping.inode], mapping.num_bytes);
  });
  for (const auto& [inode, num_bytes] : hidden)
    usage.num_bytes = sum(usage.num_bytes, num_bytes);
  usage.is_incomplete = budget.num_left == 0;
  return usage;
}
