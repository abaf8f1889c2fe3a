// Which instruction sets the processor offers. CAPSTAN_TEST_ISAS lists those that an emulated processor must offer.
#include <cstdlib>
#include <set>
#include <string>

#include "native/backend/cpu/isa.h"
#include "test/native/testing.h"

namespace capstan::testing {
namespace {

std::string available_names() {
  std::string names;
  for (const CpuIsa isa : available_cpu_isas())
    names += std::string(names.empty() ? "" : " ") + cpu_isa_name(isa);
  return names;
}

TEST(isa_list_ends_with_the_portable_one) {
  EXPECT(available_cpu_isas().back() == CpuIsa::kPortable);
}

TEST(isa_list_has_a_name_and_a_table_for_each) {
  std::set<std::string> names;
  std::set<const CpuKernels*> tables;
  for (const CpuIsa isa : available_cpu_isas()) {
    names.insert(cpu_isa_name(isa));
    tables.insert(&cpu_kernels(isa));
  }
  EXPECT_EQ(names.size(), available_cpu_isas().size());
  EXPECT_EQ(tables.size(), available_cpu_isas().size());
}

TEST(isa_list_is_what_the_processor_offers) {
  const char* expected = std::getenv("CAPSTAN_TEST_ISAS");
  if (expected != nullptr) EXPECT_EQ(available_names(), std::string(expected));
}

}  // namespace
}  // namespace capstan::testing
