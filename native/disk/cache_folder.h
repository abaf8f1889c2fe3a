#pragma once
// The folders of the prefix cache on disk: a root with one folder per store, and the files of a store. Files are never
// changed: they are written under another name, renamed, and removed.
//
// Cached content can reveal prompts. So the root belongs to the user of this process and no other user may write to it,
// the folder of a store is 0700, its files are 0600, and no symbolic link is followed below the root.
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "native/base/sip_hash.h"

namespace capstan::disk {

// An open file or folder.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor();

  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

std::string hex_of(const Hash128& hash);
// Accepts what hex_of returns.
std::optional<Hash128> parse_hex(std::string_view text);

// The folder that the user names.
class CacheRoot {
 public:
  // Creates the folder and its parents if they are missing. Throws kInvalidArgument with the name of the option when it
  // is not a folder that this process alone may write to, and kIo when the disk is full, read-only or broken.
  explicit CacheRoot(const std::string& path);

  const std::string& path() const { return path_; }
  int fd() const { return folder_.get(); }
  // Returns the content of a file of the root; empty when there is none.
  std::string read_file(const char* name) const;
  // Replaces a file of the root. Errors are ignored: the file only saves time.
  void write_file(const char* name, const std::string& content) const;

 private:
  std::string path_;
  Descriptor folder_;
};

// A block in a file of any store below the root.
struct FoundFile {
  std::string store;  // name of its folder
  std::string name;
  Hash128 key{};
  int group = 0;
  int64_t bytes = 0;     // on the disk
  int64_t last_use = 0;  // seconds since 1970
};

// The space that a file of this size takes.
constexpr int64_t disk_bytes(size_t file_bytes) {
  return (static_cast<int64_t>(file_bytes) + 4095) / 4096 * 4096;
}

// The folder of one store.
class StoreFolder {
 public:
  // `identity` says what the blocks depend on. Throws kIo, or kInvalidArgument as CacheRoot does.
  StoreFolder(std::shared_ptr<const CacheRoot> root, const std::string& identity);

  const std::string& name() const { return name_; }
  // Drawn when the folder was made. Keys and checksums of the store depend on it.
  const Hash128& secret() const { return secret_; }

  // Lists the blocks of all stores. Removes what no process can use any more: unfinished files and empty stores.
  // `file_bytes` are the sizes of this store's files by KV group: files of another size are removed.
  std::vector<FoundFile> scan(std::span<const size_t> file_bytes) const;

  // Returns 0 or an error number. EBADMSG: the file has another size, or is not a file.
  int read(const Hash128& key, int group, std::span<std::byte> to) const;
  int write(const Hash128& key, int group, std::span<const std::byte> from) const;
  void remove(const Hash128& key, int group) const;
  void remove(const FoundFile& file) const;
  void touch(const Hash128& key, int group) const;

 private:
  bool open();
  bool read_identity(const std::string& identity);
  void make_identity(const std::string& identity);
  void remove_unfinished();
  void scan_store(const std::string& store, std::span<const size_t> file_bytes, std::vector<FoundFile>& found) const;

  std::shared_ptr<const CacheRoot> root_;
  std::string name_;
  Descriptor folder_;
  Hash128 secret_{};
};

}  // namespace capstan::disk
