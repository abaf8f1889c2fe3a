#include "native/sandbox/memory_usage.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <utility>

namespace {

std::string path_of(pid_t pid, const char* name) {
  return "/proc/" + std::to_string(pid) + "/" + name;
}

/** Returns the bytes of the line `KEY: N kB`, or 0. */
uint64_t read_kb(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(key, 0) == 0) return std::strtoull(line.c_str() + key.size(), nullptr, 10) * 1024;
  }
  return 0;
}

/** The device of all files in memory that are in no tmpfs. 0 = unknown. */
dev_t memory_device() {
  static const dev_t device = [] {
    struct stat info{};
    const int fd = memfd_create("capstan", MFD_CLOEXEC);
    const bool is_known = fd >= 0 && fstat(fd, &info) == 0;
    if (fd >= 0) close(fd);
    return is_known ? info.st_dev : 0;
  }();
  return device;
}

/** A file in memory. A System V segment may have the same inode as another file, because its inode is its id. */
using MemoryFile = std::pair<bool, ino_t>;

MemoryFile file_of(const Mapping& mapping) {
  return {mapping.path.rfind("/SYSV", 0) == 0, mapping.inode};
}

/** Older kernels do not report shares. Then a page counts in each process that has it. */
uint64_t private_bytes(pid_t pid) {
  const uint64_t shares = read_kb(path_of(pid, "smaps_rollup"), "Pss_Anon:");
  return shares > 0 ? shares : read_kb(path_of(pid, "status"), "RssAnon:");
}

/** Returns the share of a process in its mappings of these files. */
uint64_t mapped_bytes(pid_t pid, const std::set<MemoryFile>& files, Budget& budget) {
  uint64_t total = 0;
  bool is_wanted = false;
  std::ifstream smaps(path_of(pid, "smaps"));
  for (std::string line; std::getline(smaps, line);) {
    Mapping mapping;
    if (line.rfind("Pss:", 0) == 0) {
      if (is_wanted) total += std::strtoull(line.c_str() + 4, nullptr, 10) * 1024;
    } else if (line[0] < 'A' || line[0] > 'Z') {
      if (!budget.take()) break;
      is_wanted =
          parse_mapping(line, "", mapping) && mapping.device == memory_device() && files.count(file_of(mapping)) != 0;
    }
  }
  return total;
}

}  // namespace

MemoryUsage measure_memory(const std::vector<pid_t>& pids, Budget& budget) {
  MemoryUsage usage;
  for (const pid_t pid : pids)
    usage.num_bytes += private_bytes(pid);
  if (memory_device() == 0) return usage;
  std::set<MemoryFile> counted, unknown;
  const auto add = [&](const MemoryFile& file, const struct stat& info) {
    if (info.st_dev == memory_device() && counted.insert(file).second)
      usage.num_bytes += static_cast<uint64_t>(info.st_blocks) * 512;
  };
  for_each_open_file(pids, budget, [&](const struct stat& info) { add({false, info.st_ino}, info); });
  for_each_mapping(pids, budget, [&](const Mapping& mapping) {
    struct stat info{};
    if (mapping.device != memory_device() || counted.count(file_of(mapping)) != 0) return;
    if (stat(mapping.file.c_str(), &info) == 0)
      add(file_of(mapping), info);
    else
      unknown.insert(file_of(mapping));
  });
  if (unknown.empty()) return usage;
  usage.has_hidden_files = true;
  for (const pid_t pid : pids)
    usage.num_bytes += mapped_bytes(pid, unknown, budget);
  return usage;
}

uint64_t memory_bound(const std::vector<pid_t>& pids) {
  uint64_t total = read_kb("/proc/meminfo", "Shmem:");
  for (const pid_t pid : pids)
    total += read_kb(path_of(pid, "status"), "RssAnon:");
  return total;
}

uint64_t available_memory() {
  return read_kb("/proc/meminfo", "MemAvailable:");
}
