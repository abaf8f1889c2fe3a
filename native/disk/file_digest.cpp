#include "native/disk/file_digest.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>

#include "native/base/checksum.h"
#include "native/base/error.h"

namespace capstan::disk {
namespace {

constexpr const char* kTable = "model-files";
constexpr size_t kMaxLines = 1024;
constexpr size_t kPartBytes = size_t{4} << 20;
constexpr Hash128 kKey{0x6D6F64656C2D6669, 0x6C6573207631};

[[noreturn]] void fail(const std::string& path) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): glibc's is safe for known numbers
  throw Error(ErrorCode::kIo, path + ": " + std::strerror(errno));
}

struct stat status_of(const OpenFile& file) {
  struct stat status{};
  if (fstat(file.fd, &status) != 0) fail(file.path);
  return status;
}

#ifdef __APPLE__
const timespec& modified(const struct stat& status) {
  return status.st_mtimespec;
}
const timespec& changed(const struct stat& status) {
  return status.st_ctimespec;
}
#else
const timespec& modified(const struct stat& status) {
  return status.st_mtim;
}
const timespec& changed(const struct stat& status) {
  return status.st_ctim;
}
#endif

// What changes when a file does.
std::string state_of(const struct stat& status) {
  std::ostringstream text;
  text << status.st_dev << ' ' << status.st_ino << ' ' << status.st_size << ' ' << modified(status).tv_sec << '.'
       << modified(status).tv_nsec << ' ' << changed(status).tv_sec << '.' << changed(status).tv_nsec;
  return text.str();
}

std::string content_state(const OpenFile& file) {
  const struct stat status = status_of(file);
  std::ostringstream text;
  text << status.st_size << ' ' << modified(status).tv_sec << '.' << modified(status).tv_nsec;
  return text.str();
}

}  // namespace

Hash128 digest_of(const std::string& path, const DigestProgress& progress) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) fail(path);
  return digest_of(OpenFile{path, file.get()}, progress);
}

Hash128 digest_of(const OpenFile& file, const DigestProgress& progress) {
  std::vector<std::byte> part(kPartBytes);
  Hash128 digest = kKey;
  for (off_t at = 0;;) {
    const ssize_t got = pread(file.fd, part.data(), part.size(), at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(file.path);
    // A part that is shorter than requested would give another digest, so the sizes of parts are chained too.
    digest = checksum_128(digest, std::span(part).first(static_cast<size_t>(got)));
    if (got == 0) return digest;
    at += got;
    if (progress) progress();
  }
}

std::vector<std::string> content_states(const std::vector<OpenFile>& files) {
  std::vector<std::string> states;
  for (const OpenFile& file : files)
    states.push_back(content_state(file));
  return states;
}

void check_unchanged(const std::vector<OpenFile>& files, const std::vector<std::string>& states,
                     const std::string& what) {
  for (size_t i = 0; i < files.size(); ++i)
    if (content_state(files[i]) != states[i])
      throw Error(ErrorCode::kIo, files[i].path + ": expected a file that does not change while the " + what +
                                      " is loaded, but it was written to meanwhile; load the " + what + " again");
}

std::vector<Hash128> digests_of(const CacheRoot& root, const std::vector<OpenFile>& files,
                                const DigestProgress& progress) {
  std::vector<std::string> lines;  // "digest state", the newest last
  std::istringstream table(root.read_file(kTable));
  for (std::string line; std::getline(table, line);)
    lines.push_back(line);
  std::vector<Hash128> digests;
  bool has_new = false;
  for (const OpenFile& file : files) {
    const std::string state = state_of(status_of(file));
    const auto known = std::ranges::find_if(lines, [&](const std::string& line) {
      return line.size() == 33 + state.size() && line[32] == ' ' && line.ends_with(state);
    });
    std::optional<Hash128> digest;
    if (known != lines.end()) digest = parse_hex(std::string_view(*known).substr(0, 32));
    if (!digest) {
      digest = digest_of(file, progress);
      lines.push_back(hex_of(*digest) + " " + state);
      has_new = true;
    }
    digests.push_back(*digest);
  }
  if (has_new) {
    if (lines.size() > kMaxLines) lines.erase(lines.begin(), lines.end() - kMaxLines);
    std::string content;
    for (const std::string& line : lines)
      content += line + "\n";
    root.write_file(kTable, content);
  }
  return digests;
}

}  // namespace capstan::disk
