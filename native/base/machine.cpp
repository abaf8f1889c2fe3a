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

// First number in a file; `kUnlimited` when there is none ("max", no such file).
int64_t read_number(const std::string& path) {
  std::ifstream file(path);
  int64_t value = 0;
  return file >> value ? value : kUnlimited;
}

// The control group's folder in the unified hierarchy ("0::/path" of /proc/self/cgroup).
std::string cgroup2_dir() {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);)
    if (line.rfind("0::", 0) == 0) return "/sys/fs/cgroup" + line.substr(3);
  return "";
}

// CPUs' worth of time that the control group grants; 0 = unlimited.
double cgroup_cpu_quota() {
  std::ifstream file(cgroup2_dir() + "/cpu.max");
  double quota = 0, period = 0;
  if (file >> quota >> period && period > 0) return quota / period;
  const int64_t quota_v1 = read_number("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
  const int64_t period_v1 = read_number("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  if (quota_v1 > 0 && quota_v1 != kUnlimited && period_v1 != kUnlimited && period_v1 > 0)
    return static_cast<double>(quota_v1) / static_cast<double>(period_v1);
  return 0;
}

int64_t cgroup_memory_left() {
  const std::string dir = cgroup2_dir();
  int64_t limit = read_number(dir + "/memory.max"), used = read_number(dir + "/memory.current");
  if (limit == kUnlimited) {
    limit = read_number("/sys/fs/cgroup/memory/memory.limit_in_bytes");
    used = read_number("/sys/fs/cgroup/memory/memory.usage_in_bytes");
  }
  if (limit == kUnlimited || used == kUnlimited) return kUnlimited;
  return std::max<int64_t>(0, limit - used);
}

int64_t system_memory_left() {
  std::ifstream file("/proc/meminfo");
  std::string key, unit;
  for (int64_t kib = 0; file >> key >> kib; std::getline(file, unit))
    if (key == "MemAvailable:") return kib * 1024;
  return kUnlimited;
}

}  // namespace

std::vector<int> usable_cpus() {
  std::vector<int> cpus;
#ifdef __linux__
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0)
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
#endif
  if (cpus.empty())
    for (unsigned cpu = 0; cpu < std::max(1u, std::thread::hardware_concurrency()); ++cpu) cpus.push_back(static_cast<int>(cpu));
  if (const double quota = cgroup_cpu_quota(); quota > 0)
    cpus.resize(std::min(cpus.size(), static_cast<size_t>(std::max(1.0, std::ceil(quota)))));
  return cpus;
}

int64_t available_memory_bytes() { return std::min(system_memory_left(), cgroup_memory_left()); }

}  // namespace capstan
