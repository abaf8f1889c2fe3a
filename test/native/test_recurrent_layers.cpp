// The recurrent layers of the CPU backend between their projections, compared with the definitions in double precision.
// Any chunks, batches, drafts and threads give the same bits.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "native/backend/cpu/isa.h"
#include "native/backend/cpu/matrix.h"
#include "native/backend/cpu/recurrent.h"
#include "test/native/checkpoint.h"
#include "test/native/testing.h"

namespace capstan::testing {
namespace {

using Doubles = std::vector<double>;
using Result = std::vector<std::vector<float>>;  // by position

double silu(double x) {
  return x / (1 + std::exp(-x));
}

RecurrentShape shape_of(Mixer mixer) {
  RecurrentShape shape;
  shape.conv_taps = mixer == Mixer::kShortConv ? 3 : 4;
  shape.conv_channels = 37;
  if (mixer == Mixer::kShortConv) return shape;
  shape.num_heads = 6;
  shape.num_groups = 2;
  shape.head_dim = 20;
  shape.state_size = 12;
  shape.conv_channels = shape.output_size() + 2 * shape.num_groups * shape.state_size;
  return shape;
}

int num_columns(const RecurrentShape& shape) {
  if (shape.num_heads == 0) return static_cast<int>(3 * shape.conv_channels);
  return static_cast<int>(shape.conv_channels + shape.output_size() + 2 * shape.num_heads);
}

// One step of a sequence, in rows of its projections.
struct Chunk {
  int sequence = 0, begin = 0, end = 0;
  int32_t read_slot = -1;
  std::vector<int32_t> write_slots;  // (end - begin)
};

// Two layers of one kind with random weights, and the projections of sequences.
class Layers {
 public:
  explicit Layers(Mixer mixer, bool heads_alternate = false) : mixer_(mixer), shape_(shape_of(mixer)) {
    shape_.heads_alternate = heads_alternate;
    conv_ = random_values(1, shape_.conv_channels * shape_.conv_taps, 0.5f);
    conv_bias_ = random_values(2, shape_.conv_channels, 0.3f);
    a_log_ = random_values(3, shape_.num_heads, 0.5f);
    dt_bias_ = random_values(4, shape_.num_heads, 1.0f);
    skip_ = random_values(5, shape_.num_heads, 1.0f);
    norm_ = random_values(6, shape_.output_size(), 0.5f);
    load();
  }

  static constexpr int kLayers = 2, kSlots = 8;

  // The projections at `position` of a sequence in a layer.
  std::vector<float> projection(int layer, int sequence, int position) const {
    return random_values(1000 + 100000 * layer + 1000 * sequence + position, num_columns(shape_), 1.0f);
  }

  // Runs the steps, each with chunks of several sequences. Later chunks replace the results of earlier ones.
  // Returns the results by layer and sequence.
  std::vector<std::vector<Result>> run(CpuIsa isa, int num_threads, const std::vector<std::vector<Chunk>>& steps,
                                       int num_sequences, int length) const {
    Team team(std::vector<int>(static_cast<size_t>(num_threads), -1), false);
    DeviceModel model;
    model.recurrent = shape_;
    model.rms_norm_eps = 1e-5f;
    model.layers = {{Mixer::kAttention, 0, 0, 0, 0}, {mixer_, -1, -1, -1, 0}, {mixer_, -1, -1, -1, 0}};
    DeviceLimits limits;
    limits.max_num_tokens = 256;
    limits.max_num_seqs = 8;
    limits.num_state_slots = kSlots;
    RecurrentLayers layers(model, limits, cpu_kernels(isa), team);
    std::vector<std::vector<Result>> results(
        kLayers, std::vector<Result>(static_cast<size_t>(num_sequences), Result(static_cast<size_t>(length))));
    for (const std::vector<Chunk>& chunks : steps) {
      std::vector<int32_t> cu_seqlens{0}, reads, writes;
      for (const Chunk& chunk : chunks) {
        cu_seqlens.push_back(cu_seqlens.back() + chunk.end - chunk.begin);
        reads.push_back(chunk.read_slot);
        writes.insert(writes.end(), chunk.write_slots.begin(), chunk.write_slots.end());
      }
      StepInput step;
      step.cu_seqlens_q = cu_seqlens;
      step.state_reads = reads;
      step.state_writes = writes;
      for (int layer = 0; layer < kLayers; ++layer) {
        int64_t row = 0;
        for (const Chunk& chunk : chunks)
          for (int position = chunk.begin; position < chunk.end; ++position)
            std::ranges::copy(projection(layer, chunk.sequence, position), layers.projections().row(row++));
        const FloatRows out = layers.run(layer + 1, weights_, step);
        row = 0;
        for (const Chunk& chunk : chunks)
          for (int position = chunk.begin; position < chunk.end; ++position, ++row)
            results[static_cast<size_t>(layer)][static_cast<size_t>(chunk.sequence)][static_cast<size_t>(position)] =
                std::vector<float>(out.row(row), out.row(row) + shape_.output_size());
      }
    }
    return results;
  }

  // The definition, for positions [0, length) of a sequence.
  std::vector<Doubles> reference(int layer, int sequence, int length) const {
    std::vector<Doubles> inputs, results;
    std::vector<Doubles> state(static_cast<size_t>(shape_.num_heads * shape_.head_dim),
                               Doubles(static_cast<size_t>(shape_.state_size), 0.0));
    const int channels = static_cast<int>(shape_.conv_channels), size = static_cast<int>(shape_.output_size());
    for (int position = 0; position < length; ++position) {
      const std::vector<float> row = projection(layer, sequence, position);
      Doubles input(row.begin(), row.begin() + channels);
      if (mixer_ == Mixer::kShortConv)
        for (int c = 0; c < channels; ++c)
          input[c] *= row[2 * channels + c];
      inputs.push_back(input);
      Doubles mixed(conv_bias_.begin(), conv_bias_.end());
      for (int c = 0; c < channels; ++c)
        for (int tap = 0; tap < shape_.conv_taps; ++tap)
          if (const int at = position - shape_.conv_taps + 1 + tap; at >= 0)
            mixed[c] += conv_[c * shape_.conv_taps + tap] * inputs[at][c];
      if (mixer_ == Mixer::kShortConv) {
        for (int c = 0; c < channels; ++c)
          mixed[c] *= row[channels + c];
        results.push_back(mixed);
        continue;
      }
      for (double& value : mixed)
        value = silu(value);
      Doubles result(static_cast<size_t>(size));
      for (int head = 0; head < shape_.num_heads; ++head)
        recur(row, mixed, head, state, result);
      results.push_back(norm(row, result));
    }
    return results;
  }

 private:
  void load() {
    const auto add = [&](const char* name, std::vector<float>& values, int64_t rows,
                         int64_t cols) -> const FileTensor& {
      return checkpoint_.add(name, DType::kF32, rows, cols, values);
    };
    MatrixSource conv;
    const FileTensor& weight = add("conv.weight", conv_, shape_.conv_channels, shape_.conv_taps);
    const FileTensor& bias = add("conv.bias", conv_bias_, 1, shape_.conv_channels);
    // Two slices, as when queries and values lie apart.
    conv.slices = {{&weight, 0, 5, 0, weight.cols}, {&weight, 5, weight.rows - 5, 0, weight.cols}};
    conv.bias = {{&bias, 0, 1, 0, 5}, {&bias, 0, 1, 5, bias.cols - 5}};
    weights_.conv = read_convolution(conv, {});
    if (mixer_ == Mixer::kShortConv) return;
    const auto vector = [&](const char* name, std::vector<float>& values) {
      return read_vector(whole(add(name, values, 1, static_cast<int64_t>(values.size()))), 0.0f, {});
    };
    if (mixer_ == Mixer::kDeltaNet) norm_.resize(static_cast<size_t>(shape_.head_dim));
    weights_.a_log = vector("a_log", a_log_);
    weights_.dt_bias = vector("dt_bias", dt_bias_);
    weights_.skip = vector("skip", skip_);
    weights_.norm = vector("norm", norm_);
  }

  void recur(const std::vector<float>& row, const Doubles& mixed, int head, std::vector<Doubles>& state,
             Doubles& result) const {
    const int size = shape_.state_size, values = static_cast<int>(shape_.output_size());
    const int group = shape_.heads_alternate ? head % shape_.num_groups : head / (shape_.num_heads / shape_.num_groups);
    const auto steps = row.begin() + shape_.conv_channels + values;
    const double x = double{steps[head]} + dt_bias_[head], step = std::log1p(std::exp(x));
    const double decay = std::exp(-std::exp(a_log_[head]) * step);
    Doubles key(mixed.begin() + values + group * size, mixed.begin() + values + (group + 1) * size);
    const int first_query = values + (shape_.num_groups + group) * size;
    Doubles query(mixed.begin() + first_query, mixed.begin() + first_query + size);
    const bool is_delta = mixer_ == Mixer::kDeltaNet;
    if (is_delta) {
      const auto normalize = [&](Doubles& head_values, double scale) {
        const double sum = std::inner_product(head_values.begin(), head_values.end(), head_values.begin(), 1e-6);
        for (double& value : head_values)
          value *= scale / std::sqrt(sum);
      };
      normalize(key, 1);
      normalize(query, 1 / std::sqrt(double(size)));
    }
    const double scale = is_delta ? 1 / (1 + std::exp(-double{steps[shape_.num_heads + head]})) : step;
    for (int c = 0; c < shape_.head_dim; ++c) {
      Doubles& column = state[head * shape_.head_dim + c];
      const double value = mixed[head * shape_.head_dim + c];
      for (double& entry : column)
        entry *= decay;
      const double memory = std::inner_product(column.begin(), column.end(), key.begin(), 0.0);
      for (int i = 0; i < size; ++i)
        column[i] += key[i] * scale * (value - (is_delta ? memory : 0));
      result[head * shape_.head_dim + c] =
          std::inner_product(column.begin(), column.end(), query.begin(), 0.0) + (is_delta ? 0 : skip_[head] * value);
    }
  }

  Doubles norm(const std::vector<float>& row, Doubles result) const {
    const bool is_delta = mixer_ == Mixer::kDeltaNet;
    const int num_norms = is_delta ? shape_.num_heads : shape_.num_groups;
    const int size = static_cast<int>(result.size()) / num_norms;
    for (int n = 0; n < num_norms; ++n) {
      double sum = 0;
      for (int i = n * size; i < (n + 1) * size; ++i) {
        if (!is_delta) result[i] *= silu(row[shape_.conv_channels + i]);
        sum += result[i] * result[i];
      }
      for (int i = n * size; i < (n + 1) * size; ++i) {
        result[i] *= norm_[is_delta ? i - n * size : i] / std::sqrt(sum / size + 1e-5);
        if (is_delta) result[i] *= silu(row[shape_.conv_channels + i]);
      }
    }
    return result;
  }

  const Mixer mixer_;
  RecurrentShape shape_;
  MemoryCheckpoint checkpoint_;
  std::vector<float> conv_, conv_bias_, a_log_, dt_bias_, skip_, norm_;
  RecurrentWeights weights_;
};

// A chunk that ends in `slot`.
Chunk chunk(int sequence, int begin, int end, int32_t slot) {
  Chunk result{sequence, begin, end, begin == 0 ? -1 : slot,
               std::vector<int32_t>(static_cast<size_t>(end - begin), -1)};
  result.write_slots.back() = slot;
  return result;
}

void expect_equal_bits(const std::vector<std::vector<Result>>& got, const std::vector<std::vector<Result>>& wanted) {
  for (size_t layer = 0; layer < wanted.size(); ++layer)
    for (size_t sequence = 0; sequence < wanted[layer].size(); ++sequence)
      for (size_t position = 0; position < wanted[layer][sequence].size(); ++position) {
        const std::vector<float>&a = got[layer][sequence][position], &b = wanted[layer][sequence][position];
        EXPECT(a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
      }
}

constexpr Mixer kMixers[] = {Mixer::kDeltaNet, Mixer::kShortConv, Mixer::kMamba2};

void expect_definition(const Layers& layers) {
  const int length = 40;
  for (const CpuIsa isa : available_cpu_isas()) {
    const auto results = layers.run(isa, 2, {{chunk(0, 0, length, 3), chunk(1, 0, length, 1)}}, 2, length);
    for (int layer = 0; layer < Layers::kLayers; ++layer)
      for (int sequence = 0; sequence < 2; ++sequence) {
        const std::vector<Doubles> wanted = layers.reference(layer, sequence, length);
        for (int position = 0; position < length; ++position)
          for (size_t i = 0; i < wanted[position].size(); ++i)
            EXPECT_NEAR(results[layer][sequence][position][i], wanted[position][i], 1e-4);
      }
  }
}

TEST(recurrent_layers_follow_the_definition) {
  for (const Mixer mixer : kMixers)
    expect_definition(Layers(mixer));
}

TEST(recurrent_layers_with_alternating_heads_follow_the_definition) {
  expect_definition(Layers(Mixer::kDeltaNet, true));
}

TEST(recurrent_layers_have_the_same_bits_in_any_chunks_batches_and_threads) {
  const int length = 30;
  for (const Mixer mixer : kMixers) {
    const Layers layers(mixer);
    const auto whole =
        layers.run(CpuIsa::kPortable, 1, {{chunk(0, 0, length, 0)}, {chunk(1, 0, length, 1)}}, 2, length);
    for (const CpuIsa isa : available_cpu_isas()) {
      // Chunks of 1 to 7 rows; the second sequence begins later and runs in batches with the first.
      std::vector<std::vector<Chunk>> steps;
      int done[2] = {0, 0};
      for (int i = 0; done[0] < length || done[1] < length; ++i) {
        std::vector<Chunk>& step = steps.emplace_back();
        for (int sequence = 0; sequence < 2; ++sequence) {
          const int end = std::min(length, done[sequence] + 1 + (i * 5 + sequence * 3) % 7);
          if ((sequence == 1 && i < 2) || done[sequence] == end) continue;
          step.push_back(chunk(sequence, done[sequence], end, sequence == 0 ? 6 : 2));
          done[sequence] = end;
        }
      }
      expect_equal_bits(layers.run(isa, 3, steps, 2, length), whole);
    }
  }
}

TEST(recurrent_layers_go_on_from_any_row_of_a_step) {
  const int length = 20;
  for (const Mixer mixer : kMixers) {
    const Layers layers(mixer);
    const auto whole = layers.run(CpuIsa::kPortable, 1, {{chunk(0, 0, length, 0)}}, 1, length);
    for (int accepted = 1; accepted <= 5; ++accepted) {
      // The state after each row of a step is kept, the first one in the slot that the step reads. The next step goes
      // on after `accepted` rows. Two copies of the sequence read the same slot.
      Chunk drafts = chunk(0, 6, 11, 4);
      drafts.write_slots = {4, 5, 6, 7, 3};
      Chunk rest = chunk(0, 6 + accepted, length, 0), copy = chunk(0, 6 + accepted, length, 1);
      rest.read_slot = copy.read_slot = drafts.write_slots[static_cast<size_t>(accepted) - 1];
      expect_equal_bits(layers.run(CpuIsa::kPortable, 2, {{chunk(0, 0, 6, 4)}, {drafts}, {copy, rest}}, 1, length),
                        whole);
    }
  }
}

TEST(recurrent_layers_state_their_memory) {
  DeviceModel model;
  EXPECT_EQ(RecurrentLayers::slot_floats(model), 0);
  model.recurrent = shape_of(Mixer::kDeltaNet);
  model.layers = {
      {Mixer::kDeltaNet, -1, -1, -1, 0}, {Mixer::kAttention, 0, 0, 0, 0}, {Mixer::kDeltaNet, -1, -1, -1, 0}};
  // 3 inputs of 168 channels, padded to 176, and 6 heads of 2 panels of (12, 16).
  EXPECT_EQ(RecurrentLayers::slot_floats(model), 2 * (3 * 176 + 6 * 2 * 12 * 16));
}

}  // namespace
}  // namespace capstan::testing
