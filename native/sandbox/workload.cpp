#include "native/sandbox/workload.h"

#include <fcntl.h>
#include <grp.h>
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

#include <cerrno>
#include <cstring>
#include <exception>

#include "native/sandbox/forwarder.h"
#include "native/sandbox/namespaces.h"

namespace {

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (const std::string& text : texts)
    result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

void tell(int fd, const std::string& text) {
  [[maybe_unused]] const ssize_t ignored = write(fd, text.data(), text.size());
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

/** Never returns. */
void execute(const Spec& spec, const Pipes& pipes) {
  setsid();
  const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
  dup2(nothing, STDIN_FILENO);
  dup2(pipes.output[1], STDOUT_FILENO);
  dup2(pipes.errors[1], STDERR_FILENO);
  // A core would hold secrets, and fill the disk.
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  umask(022);
  if (!spec.cwd.empty() && chdir(spec.cwd.c_str()) != 0) fail("chdir " + spec.cwd);
  reset_signals();
  execve(spec.args[0].c_str(), pointers(spec.args).data(), pointers(spec.env).data());
  fail("exec " + spec.args[0]);
}

/** Waits until the other end has closed the pipe. */
void wait_for_close(int fd) {
  char byte;
  while (read(fd, &byte, 1) > 0 || errno == EINTR)
    errno = 0;
}

/** Root in a user namespace of its own: it can undo nothing of what its world was made of, and is nobody to the host.
 */
pid_t start_inside(const Spec& spec, const Pipes& pipes, const std::vector<int>& cgroups, bool is_root) {
  int is_unshared[2], is_mapped[2];
  if (pipe2(is_unshared, O_CLOEXEC) != 0 || pipe2(is_mapped, O_CLOEXEC) != 0) fail("pipe");
  const pid_t pid = fork();
  if (pid < 0) fail("fork");
  if (pid == 0) {
    try {
      close(is_unshared[0]);
      close(is_mapped[1]);
      join(cgroups);
      if (is_root && setgroups(0, nullptr) != 0) fail("setgroups");
      if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) fail("a user namespace");
      close(is_unshared[1]);
      wait_for_close(is_mapped[0]);
      if (setresgid(0, 0, 0) != 0 || setresuid(0, 0, 0) != 0) fail("become root inside");
      drop_privileges();
      execute(spec, pipes);
    } catch (const std::exception& error) {
      tell(pipes.failure[1], error.what());
    }
    _exit(127);
  }
  close(is_unshared[1]);
  close(is_mapped[0]);
  wait_for_close(is_unshared[0]);
  close(is_unshared[0]);
  // As an ordinary user root here is that user already.
  map_ids(pid, is_root ? spec.uid : 0, is_root ? spec.gid : 0);
  close(is_mapped[1]);
  return pid;
}

sigset_t watched_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGCHLD, SIGTERM})
    sigaddset(&signals, number);
  return signals;
}

/** Of the first process: reaps, forwards, and passes TERM on to all. Returns how the workload ended. */
Ending look_after(pid_t workload, Forwarder& forwarder, int signals) {
  for (;;) {
    pollfd fds[2] = {{signals, POLLIN, 0}, {forwarder.fd(), POLLIN, 0}};
    if (poll(fds, 2, -1) < 0 && errno != EINTR) fail("poll");
    if (fds[1].revents != 0) forwarder.work();
    // Each token of an answer comes by here: nothing is asked of the system that has not changed.
    if (fds[0].revents == 0) continue;
    signalfd_siginfo info{};
    while (read(signals, &info, sizeof info) == sizeof info) {
      if (info.ssi_signo == SIGTERM) kill(-1, SIGTERM);
    }
    int status = 0;
    for (pid_t pid = waitpid(-1, &status, WNOHANG); pid > 0; pid = waitpid(-1, &status, WNOHANG)) {
      if (pid == workload) return ending_of(status);
    }
  }
}

/** Never returns; its end is the end of all processes in its namespace. */
[[noreturn]] void be_first(const Spec& spec, const Pipes& pipes, const std::vector<int>& cgroups, int listener,
                           int is_mapped, bool is_root) {
  try {
    umask(0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    wait_for_close(is_mapped);
    if (!is_root && (setresgid(0, 0, 0) != 0 || setresuid(0, 0, 0) != 0)) fail("become root in the namespace");
    // NOTE: a change of ids takes it back.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_DUMPABLE, 1);
    enter_world(spec);
    const sigset_t wanted = watched_signals();
    sigprocmask(SIG_SETMASK, &wanted, nullptr);
    const int signals = signalfd(-1, &wanted, SFD_NONBLOCK | SFD_CLOEXEC);
    const pid_t workload = start_inside(spec, pipes, cgroups, is_root);
    for (const int fd : {pipes.output[1], pipes.errors[1], pipes.failure[1]})
      close(fd);
    const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
      dup2(nothing, fd);
    Forwarder forwarder(listener, spec.inner_host, spec.inner_port);
    const Ending ending = look_after(workload, forwarder, signals);
    tell(pipes.status[1], std::to_string(ending.code) + " " + std::to_string(ending.signal));
    _exit(0);
  } catch (const std::exception& error) {
    tell(pipes.failure[1], error.what());
    _exit(126);
  }
}

}  // namespace

Ending ending_of(int wait_status) {
  if (WIFSIGNALED(wait_status)) return {-1, WTERMSIG(wait_status)};
  return {WEXITSTATUS(wait_status), 0};
}

pid_t start_plain(const Spec& spec, const Pipes& pipes, const std::vector<int>& cgroups) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  try {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    join(cgroups);
    execute(spec, pipes);
  } catch (const std::exception& error) {
    tell(pipes.failure[1], error.what());
  }
  _exit(127);
}

pid_t start_isolated(const Spec& spec, const Pipes& pipes, const std::vector<int>& cgroups, int listener) {
  const bool is_root = geteuid() == 0;
  const uid_t uid = geteuid();
  const gid_t gid = getegid();
  int is_mapped[2];
  if (pipe2(is_mapped, O_CLOEXEC) != 0) fail("pipe");
  const auto pid =
      static_cast<pid_t>(syscall(SYS_clone, namespace_flags() | SIGCHLD, nullptr, nullptr, nullptr, nullptr));
  if (pid < 0) fail("new namespaces");
  if (pid == 0) {
    close(is_mapped[1]);
    be_first(spec, pipes, cgroups, listener, is_mapped[0], is_root);
  }
  close(is_mapped[0]);
  if (!is_root) map_ids(pid, uid, gid);
  close(is_mapped[1]);
  return pid;
}
