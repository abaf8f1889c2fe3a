#include "native/sandbox/workload.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <utility>

#include "native/sandbox/forwarder.h"
#include "native/sandbox/mounts.h"
#include "native/sandbox/namespaces.h"
#include "native/sandbox/process_tree.h"
#include "native/sandbox/system_calls.h"

namespace {

/** Processes and threads of a replica. A control group has the same limit. */
constexpr rlim_t kMaxProcesses = 4096;
/** Open files of each process. */
constexpr rlim_t kMaxFiles = 65'536;
/** What a replica may take of the objects that the kernel counts for each user. Replicas of one user share them. */
constexpr std::pair<const char*, const char*> kKernelObjects[] = {{"max_inotify_instances", "32"},
                                                                  {"max_inotify_watches", "32768"},
                                                                  {"max_fanotify_groups", "8"},
                                                                  {"max_fanotify_marks", "8192"}};

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (const std::string& text : texts)
    result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

/** Writes to a pipe and ignores errors: a reader that is gone needs no text. */
void write_text(int fd, const std::string& text) {
  [[maybe_unused]] const ssize_t ignored = write(fd, text.data(), text.size());
}

/** Whether the supervisor lives. */
bool has_supervisor(const Pipes& pipes) {
  pollfd life{pipes.life[0], POLLIN, 0};
  return poll(&life, 1, 0) == 0;
}

void join(const std::vector<int>& cgroups) {
  for (const int fd : cgroups) {
    if (write(fd, "0", 1) != 1) fail("join the control group");
  }
}

void reset_signals() {
  for (int number = 1; number < NSIG; number++)
    signal(number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

/** The machine may allow less, and a workload may not raise that. */
void lower_limit(decltype(RLIMIT_NOFILE) resource, rlim_t most) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0) fail("read a resource limit");
  limit.rlim_max = std::min(limit.rlim_max, most);
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(resource, &limit) != 0) fail("set a resource limit");
}

/** Replaces this process by the workload. Returns only by an exception. */
void execute(const Spec& spec, const Pipes& pipes) {
  setsid();
  const int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  dup2(null_fd, STDIN_FILENO);
  dup2(pipes.output[1], STDOUT_FILENO);
  dup2(pipes.errors[1], STDERR_FILENO);
  // A core file would contain secrets and fill the disk.
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  lower_limit(RLIMIT_NOFILE, kMaxFiles);
  umask(022);
  if (!spec.cwd.empty() && chdir(spec.cwd.c_str()) != 0) fail("chdir " + spec.cwd);
  reset_signals();
  execve(spec.args[0].c_str(), pointers(spec.args).data(), pointers(spec.env).data());
  fail("exec " + spec.args[0]);
}

/** Limits what the kernel counts for the user namespace of this process. */
void limit_kernel_objects() {
  for (const auto& [name, limit] : kKernelObjects) {
    const std::string path = std::string("/proc/sys/user/") + name;
    const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
    // A kernel without the objects has no limit of them.
    if (fd < 0 && errno == ENOENT) continue;
    if (fd < 0 || write(fd, limit, std::strlen(limit)) < 0) fail("write " + path);
    close(fd);
  }
}

/** Waits until the other end closes the pipe. */
void wait_for_close(int fd) {
  char byte;
  while (read(fd, &byte, 1) > 0 || errno == EINTR)
    errno = 0;
}

/**
 * Starts the workload as root of a second user namespace. It cannot undo the setup of the sandbox, and it has no
 * privileges on the host.
 */
pid_t start_workload(const Spec& spec, const Pipes& pipes, const std::vector<int>& cgroups, bool is_root) {
  // Each pipe signals a step by being closed: the child has unshared, the parent has mapped the ids.
  int unshared_pipe[2], mapped_pipe[2];
  if (pipe2(unshared_pipe, O_CLOEXEC) != 0 || pipe2(mapped_pipe, O_CLOEXEC) != 0) fail("pipe");
  const pid_t pid = fork();
  if (pid < 0) fail("fork");
  if (pid == 0) {
    try {
      close(unshared_pipe[0]);
      close(mapped_pipe[1]);
      join(cgroups);
      // The kernel counts a namespace and what its processes take for the user that creates it.
      if (is_root) become_user(spec.uid, spec.gid);
      if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) fail("create a user namespace");
      close(unshared_pipe[1]);
      wait_for_close(mapped_pipe[0]);
      if (setresgid(0, 0, 0) != 0 || setresuid(0, 0, 0) != 0) fail("become root in the user namespace");
      limit_kernel_objects();
      drop_privileges();
      filter_system_calls();
      // Since Linux 5.14 the kernel counts per user namespace, so replicas do not share the limit.
      lower_limit(RLIMIT_NPROC, kMaxProcesses);
      execute(spec, pipes);
    } catch (const std::exception& error) {
      write_text(pipes.failure[1], error.what());
    }
    _exit(127);
  }
  close(unshared_pipe[1]);
  close(mapped_pipe[0]);
  wait_for_close(unshared_pipe[0]);
  close(unshared_pipe[0]);
  // Without root on the host, id 0 of this namespace already is the unprivileged user.
  map_ids(pid, is_root ? spec.uid : 0, is_root ? spec.gid : 0);
  close(mapped_pipe[1]);
  return pid;
}

sigset_t watched_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGCHLD, SIGTERM})
    sigaddset(&signals, number);
  return signals;
}

/**
 * The loop of the first process: reaps children, forwards connections, and sends TERM to all processes of the
 * namespace. Returns the exit status of the workload.
 */
ExitStatus supervise(pid_t workload, Forwarder& forwarder, int signals) {
  for (;;) {
    pollfd fds[2] = {{signals, POLLIN, 0}, {forwarder.fd(), POLLIN, 0}};
    if (poll(fds, 2, -1) < 0 && errno != EINTR) fail("poll");
    if (fds[1].revents != 0) forwarder.process_events();
    // Every token of a response wakes this loop, so it makes no system call without a signal.
    if (fds[0].revents == 0) continue;
    signalfd_siginfo info{};
    while (read(signals, &info, sizeof info) == sizeof info) {
      if (info.ssi_signo == SIGTERM) kill(-1, SIGTERM);
    }
    int status = 0;
    for (pid_t pid = waitpid(-1, &status, WNOHANG); pid > 0; pid = waitpid(-1, &status, WNOHANG)) {
      if (pid == workload) return exit_status_of(status);
    }
  }
}

/** Closes this process's ends of the workload's pipes, and the supervisor's standard output. */
void release_files(const Pipes& pipes) {
  for (const int fd : {pipes.output[1], pipes.errors[1], pipes.failure[1]})
    close(fd);
  const int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    dup2(null_fd, fd);
}

/** Runs the first process of the namespaces. When it exits, the kernel kills all processes of the PID namespace. */
[[noreturn]] void run_init(const Spec& spec, const Pipes& pipes, const std::vector<int>& cgroups, int listener,
                           int mapped_fd, bool is_root) {
  try {
    umask(0);
    close(pipes.life[1]);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    wait_for_close(mapped_fd);
    if (!is_root && (setresgid(0, 0, 0) != 0 || setresuid(0, 0, 0) != 0)) fail("become root in the namespace");
    // NOTE: a change of ids resets PDEATHSIG, so set it again.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    // The supervisor may have died before. Its end then closed the pipe, and never sends the signal.
    if (!has_supervisor(pipes)) _exit(126);
    prctl(PR_SET_DUMPABLE, 1);
    enter_sandbox(spec, is_root);
    const sigset_t wanted = watched_signals();
    sigprocmask(SIG_SETMASK, &wanted, nullptr);
    const int signals = signalfd(-1, &wanted, SFD_NONBLOCK | SFD_CLOEXEC);
    const pid_t workload = start_workload(spec, pipes, cgroups, is_root);
    release_files(pipes);
    Forwarder forwarder(listener, spec.inner_host, spec.inner_port);
    const ExitStatus status = supervise(workload, forwarder, signals);
    write_text(pipes.status[1], std::to_string(status.code) + " " + std::to_string(status.signal));
    _exit(0);
  } catch (const std::exception& error) {
    write_text(pipes.failure[1], error.what());
    _exit(126);
  }
}

/** Starts the workload on the host. It dies with this process. */
pid_t start_on_host(const Spec& spec, const Pipes& pipes, const std::vector<int>& cgroups) {
  const pid_t keeper = getpid();
  const pid_t pid = fork();
  if (pid < 0) fail("fork");
  if (pid > 0) return pid;
  try {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    // The keeper may have died before.
    if (getppid() != keeper) _exit(127);
    join(cgroups);
    execute(spec, pipes);
  } catch (const std::exception& error) {
    write_text(pipes.failure[1], error.what());
  }
  _exit(127);
}

/**
 * Runs between the supervisor and a workload without namespaces. It becomes the parent of the workload's orphans, and
 * kills all of them when the supervisor is killed.
 */
[[noreturn]] void run_keeper(const Spec& spec, const Pipes& pipes, const std::vector<int>& cgroups, pid_t supervisor) {
  constexpr int kSupervisorDied = SIGUSR1;
  try {
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, nullptr);
    sigset_t wanted;
    sigemptyset(&wanted);
    for (const int number : {SIGCHLD, kSupervisorDied})
      sigaddset(&wanted, number);
    prctl(PR_SET_PDEATHSIG, kSupervisorDied);
    const pid_t workload = start_on_host(spec, pipes, cgroups);
    release_files(pipes);
    // Other processes may send the signal, too, and it may have died before the call above.
    while (getppid() == supervisor) {
      int status = 0;
      for (pid_t pid = waitpid(-1, &status, WNOHANG); pid > 0; pid = waitpid(-1, &status, WNOHANG)) {
        if (pid != workload) continue;
        const ExitStatus ended = exit_status_of(status);
        write_text(pipes.status[1], std::to_string(ended.code) + " " + std::to_string(ended.signal));
        _exit(0);
      }
      sigwaitinfo(&wanted, nullptr);
    }
    kill_descendants(getpid());
    _exit(0);
  } catch (const std::exception& error) {
    write_text(pipes.failure[1], error.what());
    _exit(126);
  }
}

}  // namespace

ExitStatus exit_status_of(int wait_status) {
  if (WIFSIGNALED(wait_status)) return {-1, WTERMSIG(wait_status)};
  return {WEXITSTATUS(wait_status), 0};
}

pid_t start_plain(const Spec& spec, const Pipes& pipes, const std::vector<int>& cgroups) {
  const pid_t supervisor = getpid();
  const pid_t pid = fork();
  if (pid == 0) run_keeper(spec, pipes, cgroups, supervisor);
  return pid;
}

pid_t start_isolated(const Spec& spec, const Pipes& pipes, const std::vector<int>& cgroups, int listener) {
  const bool is_root = geteuid() == 0;
  const uid_t uid = geteuid();
  const gid_t gid = getegid();
  int mapped_pipe[2];
  if (pipe2(mapped_pipe, O_CLOEXEC) != 0) fail("pipe");
  const auto pid =
      static_cast<pid_t>(syscall(SYS_clone, namespace_flags() | SIGCHLD, nullptr, nullptr, nullptr, nullptr));
  if (pid < 0) fail("create namespaces");
  if (pid == 0) {
    close(mapped_pipe[1]);
    run_init(spec, pipes, cgroups, listener, mapped_pipe[0], is_root);
  }
  close(mapped_pipe[0]);
  if (!is_root) map_ids(pid, uid, gid);
  close(mapped_pipe[1]);
  return pid;
}
