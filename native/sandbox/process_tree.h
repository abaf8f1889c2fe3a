#pragma once

#include <sys/types.h>

#include <vector>

/** Returns the ids of all descendants of `pid`, read from /proc. */
std::vector<pid_t> descendants(pid_t pid);
/** Returns the start time in clock ticks since boot, which identifies a process together with its id. 0 = no such
 * process. */
unsigned long long start_time(pid_t pid);

/**
 * Kills all descendants of this process, `pid`, and waits for its children. It must be a subreaper, so that orphans
 * become its children. Gives up after a second.
 */
void kill_descendants(pid_t pid);
