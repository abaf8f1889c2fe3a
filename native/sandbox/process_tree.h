#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

/** All processes below `pid`, as /proc says; not itself. */
std::vector<pid_t> descendants(pid_t pid);
uint64_t resident_bytes(const std::vector<pid_t>& pids);
/** In clock ticks since boot: with the id, what a process is known by. 0: there is none. */
unsigned long long start_time(pid_t pid);
