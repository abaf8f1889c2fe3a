#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "test/native/testing.h"

namespace capstan::testing {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kUsage =
    "usage: %s [--list] [--jobs N] [--seconds N] [--first-failure] [PART OF A NAME]\n"
    "  --list           prints the names of tests\n"
    "  --jobs           each test in a process of its own, so many at a time (default: all in this one)\n"
    "  --seconds        after which a test counts as hung (default: 600, far beyond the slowest under a sanitizer)\n"
    "  --first-failure  ends there; without --jobs\n"
    "Exits 1 when a test fails or hangs, or none has such a name.\n";

struct Options {
  bool lists = false, ends_at_failure = false;
  int jobs = 0, seconds = 600;
  const char* filter = "";
};

// False for what it does not know.
bool read_options(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--list") {
      options.lists = true;
    } else if (name == "--first-failure") {
      options.ends_at_failure = true;
    } else if (name == "--jobs" || name == "--seconds") {
      const int number = i + 1 < argc ? std::atoi(argv[++i]) : 0;
      if (number < 1) return false;
      (name == "--jobs" ? options.jobs : options.seconds) = number;
    } else {
      if (name.starts_with("-") || *options.filter != 0) return false;
      options.filter = argv[i];
    }
  }
  return true;
}

bool has_passed(const Test& test) {
  num_failures() = 0;
  try {
    test.run();
  } catch (const std::exception& error) {
    fail(test.name, 0, std::string("threw: ") + error.what());
  }
  return num_failures() == 0;
}

void report(const Test& test, bool passed) {
  std::printf("%s %s\n", passed ? "ok    " : "FAILED", test.name);
  std::fflush(stdout);
}

// ---- all in this process ----

const char* running = "";

void end_as_hung(int) {
  for (const char* part : {"HUNG   ", running, "\n"})
    static_cast<void>(!write(STDOUT_FILENO, part, std::strlen(part)));
  _exit(1);
}

int run_here(const std::vector<const Test*>& chosen, const Options& options) {
  std::signal(SIGALRM, end_as_hung);
  int num_failed = 0;
  for (const Test* test : chosen) {
    running = test->name;
    alarm(static_cast<unsigned>(options.seconds));
    const bool passed = has_passed(*test);
    report(*test, passed);
    num_failed += passed ? 0 : 1;
    if (!passed && options.ends_at_failure) break;
  }
  return num_failed;
}

// ---- each in a process of its own ----

struct Job {
  const Test* test;
  pid_t process;
  int output;  // a file that its output goes to, so that it is printed in one piece
  Clock::time_point deadline;
  bool is_hung = false;
};

Job begin_job(const Test& test, int seconds) {
  const int output = memfd_create("output", MFD_CLOEXEC);
  const pid_t process = fork();
  if (output < 0 || process < 0) {
    std::perror("a process for a test");
    std::exit(1);
  }
  if (process == 0) {
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
    std::exit(has_passed(test) ? 0 : 1);
  }
  return {&test, process, output, Clock::now() + std::chrono::seconds(seconds)};
}

// Whether it has passed.
bool end_job(const Job& job, int status, int seconds) {
  char bytes[4096];
  lseek(job.output, 0, SEEK_SET);
  for (ssize_t count; (count = read(job.output, bytes, sizeof bytes)) > 0;)
    std::fwrite(bytes, 1, static_cast<size_t>(count), stdout);
  close(job.output);
  if (job.is_hung)
    std::printf("  has not ended within %d s\n", seconds);
  else if (WIFSIGNALED(status))
    std::printf("  ended by signal %d\n", WTERMSIG(status));
  report(*job.test, status == 0);
  return status == 0;
}

int run_apart(const std::vector<const Test*>& chosen, const Options& options) {
  std::vector<Job> jobs;
  int num_failed = 0;
  for (size_t next = 0; next < chosen.size() || !jobs.empty();) {
    while (next < chosen.size() && jobs.size() < static_cast<size_t>(options.jobs))
      jobs.push_back(begin_job(*chosen[next++], options.seconds));
    for (size_t i = 0; i < jobs.size();) {
      Job& job = jobs[i];
      int status = 0;
      // A process that not even a signal ends is left behind.
      const bool is_left = job.is_hung && Clock::now() > job.deadline + std::chrono::seconds(5);
      if (!job.is_hung && Clock::now() > job.deadline) {
        job.is_hung = true;
        kill(job.process, SIGKILL);
      }
      if (waitpid(job.process, &status, WNOHANG) == 0 && !is_left) {
        ++i;
        continue;
      }
      if (!end_job(job, is_left ? -1 : status, options.seconds)) ++num_failed;
      jobs.erase(jobs.begin() + static_cast<ptrdiff_t>(i));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return num_failed;
}

}  // namespace
}  // namespace capstan::testing

int main(int argc, char** argv) {
  using namespace capstan::testing;
  Options options;
  if (!read_options(argc, argv, options)) {
    std::fprintf(stderr, kUsage, argv[0]);
    return 2;
  }
  std::vector<const Test*> chosen;
  for (const Test& test : tests())
    if (std::strstr(test.name, options.filter) != nullptr) chosen.push_back(&test);
  if (options.lists) {
    for (const Test* test : chosen)
      std::printf("%s\n", test->name);
    return 0;
  }
  const int num_failed = options.jobs > 0 ? run_apart(chosen, options) : run_here(chosen, options);
  std::printf("%zu passed, %d failed\n", chosen.size() - static_cast<size_t>(num_failed), num_failed);
  return num_failed > 0 || chosen.empty() ? 1 : 0;
}
