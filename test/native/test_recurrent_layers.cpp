// The recurrent layers of the CPU backend between their projections, compared with the definitions in double precision.
// Any chunks, batches, drafts and threads give the same bits.
#include <algorithm>
#include <cstring>

#include "native/backend/cpu/isa.h"
#include "native/backend/cpu/matrix.h"
#include "native/backend/cpu/recurrent.h"
#include "test/native/checkpoint.h"
#include "test/native/recurrent_case.h"
#include "test/native/testing.h"

namespace capstan::testing {
namespace {

using Doubles = RecurrentCase::Doubles;
using Result = std::vector<std::vector<float>>;  // by position

RecurrentShape shape_of(Mixer mixer, bool heads_alternate = false) {
  RecurrentShape shape = RecurrentCase::small_shape(mixer);
  shape.heads_alternate = heads_alternate;
  return shape;
}

// Two layers of one kind with random weights, and the projections of sequences.
class Layers : public RecurrentCase {
 public:
  explicit Layers(Mixer mixer, bool heads_alternate = false) : RecurrentCase(mixer, shape_of(mixer, heads_alternate)) {
    load();
  }

  static constexpr int kLayers = 2, kSlots = 8;

  // Runs the steps, each with chunks of several sequences. Later chunks replace the results of earlier ones.
  // Returns the results by layer and sequence.
  std::vector<std::vector<Result>> run(CpuIsa isa, int num_threads, const std::vector<std::vector<Chunk>>& steps,
                                       int num_sequences, int length) const {
    Team team(std::vector<int>(static_cast<size_t>(num_threads), -1), false);
    DeviceModel model;
    model.recurrent = shape;
    model.rms_norm_eps = 1e-5f;
    model.layers = {{Mixer::kAttention, 0, 0, 0, 0}, {mixer, -1, -1, -1, 0}, {mixer, -1, -1, -1, 0}};
    DeviceLimits limits;
    limits.max_num_tokens = 256;
    limits.max_num_seqs = 8;
    limits.num_state_slots = kSlots;
    RecurrentLayers layers(model, limits, cpu_kernels(isa), team);
    std::vector<std::vector<Result>> results(
        kLayers, std::vector<Result>(static_cast<size_t>(num_sequences), Result(static_cast<size_t>(length))));
    for (const std::vector<Chunk>& chunks : steps) {
      const ChunkArrays arrays(chunks);
      StepInput step;
      step.cu_seqlens_q = arrays.cu_seqlens;
      step.state_reads = arrays.reads;
      step.state_writes = arrays.writes;
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
                std::vector<float>(out.row(row), out.row(row) + shape.output_size());
      }
    }
    return results;
  }

 private:
  void load() {
    const auto add = [&](const char* name, std::vector<float>& values, int64_t rows,
                         int64_t cols) -> const FileTensor& {
      return checkpoint_.add(name, DType::kF32, rows, cols, values);
    };
    MatrixSource source;
    const FileTensor& weight = add("conv.weight", conv, shape.conv_channels, shape.conv_taps);
    const FileTensor& bias = add("conv.bias", conv_bias, 1, shape.conv_channels);
    // Two slices, as when queries and values lie apart.
    source.slices = {{&weight, 0, 5, 0, weight.cols}, {&weight, 5, weight.rows - 5, 0, weight.cols}};
    source.bias = {{&bias, 0, 1, 0, 5}, {&bias, 0, 1, 5, bias.cols - 5}};
    weights_.conv = read_convolution(source, {});
    if (mixer == Mixer::kShortConv) return;
    const auto vector = [&](const char* name, std::vector<float>& values) {
      return read_vector(whole(add(name, values, 1, static_cast<int64_t>(values.size()))), 0.0f, {});
    };
    weights_.a_log = vector("a_log", a_log);
    weights_.dt_bias = vector("dt_bias", dt_bias);
    weights_.skip = vector("skip", skip);
    weights_.norm = vector("norm", norm);
  }

  MemoryCheckpoint checkpoint_;
  RecurrentWeights weights_;
};

void expect_equal_bits(const std::vector<std::vector<Result>>& got, const std::vector<std::vector<Result>>& wanted) {
  for (size_t layer = 0; layer < wanted.size(); ++layer)
    for (size_t sequence = 0; sequence < wanted[layer].size(); ++sequence)
      for (size_t position = 0; position < wanted[layer][sequence].size(); ++position) {
        const std::vector<float>&a = got[layer][sequence][position], &b = wanted[layer][sequence][position];
        EXPECT(a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
      }
}

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
      expect_equal_bits(layers.run(isa, 3, uneven_steps(length), 2, length), whole);
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
