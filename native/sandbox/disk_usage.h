#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

/**
 * Returns the bytes that a folder takes on its disk, at least 4 KiB for each entry. Follows no links. Returns the
 * largest number when a folder is nested too deeply, or when its owner, this user, has closed it: nothing can be hidden
 * in it.
 */
uint64_t folder_bytes(const std::string& folder);

/** Returns the bytes of deleted files that these processes keep open on the disk of `folder`. */
uint64_t deleted_bytes(const std::string& folder, const std::vector<pid_t>& pids);
