#pragma once
// What this process may use of the machine: the smaller of the hardware and the control group.
#include <cstdint>
#include <vector>

namespace capstan {

// CPUs that affinity allows, lowest first, cut to the control group's quota (rounded up).
std::vector<int> usable_cpus();

// Bytes that can still be allocated: min(MemAvailable, control group limit − its use).
int64_t available_memory_bytes();

}  // namespace capstan
