#include "native/backend/cpu/recurrent.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "native/backend/cpu/matrix.h"
#include "native/base/check.h"
#include "native/base/error.h"

namespace capstan {

namespace {

int num_panels(const RecurrentShape& shape) {
  return (shape.head_dim + kStatePanel - 1) / kStatePanel;
}

int64_t panel_floats(const RecurrentShape& shape) {
  return int64_t{shape.state_size} * kStatePanel;
}

int64_t conv_state_floats(const RecurrentShape& shape) {
  return (shape.conv_taps - 1) * round_up(shape.conv_channels, 16);
}

int64_t layer_floats(const RecurrentShape& shape) {
  return conv_state_floats(shape) + int64_t{shape.num_heads} * num_panels(shape) * panel_floats(shape);
}

// Columns of the projections. A delta net has a beta per head; a short convolution has B, C and x.
int64_t num_columns(const RecurrentShape& shape) {
  if (shape.num_heads == 0) return 3 * shape.conv_channels;
  return shape.conv_channels + shape.output_size() + 2 * int64_t{shape.num_heads};
}

}  // namespace

int64_t RecurrentLayers::slot_floats(const DeviceModel& model) {
  const int64_t count =
      std::ranges::count_if(model.layers, [](const DeviceLayer& layer) { return layer.mixer != Mixer::kAttention; });
  return count == 0 ? 0 : count * layer_floats(model.recurrent);
}

RecurrentLayers::RecurrentLayers(const DeviceModel& model, const DeviceLimits& limits, const CpuKernels& kernels,
                                 Team& team)
    : shape_(model.recurrent),
      eps_(model.rms_norm_eps),
      layers_(model.layers),
      kernels_(kernels.recurrent),
      team_(team),
      slot_floats_(slot_floats(model)),
      conv_stride_(round_up(shape_.conv_channels, 16)),
      projection_stride_(round_up(num_columns(shape_), 16)),
      gate_stride_(round_up(shape_.num_heads, 16)),
      zeros_(static_cast<size_t>(conv_stride_), 0.0f) {
  CAPSTAN_CHECK(shape_.conv_taps <= kMaxConvTaps);
  CAPSTAN_CHECK(shape_.num_heads == 0 || shape_.num_heads % shape_.num_groups == 0);
  const auto floats = [](int64_t count, const char* purpose) {
    return HugeBuffer(static_cast<size_t>(count) * sizeof(float), purpose);
  };
  const int64_t rows = limits.max_num_tokens;
  states_ = floats(limits.num_state_slots * slot_floats_, "the states of the recurrent layers");
  projections_ = floats(rows * projection_stride_, "the projections of the recurrent layers");
  mixed_ = floats(rows * conv_stride_, "the results of the recurrent layers");
  gates_ = floats(rows * 2 * gate_stride_, "the gates of the recurrent layers");
  scratch_.resize(static_cast<size_t>(team.size() * panel_floats(shape_)));
  sequences_.reserve(static_cast<size_t>(limits.max_num_seqs));
}

// Calls function(sequence, row) for every row of the step.
template <class F>
void RecurrentLayers::for_rows(const F& function) {
  const int64_t num_rows = sequences_.back().first_row + sequences_.back().num_rows;
  team_.for_ranges(num_rows, kSerialRows, [&](int64_t begin, int64_t end) {
    auto sequence = std::ranges::upper_bound(sequences_, begin, {}, &Sequence::first_row) - 1;
    for (int32_t row = static_cast<int32_t>(begin); row < end; ++row) {
      if (row == sequence->first_row + sequence->num_rows) ++sequence;
      function(*sequence, row);
    }
  });
}

FloatRows RecurrentLayers::run(int layer, const RecurrentWeights& weights, const StepInput& step) {
  mixer_ = layers_[static_cast<size_t>(layer)].mixer;
  const auto is_recurrent = [](const DeviceLayer& other) { return other.mixer != Mixer::kAttention; };
  layer_offset_ = std::count_if(layers_.begin(), layers_.begin() + layer, is_recurrent) * layer_floats(shape_);
  sequences_.clear();
  for (size_t seq = 0; seq < step.state_reads.size(); ++seq)
    sequences_.push_back(
        {step.cu_seqlens_q[seq], step.cu_seqlens_q[seq + 1] - step.cu_seqlens_q[seq], step.state_reads[seq]});

  if (mixer_ == Mixer::kShortConv)
    for_rows([&](const Sequence&, int32_t row) {
      float* input = projections().row(row);
      kernels_.multiply(input, input + 2 * shape_.conv_channels, shape_.conv_channels);
    });
  for_rows([&](const Sequence& sequence, int32_t row) { mix_row(sequence, row, weights); });
  if (mixer_ != Mixer::kShortConv) {
    recur(weights, step);
    for_rows([&](const Sequence&, int32_t row) { norm_row(row, weights); });
  }
  team_.for_ranges(static_cast<int64_t>(sequences_.size()), kSerialRows, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      save_conv_inputs(sequences_[static_cast<size_t>(i)], step);
  });
  return {mixed_.as<float>(), conv_stride_};
}

// Returns the input of the convolution at row `index` of the sequence in this step. A negative index is before the
// step.
const float* RecurrentLayers::conv_input(const Sequence& sequence, int64_t index) const {
  if (index >= 0) return projections().row(sequence.first_row + index);
  if (sequence.read_slot < 0) return zeros_.data();
  return conv_state(sequence.read_slot) + (shape_.conv_taps - 1 + index) * conv_stride_;
}

void RecurrentLayers::convolve(const Sequence& sequence, int32_t row, const RecurrentWeights& weights) const {
  const float* inputs[kMaxConvTaps];
  for (int tap = 0; tap < shape_.conv_taps; ++tap)
    inputs[tap] = conv_input(sequence, row - sequence.first_row - (shape_.conv_taps - 1) + tap);
  ConvRowArgs args;
  args.inputs = inputs;
  args.weights = values_of(weights.conv.get());
  args.weight_stride = conv_stride_;
  args.taps = shape_.conv_taps;
  args.channels = shape_.conv_channels;
  args.has_silu = mixer_ != Mixer::kShortConv;
  args.out = mixed_.as<float>() + row * conv_stride_;
  kernels_.conv_row(args);
}

// Computes the convolution of a row, and the inputs of its recurrence.
void RecurrentLayers::mix_row(const Sequence& sequence, int32_t row, const RecurrentWeights& weights) const {
  convolve(sequence, row, weights);
  float* mixed = mixed_.as<float>() + row * conv_stride_;
  const float* projected = projections().row(row);
  if (mixer_ == Mixer::kShortConv)
    return kernels_.multiply(mixed, projected + shape_.conv_channels, shape_.conv_channels);

  if (mixer_ == Mixer::kDeltaNet) {
    float* keys = mixed + shape_.output_size();
    const float query_scale = 1 / std::sqrt(static_cast<float>(shape_.state_size));
    kernels_.l2_norm(keys, shape_.num_groups, shape_.state_size, 1.0f);
    kernels_.l2_norm(keys + shape_.num_groups * shape_.state_size, shape_.num_groups, shape_.state_size, query_scale);
  }
  GateRowArgs args;
  args.num_heads = shape_.num_heads;
  args.steps = projected + shape_.conv_channels + shape_.output_size();
  args.betas = mixer_ == Mixer::kDeltaNet ? args.steps + shape_.num_heads : nullptr;
  args.a_log = values_of(weights.a_log.get());
  args.dt_bias = values_of(weights.dt_bias.get());
  args.decays = gates_.as<float>() + row * 2 * gate_stride_;
  args.scales = args.decays + gate_stride_;
  kernels_.gate_row(args);
}

// Replaces the values of all rows with the results of the recurrence. A work item is one panel of a head of a sequence:
// its state stays in the cache of one core for all rows.
void RecurrentLayers::recur(const RecurrentWeights& weights, const StepInput& step) {
  const int panels = num_panels(shape_);
  const int64_t per_sequence = int64_t{shape_.num_heads} * panels;
  RecurrenceArgs args;
  args.state_size = shape_.state_size;
  args.is_delta = mixer_ == Mixer::kDeltaNet;
  args.row_stride = conv_stride_;
  args.gate_stride = 2 * gate_stride_;
  args.slot_stride = slot_floats_;
  const auto run_panel = [&](int thread, const Sequence& sequence, int head, int panel) {
    RecurrenceArgs part = args;
    float* mixed = mixed_.as<float>() + sequence.first_row * conv_stride_;
    const int group = shape_.group_of(head);
    part.num_rows = sequence.num_rows;
    part.num_columns = std::min(kStatePanel, shape_.head_dim - panel * kStatePanel);
    part.skip = mixer_ == Mixer::kMamba2 ? values_of(weights.skip.get())[head] : 0;
    part.values = mixed + head * shape_.head_dim + panel * kStatePanel;
    part.keys = mixed + shape_.output_size() + group * shape_.state_size;
    part.queries = part.keys + shape_.num_groups * shape_.state_size;
    part.decays = gates_.as<float>() + sequence.first_row * part.gate_stride + head;
    part.scales = part.decays + gate_stride_;
    part.states = conv_state(0) + conv_state_floats(shape_) + (head * panels + panel) * panel_floats(shape_);
    part.read_slot = sequence.read_slot;
    part.write_slots = step.state_writes.data() + sequence.first_row;
    part.scratch = scratch_.data() + thread * panel_floats(shape_);
    kernels_.recurrence(part);
  };
  const int64_t count = static_cast<int64_t>(sequences_.size()) * per_sequence;
  team_.for_pieces(count, panels, [&](int thread, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int in_sequence = static_cast<int>(i % per_sequence);
      run_panel(thread, sequences_[static_cast<size_t>(i / per_sequence)], in_sequence / panels, in_sequence % panels);
    }
  });
}

void RecurrentLayers::norm_row(int32_t row, const RecurrentWeights& weights) const {
  GatedNormArgs args;
  args.values = mixed_.as<float>() + row * conv_stride_;
  args.gates = projections().row(row) + shape_.conv_channels;
  args.weight = values_of(weights.norm.get());
  args.eps = eps_;
  args.is_gated_first = mixer_ == Mixer::kMamba2;
  args.num_norms = mixer_ == Mixer::kMamba2 ? shape_.num_groups : shape_.num_heads;
  args.size = shape_.output_size() / args.num_norms;
  args.weight_stride = mixer_ == Mixer::kMamba2 ? args.size : 0;
  kernels_.gated_norm(args);
}

// Stores the last conv_taps - 1 inputs up to `row` in `slot`.
// NOTE: in the slot that the sequence reads, each input moves to an earlier place, so the order of the copies matters.
void RecurrentLayers::save_conv_inputs(const Sequence& sequence, int32_t row, int32_t slot) const {
  const int num_kept = shape_.conv_taps - 1;
  float* to = conv_state(slot);
  for (int i = 0; i < num_kept; ++i, to += conv_stride_) {
    const float* from = conv_input(sequence, row - sequence.first_row - (num_kept - 1) + i);
    std::copy(from, from + shape_.conv_channels, to);
  }
}

void RecurrentLayers::save_conv_inputs(const Sequence& sequence, const StepInput& step) const {
  // The slot that the sequence reads comes last, because the other rows need its inputs.
  for (const bool is_read_slot : {false, true})
    for (int32_t row = sequence.first_row; row < sequence.first_row + sequence.num_rows; ++row) {
      const int32_t slot = step.state_writes[static_cast<size_t>(row)];
      if (slot >= 0 && (slot == sequence.read_slot) == is_read_slot) save_conv_inputs(sequence, row, slot);
    }
}

}  // namespace capstan
