#include "native/sandbox/spool.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "native/sandbox/redact.h"

namespace {

constexpr uint64_t kFileBytes = 4 << 20;

long long now_ms() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec * 1000ll + now.tv_nsec / 1'000'000;
}

template <class Each>
void for_each_file(const std::string& dir, Each each) {
  DIR* entries = opendir(dir.c_str());
  if (entries == nullptr) return;
  while (const dirent* entry = readdir(entries)) {
    if (entry->d_name[0] != '.') each(entry->d_name);
  }
  closedir(entries);
}

}  // namespace

size_t LineSplitter::cut_length(size_t from) const {
  const std::string prefix = kKeyPrefix;
  for (size_t at = kMaxLine - kKeyLength + 1; at < kMaxLine; at++) {
    // Compares the part of the prefix that fits before the cut.
    const size_t length = std::min(prefix.size(), kMaxLine - at);
    if (rest_.compare(from + at, length, prefix, 0, length) == 0) return at;
  }
  size_t cut = kMaxLine;
  while (cut > kMaxLine - 4 && (static_cast<unsigned char>(rest_[from + cut]) & 0xC0) == 0x80)
    cut--;
  return cut;
}

Spool::Spool(std::string dir, uint64_t max_bytes) : dir_(std::move(dir)), max_bytes_(max_bytes) {
  mkdir(dir_.c_str(), 0700);
  for_each_file(dir_, [&](const char* name) {
    number_ = std::max(number_, static_cast<uint32_t>(std::strtoul(name, nullptr, 10)));
  });
}

void Spool::open_next() {
  char name[16];
  std::snprintf(name, sizeof name, "/%08u", number_ + 1);
  const int fd = open((dir_ + name).c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0) return;
  if (fd_ >= 0) close(fd_);
  fd_ = fd;
  number_++;
  num_bytes_ = 0;
}

/** Counts all files, including those that the service has not collected yet. */
bool Spool::has_capacity() {
  uint64_t total = 0;
  for_each_file(dir_, [&](const char* name) {
    struct stat info{};
    if (stat((dir_ + "/" + name).c_str(), &info) == 0) total += static_cast<uint64_t>(info.st_size);
  });
  return total < max_bytes_;
}

void Spool::add(char stream, std::string line) {
  std::replace(line.begin(), line.end(), '\0', ' ');
  redact_keys(line);
  if (num_lost_ > 0 && records_.empty()) append('s', loss());
  append(stream, line);
}

std::string Spool::loss() const {
  return std::to_string(num_lost_) + " log lines were lost: " + loss_reason_;
}

void Spool::report_loss() {
  if (num_lost_ == 0 || !records_.empty()) return;
  append('s', loss());
  flush();
}

void Spool::append(char stream, const std::string& line) {
  records_ += std::to_string(now_ms()) + " " + stream + " " + line + "\n";
}

void Spool::flush() {
  if (records_.empty()) return;
  const bool reports_loss = num_lost_ > 0;
  if (fd_ < 0 || num_bytes_ >= kFileBytes) {
    if (!has_capacity()) return lose(records_, "the service did not collect them in time");
    open_next();
  }
  if (fd_ < 0) return lose(records_, std::strerror(errno));
  const ssize_t count = write(fd_, records_.data(), records_.size());
  const char* reason = count < 0 ? std::strerror(errno) : std::strerror(ENOSPC);
  const size_t written = count < 0 ? 0 : static_cast<size_t>(count);
  // Keeps complete lines, which the service may have read already.
  const size_t end = written == 0 ? 0 : records_.rfind('\n', written - 1);
  const size_t kept = written == 0 || end == std::string::npos ? 0 : end + 1;
  if (kept < written) [[maybe_unused]]
    const int ignored = ftruncate(fd_, static_cast<off_t>(num_bytes_ + kept));
  num_bytes_ += kept;
  if (reports_loss && kept > 0) num_lost_ = 0;
  if (kept < records_.size()) return lose(records_.substr(kept), reason);
  records_.clear();
}

void Spool::lose(const std::string& records, const char* reason) {
  // The first record is then the line about the earlier loss, which is not a lost log line.
  const bool has_loss_line = num_lost_ > 0;
  num_lost_ += static_cast<uint64_t>(std::count(records.begin(), records.end(), '\n')) - (has_loss_line ? 1 : 0);
  loss_reason_ = reason;
  records_.clear();
}
