#pragma once
// Rows to sample go to the device in one copy, and come back in one, when they are collected.
#include <deque>
#include <span>
#include <vector>

#include "cuda/kernels.h"
#include "cuda/memory.h"
#include "native/backend/backend.h"

namespace capstan::cuda {

class DeviceSampler {
 public:
  // `max_rows` in a call, `max_results` in a step. `logits_stride`: from a row to the next; a multiple of 4, where rows
  // are to be summed in one order wherever they lie.
  DeviceSampler(int64_t vocab_size, int64_t logits_stride, int64_t num_token_ids, int max_rows, int max_results,
                cudaStream_t stream);

  // Calls of `sample` that follow belong to this step.
  void begin_step() { ++num_begun_; }
  // Enqueues; `results` are filled by `collect`, `rows` are not needed any longer. `logits` (…, logits_stride) on the
  // device.
  void sample(const float* logits, std::span<const SampleRow> rows, std::span<SampleResult> results,
              cudaStream_t stream);
  // The same in three, the second of which a graph can hold: the rows as the kernel reads them go to `items`, their
  // lists to the device; …
  void place(std::span<const SampleRow> rows, std::span<SampleItem> items, cudaStream_t stream);
  // … `num_items` of them on the device are drawn as the first of the step; …
  void draw(const float* logits, const SampleItem* items, int num_items, cudaStream_t stream) {
    draw(logits, items, num_items, 0, stream);
  }
  // … and what was drawn comes back.
  void fetch(const float* logits, std::span<const SampleRow> rows, std::span<SampleResult> results,
             cudaStream_t stream);
  // Waits for the results of the oldest step that was not collected, if it has any.
  void collect();
  // (max_results) the ids that the newest step's samples drew, in the order of the step's rows; on the device.
  const int32_t* drawn_ids() const { return drawn_ids_.as<int32_t>(); }

 private:
  // What a call has enqueued.
  struct Call {
    std::span<SampleResult> results;
    std::vector<int> num_logprobs;                     // per row
    std::vector<std::pair<int, PinnedBuffer>> logits;  // of rows that want more alternatives than the device sorts
    int first = 0;                                     // of its results in the step
  };
  struct Step {
    int64_t number = 0;
    std::vector<Call> calls;
  };
  // Where results arrive; a step takes the one that its number's parity names.
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
  DeviceBuffer scores_;     // (max_rows, sample_scratch_floats) scratch
  DeviceBuffer outputs_;    // (max_rows)
  DeviceBuffer drawn_ids_;  // (max_results)
  Staging staging_;
  Slot slots_[2];
  std::deque<Step> steps_;  // that have samples and were not collected
  static constexpr size_t kSpareRows = 64;
  std::vector<PinnedBuffer> spare_rows_;  // (vocab_size) for logits: kept, as freeing them waits for the device
  int64_t num_begun_ = 0, num_collected_ = 0;
  std::vector<SampleItem> host_items_;
  std::vector<int32_t> host_words_;
};

}  // namespace capstan::cuda
