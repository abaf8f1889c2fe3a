#include "native/sandbox/view.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <stdexcept>

#include "native/sandbox/mounts.h"
#include "native/sandbox/open_files.h"

namespace {

/** The kernel's open_how. */
struct OpenMethod {
  uint64_t flags;
  uint64_t mode;
  uint64_t resolve;
};
constexpr long kOpenat2 = 437;
constexpr uint64_t kNoLinks = 0x04;

/** Entries of the folders that have a hidden one. Each is a mount. */
constexpr int kMaxEntries = 5'000;

void copy_link(int folder, const std::string& name, const std::string& to) {
  char target[PATH_MAX];
  const ssize_t length = readlinkat(folder, name.c_str(), target, sizeof target - 1);
  if (length <= 0) return;
  target[length] = '\0';
  if (symlink(target, to.c_str()) != 0) fail("symlink " + to);
}

}  // namespace

View::View(std::vector<std::string> hides) : hides_(std::move(hides)) {
  std::sort(hides_.begin(), hides_.end());
}

void View::show(const std::string& from, const std::string& to, uint64_t attributes) {
  const OpenMethod method{O_PATH | O_CLOEXEC, 0, kNoLinks};
  const int fd = static_cast<int>(syscall(kOpenat2, AT_FDCWD, from.c_str(), &method, sizeof method));
  if (fd < 0) fail("open " + from + " (expected a path without links)");
  show_open(fd, from, to, attributes);
  close(fd);
}

bool View::has_hidden_below(const std::string& path) const {
  const auto found = std::lower_bound(hides_.begin(), hides_.end(), path + "/");
  return found != hides_.end() && found->rfind(path + "/", 0) == 0;
}

void View::show_open(int fd, const std::string& from, const std::string& to, uint64_t attributes) {
  if (!has_hidden_below(from)) {
    bind_mount("/proc/self/fd/" + std::to_string(fd), to, attributes);
    return;
  }
  struct stat info{};
  if (fstat(fd, &info) != 0) fail("stat " + from);
  make_folder(to);
  const int folder = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  for_each_name(folder, [&](const std::string& name) {
    if (!std::binary_search(hides_.begin(), hides_.end(), from + "/" + name))
      show_entry(fd, name, from + "/" + name, to + "/" + name, attributes);
  });
  if (chmod(to.c_str(), info.st_mode & 0777) != 0) fail("chmod " + to);
}

/** Leaves out sockets, pipes and devices, and what this user may not see. */
void View::show_entry(int folder, const std::string& name, const std::string& from, const std::string& to,
                      uint64_t attributes) {
  if (++num_entries_ > kMaxEntries)
    throw std::runtime_error("expected at most " + std::to_string(kMaxEntries) +
                             " entries in the folders with hidden files, got more in " +
                             from.substr(0, from.rfind('/')) + ": move the hidden files to a separate folder");
  struct stat info{};
  if (fstatat(folder, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) return;
  if (S_ISLNK(info.st_mode)) copy_link(folder, name, to);
  if (!S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode)) return;
  const int fd = openat(folder, name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return;
  show_open(fd, from, to, attributes);
  close(fd);
}
