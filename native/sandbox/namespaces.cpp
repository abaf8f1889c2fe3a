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

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <stdexcept>

#include "native/sandbox/etc.h"
#include "native/sandbox/mounts.h"
#include "native/sandbox/private_files.h"
#include "native/sandbox/view.h"

namespace {

/** The host folders with programs and libraries. No other host folder is visible. */
constexpr const char* kHostFolders[] = {"bin", "sbin", "usr", "lib", "lib32", "lib64", "libx32", "opt", "nix", "sys"};
constexpr const char* kDevices[] = {"null", "zero", "full", "random", "urandom", "tty"};

void write_file(const std::string& path, const std::string& text) {
  const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) fail("open " + path);
  const ssize_t count = write(fd, text.data(), text.size());
  const int error = errno;
  close(fd);
  errno = error;
  if (count != static_cast<ssize_t>(text.size())) fail("write " + path);
}

void add_host_folders(const Spec& spec, const std::string& root, bool is_root) {
  std::vector<std::string> hides = spec.hides;
  // Root gives a replica another user. Otherwise it has the rights of the service's user.
  if (!is_root) {
    const std::vector<std::string> found = find_private_files();
    hides.insert(hides.end(), found.begin(), found.end());
  }
  View view(hides);

  for (const char* name : kHostFolders) {
    const std::string from = std::string("/") + name;
    if (std::find(hides.begin(), hides.end(), from) != hides.end()) continue;
    char target[PATH_MAX];
    const ssize_t length = readlink(from.c_str(), target, sizeof target - 1);
    if (length > 0) {
      target[length] = '\0';
      if (symlink(target, (root + from).c_str()) != 0) fail("symlink " + from);
    } else if (is_folder(from)) {
      view.show(from, root + from, kReadOnly | kNoSuid);
    }
  }
}

void add_devices(const std::string& root) {
  mount_tmpfs(root + "/dev", "mode=0755,size=64k,nr_inodes=1k", MS_NOSUID | MS_NOEXEC);
  for (const char* name : kDevices)
    bind_mount(std::string("/dev/") + name, root + "/dev/" + name, 0);
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
  mount_tmpfs(scratch, "mode=0755,nr_inodes=64k,size=" + std::to_string(size), MS_NOSUID | MS_NODEV);
  for (const std::string name : {"/tmp", "/var/tmp", "/run", "/dev/shm"}) {
    make_folder(scratch + name);
    if (chmod((scratch + name).c_str(), 01777) != 0) fail("chmod " + name);
    bind_mount(scratch + name, root + name, kNoSuid | kNoDev);
  }
  if (umount2(scratch.c_str(), MNT_DETACH) != 0 || rmdir(scratch.c_str()) != 0) fail("unmount " + scratch);
}

/** Hides one path of the sandbox: a folder behind an unreadable one, a file behind an empty device. */
void hide(const std::string& path) {
  if (is_folder(path))
    mount_tmpfs(path, "mode=0000,size=4k", MS_NOSUID | MS_NODEV | MS_RDONLY);
  else if (exists(path))
    bind_mount("/dev/null", path, kReadOnly | kNoSuid);
}

/** A workload writes to its home, so the home has no copies of folders in memory. */
void hide_in_home(const Spec& spec, const std::string& home) {
  for (const std::string& hidden : spec.hides) {
    if (hidden.rfind(spec.home + "/", 0) == 0) hide(home + hidden.substr(spec.home.size()));
  }
}

void change_root(const std::string& root) {
  if (chdir(root.c_str()) != 0) fail("chdir " + root);
  if (syscall(SYS_pivot_root, ".", ".") != 0) fail("pivot_root");
  if (umount2(".", MNT_DETACH) != 0) fail("umount the old root");
  if (chdir("/") != 0) fail("chdir /");
  set_attributes("/", kReadOnly, false);
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

int namespace_flags() {
  const int flags = CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS;
  return geteuid() == 0 ? flags : flags | CLONE_NEWUSER;
}

void enter_sandbox(const Spec& spec, bool is_root) {
  const std::string root = spec.dir + "/root";
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) fail("make mounts private");
  mount_tmpfs(root, "mode=0755,size=32m,nr_inodes=64k", MS_NOSUID | MS_NODEV);
  add_host_folders(spec, root, is_root);
  make_etc(root + "/etc", spec.inner_host);
  for (const std::string& hidden : spec.hides) {
    if (hidden.rfind("/etc/", 0) == 0) hide(root + hidden);
  }
  add_devices(root);
  add_scratch(root, spec.scratch_bytes);
  for (const std::string& device : spec.devices)
    bind_mount(device, root + device, 0);
  View view(spec.hides);
  for (const std::string& share : spec.shares)
    view.show(share, root + share, kReadOnly | kNoSuid | kNoDev);
  make_folder(root + "/platform/input");
  for (const auto& [name, path] : spec.inputs)
    view.show(path, root + "/platform/input/" + name, kReadOnly | kNoSuid | kNoDev);
  if (!spec.home.empty()) {
    View({}).show(spec.home, root + "/platform/home", kNoSuid | kNoDev);
    hide_in_home(spec, root + "/platform/home");
  }
  if (!spec.cache.empty()) View({}).show(spec.cache, root + "/platform/cache", kNoSuid | kNoDev);
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
