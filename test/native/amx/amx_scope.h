#pragma once
#include <algorithm>
#include <cstdio>
#include <optional>

#include "native/backend/cpu/cpu_backend.h"
#include "test/native/amx/emulator.h"

namespace capstan::testing {

inline bool has_isa(CpuIsa isa) {
  const std::vector<CpuIsa> isas = available_cpu_isas();
  return std::find(isas.begin(), isas.end(), isa) != isas.end();
}

// Makes the AMX instructions usable until the end of the scope: those of the processor, or emulated ones.
class AmxScope {
 public:
  AmxScope() {
    if (has_isa(CpuIsa::kAmx)) return;
    std::printf("  no AMX: its instructions are emulated\n");
    emulator_.emplace();
  }

 private:
  std::optional<AmxEmulator> emulator_;
};

}  // namespace capstan::testing
