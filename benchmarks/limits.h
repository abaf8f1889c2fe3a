#pragma once
// The limits of the machine, measured in the same run as the ops that are compared with them.
#include <string>

#include "native/backend/cpu/team.h"

namespace capstan::benchmarks {

// Measures on all threads of a team.
class LimitMeter {
 public:
  explicit LimitMeter(Team& team);
  ~LimitMeter();
  double read_gb_per_s();     // one pass over a gigabyte in huge pages, about 30 ms
  double bf16_gflop_per_s();  // vdpbf16ps; 0 without the instruction
  double int8_gop_per_s();    // vpdpbusd; 0 without the instruction
  double f32_gflop_per_s();   // fused multiply-add; 0 without AVX-512

 private:
  struct Memory;
  Team& team_;
  Memory* memory_;
};

// Returns wall time. After a call of count_cpu_time: the processor time of the calling thread, for single-threaded runs
// on a busy machine.
double now_seconds();
void count_cpu_time();
// Returns the model, family and number of cores, such as "AMD EPYC … (family 25, model 97), 2 cores".
std::string machine_description();

}  // namespace capstan::benchmarks
