#pragma once
// What the machine can do, measured in the same run as what is compared with it.
#include <string>

#include "native/backend/cpu/team.h"

namespace capstan::benchmarks {

struct Limits {
  double read_gb_per_s = 0;     // all threads, a gigabyte in huge pages
  double bf16_gflop_per_s = 0;  // vdpbf16ps; 0 where there is none
  double f32_gflop_per_s = 0;   // fused multiply-add
};

class LimitMeter {
 public:
  explicit LimitMeter(Team& team);
  ~LimitMeter();
  double read_gb_per_s();  // one pass, about 30 ms
  double bf16_gflop_per_s();
  double f32_gflop_per_s();

 private:
  struct Memory;
  Team& team_;
  Memory* memory_;
};

// Wall time, or the processor time of the calling thread once `count_cpu_time` was called: for one thread on a machine
// that is not alone.
double now_seconds();
void count_cpu_time();
// "AMD EPYC, 2 cores, …" as the system tells it.
std::string machine_description();

}  // namespace capstan::benchmarks
