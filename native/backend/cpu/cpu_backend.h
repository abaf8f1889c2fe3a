#pragma once
#include <memory>
#include <string>
#include <vector>

#include "native/backend/backend.h"
#include "native/comm/comm.h"

namespace capstan {

enum class CpuIsa : uint8_t { kPortable, kAvx2, kAvx512, kAvx512Bf16 };

// Sets this machine can run, best first.
std::vector<CpuIsa> available_cpu_isas();
const char* cpu_isa_name(CpuIsa isa);

struct CpuBackendOptions {
  CpuIsa isa = CpuIsa::kPortable;
  DType weight_dtype = DType::kBf16;  // of the packed matrices
  bool compute_f32 = false;           // keep activations of bf16 weights in f32
  std::vector<int> cpus;  // one team thread per entry; the cpu to pin to, or -1 for unpinned. Thread 0 is the caller.
  bool may_spin = true;   // false when there are more threads than cores
};

// `comm` null = one rank.
std::unique_ptr<Backend> make_cpu_backend(const CpuBackendOptions& options, std::unique_ptr<Comm> comm);

}  // namespace capstan
