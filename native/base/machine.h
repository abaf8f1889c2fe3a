#pragma once
// CPUs and memory that this process may use, limited by the hardware and by control groups.
#include <cstdint>
#include <string>
#include <vector>

namespace capstan {

// Where the system describes control groups.
struct CgroupFiles {
  std::string root = "/sys/fs/cgroup";
  std::string membership = "/proc/self/cgroup";
};

// Returns the CPU quota, in CPUs, of the process's control group (version 1 or 2) and its ancestors, or infinity
// without a limit.
double cgroup_cpu_quota(const CgroupFiles& files = {});

// Returns the bytes that the process can still allocate within its control group and its ancestors, or the largest
// int64_t without a limit.
int64_t cgroup_memory_left(const CgroupFiles& files = {});

// Returns the CPUs that affinity allows, in ascending order: at most as many as the control group's quota, rounded up.
std::vector<int> usable_cpus();

// Returns the bytes that can still be allocated: the smaller of MemAvailable and cgroup_memory_left().
int64_t available_memory_bytes();

}  // namespace capstan
