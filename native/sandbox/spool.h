#pragma once

#include <cstdint>
#include <string>

/** Splits the bytes of one pipe into lines of at most 64 KiB. A line ends with `\n` or `\r\n`. */
class LineSplitter {
 public:
  /** Calls `take(line)` for each line that is complete now. */
  template <class Take>
  void add(const char* bytes, size_t count, Take take) {
    rest_.append(bytes, count);
    size_t from = 0;
    for (;;) {
      const size_t end = rest_.find('\n', from);
      if (end != std::string::npos && end - from <= kMaxLine) {
        const bool has_return = end > from && rest_[end - 1] == '\r';
        take(rest_.substr(from, end - from - (has_return ? 1 : 0)));
        from = end + 1;
      } else if (rest_.size() - from > kMaxLine) {
        const size_t length = cut_length(from);
        take(rest_.substr(from, length));
        from += length;
      } else {
        break;
      }
    }
    rest_.erase(0, from);
  }

  /** Calls `take(line)` for the last line, if it has no line end. */
  template <class Take>
  void finish(Take take) {
    if (!rest_.empty()) take(rest_);
    rest_.clear();
  }

 private:
  static constexpr size_t kMaxLine = 64 << 10;

  /** Returns where to cut a line that is too long: not within a character or a possible access key. */
  size_t cut_length(size_t from) const;

  std::string rest_;
};

/**
 * Log lines in files `spool/00000001` and so on, which the service collects and removes. Lines are written even while
 * the service is down. The format is `<time in ms> <o|e|s> <text>`: output, errors or system. When the disk is full, or
 * the files reach `max_bytes`, lines are counted and dropped; a system line reports the loss when there is space again.
 */
class Spool {
 public:
  Spool(std::string dir, uint64_t max_bytes);

  void add(char stream, std::string line);
  /** Writes the added lines. */
  void flush();
  /** Writes the system line about lost lines, if any, without waiting for the next line. */
  void report_loss();

 private:
  void open_next();
  bool has_capacity();
  void append(char stream, const std::string& line);
  void lose(const std::string& records, const char* reason);
  std::string loss() const;

  std::string dir_;
  uint64_t max_bytes_;
  uint32_t number_ = 0;
  int fd_ = -1;
  uint64_t num_bytes_ = 0;
  std::string records_;
  uint64_t num_lost_ = 0;
  std::string loss_reason_;
};
