#include "native/backend/cpu/isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <utility>

#include "native/backend/cpu/row_check.h"
#include "native/base/check.h"

namespace capstan {

namespace {

#if defined(__x86_64__)
struct CpuModel {
  uint32_t family = 0, model = 0;
  bool operator==(const CpuModel&) const = default;
};

template <size_t kSize>
bool is_one_of(const CpuModel& model, const CpuModel (&models)[kSize]) {
  return std::find(std::begin(models), std::end(models), model) != std::end(models);
}

// Read with CPUID, because `__builtin_cpu_supports` always returns false in programs that zig links.
// Source: Intel SDM volume 2, CPUID; volume 1, 13.3 (XCR0).
struct CpuFeatures {
  bool has_avx2 = false;        // with FMA and F16C
  bool has_avx_vnni = false;    // with AVX2
  bool has_avx512 = false;      // F, BW, VL and DQ
  bool has_avx512vnni = false;  // with AVX-512
  bool has_avx512bf16 = false;  // with VNNI
  bool has_amx = false;         // tiles, bf16 and int8, with AVX512-BF16
  CpuModel model;
};

// Processors whose `vdpbf16ps` issues at half the rate of an FMA, so that FMAs on unpacked bf16 lose nothing and need
// less of the one port that has it. Both give the same bits.
constexpr CpuModel kSlowBf16[] = {
    {6, 0xad},  // Intel Granite Rapids: FMA 214, vdpbf16ps 107 GFLOP/s for one thread
};

// Processors that read memory faster without software prefetch, as long as the addresses are in order.
constexpr CpuModel kPrefetchThemselves[] = {
    {25, 0x11},  // AMD Genoa: one thread reads 26 to 28 GB/s instead of 20 to 24
};

// Source: Intel SDM volume 2, CPUID, leaf 1.
CpuModel read_model(uint32_t leaf_1_eax) {
  const uint32_t base_family = leaf_1_eax >> 8 & 15;
  return {base_family == 15 ? base_family + (leaf_1_eax >> 20 & 255) : base_family,
          (leaf_1_eax >> 4 & 15) | (leaf_1_eax >> 12 & 0xf0)};
}

// Returns XCR0: the register states that the operating system saves.
uint32_t saved_register_states() {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

// The kernels expect palette 1: 8 tiles of 16 rows of 64 bytes. Source: Intel SDM volume 2, CPUID, leaf 1DH.
bool has_tile_palette() {
  uint32_t eax, ebx, ecx, edx;
  return __get_cpuid_count(0x1d, 1, &eax, &ebx, &ecx, &edx) && ebx == (8u << 16 | 64u) && (ecx & 0xffffu) == 16;
}

// Asks for the permission to use the tile registers, for all threads of the process. Without it, their first use is an
// illegal instruction. Fails on Linux before 5.16, where a system call filter refuses it, and when a thread has an
// alternate signal stack that is too small for the registers.
bool may_use_tiles() {
#if defined(__linux__)
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

CpuFeatures read_cpu_features() {
  constexpr uint32_t kAvxStates = 0x6, kAvx512States = 0xe6, kTileStates = 0x60000;
  const auto has = [](uint32_t bits, std::initializer_list<int> wanted) {
    return std::all_of(wanted.begin(), wanted.end(), [bits](int bit) { return (bits >> bit & 1) != 0; });
  };
  CpuFeatures features;
  uint32_t eax, ebx, ecx, edx;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return features;
  features.model = read_model(eax);
  if (!has(ecx, {12, 27, 28, 29})) return features;  // FMA, OSXSAVE, AVX, F16C
  const uint32_t states = saved_register_states();
  if ((states & kAvxStates) != kAvxStates || !__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return features;
  const uint32_t last_subleaf = eax;
  features.has_avx2 = has(ebx, {5});
  features.has_avx512 =
      features.has_avx2 && (states & kAvx512States) == kAvx512States && has(ebx, {16, 17, 30, 31});  // F, DQ, BW, VL
  features.has_avx512vnni = features.has_avx512 && has(ecx, {11});
  const bool has_tiles = (states & kTileStates) == kTileStates && has(edx, {22, 24, 25});  // BF16, TILE, INT8
  if (last_subleaf >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx)) {
    features.has_avx_vnni = features.has_avx2 && has(eax, {4});
    features.has_avx512bf16 = features.has_avx512vnni && has(eax, {5});
  }
  // The kernels rely on the order of sums that the manual states. A processor that has another one does without AMX.
  features.has_amx = features.has_avx512bf16 && has_tiles && has_tile_palette() && may_use_tiles() &&
                     rows_give_the_same_bits(kAmxKernels);
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

#if defined(__x86_64__) || defined(__aarch64__)
const CpuFeatures& cpu_features() {
  static const CpuFeatures features = read_cpu_features();
  return features;
}
#endif

bool can_run(CpuIsa isa) {
  if (isa == CpuIsa::kPortable) return true;
#if defined(__x86_64__) || defined(__aarch64__)
  const CpuFeatures& features = cpu_features();
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
    case CpuIsa::kAmx:
      return features.has_amx;
#ifdef CAPSTAN_AMX_TWIN
    case CpuIsa::kAmxTwin:
      return features.has_avx512bf16;
#endif
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
  for (const CpuIsa isa : {CpuIsa::kAmx, CpuIsa::kAvx512Bf16, CpuIsa::kAvx512Vnni, CpuIsa::kAvx512, CpuIsa::kAvxVnni,
                           CpuIsa::kAvx2, CpuIsa::kNeonBf16, CpuIsa::kNeonDot, CpuIsa::kNeon, CpuIsa::kPortable})
    if (can_run(isa)) isas.push_back(isa);
#if defined(__x86_64__)
  const auto bf16 = std::find(isas.begin(), isas.end(), CpuIsa::kAvx512Bf16);
  if (is_one_of(cpu_features().model, kSlowBf16) && bf16 != isas.end()) std::swap(*bf16, *(bf16 + 1));  // with VNNI
#endif
#ifdef CAPSTAN_AMX_TWIN
  if (can_run(CpuIsa::kAmxTwin)) isas.insert(isas.end() - 1, CpuIsa::kAmxTwin);
#endif
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
    case CpuIsa::kAmx:
      return "amx";
#ifdef CAPSTAN_AMX_TWIN
    case CpuIsa::kAmxTwin:
      return "amx-twin";
#endif
    case CpuIsa::kNeon:
      return "neon";
    case CpuIsa::kNeonDot:
      return "neondot";
    case CpuIsa::kNeonBf16:
      return "neonbf16";
  }
  return "portable";
}

bool wants_prefetch() {
#if defined(__x86_64__)
  return !is_one_of(cpu_features().model, kPrefetchThemselves);
#else
  return true;
#endif
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
    case CpuIsa::kAmx:
      return kAmxKernels;
#ifdef CAPSTAN_AMX_TWIN
    case CpuIsa::kAmxTwin:
      return kAmxTwinKernels;
#endif
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
