#include "native/backend/cpu/isa.h"

#include "native/base/check.h"

namespace capstan {

namespace {

bool can_run(CpuIsa isa) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool has_avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  switch (isa) {
    case CpuIsa::kPortable:
      return true;
    case CpuIsa::kAvx2:
      return has_avx2;
    case CpuIsa::kAvx512:
      return has_avx512;
    case CpuIsa::kAvx512Bf16:
      return has_avx512 && __builtin_cpu_supports("avx512bf16");
  }
  return false;
#else
  return isa == CpuIsa::kPortable;
#endif
}

}  // namespace

std::vector<CpuIsa> available_cpu_isas() {
  std::vector<CpuIsa> isas;
  for (const CpuIsa isa : {CpuIsa::kAvx512Bf16, CpuIsa::kAvx512, CpuIsa::kAvx2, CpuIsa::kPortable})
    if (can_run(isa)) isas.push_back(isa);
  return isas;
}

const char* cpu_isa_name(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kPortable:
      return "portable";
    case CpuIsa::kAvx2:
      return "avx2";
    case CpuIsa::kAvx512:
      return "avx512";
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
    case CpuIsa::kAvx512:
      return kAvx512Kernels;
    case CpuIsa::kAvx512Bf16:
      return kAvx512Bf16Kernels;
  }
#endif
  return kPortableKernels;
}

}  // namespace capstan
