#pragma once
// Identifies files by their content. Reading a model takes a while, so the root of the cache keeps the results, by what
// the system says about a file: device, inode, size, and the times of its last changes.
#include <functional>
#include <string>
#include <vector>

#include "native/disk/cache_folder.h"

namespace capstan::disk {

// Called between two parts of a file. Throws to give up.
using DigestProgress = std::function<void()>;

// Throws kIo when the file cannot be read.
Hash128 digest_of(const std::string& path, const DigestProgress& progress = nullptr);
// The same for several files, with the results of earlier processes.
std::vector<Hash128> digests_of(const CacheRoot& root, const std::vector<std::string>& paths,
                                const DigestProgress& progress);

}  // namespace capstan::disk
