#pragma once
#include <memory>
#include <string>
#include <vector>

#include "native/backend/backend.h"
#include "native/base/step_profile.h"
#include "native/comm/comm.h"

namespace capstan {

enum class CpuIsa : uint8_t {
  kPortable,
  // x64
  kAvx2,
  kAvxVnni,
  kAvx512,
  kAvx512Vnni,
  kAvx512Bf16,
  kAmx,
#ifdef CAPSTAN_AMX_TWIN
  kAmxTwin,  // only in tests: the kernels of kAmx without its instructions
#endif
  // arm64
  kNeon,
  kNeonDot,   // with dot products of 8-bit integers
  kNeonBf16,  // with bf16 and i8mm
};

// Returns the instruction sets that this machine can run, best first. The first call asks the operating system for the
// permission to use AMX, if the processor has it.
std::vector<CpuIsa> available_cpu_isas();
const char* cpu_isa_name(CpuIsa isa);

struct CpuBackendOptions {
  CpuIsa isa = CpuIsa::kPortable;
  DType weight_dtype = DType::kBf16;  // of the packed matrices
  bool compute_f32 = false;           // true: activations stay in f32 with bf16 weights
  bool has_int8_acts = true;          // false: activations stay in f32 with quantized weights
  std::vector<int> cpus;              // one thread per entry: the cpu to pin it to, or -1. Thread 0 is the caller.
  bool may_spin = true;               // false when there are more threads than cores
  StepProfile* profile = nullptr;     // where the time of the steps is recorded; null = nowhere
};

// Creates the backend of one rank. `comm` is null when there is only one rank.
std::unique_ptr<Backend> make_cpu_backend(const CpuBackendOptions& options, std::unique_ptr<Comm> comm);

}  // namespace capstan
