#include "native/sandbox/disk_usage.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <set>

namespace {

constexpr int kMaxDepth = 256;
constexpr uint64_t kTooMuch = std::numeric_limits<uint64_t>::max();
/** An empty file takes an inode. */
constexpr uint64_t kMinEntryBytes = 4096;

uint64_t bytes_of(const struct stat& info) {
  return static_cast<uint64_t>(info.st_blocks) * 512;
}

/** Calls `use` with each name in an open folder, and closes the folder. */
template <typename Use>
void for_each_name(int fd, Use use) {
  DIR* entries = fd < 0 ? nullptr : fdopendir(fd);
  if (entries == nullptr) {
    if (fd >= 0) close(fd);
    return;
  }
  while (const dirent* entry = readdir(entries)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") use(name);
  }
  closedir(entries);
}

uint64_t sum(uint64_t one, uint64_t other) {
  return one > kTooMuch - other ? kTooMuch : one + other;
}

/** Whether the owner of a folder is this user, who then closed it to hide what is in it. */
bool is_own(int folder) {
  struct stat info{};
  return fstat(folder, &info) == 0 && info.st_uid == geteuid();
}

uint64_t bytes_below(int folder, int depth) {
  if (depth > kMaxDepth) {
    close(folder);
    return kTooMuch;
  }
  uint64_t total = 0;
  for_each_name(folder, [&](const std::string& name) {
    struct stat info{};
    if (fstatat(folder, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) {
      if (errno == EACCES && is_own(folder)) total = kTooMuch;
      return;
    }
    total = sum(total, std::max(kMinEntryBytes, bytes_of(info)));
    if (!S_ISDIR(info.st_mode)) return;
    const int below = openat(folder, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (below >= 0)
      total = sum(total, bytes_below(below, depth + 1));
    else if (errno == EACCES && info.st_uid == geteuid())
      total = kTooMuch;
  });
  return total;
}

}  // namespace

uint64_t folder_bytes(const std::string& folder) {
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return errno == EACCES ? kTooMuch : 0;
  return bytes_below(fd, 0);
}

uint64_t deleted_bytes(const std::string& folder, const std::vector<pid_t>& pids) {
  struct stat disk{};
  if (stat(folder.c_str(), &disk) != 0) return 0;
  uint64_t total = 0;
  // Several processes may share one open file.
  std::set<ino_t> counted;
  const auto open_folder = [](const std::string& path) {
    return open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  };
  const auto add_files = [&](const std::string& path) {
    for_each_name(open_folder(path), [&](const std::string& name) {
      struct stat info{};
      if (stat((path + "/" + name).c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return;
      if (info.st_nlink == 0 && info.st_dev == disk.st_dev && counted.insert(info.st_ino).second)
        total = sum(total, std::max(kMinEntryBytes, bytes_of(info)));
    });
  };
  for (const pid_t pid : pids) {
    // A thread may have a separate table of open files.
    const std::string tasks = "/proc/" + std::to_string(pid) + "/task";
    for_each_name(open_folder(tasks), [&](const std::string& task) { add_files(tasks + "/" + task + "/fd"); });
  }
  return total;
}
