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

struct OpenFile {
  std::string path;
  int fd = -1;
};
Hash128 digest_of(const OpenFile& file, const DigestProgress& progress = nullptr);
// Returns what changes with the content of each file: its size, and the time when it was written last.
std::vector<std::string> content_states(const std::vector<OpenFile>& files);
// Throws kIo when a file has another state now. `what` is what the files hold: "model" or "adapter".
void check_unchanged(const std::vector<OpenFile>& files, const std::vector<std::string>& states,
                     const std::string& what);
// The digests of several files, with the results of earlier processes.
std::vector<Hash128> digests_of(const CacheRoot& root, const std::vector<OpenFile>& files,
                                const DigestProgress& progress);

}  // namespace capstan::disk
