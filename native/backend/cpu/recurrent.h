#pragma once
// The recurrent layers of one rank between their projections, and the states of the sequences.
#include <cstdint>
#include <vector>

#include "native/backend/backend.h"
#include "native/backend/cpu/kernels.h"
#include "native/backend/cpu/memory.h"
#include "native/backend/cpu/team.h"

namespace capstan {

// Rows of f32.
struct FloatRows {
  float* data = nullptr;
  int64_t stride = 0;  // floats from a row to the next one
  float* row(int64_t index) const { return data + index * stride; }
};

class RecurrentLayers {
 public:
  // Returns the floats of one slot. It holds, for each recurrent layer in order, the last conv_taps - 1 inputs of the
  // convolution, oldest first, each (conv_channels rounded up to 16), and the state of each head in panels
  // (recurrent_kernels.h).
  static int64_t slot_floats(const DeviceModel& model);

  // Allocates the states and the rows of a step. Throws kOutOfMemory.
  RecurrentLayers(const DeviceModel& model, const DeviceLimits& limits, const CpuKernels& kernels, Team& team);

  // The rows that the caller fills with the projections before it calls run.
  FloatRows projections() const { return {projections_.as<float>(), projection_stride_}; }
  // Returns the rows that the output projection multiplies, valid until the next call.
  FloatRows run(int layer, const RecurrentWeights& weights, const StepInput& step);

 private:
  struct Sequence {
    int32_t first_row = 0, num_rows = 0;
    int32_t read_slot = -1;
  };

  const float* conv_input(const Sequence& sequence, int64_t index) const;
  void convolve(const Sequence& sequence, int32_t row, const RecurrentWeights& weights) const;
  void mix_row(const Sequence& sequence, int32_t row, const RecurrentWeights& weights) const;
  void recur(const RecurrentWeights& weights, const StepInput& step);
  void norm_row(int32_t row, const RecurrentWeights& weights) const;
  void save_conv_inputs(const Sequence& sequence, int32_t row, int32_t slot) const;
  void save_conv_inputs(const Sequence& sequence, const StepInput& step) const;
  template <class F>
  void for_rows(const F& function);

  float* conv_state(int32_t slot) const { return states_.as<float>() + slot * slot_floats_ + layer_offset_; }

  const RecurrentShape shape_;
  const float eps_;
  const std::vector<DeviceLayer> layers_;
  const RecurrentKernels& kernels_;
  Team& team_;
  const int64_t slot_floats_;
  int64_t conv_stride_, projection_stride_, gate_stride_;
  std::vector<float> zeros_;    // (conv_stride)
  HugeBuffer states_;           // (num_state_slots, slot_floats)
  HugeBuffer projections_;      // (max_num_tokens, projection_stride)
  HugeBuffer mixed_;            // (max_num_tokens, conv_stride) results of the convolution, then of the recurrence
  HugeBuffer gates_;            // (max_num_tokens, 2, gate_stride) decays and scales
  std::vector<float> scratch_;  // (threads, state_size, kStatePanel)

  // Of the current call.
  std::vector<Sequence> sequences_;
  Mixer mixer_ = Mixer::kShortConv;
  int64_t layer_offset_ = 0;  // of the layer in a slot
};

}  // namespace capstan
