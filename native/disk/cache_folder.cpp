#include "native/disk/cache_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <optional>
#include <utility>

#include "native/base/error.h"
#include "native/base/random.h"

namespace capstan::disk {
namespace {

constexpr const char* kIdentityFile = "store";
constexpr std::string_view kIdentityStart = "Prefix cache of Capstan, version 1\n";
constexpr std::string_view kUnfinished = "tmp-";
constexpr mode_t kFolderMode = 0700, kFileMode = 0600;
// A process that still writes a file finishes it long before.
constexpr int64_t kUnfinishedSeconds = 600;
constexpr size_t kHexDigits = 32;
constexpr size_t kMaxTableBytes = size_t{1} << 20;
constexpr int kOpenTries = 8;

[[noreturn]] void refuse(const std::string& path, const std::string& got) {
  throw Error(ErrorCode::kInvalidArgument,
              "prefixCacheDir: expected a folder that this process can create, or that belongs to its user and that "
              "no other user may write to, got " +
                  path + ": " + got);
}

std::string reason_of(int error) {
  return std::strerror(error);  // NOLINT(concurrency-mt-unsafe): glibc's is safe for known numbers
}

[[noreturn]] void fail_on_disk(const std::string& path, int error) {
  throw Error(ErrorCode::kIo, reason_of(error) + ": the prefix cache cannot be written to " + path);
}

// Throws kIo for an error of the disk, and kInvalidArgument for one of the folder that was chosen.
[[noreturn]] void refuse(const std::string& path, int error) {
  const bool is_bad_choice = error == ENOENT || error == ENOTDIR || error == EACCES || error == EPERM ||
                             error == EEXIST || error == ELOOP || error == ENAMETOOLONG || error == EINVAL;
  if (!is_bad_choice) fail_on_disk(path, error);
  refuse(path, reason_of(error));
}

// Returns why a folder does not belong to this process alone; empty if it does.
std::string doubt_about(int fd, mode_t forbidden) {
  struct stat status{};
  if (fstat(fd, &status) != 0) return reason_of(errno);
  if (!S_ISDIR(status.st_mode)) return "it is not a folder";
  if (status.st_uid != geteuid())
    return "it belongs to user " + std::to_string(status.st_uid) + ", and this process runs as user " +
           std::to_string(geteuid());
  if ((status.st_mode & forbidden) == 0) return "";
  char mode[8];
  std::snprintf(mode, sizeof(mode), "%03o", status.st_mode & 0777U);
  return "its mode is " + std::string(mode) + "; use a folder of mode 700 (chmod 700)";
}

std::string block_name(const Hash128& key, int group) {
  return hex_of(key) + "." + std::to_string(group);
}

// Accepts what block_name returns.
bool parse_block_name(const std::string& name, Hash128& key, int& group) {
  if (name.size() < kHexDigits + 2 || name.size() > kHexDigits + 4 || name[kHexDigits] != '.') return false;
  const auto parsed = parse_hex(std::string_view(name).substr(0, kHexDigits));
  if (!parsed) return false;
  key = *parsed;
  group = 0;
  for (const char c : std::string_view(name).substr(kHexDigits + 1)) {
    if (c < '0' || c > '9') return false;
    group = group * 10 + (c - '0');
  }
  return block_name(key, group) == name;
}

std::string unfinished_name() {
  return std::string(kUnfinished) + hex_of({draw_seed(), draw_seed()});
}

bool write_fully(int fd, const void* from, size_t count) {
  const char* at = static_cast<const char*>(from);
  while (count > 0) {
    const ssize_t written = write(fd, at, count);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      if (written == 0) errno = EIO;
      return false;
    }
    at += written;
    count -= static_cast<size_t>(written);
  }
  return true;
}

// Reads up to `count` bytes. Returns how many, or -1 with errno.
ssize_t read_up_to(int fd, void* to, size_t count) {
  size_t done = 0;
  while (done < count) {
    const ssize_t got = pread(fd, static_cast<char*>(to) + done, count - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return -1;
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  return static_cast<ssize_t>(done);
}

// Returns a small file; empty when it is missing, larger than `max_bytes`, or no file.
std::string read_small_file(int folder, const char* name, size_t max_bytes) {
  const Descriptor file(openat(folder, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  struct stat status{};
  if (!file.is_open() || fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return "";
  if (status.st_size <= 0 || static_cast<size_t>(status.st_size) > max_bytes) return "";
  std::string content(static_cast<size_t>(status.st_size), '\0');
  const ssize_t got = read_up_to(file.get(), content.data(), content.size());
  content.resize(got < 0 ? 0 : static_cast<size_t>(got));
  return content;
}

// Writes a file under a name that no other process uses. Returns 0 or an error number.
int write_unfinished(int folder, const std::string& name, const void* from, size_t count, bool is_synced) {
  const Descriptor file(openat(folder, name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kFileMode));
  if (!file.is_open()) return errno;
  int error = 0;
  if (!write_fully(file.get(), from, count) || (is_synced && fsync(file.get()) != 0)) error = errno;
  if (error != 0) unlinkat(folder, name.c_str(), 0);
  return error;
}

// Calls visit(name) for all entries of a folder.
template <typename Visit>
void for_each_entry(int folder, Visit visit) {
  const int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  DIR* entries = fdopendir(fd);
  if (entries == nullptr) {
    close(fd);
    return;
  }
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no other thread uses this stream
  while (const dirent* entry = readdir(entries))
    visit(std::string(entry->d_name));
  closedir(entries);
}

// Waits until no other descriptor has the lock of the root. It ends with the descriptor.
Descriptor lock_root(const CacheRoot& root) {
  Descriptor lock(openat(root.fd(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  while (lock.is_open() && flock(lock.get(), LOCK_EX) != 0 && errno == EINTR) {
  }
  return lock;
}

}  // namespace

// ---- descriptors ----

Descriptor::Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Descriptor::~Descriptor() {
  if (fd_ >= 0) close(fd_);
}

std::string hex_of(const Hash128& hash) {
  char text[kHexDigits + 1];
  std::snprintf(text, sizeof(text), "%016llx%016llx", static_cast<unsigned long long>(hash[0]),
                static_cast<unsigned long long>(hash[1]));
  return text;
}

std::optional<Hash128> parse_hex(std::string_view text) {
  if (text.size() != kHexDigits) return std::nullopt;
  Hash128 hash{};
  for (size_t i = 0; i < kHexDigits; ++i) {
    const char c = text[i];
    if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))) return std::nullopt;
    hash[i / 16] = hash[i / 16] << 4 | static_cast<uint64_t>(c <= '9' ? c - '0' : c - 'a' + 10);
  }
  return hash;
}

// ---- the root ----

CacheRoot::CacheRoot(const std::string& path) : path_(path) {
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  if (!parent.empty()) std::filesystem::create_directories(parent, error);
  if (mkdir(path.c_str(), kFolderMode) != 0 && errno != EEXIST) refuse(path, errno);
  folder_ = Descriptor(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder_.is_open()) refuse(path, errno);
  const std::string doubt = doubt_about(folder_.get(), S_IWGRP | S_IWOTH);
  if (!doubt.empty()) refuse(path, doubt);
  const std::string name = unfinished_name();
  if (const int write_error = write_unfinished(folder_.get(), name, "", 0, false); write_error != 0)
    refuse(path, write_error);
  unlinkat(folder_.get(), name.c_str(), 0);
}

std::string CacheRoot::read_file(const char* name) const {
  return read_small_file(folder_.get(), name, kMaxTableBytes);
}

void CacheRoot::write_file(const char* name, const std::string& content) const {
  const std::string unfinished = unfinished_name();
  if (write_unfinished(folder_.get(), unfinished, content.data(), content.size(), false) != 0) return;
  if (renameat(folder_.get(), unfinished.c_str(), folder_.get(), name) != 0)
    unlinkat(folder_.get(), unfinished.c_str(), 0);
}

// ---- a store ----

StoreFolder::StoreFolder(std::shared_ptr<const CacheRoot> root, const std::string& identity)
    : root_(std::move(root)), name_(hex_of(sip_hash_128({}, std::as_bytes(std::span(identity))))) {
  // Until the store has its secret, processes that start open it one after another.
  const Descriptor lock = lock_root(*root_);
  const bool is_alone = open();
  if (!read_identity(identity)) make_identity(identity);
  // No other process finishes what is unfinished.
  if (is_alone) remove_unfinished();
}

// Returns whether no other process uses the store.
bool StoreFolder::open() {
  const std::string path = root_->path() + "/" + name_;
  for (int tries = 0; tries < kOpenTries; ++tries) {
    if (mkdirat(root_->fd(), name_.c_str(), kFolderMode) != 0 && errno != EEXIST) refuse(path, errno);
    folder_ = Descriptor(openat(root_->fd(), name_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!folder_.is_open()) refuse(path, errno);
    const std::string doubt = doubt_about(folder_.get(), 0077);
    if (!doubt.empty()) refuse(path, doubt);
    const bool is_alone = flock(folder_.get(), LOCK_EX | LOCK_NB) == 0;
    // A process that finds the folder without a lock and without blocks removes it.
    flock(folder_.get(), LOCK_SH);
    struct stat status{};
    if (fstat(folder_.get(), &status) == 0 && status.st_nlink > 0) return is_alone;
  }
  throw Error(ErrorCode::kIo, path + ": other processes remove this folder again and again");
}

// Sets the secret. Returns false when the file is missing or is not that of this store.
bool StoreFolder::read_identity(const std::string& identity) {
  const size_t size = kIdentityStart.size() + kHexDigits + 1 + identity.size();
  const std::string content = read_small_file(folder_.get(), kIdentityFile, size);
  if (content.size() != size || !content.starts_with(kIdentityStart) || !content.ends_with("\n" + identity))
    return false;
  const auto secret = parse_hex(std::string_view(content).substr(kIdentityStart.size(), kHexDigits));
  if (secret) secret_ = *secret;
  return secret.has_value();
}

void StoreFolder::make_identity(const std::string& identity) {
  // A file that cannot be read is damaged. The blocks cannot be verified without it.
  for_each_entry(folder_.get(), [&](const std::string& name) {
    Hash128 key;
    int group = 0;
    if (name == kIdentityFile || parse_block_name(name, key, group)) unlinkat(folder_.get(), name.c_str(), 0);
  });
  const std::string content = std::string(kIdentityStart) + hex_of({draw_seed(), draw_seed()}) + "\n" + identity;
  const std::string unfinished = unfinished_name();
  int error = write_unfinished(folder_.get(), unfinished, content.data(), content.size(), true);
  if (error == 0) {
    // On a disk without locks, another process may have made it meanwhile. Then both use that one.
    if (linkat(folder_.get(), unfinished.c_str(), folder_.get(), kIdentityFile, 0) != 0 && errno != EEXIST)
      error = errno;
    unlinkat(folder_.get(), unfinished.c_str(), 0);
  }
  if (error != 0 || !read_identity(identity)) fail_on_disk(root_->path(), error != 0 ? error : EIO);
}

void StoreFolder::remove_unfinished() {
  for_each_entry(folder_.get(), [&](const std::string& name) {
    if (name.starts_with(kUnfinished)) unlinkat(folder_.get(), name.c_str(), 0);
  });
}

std::vector<FoundFile> StoreFolder::scan(std::span<const size_t> file_bytes) const {
  std::vector<std::string> stores;
  for_each_entry(root_->fd(), [&](const std::string& name) {
    if (parse_hex(name)) stores.push_back(name);
    if (name.starts_with(kUnfinished)) {
      struct stat status{};
      if (fstatat(root_->fd(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
          time(nullptr) - status.st_mtime > kUnfinishedSeconds)
        unlinkat(root_->fd(), name.c_str(), 0);
    }
  });
  std::vector<FoundFile> found;
  for (const std::string& store : stores)
    scan_store(store, file_bytes, found);
  return found;
}

void StoreFolder::scan_store(const std::string& store, std::span<const size_t> file_bytes,
                             std::vector<FoundFile>& found) const {
  const bool is_own = store == name_;
  const Descriptor folder(openat(root_->fd(), store.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder.is_open() || !doubt_about(folder.get(), 0077).empty()) return;
  // Without a process that uses the store, no process finishes what is unfinished.
  const bool is_unused = !is_own && flock(folder.get(), LOCK_EX | LOCK_NB) == 0;
  const size_t num_before = found.size();
  for_each_entry(folder.get(), [&](const std::string& name) {
    struct stat status{};
    FoundFile file{store, name};
    const bool is_block = parse_block_name(name, file.key, file.group);
    if (!is_block && !name.starts_with(kUnfinished)) return;
    if (fstatat(folder.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) return;
    bool is_useless = !S_ISREG(status.st_mode);
    if (!is_block) {
      is_useless = is_unused || time(nullptr) - status.st_mtime > kUnfinishedSeconds;
    } else if (is_own) {
      const auto group = static_cast<size_t>(file.group);
      is_useless |= group >= file_bytes.size() || static_cast<size_t>(status.st_size) != file_bytes[group];
    }
    if (is_useless) {
      unlinkat(folder.get(), name.c_str(), 0);
    } else if (is_block) {
      file.bytes = disk_bytes(static_cast<size_t>(status.st_size));
      file.last_use = status.st_mtime;
      found.push_back(std::move(file));
    }
  });
  if (is_unused && found.size() == num_before) {
    unlinkat(folder.get(), kIdentityFile, 0);
    unlinkat(root_->fd(), store.c_str(), AT_REMOVEDIR);
  }
}

int StoreFolder::read(const Hash128& key, int group, std::span<std::byte> to) const {
  const Descriptor file(
      openat(folder_.get(), block_name(key, group).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (!file.is_open()) return errno == ELOOP ? EBADMSG : errno;
  struct stat status{};
  if (fstat(file.get(), &status) != 0) return errno;
  if (!S_ISREG(status.st_mode) || static_cast<size_t>(status.st_size) != to.size()) return EBADMSG;
  const ssize_t got = read_up_to(file.get(), to.data(), to.size());
  if (got < 0) return errno;
  return static_cast<size_t>(got) == to.size() ? 0 : EBADMSG;
}

int StoreFolder::write(const Hash128& key, int group, std::span<const std::byte> from) const {
  const std::string unfinished = unfinished_name();
  // Not synchronized: after a crash of the machine, the checksum shows what is damaged.
  int error = write_unfinished(folder_.get(), unfinished, from.data(), from.size(), false);
  if (error == 0 && renameat(folder_.get(), unfinished.c_str(), folder_.get(), block_name(key, group).c_str()) != 0) {
    error = errno;
    unlinkat(folder_.get(), unfinished.c_str(), 0);
  }
  return error;
}

void StoreFolder::remove(const Hash128& key, int group) const {
  unlinkat(folder_.get(), block_name(key, group).c_str(), 0);
}

void StoreFolder::remove(const FoundFile& file) const {
  const Descriptor folder(openat(root_->fd(), file.store.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (folder.is_open()) unlinkat(folder.get(), file.name.c_str(), 0);
}

void StoreFolder::touch(const Hash128& key, int group) const {
  utimensat(folder_.get(), block_name(key, group).c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
}

}  // namespace capstan::disk
