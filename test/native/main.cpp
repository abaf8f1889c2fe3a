#include <cstring>

#include "test/native/testing.h"

// Runs all tests, or those whose names contain the first argument. Exits 1 when one fails or none matches.
int main(int argc, char** argv) {
  using namespace capstan::testing;
  const char* filter = argc > 1 ? argv[1] : "";
  int num_passed = 0, num_failed = 0;
  for (const Test& test : tests()) {
    if (std::strstr(test.name, filter) == nullptr) continue;
    num_failures() = 0;
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
