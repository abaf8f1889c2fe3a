#include "native/sandbox/namespaces.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <stdexcept>

#include "native/sandbox/etc.h"

namespace {

/** The kernel's mount_attr. Older C libraries cannot include linux/mount.h together with sys/mount.h. */
struct MountAttributes {
  uint64_t set;
  uint64_t clear;
  uint64_t propagation;
  uint64_t userns_fd;
};
constexpr uint64_t kReadOnly = 0x1;
constexpr uint64_t kNoSuid = 0x2;
constexpr uint64_t kNoDev = 0x4;
constexpr long kMountSetattr = 442;
/** The kernel's open_how. */
struct OpenMethod {
  uint64_t flags;
  uint64_t mode;
  uint64_t resolve;
};
constexpr long kOpenat2 = 437;
constexpr uint64_t kNoLinks = 0x04;
constexpr unsigned kRecursive = 0x8000;

/** The host folders with programs and libraries. No other host folder is visible. */
constexpr const char* kHostFolders[] = {"bin", "sbin", "usr", "lib", "lib32", "lib64", "libx32", "opt", "nix", "sys"};
constexpr const char* kDevices[] = {"null", "zero", "full", "random", "urandom", "tty"};

bool exists(const std::string& path) {
  struct stat info{};
  return lstat(path.c_str(), &info) == 0;
}

bool is_folder(const std::string& path) {
  struct stat info{};
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

/** Creates a folder and its parents. */
void make_folder(const std::string& path) {
  for (size_t at = path.find('/', 1);; at = path.find('/', at + 1)) {
    const std::string part = path.substr(0, at);
    if (mkdir(part.c_str(), 0755) != 0 && errno != EEXIST && !is_folder(part)) fail("mkdir " + part);
    if (at == std::string::npos) return;
  }
}

void make_file(const std::string& path) {
  make_folder(path.substr(0, path.rfind('/')));
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) fail("create " + path);
  close(fd);
}

void write_file(const std::string& path, const std::string& text) {
  const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) fail("open " + path);
  const ssize_t count = write(fd, text.data(), text.size());
  const int error = errno;
  close(fd);
  errno = error;
  if (count != static_cast<ssize_t>(text.size())) fail("write " + path);
}

void set_attributes(const std::string& path, uint64_t attributes) {
  const MountAttributes wanted{attributes, 0, 0, 0};
  if (syscall(kMountSetattr, AT_FDCWD, path.c_str(), kRecursive, &wanted, sizeof wanted) != 0)
    fail("mount_setattr " + path + " (Linux 5.12 or newer)");
}

void bind(const std::string& from, const std::string& to, uint64_t attributes) {
  if (is_folder(from))
    make_folder(to);
  else if (!exists(to))
    make_file(to);
  // Recursive, because a user namespace may not expose what a mount hides.
  if (mount(from.c_str(), to.c_str(), nullptr, MS_BIND | MS_REC, nullptr) != 0) fail("bind " + from);
  if (attributes != 0) set_attributes(to, attributes);
}

/**
 * Binds a real path. Fails when a part of it is a link: a program that may write there has replaced it since the
 * service resolved the path.
 */
void bind_real(const std::string& from, const std::string& to, uint64_t attributes) {
  const OpenMethod method{O_PATH | O_CLOEXEC, 0, kNoLinks};
  const int fd = static_cast<int>(syscall(kOpenat2, AT_FDCWD, from.c_str(), &method, sizeof method));
  if (fd < 0) fail("open " + from + " (expected a path without links)");
  bind("/proc/self/fd/" + std::to_string(fd), to, attributes);
  close(fd);
}

void mount_tmpfs(const std::string& path, const std::string& options, unsigned long flags = MS_NOSUID | MS_NODEV) {
  make_folder(path);
  if (mount("tmpfs", path.c_str(), "tmpfs", flags, options.c_str()) != 0) fail("mount tmpfs " + path);
}

void add_host_folders(const std::string& root) {
  for (const char* name : kHostFolders) {
    const std::string from = std::string("/") + name;
    char target[PATH_MAX];
    const ssize_t length = readlink(from.c_str(), target, sizeof target - 1);
    if (length > 0) {
      target[length] = '\0';
      if (symlink(target, (root + from).c_str()) != 0) fail("symlink " + from);
    } else if (is_folder(from)) {
      bind(from, root + from, kReadOnly | kNoSuid);
    }
  }
}

void add_devices(const std::string& root) {
  mount_tmpfs(root + "/dev", "mode=0755,size=64k,nr_inodes=1k", MS_NOSUID | MS_NOEXEC);
  for (const char* name : kDevices)
    bind(std::string("/dev/") + name, root + "/dev/" + name, 0);
  for (const auto& [name, target] : {std::pair("fd", "/proc/self/fd"),
                                     {"stdin", "/proc/self/fd/0"},
                                     {"stdout", "/proc/self/fd/1"},
                                     {"stderr", "/proc/self/fd/2"}}) {
    if (symlink(target, (root + "/dev/" + name).c_str()) != 0) fail("symlink /dev");
  }
}

/** Adds the folders for files in memory. They are parts of one file system, so that one size limits all of them. */
void add_scratch(const std::string& root, uint64_t size) {
  const std::string scratch = root + "/scratch";
  mount_tmpfs(scratch, "mode=0755,nr_inodes=64k,size=" + std::to_string(size));
  for (const std::string name : {"/tmp", "/var/tmp", "/run", "/dev/shm"}) {
    make_folder(scratch + name);
    if (chmod((scratch + name).c_str(), 01777) != 0) fail("chmod " + name);
    bind(scratch + name, root + name, kNoSuid | kNoDev);
  }
  if (umount2(scratch.c_str(), MNT_DETACH) != 0 || rmdir(scratch.c_str()) != 0) fail("unmount " + scratch);
}

/** Hides one path of the sandbox: a folder behind an unreadable one, a file behind an empty device. */
void hide(const std::string& path) {
  if (is_folder(path))
    mount_tmpfs(path, "mode=0000,size=4k", MS_NOSUID | MS_NODEV | MS_RDONLY);
  else if (exists(path))
    bind("/dev/null", path, kReadOnly | kNoSuid);
}

/** Hides a host path wherever the sandbox shows it: at its own place, inside an input and inside the home. */
void hide_everywhere(const std::string& hidden, const Spec& spec, const std::string& root) {
  hide(root + hidden);
  const auto hide_inside = [&hidden](const std::string& from, const std::string& to) {
    if (hidden.rfind(from + "/", 0) == 0) hide(to + hidden.substr(from.size()));
  };
  for (const auto& [name, path] : spec.inputs)
    hide_inside(path, root + "/platform/input/" + name);
  if (!spec.home.empty()) hide_inside(spec.home, root + "/platform/home");
}

void change_root(const std::string& root) {
  if (chdir(root.c_str()) != 0) fail("chdir " + root);
  if (syscall(SYS_pivot_root, ".", ".") != 0) fail("pivot_root");
  if (umount2(".", MNT_DETACH) != 0) fail("umount the old root");
  if (chdir("/") != 0) fail("chdir /");
  const MountAttributes wanted{kReadOnly, 0, 0, 0};
  if (syscall(kMountSetattr, AT_FDCWD, "/", 0, &wanted, sizeof wanted) != 0) fail("mount_setattr /");
}

sockaddr in_address(const char* text) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  inet_pton(AF_INET, text, &address.sin_addr);
  sockaddr plain{};
  std::memcpy(&plain, &address, sizeof plain);
  return plain;
}

void set_interface(int fd, const char* name, unsigned long command, ifreq& request, const char* step) {
  std::strncpy(request.ifr_name, name, IFNAMSIZ - 1);
  if (ioctl(fd, command, &request) != 0) fail(step);
}

/**
 * Brings up loopback and adds `inner_host` to it. A server that listens on 127.0.0.1 only is not reachable at
 * `inner_host`, as with every other driver.
 */
void set_up_network(const std::string& inner_host) {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) fail("socket");
  ifreq up{};
  up.ifr_flags = IFF_UP | IFF_RUNNING;
  set_interface(fd, "lo", SIOCSIFFLAGS, up, "bring up loopback");
  if (inner_host.rfind("127.", 0) != 0) {
    ifreq address{};
    address.ifr_addr = in_address(inner_host.c_str());
    set_interface(fd, "lo:0", SIOCSIFADDR, address, "add an address to loopback");
    ifreq mask{};
    mask.ifr_netmask = in_address("255.255.255.255");
    set_interface(fd, "lo:0", SIOCSIFNETMASK, mask, "set a mask on loopback");
  }
  close(fd);
  write_file("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0");
}

/**
 * Makes the kernel remove System V segments that no process maps. The watch of memory could not see them. Before Linux
 * 5.19 only root may set this.
 */
void forget_unmapped_segments() {
  const int fd = open("/proc/sys/kernel/shm_rmid_forced", O_WRONLY | O_CLOEXEC);
  if (fd < 0) return;
  [[maybe_unused]] const ssize_t ignored = write(fd, "1", 1);
  close(fd);
}

}  // namespace

void fail(const std::string& what) {
  throw std::runtime_error(what + ": " + std::strerror(errno));
}

int namespace_flags() {
  const int flags = CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS;
  return geteuid() == 0 ? flags : flags | CLONE_NEWUSER;
}

void enter_sandbox(const Spec& spec) {
  const std::string root = spec.dir + "/root";
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) fail("make mounts private");
  mount_tmpfs(root, "mode=0755,size=32m,nr_inodes=16k");
  add_host_folders(root);
  make_etc(root + "/etc", spec.inner_host);
  add_devices(root);
  add_scratch(root, spec.scratch_bytes);
  for (const std::string& device : spec.devices)
    bind(device, root + device, 0);
  for (const std::string& share : spec.shares)
    bind(share, root + share, kReadOnly | kNoSuid | kNoDev);
  make_folder(root + "/platform/input");
  for (const auto& [name, path] : spec.inputs)
    bind_real(path, root + "/platform/input/" + name, kReadOnly | kNoSuid | kNoDev);
  if (!spec.home.empty()) bind_real(spec.home, root + "/platform/home", kNoSuid | kNoDev);
  for (const std::string& hidden : spec.hides)
    hide_everywhere(hidden, spec, root);
  make_folder(root + "/proc");
  if (mount("proc", (root + "/proc").c_str(), "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) != 0)
    fail("mount proc");
  change_root(root);
  set_up_network(spec.inner_host);
  forget_unmapped_segments();
  [[maybe_unused]] const int ignored = sethostname("replica", 7);
}

void map_ids(pid_t pid, uint32_t outer_uid, uint32_t outer_gid) {
  const std::string folder = "/proc/" + std::to_string(pid);
  write_file(folder + "/setgroups", "deny");
  write_file(folder + "/uid_map", "0 " + std::to_string(outer_uid) + " 1");
  write_file(folder + "/gid_map", "0 " + std::to_string(outer_gid) + " 1");
}

void become_user(uint32_t uid, uint32_t gid) {
  if (setgroups(0, nullptr) != 0) fail("setgroups");
  if (prctl(PR_SET_KEEPCAPS, 1) != 0) fail("keep capabilities");
  if (setresgid(gid, gid, gid) != 0 || setresuid(uid, uid, uid) != 0)
    fail("become user " + std::to_string(uid) + " (the service needs this id in its user namespace)");
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[2] = {};
  if (syscall(SYS_capget, &header, sets) != 0) fail("capget");
  // The change of the user keeps what is permitted, but clears what is in effect.
  for (__user_cap_data_struct& set : sets)
    set.effective = set.permitted;
  if (syscall(SYS_capset, &header, sets) != 0) fail("capset");
}

void drop_privileges() {
  for (int capability = 0; capability < 64; capability++) {
    if (prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0 && errno == EINVAL) break;
  }
  prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2] = {};
  if (syscall(SYS_capset, &header, none) != 0) fail("capset");
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) fail("no_new_privs");
}
