#pragma once
#include <span>
#include <vector>

#include "native/backend/backend.h"
#include "native/backend/cpu/sample_row.h"

namespace capstan {

// Samples rows of logits (architecture, contract 5) with the threads of a team. Allocates only for rows that ask for
// log-probabilities. The same row gives the same result with every number of threads and rows.
class Sampler {
 public:
  // Never draws an id from `num_token_ids` on. `team` must outlive the sampler.
  Sampler(const CpuKernels& kernels, int64_t vocab_size, int64_t num_token_ids, Team& team);

  // rows[i].logits_row is a row of `logits` (…, vocab_size).
  void sample(const float* logits, std::span<const SampleRow> rows, std::span<SampleResult> results);

 private:
  const SampleKernels& kernels_;
  const int64_t vocab_size_, num_token_ids_;
  Team& team_;
  std::vector<SampleScratch> scratch_;  // one per thread
};

}  // namespace capstan
