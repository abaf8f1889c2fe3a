#include "native/base/machine.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <string>
#include <thread>

#ifdef __linux__
#include <sched.h>
#endif

namespace capstan {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

// Returns the first number in a file, or kUnlimited when the file is missing or starts with another word ("max").
int64_t read_number(const std::string& path) {
  std::ifstream file(path);
  int64_t value = 0;
  return file >> value ? value : kUnlimited;
}

// Returns the number of the line "wanted number", or 0 without such a line.
int64_t read_count(const std::string& path, const std::string& wanted) {
  std::ifstream file(path);
  std::string key;
  for (int64_t value = 0; file >> key >> value;)
    if (key == wanted) return value;
  return 0;
}

bool has_name(const std::string& list, const std::string& controller) {
  return ("," + list + ",").find("," + controller + ",") != std::string::npos;
}

// Returns the folders of this process's control group (version 1 or 2) and of its ancestors, because each of them
// limits the process. The list ends with the root: a container may see its own group there, while the path names a
// folder that exists only on the host.
std::vector<std::string> group_folders(const CgroupFiles& files, const std::string& controller) {
  std::vector<std::string> folders;
  std::ifstream membership(files.membership);
  for (std::string line; std::getline(membership, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() && !has_name(controllers, controller)) continue;
    const std::string root = files.root + (controllers.empty() ? "" : "/" + controller);
    for (std::string path = line.substr(second + 1); path.size() > 1 && path[0] == '/'; path.resize(path.rfind('/')))
      folders.push_back(root + path);
    folders.push_back(root);
  }
  return folders;
}

int64_t system_memory_left() {
  std::ifstream file("/proc/meminfo");
  std::string key, unit;
  for (int64_t kib = 0; file >> key >> kib; std::getline(file, unit))
    if (key == "MemAvailable:") return kib * 1024;
  return kUnlimited;
}

}  // namespace

double cgroup_cpu_quota(const CgroupFiles& files) {
  double least = std::numeric_limits<double>::infinity();
  for (const std::string& folder : group_folders(files, "cpu")) {
    std::ifstream unified(folder + "/cpu.max");
    double quota = 0, period = 0;
    if (unified >> quota >> period && period > 0) least = std::min(least, quota / period);
    std::ifstream quota_v1(folder + "/cpu.cfs_quota_us"), period_v1(folder + "/cpu.cfs_period_us");
    // A quota of -1 means no limit.
    if (quota_v1 >> quota && period_v1 >> period && quota > 0 && period > 0) least = std::min(least, quota / period);
  }
  return least;
}

int64_t cgroup_memory_left(const CgroupFiles& files) {
  struct Names {
    const char *limit, *use, *inactive_file;
  };
  int64_t least = kUnlimited;
  for (const std::string& folder : group_folders(files, "memory")) {
    for (const Names& names : {Names{"/memory.max", "/memory.current", "inactive_file"},
                               {"/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_inactive_file"}}) {
      const int64_t limit = read_number(folder + names.limit), use = read_number(folder + names.use);
      if (limit == kUnlimited || use == kUnlimited) continue;
      // Cached pages of files that were read once, such as weights, can be reclaimed.
      least = std::min(
          least, std::clamp<int64_t>(limit - use + read_count(folder + "/memory.stat", names.inactive_file), 0, limit));
    }
  }
  return least;
}

std::vector<int> usable_cpus() {
  std::vector<int> cpus;
#ifdef __linux__
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0)
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
#endif
  if (cpus.empty())
    for (unsigned cpu = 0; cpu < std::max(1u, std::thread::hardware_concurrency()); ++cpu)
      cpus.push_back(static_cast<int>(cpu));
  const double quota = std::max(1.0, std::ceil(cgroup_cpu_quota()));
  if (quota < static_cast<double>(cpus.size())) cpus.resize(static_cast<size_t>(quota));
  return cpus;
}

int64_t available_memory_bytes() {
  return std::min(system_memory_left(), cgroup_memory_left());
}

}  // namespace capstan
