#pragma once
// What this process may use of the machine: the smaller of the hardware and the control group.
#include <cstdint>
#include <string>
#include <vector>

namespace capstan {

// Where control groups are told of.
struct CgroupFiles {
  std::string root = "/sys/fs/cgroup";
  std::string membership = "/proc/self/cgroup";
};

// CPUs' worth of time that the control group, of version 1 or 2, and those above it grant; infinity where they do not
// limit it.
double cgroup_cpu_quota(const CgroupFiles& files = {});

// Bytes that the control group and those above it still grant; the largest int64_t where they do not limit them.
int64_t cgroup_memory_left(const CgroupFiles& files = {});

// CPUs that affinity allows, lowest first, cut to the control group's quota (rounded up).
std::vector<int> usable_cpus();

// Bytes that can still be allocated: min(MemAvailable, control group limit − its use).
int64_t available_memory_bytes();

}  // namespace capstan
