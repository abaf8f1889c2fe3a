#include "native/sandbox/etc.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <climits>
#include <stdexcept>
#include <utility>
#include <vector>

#include "native/sandbox/mounts.h"
#include "native/sandbox/open_files.h"

namespace {

constexpr const char* kAccounts = "root:x:0:0:root:/platform/home:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n";
constexpr const char* kGroups = "root:x:0:\nnogroup:x:65534:\n";
constexpr const char* kSources = "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n";

/**
 * Copied from the machine: links of its programs, the dynamic linker's configuration, the time zone, certificates of
 * public authorities, file types and OpenCL drivers. A file that not all users may read is left out. On NixOS, other
 * files are links through `static`.
 */
constexpr const char* kCopies[] = {"alternatives",
                                   "ld.so.cache",
                                   "ld.so.conf",
                                   "ld.so.conf.d",
                                   "localtime",
                                   "timezone",
                                   "os-release",
                                   "mtab",
                                   "protocols",
                                   "services",
                                   "mime.types",
                                   "OpenCL/vendors",
                                   "static",
                                   "ca-certificates",
                                   "ssl/certs",
                                   "ssl/cert.pem",
                                   "ssl/openssl.cnf",
                                   "pki/tls/certs",
                                   "pki/tls/cert.pem",
                                   "pki/tls/openssl.cnf",
                                   "pki/ca-trust/extracted"};
/** Folders such as `java-21-openjdk`, which the libraries of Java link to. */
constexpr const char* kCopiedPrefix = "java-";
/** More than the certificates and the linker's cache of a machine take. */
constexpr off_t kMaxFileBytes = 8 << 20;

/** A file descriptor that closes itself. */
struct File {
  int fd;
  explicit File(int opened) : fd(opened) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (fd >= 0) close(fd);
  }
};

void make_file(const std::string& path, const std::string& text) {
  const File file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (file.fd < 0) fail("create " + path);
  if (write(file.fd, text.data(), text.size()) != static_cast<ssize_t>(text.size())) fail("write " + path);
}

void copy_link(const std::string& from, const std::string& to) {
  char target[PATH_MAX];
  const ssize_t length = readlink(from.c_str(), target, sizeof target - 1);
  if (length <= 0) return;
  target[length] = '\0';
  if (symlink(target, to.c_str()) != 0) fail("symlink " + to);
}

void copy_file(const std::string& from, const std::string& to) {
  const File source(open(from.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat info{};
  if (source.fd < 0 || fstat(source.fd, &info) != 0 || !S_ISREG(info.st_mode)) return;
  if ((info.st_mode & S_IROTH) == 0 || info.st_size > kMaxFileBytes) return;
  std::string text(static_cast<size_t>(info.st_size), '\0');
  size_t size = 0;
  for (ssize_t count = 1; count > 0 && size < text.size(); size += static_cast<size_t>(count)) {
    count = read(source.fd, text.data() + size, text.size() - size);
    if (count < 0) fail("read " + from);
  }
  text.resize(size);
  make_file(to, text);
}

void copy(const std::string& from, const std::string& to);

void copy_folder(const std::string& from, const std::string& to) {
  make_folder(to);
  std::vector<std::string> names;
  for_each_name(open(from.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC),
                [&](const std::string& name) { names.push_back(name); });
  for (const std::string& name : names)
    copy(from + "/" + name, to + "/" + name);
}

/** Copies files, folders and links that all users may read. Links stay links. Leaves out everything else. */
void copy(const std::string& from, const std::string& to) {
  struct stat info{};
  if (lstat(from.c_str(), &info) != 0) return;
  constexpr mode_t kOpenFolder = S_IROTH | S_IXOTH;
  if (S_ISLNK(info.st_mode))
    copy_link(from, to);
  else if (S_ISREG(info.st_mode))
    copy_file(from, to);
  else if (S_ISDIR(info.st_mode) && (info.st_mode & kOpenFolder) == kOpenFolder)
    copy_folder(from, to);
}

/** Creates the folders that `name` is in. Returns false when the machine has no such folder. */
bool make_parents(const std::string& target, const std::string& name) {
  for (size_t at = name.find('/'); at != std::string::npos; at = name.find('/', at + 1)) {
    struct stat info{};
    const std::string parent = name.substr(0, at);
    if (lstat(("/etc/" + parent).c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) return false;
    make_folder(target + "/" + parent);
  }
  return true;
}

}  // namespace

void make_etc(const std::string& target, const std::string& inner_host) {
  make_folder(target);
  const std::pair<const char*, std::string> made[] = {
      {"passwd", kAccounts},
      {"group", kGroups},
      {"hostname", "replica\n"},
      {"hosts", "127.0.0.1 localhost\n::1 localhost\n" + inner_host + " replica\n"},
      {"host.conf", "multi on\n"},
      {"nsswitch.conf", kSources},
      {"resolv.conf", "# The replica has no network, so there is no name server.\n"},
  };
  for (const auto& [name, text] : made)
    make_file(target + "/" + name, text);
  for (const std::string name : kCopies) {
    if (make_parents(target, name)) copy("/etc/" + name, target + "/" + name);
  }
  for_each_name(open("/etc", O_RDONLY | O_DIRECTORY | O_CLOEXEC), [&](const std::string& name) {
    if (name.rfind(kCopiedPrefix, 0) == 0) copy("/etc/" + name, target + "/" + name);
  });
}
