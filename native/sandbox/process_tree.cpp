#include "native/sandbox/process_tree.h"

#include <dirent.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <unordered_map>

namespace {

std::string read_text(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/** Returns the fields of /proc/PID/stat from the third on. The second is the name, which may contain any character. */
std::vector<std::string> stat_fields(pid_t pid) {
  const std::string text = read_text("/proc/" + std::to_string(pid) + "/stat");
  const size_t end = text.rfind(')');
  std::vector<std::string> fields;
  if (end == std::string::npos) return fields;
  std::istringstream rest(text.substr(end + 1));
  for (std::string field; rest >> field;)
    fields.push_back(field);
  return fields;
}

/** Appends the children of `pid`. Returns false when the kernel does not list children. */
bool add_children(pid_t pid, std::vector<pid_t>& found) {
  const std::string tasks = "/proc/" + std::to_string(pid) + "/task";
  DIR* entries = opendir(tasks.c_str());
  if (entries == nullptr) return true;
  bool has_lists = true;
  while (const dirent* entry = readdir(entries)) {
    if (entry->d_name[0] == '.') continue;
    std::ifstream file(tasks + "/" + entry->d_name + "/children");
    has_lists = has_lists && file.is_open();
    for (pid_t child = 0; file >> child;)
      found.push_back(child);
  }
  closedir(entries);
  return has_lists;
}

/** Finds descendants by parent id, for kernels that do not list children. */
std::vector<pid_t> search_descendants(pid_t pid) {
  std::unordered_map<pid_t, std::vector<pid_t>> children;
  DIR* entries = opendir("/proc");
  while (const dirent* entry = entries == nullptr ? nullptr : readdir(entries)) {
    const pid_t candidate = static_cast<pid_t>(std::strtol(entry->d_name, nullptr, 10));
    const auto fields = candidate > 0 ? stat_fields(candidate) : std::vector<std::string>{};
    if (fields.size() > 1) children[static_cast<pid_t>(std::stol(fields[1]))].push_back(candidate);
  }
  if (entries != nullptr) closedir(entries);
  std::vector<pid_t> found = children[pid];
  for (size_t i = 0; i < found.size(); i++) {
    const std::vector<pid_t>& below = children[found[i]];
    found.insert(found.end(), below.begin(), below.end());
  }
  return found;
}

}  // namespace

std::vector<pid_t> descendants(pid_t pid) {
  std::vector<pid_t> found;
  if (!add_children(pid, found)) return search_descendants(pid);
  for (size_t i = 0; i < found.size(); i++)
    add_children(found[i], found);
  return found;
}

void kill_descendants(pid_t pid) {
  for (int attempt = 0; attempt < 100; attempt++) {
    const std::vector<pid_t> found = descendants(pid);
    if (found.empty()) return;
    for (const pid_t descendant : found)
      kill(descendant, SIGKILL);
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    usleep(10'000);
  }
}

unsigned long long start_time(pid_t pid) {
  const auto fields = stat_fields(pid);
  return fields.size() > 19 ? std::strtoull(fields[19].c_str(), nullptr, 10) : 0;
}
