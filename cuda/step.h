#pragma once
// A step's arrays on their way to the device, and where they lie there.
#include <span>
#include <vector>

#include "cuda/attention_plan.h"
#include "cuda/kernels.h"
#include "cuda/memory.h"
#include "native/backend/backend.h"

namespace capstan::cuda {

// What the kernels of a step are given; shapes as in StepInput.
struct DeviceStep {
  int num_tokens = 0, num_tiles = 0, num_wide_tiles = 0, max_blocks_per_seq = 0;
  int num_chunks = 1;  // of attention, as AttentionArgs says
  const int32_t *ids = nullptr, *positions = nullptr, *slots = nullptr, *cu_seqlens = nullptr, *context_lens = nullptr,
                *block_tables = nullptr;
  const AttentionTile* tiles = nullptr;       // (num_tiles)
  const AttentionTile* wide_tiles = nullptr;  // (num_wide_tiles), for launch_attention_wgmma
};

// How a step of decodes is padded, so that few recorded graphs serve all: rows, and chunks of keys per sequence.
struct DecodePlan {
  int rows = 0, chunks = 0;
  auto operator<=>(const DecodePlan&) const = default;
};

class StepArrays {
 public:
  // Takes room for the largest step at once: a graph knows where the arrays lie.
  StepArrays(const DeviceModel& model, const DeviceLimits& limits);

  // Any step, as it is; `multiprocessors` as plan_attention has them.
  DeviceStep send(const StepInput& step, int multiprocessors, cudaStream_t stream);

  // One token of each sequence.
  DecodePlan plan(const StepInput& step) const;
  // Padded, in places that the plan alone decides. Rows that are there to fill it up have no token, no slot and no
  // tile: they write nothing that anybody reads.
  DeviceStep place(const StepInput& step, const DecodePlan& plan);
  // (plan.rows) rows whose logits are wanted: zeros, to be written before `send_placed`; and where the device will have
  // them.
  std::span<int32_t> head_rows() { return head_rows_; }
  const int32_t* device_head_rows() const { return device_head_rows_; }
  // (plan.rows) rows to sample, at first none, likewise.
  std::span<SampleItem> samples() { return samples_; }
  const SampleItem* device_samples() const { return device_samples_; }
  void send_placed(cudaStream_t stream) { staging_.send(stream); }

 private:
  void begin(size_t num_words);

  int num_kv_heads_, group_, block_size_, max_num_seqs_;
  size_t max_words_;
  Staging staging_{"the step"};
  AttentionPlan attention_;
  std::span<int32_t> head_rows_;
  const int32_t* device_head_rows_ = nullptr;
  std::span<SampleItem> samples_;
  const SampleItem* device_samples_ = nullptr;
};

// Chunks of 16 rows that launch_attention leaves in its scratch, at most.
int64_t most_cuts(const DeviceModel& model, const DeviceLimits& limits);

}  // namespace capstan::cuda
