#pragma once
#include <span>

#include "native/backend/backend.h"

namespace capstan {

struct CpuKernels;
extern const CpuKernels kPortableKernels;

// Samples one row (contract 5). `logits` (vocab_size) are read only; ids from `num_token_ids` on are never drawn.
// Allocates only where the row asks for log-probabilities. Deterministic: the same row gives the same result on every
// thread.
void sample_row(const CpuKernels& kernels, std::span<const float> logits, int64_t num_token_ids, const SampleRow& row,
                SampleResult& result);

}  // namespace capstan
