#pragma once
// Measures every op of the CPU backend on the Qwen2.5-0.5B shape with random weights, and the limits of the machine in
// the same run. benchmarks/ops.cpp and `capstan bench ops` print the results.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "native/backend/cpu/cpu_backend.h"
#include "native/backend/cpu/team.h"
#include "native/bench/limits.h"

namespace capstan::benchmarks {

struct OpsOptions {
  DType dtype = DType::kBf16;
  // Of all matrices but the last one, which has 8 bits when they have 4.
  WeightFormat format = WeightFormat::kDType;
  bool has_int8_cache = false;  // the KV cache has 8 bits, else it has the type of the weights
  CpuIsa isa = available_cpu_isas()[0];
  std::vector<int> cpus;     // one thread on each
  int context = 512;         // tokens in the KV cache of each decoded sequence
  int prefill_context = 0;   // tokens in the KV cache after a prefill; 0 = the prefilled ones alone
  int max_decode_rows = 64;  // the most sequences that decode
  int repeats = 5;
  int layers = 24;
  int64_t vocab_size = 151'936;
  size_t read_bytes = size_t{1} << 30;  // that each test of the bandwidth reads
};

constexpr int kMaxOpsRows = 512;

// The last entry is the complete step: the sum of the others.
struct OpResult {
  std::string name;
  double ms = 0, gb_per_s = 0, gflop_per_s = 0;
  double limit_share = 0;  // the least possible time over the time, at most 1
};

struct OpsResult {
  int rows = 0;
  double read_gb_per_s = 0, peak_gflop_per_s = 0;  // the limits
  std::vector<OpResult> ops;
};

class OpsBench {
 public:
  explicit OpsBench(const OpsOptions& options);
  ~OpsBench();
  // A step of `rows` sequences that each decode one token; above 64 rows, a prefill of one sequence. Up to kMaxOpsRows.
  OpsResult measure(int rows);
  double load_seconds() const { return load_seconds_; }
  double packed_bytes() const;

 private:
  struct Model;
  void fill_cache(int64_t num_blocks);
  OpsOptions options_;
  Team team_;
  LimitMeter meter_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> model_;
  double load_seconds_ = 0;
  int64_t num_filled_blocks_ = 0;
};

}  // namespace capstan::benchmarks
