#pragma once
// Samples on the device: one copy sends all rows, and one copy returns all results when the step is collected.
#include <deque>
#include <span>
#include <vector>

#include "cuda/kernels.h"
#include "cuda/memory.h"
#include "native/backend/backend.h"

namespace capstan::cuda {

class DeviceSampler {
 public:
  // `max_rows` per call, `max_results` per step. `logits_stride` is the distance between rows; a multiple of 4 makes
  // the order of sums independent of the row's address.
  DeviceSampler(int64_t vocab_size, int64_t logits_stride, int64_t num_token_ids, int max_rows, int max_results,
                cudaStream_t stream);

  // Later calls of `sample` belong to this step.
  void begin_step() { ++num_begun_; }
  // Enqueues the work. `collect` fills `results`; `rows` are not used after the call. `logits` (…, logits_stride) is
  // device memory.
  void sample(const float* logits, std::span<const SampleRow> rows, std::span<SampleResult> results,
              cudaStream_t stream);
  // `sample` in three calls, so that a graph can contain the second one.
  // 1. Converts the rows to `items` and sends their lists to the device.
  void place(std::span<const SampleRow> rows, std::span<SampleItem> items, cudaStream_t stream);
  // 2. Samples `num_items` items in device memory as the first results of the step.
  void draw(const float* logits, const SampleItem* items, int num_items, cudaStream_t stream) {
    draw(logits, items, num_items, 0, stream);
  }
  // 3. Copies the results to the host.
  void fetch(const float* logits, std::span<const SampleRow> rows, std::span<SampleResult> results,
             cudaStream_t stream);
  // Waits for the results of the oldest step that is not collected, if it has any.
  void collect();
  // (max_results) the ids sampled by the newest step, in the order of its rows; in device memory.
  const int32_t* drawn_ids() const { return drawn_ids_.as<int32_t>(); }

 private:
  // The results of one call, in flight.
  struct Call {
    std::span<SampleResult> results;
    std::vector<int> num_logprobs;                     // per row
    std::vector<std::pair<int, PinnedBuffer>> logits;  // rows that request more alternatives than the device sorts
    int first = 0;                                     // index of its first result in the step
  };
  struct Step {
    int64_t number = 0;
    std::vector<Call> calls;
  };
  // Receives the results of a step. Steps alternate between two slots.
  struct Slot {
    PinnedBuffer outputs;  // (max_results)
    Event done;
  };

  void pack(std::span<const SampleRow> rows);
  void draw(const float* logits, const SampleItem* items, int num_items, int first, cudaStream_t stream);
  int next_result() const;
  Step& open_step();
  void fill(const Call& call, const SampleOutput* outputs) const;
  void read_top_logprobs(const float* logits, int num_logprobs, SampleResult& result) const;

  int64_t vocab_size_, logits_stride_, num_token_ids_;
  int max_results_;
  DeviceBuffer scores_;     // (max_rows, sample_scratch_floats), scratch
  DeviceBuffer outputs_;    // (max_rows)
  DeviceBuffer drawn_ids_;  // (max_results)
  Staging staging_;
  Slot slots_[2];
  std::deque<Step> steps_;  // steps with results that are not collected
  static constexpr size_t kSpareRows = 64;
  // (vocab_size) buffers for rows of logits, reused because freeing them waits for the device.
  std::vector<PinnedBuffer> spare_rows_;
  int64_t num_begun_ = 0, num_collected_ = 0;
  std::vector<SampleItem> host_items_;
  std::vector<int32_t> host_words_;
};

}  // namespace capstan::cuda
