// The kernels of recurrent layers, compared with the definitions in double precision, and bit for bit with the portable
// kernels.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "native/backend/cpu/isa.h"
#include "native/base/number.h"
#include "test/native/checkpoint.h"
#include "test/native/testing.h"

namespace capstan::testing {
namespace {

using Doubles = std::vector<double>;

bool has_equal_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

const RecurrentKernels& portable() {
  return cpu_kernels(CpuIsa::kPortable).recurrent;
}

TEST(recurrent_convolution_sums_the_taps_and_the_bias) {
  for (const CpuIsa isa : available_cpu_isas()) {
    for (const auto& [channels, taps] : {std::pair{1, 4}, {16, 3}, {45, 2}, {96, 4}, {5, 1}}) {
      for (const bool has_silu : {false, true}) {
        const int stride = (channels + 15) / 16 * 16;
        const std::vector<float> weights = random_values(1, (taps + 1) * stride, 1.0f),
                                 inputs = random_values(2, taps * stride, 1.0f);
        std::vector<const float*> rows;
        for (int tap = 0; tap < taps; ++tap)
          rows.push_back(inputs.data() + tap * stride);
        std::vector<float> out(static_cast<size_t>(stride)), wanted = out;
        ConvRowArgs args{rows.data(), weights.data(), stride, taps, channels, has_silu, out.data()};
        cpu_kernels(isa).recurrent.conv_row(args);
        args.out = wanted.data();
        portable().conv_row(args);
        EXPECT(has_equal_bits(out, wanted));
        for (int c = 0; c < channels; ++c) {
          double sum = weights[taps * stride + c];
          for (int tap = 0; tap < taps; ++tap)
            sum += double{weights[tap * stride + c]} * inputs[tap * stride + c];
          EXPECT_NEAR(out[c], has_silu ? sum * sigmoid(sum) : sum, 2e-6);
        }
      }
    }
  }
}

TEST(recurrent_gates_are_close_to_their_definition_over_the_whole_range) {
  for (const CpuIsa isa : available_cpu_isas()) {
    for (const int heads : {1, 3, 16, 21}) {
      for (const bool is_delta : {false, true}) {
        std::vector<float> steps = random_values(1, heads, 3.0f), betas = random_values(2, heads, 2.0f);
        std::vector<float> a_log = random_values(3, heads, 1.5f), bias = random_values(4, heads, 1.0f);
        steps[0] = -60.0f;
        if (heads > 2) steps[1] = 90.0f, steps[2] = -8.5f;
        std::vector<float> out(static_cast<size_t>(2 * heads)), wanted = out;
        GateRowArgs args;
        args.num_heads = heads;
        args.steps = steps.data();
        args.a_log = a_log.data();
        args.dt_bias = bias.data();
        args.betas = is_delta ? betas.data() : nullptr;
        args.decays = out.data();
        args.scales = out.data() + heads;
        cpu_kernels(isa).recurrent.gate_row(args);
        args.decays = wanted.data();
        args.scales = wanted.data() + heads;
        portable().gate_row(args);
        EXPECT(has_equal_bits(out, wanted));
        for (int h = 0; h < heads; ++h) {
          const double x = double{steps[h]} + bias[h];
          const double step = std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)));
          const double decay = std::exp(-std::exp(double{a_log[h]}) * step);
          EXPECT_NEAR(out[h], decay, 2e-6);
          const double scale = is_delta ? sigmoid(betas[h]) : step;
          EXPECT_NEAR(out[heads + h], scale, scale * 2e-6 + 1e-37);
        }
      }
    }
  }
}

TEST(recurrent_l2_norm_scales_each_head) {
  for (const CpuIsa isa : available_cpu_isas()) {
    for (const int size : {1, 7, 16, 40, 128}) {
      std::vector<float> x = random_values(1, 3 * size, 1.0f), wanted = x;
      const std::vector<float> original = x;
      cpu_kernels(isa).recurrent.l2_norm(x.data(), 3, size, 0.25f);
      portable().l2_norm(wanted.data(), 3, size, 0.25f);
      EXPECT(has_equal_bits(x, wanted));
      for (int h = 0; h < 3; ++h) {
        double sum = 1e-6;
        for (int i = 0; i < size; ++i)
          sum += std::pow(double{original[h * size + i]}, 2);
        for (int i = 0; i < size; ++i)
          EXPECT_NEAR(x[h * size + i], 0.25 * original[h * size + i] / std::sqrt(sum), 1e-6);
      }
    }
  }
}

// A sequence of one head with several panels.
struct Sequence {
  int num_rows, state_size, head_dim;
  int64_t stride;
  std::vector<float> rows, decays, scales;  // rows: values, keys, queries
  float skip;

  Sequence(int num_rows, int state_size, int head_dim)
      : num_rows(num_rows), state_size(state_size), head_dim(head_dim), stride(head_dim + 2 * state_size + 3) {
    rows = random_values(1, num_rows * stride, 1.0f);
    decays = random_values(2, num_rows, 1.0f);
    scales = random_values(3, num_rows, 1.0f);
    for (float& decay : decays)
      decay = static_cast<float>(sigmoid(2.0 + decay));
    for (float& scale : scales)
      scale = static_cast<float>(sigmoid(scale));
    for (int row = 0; row < num_rows; ++row)
      portable().l2_norm(rows.data() + row * stride + head_dim, 2, state_size, 1.0f);
    skip = 0.75f;
  }
  int num_panels() const { return (head_dim + kStatePanel - 1) / kStatePanel; }
  int64_t panel_floats() const { return int64_t{state_size} * kStatePanel; }

  // Runs rows [begin, end) in all panels. `values` are the rows, in place.
  void run(const RecurrentKernels& kernels, std::vector<float>& values, bool is_delta, int begin, int end,
           std::vector<float>& states, int read_slot, const std::vector<int32_t>& write_slots) const {
    std::vector<float> scratch(static_cast<size_t>(panel_floats()), std::nanf(""));
    for (int panel = 0; panel < num_panels(); ++panel) {
      RecurrenceArgs args;
      args.num_rows = end - begin;
      args.state_size = state_size;
      args.num_columns = std::min(kStatePanel, head_dim - panel * kStatePanel);
      args.is_delta = is_delta;
      args.skip = skip;
      args.values = values.data() + begin * stride + panel * kStatePanel;
      args.keys = rows.data() + begin * stride + head_dim;
      args.queries = args.keys + state_size;
      args.row_stride = stride;
      args.decays = decays.data() + begin;
      args.scales = scales.data() + begin;
      args.gate_stride = 1;
      args.states = states.data() + panel * panel_floats();
      args.slot_stride = num_panels() * panel_floats();
      args.read_slot = read_slot;
      args.write_slots = write_slots.data() + begin;
      args.scratch = scratch.data();
      kernels.recurrence(args);
    }
  }

  // The definition, from a state of zeros. Returns the results (num_rows, head_dim).
  std::vector<Doubles> reference(bool is_delta) const {
    std::vector<Doubles> state(static_cast<size_t>(state_size), Doubles(static_cast<size_t>(head_dim), 0.0)), results;
    for (int row = 0; row < num_rows; ++row) {
      const float* value = rows.data() + row * stride;
      const float* key = value + head_dim;
      const float* query = key + state_size;
      Doubles result(static_cast<size_t>(head_dim));
      for (int c = 0; c < head_dim; ++c) {
        double memory = 0;
        for (int i = 0; i < state_size; ++i)
          memory += (state[i][c] *= decays[row]) * key[i];
        const double update = scales[row] * (value[c] - (is_delta ? memory : 0));
        for (int i = 0; i < state_size; ++i)
          result[c] += (state[i][c] += key[i] * update) * query[i];
        if (!is_delta) result[c] += double{skip} * value[c];
      }
      results.push_back(result);
    }
    return results;
  }
};

TEST(recurrent_states_follow_the_definition) {
  for (const CpuIsa isa : available_cpu_isas()) {
    for (const auto& [state_size, head_dim] : {std::pair{1, 1}, {8, 16}, {15, 20}, {64, 64}, {128, 40}}) {
      for (const bool is_delta : {false, true}) {
        const Sequence sequence(70, state_size, head_dim);
        const std::vector<int32_t> writes(70, -1);
        std::vector<float> states, values = sequence.rows, wanted = sequence.rows;
        sequence.run(cpu_kernels(isa).recurrent, values, is_delta, 0, 70, states, -1, writes);
        sequence.run(portable(), wanted, is_delta, 0, 70, states, -1, writes);
        EXPECT(has_equal_bits(values, wanted));
        const std::vector<Doubles> reference = sequence.reference(is_delta);
        for (int row = 0; row < 70; ++row)
          for (int c = 0; c < head_dim; ++c)
            EXPECT_NEAR(values[row * sequence.stride + c], reference[row][c], 1e-5);
      }
    }
  }
}

TEST(recurrent_states_have_the_same_bits_in_any_pieces_and_after_a_draft) {
  for (const CpuIsa isa : available_cpu_isas()) {
    const RecurrentKernels& kernels = cpu_kernels(isa).recurrent;
    for (const bool is_delta : {false, true}) {
      const int rows = 40;
      const Sequence sequence(rows, 21, 40);
      const size_t slot = static_cast<size_t>(sequence.num_panels() * sequence.panel_floats());
      std::vector<float> whole = sequence.rows, states(3 * slot, std::nanf(""));
      std::vector<int32_t> writes(rows, -1);
      writes[rows - 1] = 2;
      sequence.run(kernels, whole, is_delta, 0, rows, states, -1, writes);
      const std::vector<float> last_state(states.end() - static_cast<int64_t>(slot), states.end());
      // A step of 13 rows keeps the state after row 9 in slot 0, and its last rows are rejected drafts. Then every row
      // is a step, in place in slot 1.
      std::vector<float> pieces = sequence.rows;
      states.assign(3 * slot, std::nanf(""));
      writes.assign(rows, 1);
      writes[9] = 0;
      sequence.run(kernels, pieces, is_delta, 0, 13, states, -1, writes);
      std::copy(sequence.rows.begin() + 10 * sequence.stride, sequence.rows.end(),
                pieces.begin() + 10 * sequence.stride);
      for (int row = 10; row < rows; ++row)
        sequence.run(kernels, pieces, is_delta, row, row + 1, states, row == 10 ? 0 : 1, writes);
      EXPECT(has_equal_bits(pieces, whole));
      EXPECT(has_equal_bits(std::vector<float>(states.begin() + static_cast<int64_t>(slot),
                                               states.begin() + 2 * static_cast<int64_t>(slot)),
                            last_state));
    }
  }
}

TEST(recurrent_norms_are_gated_after_or_before) {
  for (const CpuIsa isa : available_cpu_isas()) {
    for (const auto& [num_norms, size] : {std::pair{1, 1}, {3, 20}, {2, 64}, {4, 7}}) {
      for (const bool is_gated_first : {false, true}) {
        const int64_t count = int64_t{num_norms} * size;
        std::vector<float> x = random_values(1, count, 1.0f), wanted = x;
        const std::vector<float> original = x, gates = random_values(2, count, 2.0f),
                                 weight = random_values(3, count, 1.0f);
        GatedNormArgs args{x.data(), gates.data(),  weight.data(), num_norms, size, is_gated_first ? size : 0,
                           1e-5f,    is_gated_first};
        cpu_kernels(isa).recurrent.gated_norm(args);
        args.values = wanted.data();
        portable().gated_norm(args);
        EXPECT(has_equal_bits(x, wanted));
        for (int n = 0; n < num_norms; ++n) {
          Doubles row;
          double sum = 0;
          for (int i = 0; i < size; ++i) {
            const double gate = gates[n * size + i];
            row.push_back(original[n * size + i] * (is_gated_first ? gate * sigmoid(gate) : 1));
            sum += row[i] * row[i];
          }
          for (int i = 0; i < size; ++i) {
            const double gate = gates[n * size + i], scale = weight[(is_gated_first ? n * size : 0) + i];
            const double normed = row[i] / std::sqrt(sum / size + 1e-5) * scale;
            EXPECT_NEAR(x[n * size + i], normed * (is_gated_first ? 1 : gate * sigmoid(gate)), 3e-6);
          }
        }
      }
    }
  }
}

TEST(recurrent_products_leave_what_follows_alone) {
  for (const CpuIsa isa : available_cpu_isas()) {
    for (const int count : {1, 16, 37}) {
      const std::vector<float> original = random_values(1, count + 16, 1.0f),
                               factor = random_values(2, count + 16, 2.0f);
      std::vector<float> product = original, gated = original;
      cpu_kernels(isa).recurrent.multiply(product.data(), factor.data(), count);
      cpu_kernels(isa).recurrent.sigmoid_gate(gated.data(), factor.data(), count);
      for (int i = 0; i < count + 16; ++i) {
        EXPECT_EQ(product[i], i < count ? original[i] * factor[i] : original[i]);
        EXPECT_NEAR(gated[i], i < count ? original[i] * sigmoid(factor[i]) : original[i], 1e-6);
      }
    }
  }
}

}  // namespace
}  // namespace capstan::testing
