#pragma once
// The launchers of recurrent layers: the gated delta net, Mamba 2 and the gated short convolution. The definitions are
// those of the CPU (native/backend/cpu/recurrent_kernels.h). The tokens of a sequence pass one after the other, so that
// no bit depends on how a prompt is cut into steps.
#include <cstdint>

#include "cuda/kernels.h"

namespace capstan::cuda {

constexpr int kMaxConvTaps = 16;
constexpr int kMaxStateSize = 256;

// A slot of one layer: the last conv_taps - 1 inputs of the convolution, oldest first, each (conv_channels); then the
// state of each head, (state_size, head_dim).
inline int64_t conv_state_floats(const RecurrentShape& shape) {
  return (shape.conv_taps - 1) * shape.conv_channels;
}
inline int64_t layer_state_floats(const RecurrentShape& shape) {
  return conv_state_floats(shape) + int64_t{shape.num_heads} * shape.state_size * shape.head_dim;
}

// Columns of the projections (RecurrentWeights::in_proj).
inline int64_t num_projections(Mixer mixer, const RecurrentShape& shape) {
  if (mixer == Mixer::kShortConv) return 3 * shape.conv_channels;
  return shape.conv_channels + shape.output_size() + (mixer == Mixer::kDeltaNet ? 2 : 1) * int64_t{shape.num_heads};
}

// A layer from its projections to the activations of its output projection. Arrays are as in StepInput and
// RecurrentWeights.
struct RecurrentArgs {
  FloatType type = FloatType::kBf16;
  Mixer mixer = Mixer::kDeltaNet;
  RecurrentShape shape;
  float eps = 0;

  int num_tokens = 0, num_seqs = 0;
  const int32_t* cu_seqlens = nullptr;    // (num_seqs + 1)
  const int32_t* token_seqs = nullptr;    // (num_tokens) the sequence of each token
  const int32_t* state_reads = nullptr;   // (num_seqs)
  const int32_t* state_writes = nullptr;  // (num_tokens)

  const float* conv = nullptr;  // (conv_taps + 1, conv_stride) the taps, oldest input first, and the bias
  int64_t conv_stride = 0;
  const float *a_log = nullptr, *dt_bias = nullptr, *skip = nullptr, *norm = nullptr;  // null for short convolutions

  const float* projections = nullptr;  // (num_tokens, projection_stride)
  int64_t projection_stride = 0;
  float* mixed = nullptr;   // (num_tokens, conv_channels) scratch; null for short convolutions
  float* gates = nullptr;   // (num_tokens, 2, num_heads) scratch: decays and scales; null for short convolutions
  float* states = nullptr;  // the layer in slot 0
  int64_t slot_stride = 0;  // floats from a slot to the next one

  DepthSplit split;          // of output_size
  uint16_t* acts = nullptr;  // (num_tokens, output_size) the result, in operand layout or row-major
  bool is_row_major = false;
};
void launch_recurrent(const RecurrentArgs& args, cudaStream_t stream);

// acts (num_tokens, K) *= sigmoid(gates).
struct OutputGateArgs {
  FloatType type = FloatType::kBf16;
  int num_tokens = 0;
  const float* gates = nullptr;  // (num_tokens, gate_stride); the first K of a row are used
  int64_t gate_stride = 0;
  DepthSplit split;  // of K
  uint16_t* acts = nullptr;
  bool is_row_major = false;
};
void launch_output_gate(const OutputGateArgs& args, cudaStream_t stream);

}  // namespace capstan::cuda
