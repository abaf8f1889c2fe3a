/**
 * The supervisor of one replica. It outlives the service that started it: it stores the replica's log lines and exit
 * status on disk. Standard input is a Spec. Standard output gets `ok` or `error TEXT` when the replica has started or
 * failed to. The supervisor exits with the replica. SIGTERM stops the replica gracefully, within the milliseconds in
 * the file `stop`.
 */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <stdexcept>
#include <thread>

#include "native/sandbox/disk_watch.h"
#include "native/sandbox/memory_watch.h"
#include "native/sandbox/mounts.h"
#include "native/sandbox/namespaces.h"
#include "native/sandbox/process_tree.h"
#include "native/sandbox/spool.h"
#include "native/sandbox/workload.h"

namespace {

constexpr int kTickMs = 500;
constexpr long kDefaultGraceMs = 30'000;
/** Each reads up to 1 MiB of a pipe, and a pipe of an ordinary user holds no more. */
constexpr int kMaxLastReads = 4;
/** More than the size of the `exit` file. */
constexpr size_t kReservedBytes = 256;

long long monotonic_ms() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000ll + now.tv_nsec / 1'000'000;
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/** Replaces a file atomically. Uses the disk space that reserve() has set aside. */
void replace_file(const std::string& path, const std::string& text) {
  const std::string next = path + ".next";
  const int fd = open(next.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) fail("create " + next);
  const bool is_written = write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
                          ftruncate(fd, static_cast<off_t>(text.size())) == 0 && fsync(fd) == 0;
  close(fd);
  if (!is_written || rename(next.c_str(), path.c_str()) != 0) fail("write " + path);
}

/** Reserves disk space for a later replace_file(), which must succeed even on a full disk. */
void reserve(const std::string& path) {
  replace_file(path + ".next", std::string(kReservedBytes, ' '));
}

/** Locks the replica until this process exits, so that no second supervisor runs it. */
void lock(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) fail("open " + path);
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) throw std::runtime_error("the replica runs already under another supervisor");
}

int listen_on(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) throw std::runtime_error("the socket path is too long: " + path);
  std::memcpy(address.sun_path, path.data(), path.size());
  unlink(path.c_str());
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0 || bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 || listen(fd, 4096) != 0)
    fail("listen on " + path);
  return fd;
}

std::vector<int> open_cgroups(const std::vector<std::string>& paths) {
  std::vector<int> fds;
  for (const std::string& path : paths) {
    const int fd = open((path + "/cgroup.procs").c_str(), O_WRONLY | O_CLOEXEC);
    if (fd < 0) fail("open the control group " + path);
    fds.push_back(fd);
  }
  return fds;
}

/**
 * Reads the OOM counters of either version of control groups. Returns `cgroup` when the kernel killed a process of the
 * group, `enough` when it did not, and `no` when no group counts.
 */
const char* memory_verdict(const std::vector<std::string>& cgroups) {
  const char* verdict = "no";
  for (const std::string& path : cgroups) {
    for (const char* name : {"/memory.events", "/memory.oom_control"}) {
      std::ifstream file(path + name);
      std::string key;
      for (long long value = 0; file >> key >> value;) {
        if (key != "oom_kill") continue;
        if (value > 0) return "cgroup";
        verdict = "enough";
      }
    }
  }
  return verdict;
}

class Supervisor {
 public:
  explicit Supervisor(Spec spec) : spec_(std::move(spec)), spool_(spec_.dir + "/spool", spec_.spool_max_bytes) {}

  /** @throws std::runtime_error when the replica cannot start. */
  void start() {
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    sigset_t wanted;
    sigemptyset(&wanted);
    for (const int number : {SIGCHLD, SIGTERM, SIGINT, SIGHUP})
      sigaddset(&wanted, number);
    sigprocmask(SIG_SETMASK, &wanted, nullptr);
    signal(SIGPIPE, SIG_IGN);
    signals_ = signalfd(-1, &wanted, SFD_NONBLOCK | SFD_CLOEXEC);
    for (int* pair : {pipes_.output, pipes_.errors, pipes_.failure, pipes_.status, pipes_.life}) {
      if (pipe2(pair, O_CLOEXEC) != 0) fail("pipe");
    }
    unlink((spec_.dir + "/exit").c_str());
    unlink((spec_.dir + "/stop").c_str());
    reserve(spec_.dir + "/exit");
    disk_.start();
    const std::vector<int> cgroups = open_cgroups(spec_.cgroups);
    if (spec_.is_isolated) {
      const int listener = listen_on(spec_.socket_path);
      child_ = start_isolated(spec_, pipes_, cgroups, listener);
      close(listener);
    } else {
      child_ = start_plain(spec_, pipes_, cgroups);
    }
    if (child_ < 0) fail("fork");
    for (const int* pair : {pipes_.output, pipes_.errors, pipes_.failure, pipes_.status})
      close(pair[1]);
    for (const int fd : cgroups)
      close(fd);
    await_exec();
    for (const int fd : {pipes_.output[0], pipes_.errors[0], pipes_.status[0]})
      fcntl(fd, F_SETFL, O_NONBLOCK);
    const std::string boot = first_line("/proc/sys/kernel/random/boot_id");
    replace_file(spec_.dir + "/state", "pid " + std::to_string(getpid()) + "\nstart " +
                                           std::to_string(start_time(getpid())) + "\nboot " + boot + "\nchild " +
                                           std::to_string(child_) + "\n");
  }

  void run() {
    // Not in this loop, because measuring takes long. The threads end with the process.
    if (spec_.disk_bytes > 0) std::thread([this] { disk_.run(getpid()); }).detach();
    if (spec_.memory_bytes > 0) std::thread([this] { memory_.run(getpid(), child_); }).detach();
    while (!has_ended_) {
      pollfd fds[3] = {{signals_, POLLIN, 0}, {pipes_.output[0], POLLIN, 0}, {pipes_.errors[0], POLLIN, 0}};
      poll(fds, 3, next_tick_ms());
      take_signals();
      take_output();
      tick();
      reap();
    }
    finish();
  }

 private:
  /** Waits for the exec. Throws with the child's error text when it fails. */
  void await_exec() {
    std::string error_text;
    char buffer[1024];
    for (;;) {
      const ssize_t count = read(pipes_.failure[0], buffer, sizeof buffer);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) break;
      error_text.append(buffer, static_cast<size_t>(count));
    }
    close(pipes_.failure[0]);
    if (error_text.empty()) return;
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
    throw std::runtime_error(error_text);
  }

  int next_tick_ms() const {
    if (kill_at_ms_ == 0) return kTickMs;
    const long long left = kill_at_ms_ - monotonic_ms();
    return static_cast<int>(std::clamp<long long>(left, 0, kTickMs));
  }

  void take_signals() {
    signalfd_siginfo info{};
    while (read(signals_, &info, sizeof info) == sizeof info) {
      if (info.ssi_signo == SIGTERM) stop();
    }
  }

  /** A second signal may shorten the grace period. */
  void stop() {
    const std::string grace = first_line(spec_.dir + "/stop");
    const long long at = monotonic_ms() + (grace.empty() ? kDefaultGraceMs : std::strtol(grace.c_str(), nullptr, 10));
    if (kill_at_ms_ == 0 || at < kill_at_ms_) kill_at_ms_ = at;
    if (is_stopping_) return;
    is_stopping_ = true;
    if (spec_.is_isolated)
      kill(child_, SIGTERM);
    else
      signal_all(SIGTERM);
  }

  void signal_all(int number) {
    for (const pid_t pid : descendants(getpid()))
      kill(pid, number);
  }

  void kill_all() {
    has_killed_ = true;
    if (spec_.is_isolated)
      kill(child_, SIGKILL);
    else
      signal_all(SIGKILL);
  }

  void take_output() {
    const auto take = [this](int& fd, LineSplitter& lines, char stream) {
      // A bounded number of reads, so that a flood of output does not delay signals.
      for (int i = 0; i < 16; i++) {
        const ssize_t count = fd < 0 ? -1 : read(fd, buffer_, sizeof buffer_);
        if (count == 0) {
          close(fd);
          fd = -1;
        }
        if (count <= 0) return;
        lines.add(buffer_, static_cast<size_t>(count), [&](std::string line) { spool_.add(stream, std::move(line)); });
      }
    };
    take(pipes_.output[0], output_, 'o');
    take(pipes_.errors[0], errors_, 'e');
    spool_.flush();
  }

  void tick() {
    const long long now = monotonic_ms();
    if (kill_at_ms_ != 0 && now >= kill_at_ms_) kill_all();
    if (now < next_check_ms_) return;
    next_check_ms_ = now + kTickMs;
    spool_.report_loss();
    if ((disk_.is_over() || memory_.is_over()) && !has_killed_) kill_all();
  }

  void reap() {
    int status = 0;
    for (pid_t pid = waitpid(-1, &status, WNOHANG); pid > 0; pid = waitpid(-1, &status, WNOHANG)) {
      if (pid != child_) continue;
      exit_status_ = exit_status_of(status);
      has_ended_ = true;
    }
  }

  void finish() {
    char text[64] = {};
    if (read(pipes_.status[0], text, sizeof text - 1) > 0)
      std::sscanf(text, "%d %d", &exit_status_.code, &exit_status_.signal);
    // The processes that the workload left running. The end of namespaces has ended those in them.
    if (!spec_.is_isolated) kill_descendants(getpid());
    // What the workload wrote is in the pipes. Another program that has one of them may write without an end.
    for (int i = 0; i < kMaxLastReads && has_output(); i++)
      take_output();
    output_.finish([&](std::string line) { spool_.add('o', std::move(line)); });
    errors_.finish([&](std::string line) { spool_.add('e', std::move(line)); });
    spool_.flush();
    spool_.report_loss();
    const char* memory = memory_.is_over() ? "watch" : memory_verdict(spec_.cgroups);
    replace_file(spec_.dir + "/exit", "code " + std::to_string(exit_status_.code) + "\nsignal " +
                                          std::to_string(exit_status_.signal) + "\nstopped " +
                                          (is_stopping_ ? "1" : "0") + "\nkilled " + (has_killed_ ? "1" : "0") +
                                          "\nmemory " + memory + "\ndisk " + disk_.verdict() + "\n");
    if (!spec_.socket_path.empty()) unlink(spec_.socket_path.c_str());
    for (const std::string& path : spec_.cgroups)
      rmdir(path.c_str());
  }

  /** Returns whether the pipes still hold output. */
  bool has_output() {
    pollfd fds[2] = {{pipes_.output[0], POLLIN, 0}, {pipes_.errors[0], POLLIN, 0}};
    poll(fds, 2, 0);
    return ((fds[0].revents | fds[1].revents) & POLLIN) != 0;
  }

  Spec spec_;
  Spool spool_;
  DiskWatch disk_{spec_};
  MemoryWatch memory_{spec_};
  Pipes pipes_{};
  LineSplitter output_;
  LineSplitter errors_;
  int signals_ = -1;
  pid_t child_ = -1;
  ExitStatus exit_status_;
  bool has_ended_ = false;
  bool is_stopping_ = false;
  bool has_killed_ = false;
  /** The end of the grace period; 0 = not stopping. */
  long long kill_at_ms_ = 0;
  long long next_check_ms_ = 0;
  char buffer_[64 << 10];
};

/** Detaches standard input, output and errors from the service. */
void detach_stdio() {
  const int null_fd = open("/dev/null", O_RDWR);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    dup2(null_fd, fd);
  if (null_fd > STDERR_FILENO) close(null_fd);
}

void reply(const std::string& text) {
  const std::string line = text + "\n";
  [[maybe_unused]] const ssize_t ignored = write(STDOUT_FILENO, line.data(), line.size());
}

}  // namespace

int main() {
  setsid();
  umask(077);
  try {
    Spec spec = read_spec(STDIN_FILENO);
    lock(spec.dir + "/lock");
    // Not on the stack, because it contains large buffers.
    static Supervisor supervisor(std::move(spec));
    supervisor.start();
    reply("ok");
    detach_stdio();
    supervisor.run();
    // Not by return: the thread that measures the disk may still use the supervisor.
    _exit(0);
  } catch (const std::exception& error) {
    reply(std::string("error ") + error.what());
    return 1;
  }
}
