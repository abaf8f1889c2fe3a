#pragma once
// The arrays of a step, sent to the device.
#include <span>
#include <vector>

#include "cuda/attention_plan.h"
#include "cuda/kernels.h"
#include "cuda/memory.h"
#include "native/backend/backend.h"

namespace capstan::cuda {

// Of the attention layers of one KV group.
struct DeviceKvGroup {
  int num_tiles = 0, num_wide_tiles = 0;
  int num_chunks = 1;  // as in AttentionArgs
  const int32_t *slots = nullptr, *block_tables = nullptr;
  const AttentionTile* tiles = nullptr;       // (num_tiles)
  const AttentionTile* wide_tiles = nullptr;  // (num_wide_tiles), for launch_attention_wgmma
};

// Arguments for the kernels of a step. Shapes are those of StepInput.
struct DeviceStep {
  int num_tokens = 0, num_seqs = 0, max_blocks_per_seq = 0;
  const int32_t *ids = nullptr, *positions = nullptr, *cu_seqlens = nullptr, *context_lens = nullptr;
  std::span<const DeviceKvGroup> kv_groups;  // valid until the next step
  // Of a model with recurrent layers.
  const int32_t *token_seqs = nullptr, *state_reads = nullptr, *state_writes = nullptr;
  const int32_t* token_types = nullptr;  // of a model that has them, unless the step is a padded decode step
};

// The padded size of a decode step: rows, and chunks of keys per sequence. Few sizes exist, so that few graphs serve
// all steps.
struct DecodePlan {
  int rows = 0, chunks = 0;
  auto operator<=>(const DecodePlan&) const = default;
};

class StepArrays {
 public:
  // Allocates for the largest step, because graphs contain the addresses of the arrays.
  StepArrays(const DeviceModel& model, const DeviceLimits& limits);

  // Sends any step as it is. `multiprocessors` as in WideTiles.
  DeviceStep send(const StepInput& step, int multiprocessors, cudaStream_t stream);

  // The step has one token per sequence.
  DecodePlan plan(const StepInput& step) const;
  // Stages a padded decode step at addresses that depend only on the plan. Padding rows have no token, slot or tile,
  // and write nothing that is read.
  DeviceStep place(const StepInput& step, const DecodePlan& plan);
  // (plan.rows) rows whose logits are needed, initially zeros. The caller fills them before `send_staged`.
  // device_head_rows() is their address on the device.
  std::span<int32_t> head_rows() { return head_rows_; }
  const int32_t* device_head_rows() const { return device_head_rows_; }
  // (plan.rows) rows to sample, initially none; filled in the same way.
  std::span<SampleItem> samples() { return samples_; }
  const SampleItem* device_samples() const { return device_samples_; }
  void send_staged(cudaStream_t stream) { staging_.send(stream); }

 private:
  struct Group {
    int num_kv_heads = 0;
    int heads = 0;      // query heads of a KV head
    int wide_rows = 0;  // 0: launch_attention_wgmma cannot be used
    AttentionPlan plan;
  };

  void begin(size_t num_words);

  bool has_states_;
  std::vector<Group> groups_;
  std::vector<DeviceKvGroup> device_groups_;  // of the step
  int block_size_, max_num_seqs_;
  size_t max_words_;
  Staging staging_{"the step"};
  std::span<int32_t> head_rows_;
  const int32_t* device_head_rows_ = nullptr;
  std::span<SampleItem> samples_;
  const SampleItem* device_samples_ = nullptr;
};

// The largest number of (tile, KV head, chunk) triples that launch_attention stores in its scratch memory.
int64_t max_attention_splits(const DeviceModel& model, int kv_group, const DeviceLimits& limits);

}  // namespace capstan::cuda
