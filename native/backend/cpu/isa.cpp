#include "native/backend/cpu/isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "native/base/check.h"

namespace capstan {

namespace {

#if defined(__x86_64__)
// Read with CPUID, because `__builtin_cpu_supports` always returns false in programs that zig links.
// Source: Intel SDM volume 2, CPUID; volume 1, 13.3 (XCR0).
struct CpuFeatures {
  bool has_avx2 = false;        // with FMA and F16C
  bool has_avx_vnni = false;    // with AVX2
  bool has_avx512 = false;      // F, BW, VL and DQ
  bool has_avx512vnni = false;  // with AVX-512
  bool has_avx512bf16 = false;  // with VNNI
};

// Returns XCR0: the register states that the operating system saves.
uint32_t saved_register_states() {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

CpuFeatures read_cpu_features() {
  constexpr uint32_t kAvxStates = 0x6, kAvx512States = 0xe6;
  const auto has = [](uint32_t bits, std::initializer_list<int> wanted) {
    return std::all_of(wanted.begin(), wanted.end(), [bits](int bit) { return (bits >> bit & 1) != 0; });
  };
  CpuFeatures features;
  uint32_t eax, ebx, ecx, edx;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return features;
  if (!has(ecx, {12, 27, 28, 29})) return features;  // FMA, OSXSAVE, AVX, F16C
  const uint32_t states = saved_register_states();
  if ((states & kAvxStates) != kAvxStates || !__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return features;
  const uint32_t last_subleaf = eax;
  features.has_avx2 = has(ebx, {5});
  features.has_avx512 =
      features.has_avx2 && (states & kAvx512States) == kAvx512States && has(ebx, {16, 17, 30, 31});  // F, DQ, BW, VL
  features.has_avx512vnni = features.has_avx512 && has(ecx, {11});
  if (last_subleaf >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx)) {
    features.has_avx_vnni = features.has_avx2 && has(eax, {4});
    features.has_avx512bf16 = features.has_avx512vnni && has(eax, {5});
  }
  return features;
}
#endif

bool can_run(CpuIsa isa) {
#if defined(__x86_64__)
  static const CpuFeatures features = read_cpu_features();
  switch (isa) {
    case CpuIsa::kPortable:
      return true;
    case CpuIsa::kAvx2:
      return features.has_avx2;
    case CpuIsa::kAvxVnni:
      return features.has_avx_vnni;
    case CpuIsa::kAvx512:
      return features.has_avx512;
    case CpuIsa::kAvx512Vnni:
      return features.has_avx512vnni;
    case CpuIsa::kAvx512Bf16:
      return features.has_avx512bf16;
  }
  return false;
#else
  return isa == CpuIsa::kPortable;
#endif
}

}  // namespace

std::vector<CpuIsa> available_cpu_isas() {
  std::vector<CpuIsa> isas;
  for (const CpuIsa isa :
       {CpuIsa::kAvx512Bf16, CpuIsa::kAvx512Vnni, CpuIsa::kAvx512, CpuIsa::kAvxVnni, CpuIsa::kAvx2, CpuIsa::kPortable})
    if (can_run(isa)) isas.push_back(isa);
  return isas;
}

const char* cpu_isa_name(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kPortable:
      return "portable";
    case CpuIsa::kAvx2:
      return "avx2";
    case CpuIsa::kAvxVnni:
      return "avxvnni";
    case CpuIsa::kAvx512:
      return "avx512";
    case CpuIsa::kAvx512Vnni:
      return "avx512vnni";
    case CpuIsa::kAvx512Bf16:
      return "avx512bf16";
  }
  return "portable";
}

const CpuKernels& cpu_kernels(CpuIsa isa) {
  CAPSTAN_CHECK(can_run(isa));
#if defined(__x86_64__)
  switch (isa) {
    case CpuIsa::kPortable:
      return kPortableKernels;
    case CpuIsa::kAvx2:
      return kAvx2Kernels;
    case CpuIsa::kAvxVnni:
      return kAvxVnniKernels;
    case CpuIsa::kAvx512:
      return kAvx512Kernels;
    case CpuIsa::kAvx512Vnni:
      return kAvx512VnniKernels;
    case CpuIsa::kAvx512Bf16:
      return kAvx512Bf16Kernels;
  }
#endif
  return kPortableKernels;
}

}  // namespace capstan
