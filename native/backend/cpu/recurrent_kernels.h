#pragma once
// The row functions of recurrent layers: gated delta net, Mamba 2 and the gated short convolution. They are compiled
// once per instruction set (kernels.h), and all instruction sets give the same bits.
//
// A state is cut into panels of 16 columns, (state_size, 16) each: column c of a head's panel p belongs to element
// 16 p + c of its values. The tokens of a sequence pass one after the other, so that the result does not depend on how
// a prompt is cut into steps. A sum over the rows of a state has two chains of fused multiply-adds, over the even rows
// and over the odd rows.
#include <cstdint>

namespace capstan {

constexpr int kStatePanel = 16;  // columns of a state per panel
constexpr int kMaxConvTaps = 16;

// One row of a causal convolution of each channel with itself. Arrays are readable, and `out` is writable, up to a
// multiple of 16 channels.
struct ConvRowArgs {
  const float* const* inputs = nullptr;  // (taps) the inputs of the last tokens, oldest first, each (channels)
  const float* weights = nullptr;  // (taps + 1, weight_stride) in the order of the inputs; the last row is the bias
  int64_t weight_stride = 0;
  int taps = 0;
  int64_t channels = 0;
  bool has_silu = false;
  float* out = nullptr;  // (channels)
};

// The gates of one row.
struct GateRowArgs {
  int num_heads = 0;
  const float* steps = nullptr;    // (num_heads)
  const float* a_log = nullptr;    // (num_heads)
  const float* dt_bias = nullptr;  // (num_heads)
  const float* betas = nullptr;    // (num_heads); null = Mamba 2
  float* decays = nullptr;         // (num_heads) out: exp(-exp(a_log) · softplus(steps + dt_bias))
  float* scales = nullptr;         // (num_heads) out: sigmoid(betas), or softplus(steps + dt_bias) for Mamba 2
};

// The rows of one sequence in one panel of one head. Values are replaced by results. For each row, in order:
//   u = scale · (value - decay · stateᵀ key), or scale · value for Mamba 2
//   state = decay · state + key ⊗ u
//   result = stateᵀ query + skip · value
struct RecurrenceArgs {
  int num_rows = 0;
  int state_size = 0;
  int num_columns = 0;                   // of the panel, up to kStatePanel
  bool is_delta = false;                 // gated delta net
  float skip = 0;                        // Mamba 2: D of the head
  float* values = nullptr;               // the panel's values in the first row
  const float* keys = nullptr;           // (state_size) in the first row
  const float* queries = nullptr;        // (state_size) in the first row
  int64_t row_stride = 0;                // floats from a row to the next one, of the three above
  const float* decays = nullptr;         // the head's decay in the first row
  const float* scales = nullptr;         // the head's scale in the first row
  int64_t gate_stride = 0;               // floats from a row to the next one, of the two above
  float* states = nullptr;               // (state_size, 16) the panel in slot 0
  int64_t slot_stride = 0;               // floats from a slot to the next one
  int read_slot = -1;                    // the slot of the state before the first row; -1 = zeros
  const int32_t* write_slots = nullptr;  // (num_rows) the slots of the state after each row; -1 = none
  float* scratch = nullptr;              // (state_size, 16)
};

// One row of the norm after the recurrence.
struct GatedNormArgs {
  float* values = nullptr;       // (num_norms, size), in place
  const float* gates = nullptr;  // (num_norms, size)
  const float* weight = nullptr;
  int num_norms = 0;
  int64_t size = 0;           // values that one norm covers
  int64_t weight_stride = 0;  // from the weights of a norm to those of the next one; 0 = all have the same
  float eps = 0;
  bool is_gated_first = false;  // norm(values · silu(gates)) in place of norm(values) · silu(gates)
};

struct RecurrentKernels {
  void (*conv_row)(const ConvRowArgs& args);
  void (*gate_row)(const GateRowArgs& args);
  // x (num_heads, size) = x · scale / sqrt(sum of x² + 1e-6), for each head.
  void (*l2_norm)(float* x, int num_heads, int64_t size, float scale);
  void (*recurrence)(const RecurrenceArgs& args);
  void (*gated_norm)(const GatedNormArgs& args);
  // x (count) *= factor.
  void (*multiply)(float* x, const float* factor, int64_t count);
  // x (count) *= sigmoid(gate).
  void (*sigmoid_gate)(float* x, const float* gate, int64_t count);
};

}  // namespace capstan
