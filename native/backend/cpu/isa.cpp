#include "native/backend/cpu/isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
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
#elif defined(__aarch64__)
// Every arm64 processor has NEON.
struct CpuFeatures {
  bool has_dot_product = false;
  bool has_bf16 = false;  // with i8mm and the dot product
};

#if defined(__linux__)
CpuFeatures read_cpu_features() {
  // Source: arch/arm64/include/uapi/asm/hwcap.h of Linux. Headers of older systems lack some of the names.
  constexpr unsigned long kAtomics = 1ul << 8, kCrc32 = 1ul << 7, kRoundingMultiply = 1ul << 12;  // of AT_HWCAP
  constexpr unsigned long kDotProduct = 1ul << 20;
  constexpr unsigned long kInt8Matrix = 1ul << 13, kBf16 = 1ul << 14;  // of AT_HWCAP2
  // The compiler may use all of Armv8.2 in these kernels.
  constexpr unsigned long kWithDotProduct = kAtomics | kCrc32 | kRoundingMultiply | kDotProduct;
  constexpr unsigned long kWithBf16 = kInt8Matrix | kBf16;
  CpuFeatures features;
  features.has_dot_product = (getauxval(AT_HWCAP) & kWithDotProduct) == kWithDotProduct;
  features.has_bf16 = features.has_dot_product && (getauxval(AT_HWCAP2) & kWithBf16) == kWithBf16;
  return features;
}
#elif defined(__APPLE__)
CpuFeatures read_cpu_features() {
  const auto has = [](const char* name) {
    int value = 0;
    size_t size = sizeof value;
    return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
  };
  CpuFeatures features;
  features.has_dot_product = has("hw.optional.arm.FEAT_DotProd");
  features.has_bf16 = features.has_dot_product && has("hw.optional.arm.FEAT_BF16") && has("hw.optional.arm.FEAT_I8MM");
  return features;
}
#else
CpuFeatures read_cpu_features() {
  return {};
}
#endif
#endif

bool can_run(CpuIsa isa) {
  if (isa == CpuIsa::kPortable) return true;
#if defined(__x86_64__) || defined(__aarch64__)
  static const CpuFeatures features = read_cpu_features();
#endif
  switch (isa) {
#if defined(__x86_64__)
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
#elif defined(__aarch64__)
    case CpuIsa::kNeon:
      return true;
    case CpuIsa::kNeonDot:
      return features.has_dot_product;
    case CpuIsa::kNeonBf16:
      return features.has_bf16;
#endif
    default:
      return false;
  }
}

}  // namespace

std::vector<CpuIsa> available_cpu_isas() {
  std::vector<CpuIsa> isas;
  for (const CpuIsa isa : {CpuIsa::kAvx512Bf16, CpuIsa::kAvx512Vnni, CpuIsa::kAvx512, CpuIsa::kAvxVnni, CpuIsa::kAvx2,
                           CpuIsa::kNeonBf16, CpuIsa::kNeonDot, CpuIsa::kNeon, CpuIsa::kPortable})
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
    case CpuIsa::kNeon:
      return "neon";
    case CpuIsa::kNeonDot:
      return "neondot";
    case CpuIsa::kNeonBf16:
      return "neonbf16";
  }
  return "portable";
}

const CpuKernels& cpu_kernels(CpuIsa isa) {
  CAPSTAN_CHECK(can_run(isa));
  switch (isa) {
#if defined(__x86_64__)
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
#elif defined(__aarch64__)
    case CpuIsa::kNeon:
      return kNeonKernels;
    case CpuIsa::kNeonDot:
      return kNeonDotKernels;
    case CpuIsa::kNeonBf16:
      return kNeonBf16Kernels;
#endif
    default:
      return kPortableKernels;
  }
}

}  // namespace capstan
