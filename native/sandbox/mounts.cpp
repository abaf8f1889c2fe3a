#include "native/sandbox/mounts.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace {

/** The kernel's mount_attr. Older C libraries cannot include linux/mount.h together with sys/mount.h. */
struct MountAttributes {
  uint64_t set;
  uint64_t clear;
  uint64_t propagation;
  uint64_t userns_fd;
};
constexpr long kMountSetattr = 442;
constexpr unsigned kRecursive = 0x8000;

void make_file(const std::string& path) {
  make_folder(path.substr(0, path.rfind('/')));
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) fail("create " + path);
  close(fd);
}

}  // namespace

void fail(const std::string& what) {
  throw std::runtime_error(what + ": " + std::strerror(errno));
}

bool exists(const std::string& path) {
  struct stat info{};
  return lstat(path.c_str(), &info) == 0;
}

bool is_folder(const std::string& path) {
  struct stat info{};
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

void make_folder(const std::string& path) {
  for (size_t at = path.find('/', 1);; at = path.find('/', at + 1)) {
    const std::string part = path.substr(0, at);
    if (mkdir(part.c_str(), 0755) != 0 && errno != EEXIST && !is_folder(part)) fail("mkdir " + part);
    if (at == std::string::npos) return;
  }
}

void set_attributes(const std::string& path, uint64_t attributes, bool is_recursive) {
  const MountAttributes wanted{attributes, 0, 0, 0};
  const unsigned flags = is_recursive ? kRecursive : 0;
  if (syscall(kMountSetattr, AT_FDCWD, path.c_str(), flags, &wanted, sizeof wanted) != 0)
    fail("mount_setattr " + path + " (Linux 5.12 or newer)");
}

void bind_mount(const std::string& from, const std::string& to, uint64_t attributes) {
  if (is_folder(from))
    make_folder(to);
  else if (!exists(to))
    make_file(to);
  // Recursive, because a user namespace may not expose what a mount hides.
  if (mount(from.c_str(), to.c_str(), nullptr, MS_BIND | MS_REC, nullptr) != 0) fail("bind " + from);
  if (attributes != 0) set_attributes(to, attributes, true);
}

void mount_tmpfs(const std::string& path, const std::string& options, unsigned long flags) {
  make_folder(path);
  if (mount("tmpfs", path.c_str(), "tmpfs", flags, options.c_str()) != 0) fail("mount tmpfs " + path);
}
