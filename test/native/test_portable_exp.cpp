#include "native/base/portable_exp.h"

#include <cmath>
#include <limits>

#include "native/base/number.h"
#include "test/native/testing.h"

namespace capstan::testing {
namespace {

// From -87 to 88 in steps of a thousandth.
template <class Visit>
void for_many_floats(Visit visit) {
  for (int i = -87'000; i <= 88'000; ++i)
    visit(static_cast<float>(i) * 0.001f);
}

TEST(portable_exp_is_within_one_unit_in_the_last_place) {
  for_many_floats([](float x) {
    const double wanted = std::exp(static_cast<double>(x));
    const float rounded = static_cast<float>(wanted);
    const double unit = std::nextafter(rounded, std::numeric_limits<float>::infinity()) - rounded;
    EXPECT(std::abs(portable_exp(x) - wanted) <= 0.51 * unit);
  });
}

// The hash is that of g++ 12 and clang 22, with and without optimization.
TEST(portable_exp_has_the_same_bits_everywhere) {
  uint64_t hash = 1469598103934665603u;
  for_many_floats([&](float x) { hash = (hash ^ float_bits(portable_exp(x))) * 1099511628211u; });
  EXPECT_EQ(hash, uint64_t{0xe6d2008711ffb8f2});
}

TEST(portable_exp_of_extreme_values) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT(portable_exp(0) == 1 && portable_exp(-0.0f) == 1);
  EXPECT(portable_exp(kInfinity) == kInfinity && portable_exp(88.7229f) == kInfinity);
  EXPECT(portable_exp(88.7228f) < kInfinity);
  EXPECT(portable_exp(-kInfinity) == 0 && portable_exp(-88) == 0 && portable_exp(-87.3f) > 0);
  EXPECT(std::isnan(portable_exp(std::numeric_limits<float>::quiet_NaN())));
}

}  // namespace
}  // namespace capstan::testing
