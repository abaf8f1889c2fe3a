#pragma once
// A test is `TEST(what_it_shows) { EXPECT(condition); }`. The program runs all tests, or those whose names contain its
// argument (main.cpp).
#include <cmath>
#include <cstdio>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "native/base/error.h"

namespace capstan::testing {

struct Test {
  const char* name;
  void (*run)();
};

inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

inline int& num_failures() {
  static int failures = 0;
  return failures;
}

inline void fail(const char* file, int line, const std::string& message) {
  // Prints only the first failures, in case a loop fails on every round.
  if (++num_failures() <= 20) std::fprintf(stderr, "  %s:%d: %s\n", file, line, message.c_str());
}

struct Register {
  Register(const char* name, void (*run)()) { tests().push_back({name, run}); }
};

template <typename T>
std::string show(const T& value) {
  std::ostringstream out;
  out.precision(9);
  out << value;
  return out.str();
}

// Returns the code of the capstan::Error that `work` throws, or an empty string.
inline std::string thrown_code(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error_code_name(error.code());
  }
  return "";
}

// Deterministic, approximately normal values. One draw per value, because large shapes need millions of them.
inline std::vector<float> noise(uint64_t seed, int64_t count, float deviation) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    uint64_t x = (seed * 0x9e3779b97f4a7c15ull) ^ (i + 1) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    x ^= x >> 31;
    const int64_t sum = static_cast<int64_t>(x & 0xffff) + static_cast<int64_t>(x >> 16 & 0xffff) +
                        static_cast<int64_t>(x >> 32 & 0xffff) + static_cast<int64_t>(x >> 48);
    values[i] = static_cast<float>(sum - 2 * 0xffff) * (deviation * 1.7320508f / 0xffff);
  }
  return values;
}

}  // namespace capstan::testing

#define TEST(name)                                                               \
  static void test_##name();                                                     \
  static const ::capstan::testing::Register register_##name(#name, test_##name); \
  static void test_##name()

#define EXPECT(condition)                                                                   \
  do {                                                                                      \
    if (!(condition)) ::capstan::testing::fail(__FILE__, __LINE__, "expected " #condition); \
  } while (0)

#define EXPECT_EQ(got, wanted)                                                                                  \
  do {                                                                                                          \
    const auto got_value = (got);                                                                               \
    const auto wanted_value = (wanted);                                                                         \
    if (!(got_value == wanted_value))                                                                           \
      ::capstan::testing::fail(__FILE__, __LINE__,                                                              \
                               "expected " #got " to be " + ::capstan::testing::show(wanted_value) + ", got " + \
                                   ::capstan::testing::show(got_value));                                        \
  } while (0)

#define EXPECT_NEAR(got, wanted, tolerance)                                                                    \
  do {                                                                                                         \
    const double got_value = (got), wanted_value = (wanted);                                                   \
    if (!(std::abs(got_value - wanted_value) <= (tolerance)))                                                  \
      ::capstan::testing::fail(__FILE__, __LINE__,                                                             \
                               "expected " #got " near " + ::capstan::testing::show(wanted_value) + ", got " + \
                                   ::capstan::testing::show(got_value));                                       \
  } while (0)

#define EXPECT_ERROR(code, ...) EXPECT_EQ(::capstan::testing::thrown_code([&] { __VA_ARGS__; }), std::string(code))
