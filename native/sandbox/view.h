#pragma once

#include <cstdint>
#include <string>
#include <vector>

/** Shows host folders in the sandbox without the hidden paths in them. */
class View {
 public:
  /** @param hides Real paths. They need not exist. */
  explicit View(std::vector<std::string> hides);

  /**
   * Shows the real path `from` at `to`, which must be in the sandbox. A folder with a hidden path below it becomes a
   * folder in memory with the other entries, as they are now: what replaces the hidden file later, or appears beside
   * it, is not visible either.
   * @param attributes Of the mounts. See mount_setattr(2).
   * @throws std::runtime_error when a part of `from` is a link. A program that may write there has replaced it since
   *   the service resolved the path.
   */
  void show(const std::string& from, const std::string& to, uint64_t attributes);

 private:
  bool has_hidden_below(const std::string& path) const;
  void show_open(int fd, const std::string& from, const std::string& to, uint64_t attributes);
  void show_entry(int folder, const std::string& name, const std::string& from, const std::string& to,
                  uint64_t attributes);

  std::vector<std::string> hides_;
  int num_entries_ = 0;
};
