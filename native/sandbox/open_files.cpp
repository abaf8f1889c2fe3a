#include "native/sandbox/open_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>

namespace {

constexpr char kDeleted[] = " (deleted)";

int open_folder(const std::string& path) {
  return open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

std::string folder_of(pid_t pid) {
  return "/proc/" + std::to_string(pid);
}

/** Whether a thread has the open files of its process. If the kernel does not report it, the thread may have others. */
bool shares_files(pid_t pid, pid_t thread) {
  return pid != thread && syscall(SYS_kcmp, pid, thread, KCMP_FILES, 0, 0) == 0;
}

/** Calls `use(folder, name)` for each descriptor: its entry in `folder`/fd. */
void for_each_descriptor(const std::vector<pid_t>& pids, Budget& budget,
                         const std::function<void(const std::string&, const std::string&)>& use) {
  for (const pid_t pid : pids) {
    // A thread may have a separate table of open files.
    const std::string tasks = folder_of(pid) + "/task";
    for_each_name(open_folder(tasks), [&](const std::string& task) {
      if (shares_files(pid, static_cast<pid_t>(std::strtol(task.c_str(), nullptr, 10)))) return;
      const std::string folder = tasks + "/" + task;
      for_each_name(open_folder(folder + "/fd"), [&](const std::string& name) {
        if (budget.take()) use(folder, name);
      });
    });
  }
}

/** Calls `use` for the program file of each process. It stays on the disk while the program runs, also without a name.
 */
void for_each_program(const std::vector<pid_t>& pids, Budget& budget,
                      const std::function<void(const struct stat&)>& use) {
  for (const pid_t pid : pids) {
    bool is_found = false;
    // The first thread may have ended.
    for_each_name(open_folder(folder_of(pid) + "/task"), [&](const std::string& task) {
      struct stat info{};
      if (is_found || !budget.take()) return;
      is_found = stat((folder_of(pid) + "/task/" + task + "/exe").c_str(), &info) == 0;
      if (is_found) use(info);
    });
  }
}

bool has_files_in_flight(const std::vector<pid_t>& pids, Budget& budget) {
  bool is_found = false;
  for_each_descriptor(pids, budget, [&](const std::string& folder, const std::string& name) {
    struct stat info{};
    if (is_found || stat((folder + "/fd/" + name).c_str(), &info) != 0 || !S_ISSOCK(info.st_mode)) return;
    std::ifstream file(folder + "/fdinfo/" + name);
    std::string key;
    for (long long value = 0; !is_found && file >> key >> value;)
      is_found = key == "scm_fds:" && value > 0;
  });
  // What was not looked at may hold some.
  return is_found || budget.num_left == 0;
}

/** A process that has ended has neither memory nor files. */
bool has_unreadable_process(const std::vector<pid_t>& pids) {
  bool is_found = false;
  for (const pid_t pid : pids) {
    for_each_name(open_folder(folder_of(pid) + "/task"), [&](const std::string& task) {
      const std::string folder = folder_of(pid) + "/task/" + task;
      const int fd = open_folder(folder + "/fd");
      const bool is_closed = fd < 0 && errno == EACCES;
      if (fd >= 0) close(fd);
      unsigned long long num_pages = 0;
      if (is_closed && std::ifstream(folder + "/statm") >> num_pages && num_pages > 0) is_found = true;
    });
  }
  return is_found;
}

}  // namespace

void for_each_name(int fd, const std::function<void(const std::string&)>& use) {
  DIR* entries = fd < 0 ? nullptr : fdopendir(fd);
  if (entries == nullptr) {
    if (fd >= 0) close(fd);
    return;
  }
  while (const dirent* entry = readdir(entries)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") use(name);
  }
  closedir(entries);
}

void for_each_open_file(const std::vector<pid_t>& pids, Budget& budget,
                        const std::function<void(const struct stat&)>& use) {
  for_each_descriptor(pids, budget, [&](const std::string& folder, const std::string& name) {
    struct stat info{};
    if (stat((folder + "/fd/" + name).c_str(), &info) == 0) use(info);
  });
  for_each_program(pids, budget, use);
}

bool Mapping::is_deleted() const {
  constexpr size_t kLength = sizeof kDeleted - 1;
  return path.size() > kLength && path.compare(path.size() - kLength, kLength, kDeleted) == 0;
}

bool parse_mapping(const std::string& line, const std::string& process, Mapping& mapping) {
  unsigned long long from = 0, to = 0, inode = 0;
  unsigned device_major = 0, device_minor = 0;
  int path_at = 0;
  const int count = std::sscanf(line.c_str(), "%llx-%llx %*s %*x %x:%x %llu %n", &from, &to, &device_major,
                                &device_minor, &inode, &path_at);
  // The inode of a System V segment is its id, which begins at 0.
  if (count < 5 || path_at == 0 || (device_major == 0 && device_minor == 0)) return false;
  mapping = {to - from, makedev(device_major, device_minor), static_cast<ino_t>(inode),
             line.substr(static_cast<size_t>(path_at)),
             "/proc/" + process + "/map_files/" + line.substr(0, line.find(' '))};
  return true;
}

void for_each_mapping(const std::vector<pid_t>& pids, Budget& budget, const std::function<void(const Mapping&)>& use) {
  for (const pid_t pid : pids) {
    bool has_lines = false;
    // The first thread may have ended, and then it has no memory. All threads of a process have the same memory.
    for_each_name(open_folder(folder_of(pid) + "/task"), [&](const std::string& task) {
      if (has_lines) return;
      std::ifstream maps(folder_of(pid) + "/task/" + task + "/maps");
      Mapping mapping;
      for (std::string line; std::getline(maps, line) && budget.take();) {
        has_lines = true;
        if (parse_mapping(line, task, mapping)) use(mapping);
      }
    });
  }
}

bool may_hide_files(const std::vector<pid_t>& pids, Budget& budget) {
  return has_files_in_flight(pids, budget) || has_unreadable_process(pids);
}
