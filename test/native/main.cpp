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
    "usage: %s [--list] [--jobs N] [--seconds N] [--first-failure] [--without PART] [PART…]\n"
    "Runs the tests whose names contain a PART (default: all).\n"
    "  --list           print the names of the tests\n"
    "  --jobs N         run each test in a separate process, N at a time (default: all in this process)\n"
    "  --seconds N      time limit of a test (default: 600, far above the slowest test under a sanitizer)\n"
    "  --first-failure  stop after the first failure; has no effect with --jobs\n"
    "  --without PART   leave out the tests whose names contain it\n"
    "Exits with 1 when a test fails or exceeds its time limit, or when no test matches.\n";

struct Options {
  bool lists = false, ends_at_failure = false;
  int jobs = 0, seconds = 600;
  std::vector<const char*> parts;
  const char* excluded = nullptr;

  bool chooses(const Test& test) const {
    const auto contains = [&test](const char* part) { return std::strstr(test.name, part) != nullptr; };
    return (parts.empty() || std::ranges::any_of(parts, contains)) && (excluded == nullptr || !contains(excluded));
  }
};

// Returns false for an unknown option or a bad value.
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
    } else if (name == "--without") {
      if (i + 1 == argc) return false;
      options.excluded = argv[++i];
    } else {
      if (name.starts_with("-")) return false;
      options.parts.push_back(argv[i]);
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

// ---- all tests in this process ----

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

// ---- each test in a separate process ----

struct Job {
  const Test* test;
  pid_t process;
  int output;  // a file that collects the output, so that it is printed in one piece
  Clock::time_point begin;
  Clock::time_point deadline;
  bool is_hung = false;
};

Job begin_job(const Test& test, int seconds) {
  const int output = memfd_create("output", MFD_CLOEXEC);
  const pid_t process = fork();
  if (output < 0 || process < 0) {
    std::perror("cannot start a process for a test");
    std::exit(1);
  }
  if (process == 0) {
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
    std::exit(has_passed(test) ? 0 : 1);
  }
  const auto now = Clock::now();
  return {&test, process, output, now, now + std::chrono::seconds(seconds)};
}

struct Result {
  const Test* test;
  bool passed;
  double seconds;
  std::string output;
};

void print(const Result& result) {
  std::fputs(result.output.c_str(), stdout);
  report(*result.test, result.passed);
}

Result end_job(const Job& job, int status, int seconds) {
  Result result = {job.test, status == 0, std::chrono::duration<double>(Clock::now() - job.begin).count(), ""};
  char bytes[4096];
  lseek(job.output, 0, SEEK_SET);
  for (ssize_t count; (count = read(job.output, bytes, sizeof bytes)) > 0;)
    result.output.append(bytes, static_cast<size_t>(count));
  close(job.output);
  if (job.is_hung)
    result.output += "  did not finish within " + std::to_string(seconds) + " s\n";
  else if (WIFSIGNALED(status))
    result.output += "  ended by signal " + std::to_string(WTERMSIG(status)) + "\n";
  return result;
}

void print_slowest(std::vector<Result>& results) {
  constexpr size_t kNumShown = 10;
  std::sort(results.begin(), results.end(), [](const Result& a, const Result& b) { return a.seconds > b.seconds; });
  std::printf("slowest tests:\n");
  for (size_t i = 0; i < std::min(results.size(), kNumShown); ++i)
    std::printf("%7.1f s  %s\n", results[i].seconds, results[i].test->name);
}

// The end of a log is what most readers see.
int print_failed_again(const std::vector<Result>& results) {
  int num_failed = 0;
  for (const Result& result : results) {
    if (result.passed) continue;
    if (num_failed++ == 0) std::printf("failed tests:\n");
    print(result);
  }
  return num_failed;
}

int run_apart(const std::vector<const Test*>& chosen, const Options& options) {
  std::vector<Job> jobs;
  std::vector<Result> results;
  for (size_t next = 0; next < chosen.size() || !jobs.empty();) {
    while (next < chosen.size() && jobs.size() < static_cast<size_t>(options.jobs))
      jobs.push_back(begin_job(*chosen[next++], options.seconds));
    for (size_t i = 0; i < jobs.size();) {
      Job& job = jobs[i];
      int status = 0;
      // Abandons a process that does not even end on SIGKILL.
      const bool is_left = job.is_hung && Clock::now() > job.deadline + std::chrono::seconds(5);
      if (!job.is_hung && Clock::now() > job.deadline) {
        job.is_hung = true;
        kill(job.process, SIGKILL);
      }
      if (waitpid(job.process, &status, WNOHANG) == 0 && !is_left) {
        ++i;
        continue;
      }
      results.push_back(end_job(job, is_left ? -1 : status, options.seconds));
      print(results.back());
      jobs.erase(jobs.begin() + static_cast<ptrdiff_t>(i));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  print_slowest(results);
  return print_failed_again(results);
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
    if (options.chooses(test)) chosen.push_back(&test);
  if (options.lists) {
    for (const Test* test : chosen)
      std::printf("%s\n", test->name);
    return 0;
  }
  const int num_failed = options.jobs > 0 ? run_apart(chosen, options) : run_here(chosen, options);
  std::printf("%zu passed, %d failed\n", chosen.size() - static_cast<size_t>(num_failed), num_failed);
  return num_failed > 0 || chosen.empty() ? 1 : 0;
}
