#pragma once
#include <span>

#include "native/backend/backend.h"

namespace capstan {

struct CpuKernels;
extern const CpuKernels kPortableKernels;

// Samples one row (contract 5) from `logits` (vocab_size). Never draws an id from `num_token_ids` on. Allocates only
// when the row asks for log-probabilities. The same row gives the same result on every thread.
void sample_row(const CpuKernels& kernels, std::span<const float> logits, int64_t num_token_ids, const SampleRow& row,
                SampleResult& result);

}  // namespace capstan
