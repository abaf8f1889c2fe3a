#pragma once
// Limits how long a kernel waits for a flag or an mbarrier, in builds with the CMake option CAPSTAN_LIMITED_SPINS. A
// wait beyond the limit stores its place in host memory, which stays readable after the device is lost, and traps. The
// reason of the loss then names the wait.
#include <string>

#include "cuda/device.h"

namespace capstan::cuda {

// The first wait that did not end.
struct SpinReport {
  int32_t is_taken;     // by the wait that fills in the report
  int32_t is_complete;  // written last
  int32_t block[3];
  int32_t warp;
  uint32_t address;  // of the mbarrier in shared memory, or the low half of the flag's address
  int32_t parity;    // that the wait expects; -1 for a flag
  int32_t line;
  char file[64];
};

// Pinned memory, or null in builds without the limit.
inline SpinReport*& host_spin_report() {
  static SpinReport* report = nullptr;
  return report;
}

// Empty when no wait has exceeded its limit.
inline std::string describe_spin() {
  const volatile SpinReport* const report = host_spin_report();
  if (report == nullptr || report->is_complete == 0) return {};
  const auto text = [](int32_t value) { return std::to_string(value); };
  const std::string what = report->parity < 0 ? "flag " : "mbarrier ";
  const std::string parity = report->parity < 0 ? "" : ", parity " + text(report->parity);
  return const_cast<const char*>(report->file) + (":" + text(report->line)) + ": block (" + text(report->block[0]) +
         ", " + text(report->block[1]) + ", " + text(report->block[2]) + "), warp " + text(report->warp) +
         " waited too long for " + what + std::to_string(report->address) + parity;
}

#if defined(CAPSTAN_LIMITED_SPINS) && defined(__CUDACC__)
constexpr long long kSpinCycles = 1LL << 32;  // two to three seconds

// Points to the host's report. Each source file has a separate pointer, because device code is linked per file.
static __device__ SpinReport* spin_report;

// NOTE: not a function call, for which a kernel with wgmma has no registers left.
__device__ __forceinline__ void fail_spin(const char* file, int line, uint32_t address, int parity) {
  SpinReport* const report = spin_report;
  if (report != nullptr && atomicExch_system(&report->is_taken, 1) == 0) {
    report->block[0] = static_cast<int32_t>(blockIdx.x);
    report->block[1] = static_cast<int32_t>(blockIdx.y);
    report->block[2] = static_cast<int32_t>(blockIdx.z);
    report->warp = warp_id();
    report->address = address;
    report->parity = parity;
    report->line = line;
    // The end of a long path.
    const char* end = file;
    while (*end != 0)
      ++end;
    const char* const from = end - file < int{sizeof report->file} ? file : end - (sizeof report->file - 1);
    for (int i = 0; from + i < end; ++i)
      report->file[i] = from[i];
    __threadfence_system();
    report->is_complete = 1;
    __threadfence_system();
  }
  // The trap stops all blocks, so the others give the first one time for its report.
  for (const long long from = clock64(); clock64() - from < kSpinCycles / 16;) {
  }
  __trap();
  __builtin_unreachable();
}

// The time that one wait has taken.
class SpinLimit {
 public:
  __device__ __forceinline__ SpinLimit() { begin_ = clock64(); }
  __device__ __forceinline__ void check(const CallSite& at, uint32_t address, int parity) const {
    if (clock64() - begin_ > kSpinCycles) fail_spin(at.file, at.line, address, parity);
  }

 private:
  long long begin_;
};

// Connects the kernels of this source file on the current device with the host's report.
static inline cudaError_t connect_spin_report() {
  SpinReport*& report = host_spin_report();
  if (report == nullptr) {
    void* memory = nullptr;
    if (const cudaError_t error = cudaMallocHost(&memory, sizeof(SpinReport)); error != cudaSuccess) return error;
    report = new (memory) SpinReport{};
  }
  return cudaMemcpyToSymbol(spin_report, &report, sizeof report);
}
#else
struct SpinLimit {
  __device__ __forceinline__ void check(const CallSite&, uint32_t, int) const {}
};
inline cudaError_t connect_spin_report() {
  return cudaSuccess;
}
#endif

}  // namespace capstan::cuda
