#include "native/sandbox/private_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <set>
#include <stdexcept>

#include "native/sandbox/open_files.h"

namespace {

/** The packages of the system own these folders of /usr. To look at all their files takes too long. */
const std::set<std::string> kSystemFolders = {"bin",   "games",  "include", "lib",  "lib32",
                                              "lib64", "libx32", "libexec", "sbin", "share"};
constexpr uint64_t kMaxEntries = 2'000'000;

bool is_private(int folder, const std::string& name, const struct stat& info) {
  const bool is_open = (info.st_mode & (S_ISDIR(info.st_mode) ? S_IXOTH : S_IROTH)) != 0;
  const int wanted = S_ISDIR(info.st_mode) ? X_OK : R_OK;
  return !is_open && faccessat(folder, name.c_str(), wanted, 0) == 0;
}

class Search {
 public:
  void look_below(int folder, const std::string& path, const std::set<std::string>& skipped) {
    for_each_name(folder, [&](const std::string& name) {
      struct stat info{};
      if (skipped.count(name) != 0) return;
      if (!budget_.take())
        throw std::runtime_error("expected at most " + std::to_string(kMaxEntries) +
                                 " files in /opt and /usr, got more: start the service as root, or remove some");
      if (fstatat(folder, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0 || S_ISLNK(info.st_mode)) return;
      const bool is_hidden = is_private(folder, name, info);
      if (is_hidden) found_.push_back(path + "/" + name);
      if (is_hidden || !S_ISDIR(info.st_mode)) return;
      look_below(openat(folder, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), path + "/" + name, {});
    });
  }

  std::vector<std::string> take() { return std::move(found_); }

 private:
  Budget budget_{kMaxEntries};
  std::vector<std::string> found_;
};

}  // namespace

std::vector<std::string> find_private_files() {
  Search search;
  search.look_below(open("/opt", O_RDONLY | O_DIRECTORY | O_CLOEXEC), "/opt", {});
  search.look_below(open("/usr", O_RDONLY | O_DIRECTORY | O_CLOEXEC), "/usr", kSystemFolders);
  return search.take();
}
