#pragma once

#include <cstdint>
#include <string>

/** Splits what one pipe carries into lines of at most 64 KiB; a line's end may also be `\r\n`. */
class LineSplitter {
 public:
  /** Calls `take(line)` for each line that is whole now. */
  template <class Take>
  void add(const char* bytes, size_t count, Take take) {
    rest_.append(bytes, count);
    size_t from = 0;
    for (;;) {
      const size_t end = rest_.find('\n', from);
      if (end != std::string::npos && end - from <= kMaxLine) {
        give(from, end - (end > from && rest_[end - 1] == '\r' ? 1 : 0), take);
        from = end + 1;
      } else if (rest_.size() - from > kMaxLine) {
        const size_t cut = from + cut_length(from);
        give(from, cut, take);
        from = cut;
      } else {
        break;
      }
    }
    rest_.erase(0, from);
  }

  /** The last line, if it has no end. */
  template <class Take>
  void finish(Take take) {
    if (!rest_.empty()) give(0, rest_.size(), take);
    rest_.clear();
  }

 private:
  static constexpr size_t kMaxLine = 64 << 10;

  template <class Take>
  void give(size_t from, size_t to, Take take) {
    take(rest_.substr(from, to - from));
  }

  /** Of a line that is too long: not within a character, and not within what may be an access key. */
  size_t cut_length(size_t from) const;

  std::string rest_;
};

/**
 * Files of log lines, `spool/00000001` and so on, for the service to take up and remove; written whether it lives or
 * not. A line is
 * `<time in ms> <o|e|s> <text>`. Where the disk is full, or the service has not come for too long, lines are counted
 * and dropped, and a system line says so once there is room again.
 */
class Spool {
 public:
  Spool(std::string dir, uint64_t max_bytes);

  void add(char stream, std::string line);
  /** Writes what was added. */
  void flush();
  /** Says what was lost, if anything was, though no further line comes. */
  void tell_loss();

 private:
  void open_next();
  bool has_room();
  void append(char stream, const std::string& line);
  void lose(const std::string& records, const char* why);
  std::string loss() const;

  std::string dir_;
  uint64_t max_bytes_;
  uint32_t number_ = 0;
  int fd_ = -1;
  uint64_t num_bytes_ = 0;
  std::string records_;
  uint64_t num_lost_ = 0;
  std::string why_lost_;
};
