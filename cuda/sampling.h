#pragma once
// Rows to sample go to the device in one copy, and come back in one.
#include <span>
#include <vector>

#include "cuda/kernels.h"
#include "cuda/memory.h"
#include "native/backend/backend.h"

namespace capstan::cuda {

class DeviceSampler {
 public:
  DeviceSampler(int64_t vocab_size, int64_t num_token_ids, int max_rows);
  // Waits for the results. `logits` (…, vocab_size) on the device.
  void sample(const float* logits, std::span<const SampleRow> rows, std::span<SampleResult> results, cudaStream_t stream);

 private:
  void read_top_logprobs(const float* all, const SampleRow& row, SampleResult& result, cudaStream_t stream);

  int64_t vocab_size_, num_token_ids_;
  DeviceBuffer scores_;   // (max_rows, vocab_size) scratch
  DeviceBuffer outputs_;  // (max_rows)
  Staging staging_;
  Event sampled_;
  std::vector<SampleItem> host_items_;
  std::vector<int32_t> host_words_;
  std::vector<SampleOutput> read_outputs_;
};

}  // namespace capstan::cuda
