#include <unistd.h>

#include <csignal>
#include <cstring>

#include "test/native/testing.h"

namespace {

constexpr unsigned kHungAfterSeconds = 600;  // far beyond the slowest test under a sanitizer
const char* running = "";

void end_as_hung(int) {
  for (const char* part : {"HUNG   ", running, "\n"}) static_cast<void>(!write(STDOUT_FILENO, part, std::strlen(part)));
  _exit(1);
}

}  // namespace

// Runs all tests, or those whose names contain the first argument; --list prints the names. Exits 1 when one fails or hangs, or none matches.
int main(int argc, char** argv) {
  using namespace capstan::testing;
  const char* filter = argc > 1 ? argv[1] : "";
  if (std::strcmp(filter, "--list") == 0) {
    for (const Test& test : tests()) std::printf("%s\n", test.name);
    return 0;
  }
  std::signal(SIGALRM, end_as_hung);
  int num_passed = 0, num_failed = 0;
  for (const Test& test : tests()) {
    if (std::strstr(test.name, filter) == nullptr) continue;
    num_failures() = 0;
    running = test.name;
    alarm(kHungAfterSeconds);
    try {
      test.run();
    } catch (const std::exception& error) {
      fail(test.name, 0, std::string("threw: ") + error.what());
    }
    std::printf("%s %s\n", num_failures() == 0 ? "ok    " : "FAILED", test.name);
    std::fflush(stdout);
    ++(num_failures() == 0 ? num_passed : num_failed);
  }
  std::printf("%d passed, %d failed\n", num_passed, num_failed);
  return num_failed > 0 || num_passed == 0 ? 1 : 0;
}
