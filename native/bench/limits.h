#pragma once
// The limits of the machine, measured in the same run as the ops that are compared with them.
#include <cstddef>
#include <string>
#include <vector>

#include "native/backend/cpu/team.h"

namespace capstan::benchmarks {

struct ReadRate {
  const char* pattern;
  double gb_per_s;
};

// Measures on all threads of a team.
class LimitMeter {
 public:
  LimitMeter(Team& team, size_t read_bytes);
  ~LimitMeter();
  LimitMeter(const LimitMeter&) = delete;
  LimitMeter& operator=(const LimitMeter&) = delete;
  // One pass over the bytes, in huge pages, with each pattern. Which one is fastest depends on the machine.
  std::vector<ReadRate> read_rates();
  double read_gb_per_s();         // of the fastest pattern
  double bf16_gflop_per_s();      // vdpbf16ps; 0 without the instruction
  double amx_bf16_gflop_per_s();  // tdpbf16ps; 0 without AMX or the permission to use it
  double amx_int8_gop_per_s();    // tdpbsud; 0 as above
  double int8_gop_per_s();        // vpdpbusd, or vpmaddubsw and vpaddw; 0 without AVX2
  double f32_gflop_per_s();       // fused multiply-add; 0 without AVX2

 private:
  struct Memory;
  Team& team_;
  size_t read_bytes_;
  Memory* memory_;
};

// Returns wall time. After a call of count_cpu_time: the processor time of the calling thread, for single-threaded runs
// on a busy machine.
double now_seconds();
void count_cpu_time();
// Returns the model, family and number of cores, such as "AMD EPYC … (family 25, model 97), 2 cores".
std::string machine_description();

}  // namespace capstan::benchmarks
