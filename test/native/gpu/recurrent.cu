// Recurrent layers: against their definitions in double precision, and the same bits however the tokens are cut into
// steps. The output gate of attention.
#include <algorithm>
#include <map>

#include "cuda/recurrent.h"
#include "test/native/gpu/kernel_testing.h"
#include "test/native/recurrent_case.h"

namespace capstan::testing {
namespace {

constexpr int kSlots = 8;
using Bits = std::vector<uint16_t>;
// The activations by sequence and position.
using Results = std::map<std::pair<int, int>, Bits>;

struct CaseOptions {
  FloatType type = FloatType::kF16;
  bool is_row_major = false;
};

RecurrentShape shape_with(Mixer mixer, int head_dim, int state_size) {
  RecurrentShape shape = RecurrentCase::small_shape(mixer);
  if (mixer == Mixer::kShortConv) return shape;
  shape.head_dim = head_dim, shape.state_size = state_size;
  shape.conv_channels = shape.output_size() + 2 * shape.num_groups * state_size;
  return shape;
}

// (taps + 1, channels rounded up to 16)
std::vector<float> taps_of(const RecurrentCase& layer) {
  const int64_t stride = round_up(layer.shape.conv_channels, 16), taps = layer.shape.conv_taps;
  std::vector<float> values(static_cast<size_t>((taps + 1) * stride), 0.0f);
  for (int64_t c = 0; c < layer.shape.conv_channels; ++c) {
    for (int64_t tap = 0; tap < taps; ++tap)
      values[static_cast<size_t>(tap * stride + c)] = layer.conv[static_cast<size_t>(c * taps + tap)];
    values[static_cast<size_t>(taps * stride + c)] = layer.conv_bias[static_cast<size_t>(c)];
  }
  return values;
}

// Runs the steps, each with chunks of several sequences, over states that start as NaN.
Results run(const RecurrentCase& layer, const std::vector<std::vector<Chunk>>& steps, const CaseOptions& options = {}) {
  const RecurrentShape& shape = layer.shape;
  const int64_t size = shape.output_size(), slot_stride = layer_state_floats(shape) + 5;
  const OnDevice<float> conv(taps_of(layer)), a_log(layer.a_log), dt_bias(layer.dt_bias), skip(layer.skip),
      norm(layer.norm), states(static_cast<size_t>(kSlots * slot_stride));
  Results results;
  for (const std::vector<Chunk>& chunks : steps) {
    const ChunkArrays arrays(chunks);
    std::vector<int32_t> token_seqs;
    std::vector<float> rows;
    for (size_t seq = 0; seq < chunks.size(); ++seq)
      for (int position = chunks[seq].begin; position < chunks[seq].end; ++position) {
        token_seqs.push_back(static_cast<int32_t>(seq));
        const std::vector<float> row = layer.projection(0, chunks[seq].sequence, position);
        rows.insert(rows.end(), row.begin(), row.end());
      }
    const size_t num_tokens = token_seqs.size();
    const OnDevice<int32_t> cu_seqlens(arrays.cu_seqlens), seqs(token_seqs), reads(arrays.reads), writes(arrays.writes);
    const OnDevice<float> projections(rows), mixed(num_tokens * static_cast<size_t>(shape.conv_channels)),
        gates(num_tokens * 2 * static_cast<size_t>(std::max(shape.num_heads, 1)));
    RecurrentArgs args;
    args.type = options.type;
    args.mixer = layer.mixer;
    args.shape = shape;
    args.eps = 1e-5f;
    args.num_tokens = static_cast<int>(num_tokens);
    args.num_seqs = static_cast<int>(chunks.size());
    args.cu_seqlens = cu_seqlens.get();
    args.token_seqs = seqs.get();
    args.state_reads = reads.get();
    args.state_writes = writes.get();
    args.conv = conv.get();
    args.conv_stride = round_up(shape.conv_channels, 16);
    args.a_log = a_log.get();
    args.dt_bias = dt_bias.get();
    args.skip = skip.get();
    args.norm = norm.get();
    args.projections = projections.get();
    args.projection_stride = layer.num_columns();
    args.mixed = mixed.get();
    args.gates = gates.get();
    args.states = states.get();
    args.slot_stride = slot_stride;
    args.split = split_depth(size, size, row_parallel_parts(size));
    args.is_row_major = options.is_row_major;
    const OnDevice<uint16_t> acts(static_cast<size_t>(round_up(args.num_tokens, 64) * args.split.padded()));
    args.acts = acts.get();
    launch_recurrent(args, stream());
    const Bits got = acts.read();
    size_t row = 0;
    for (const Chunk& chunk : chunks)
      for (int position = chunk.begin; position < chunk.end; ++position, ++row) {
        Bits& bits = results[{chunk.sequence, position}];
        bits.clear();
        for (int64_t k = 0; k < size; ++k)
          bits.push_back(got[static_cast<size_t>(
              act_index(options.is_row_major, static_cast<int64_t>(row), args.split.place(k), args.split.padded()))]);
      }
  }
  return results;
}

void expect_definition(const RecurrentCase& layer, const CaseOptions& options = {}) {
  const int length = 20;
  const Results got = run(layer, {{chunk(0, 0, length, 3), chunk(1, 0, length, 1)}}, options);
  for (int sequence = 0; sequence < 2; ++sequence) {
    const auto wanted = layer.reference(0, sequence, length);
    for (int position = 0; position < length; ++position)
      for (size_t k = 0; k < wanted[static_cast<size_t>(position)].size(); ++k) {
        const double value = wanted[static_cast<size_t>(position)][k];
        expect_close(value_of(options.type, got.at({sequence, position})[k]), value,
                     rounding_of(options.type) * std::abs(value) + 2e-4,
                     "state size " + std::to_string(layer.shape.state_size), position, static_cast<int64_t>(k));
      }
  }
}

TEST(kernel_recurrent_layers_follow_the_definition) {
  for (const Mixer mixer : kMixers)
    for (const FloatType type : kTypes)
      for (const bool is_row_major : {false, true})
        expect_definition(RecurrentCase(mixer, RecurrentCase::small_shape(mixer)), {type, is_row_major});
}

// Several blocks of columns, states larger than the first kernel holds, and sizes between multiples of the threads.
TEST(kernel_recurrent_layers_follow_the_definition_at_larger_sizes) {
  for (const Mixer mixer : {Mixer::kDeltaNet, Mixer::kMamba2})
    for (const auto& [head_dim, state_size] : {std::pair{70, 128}, {33, 131}, {16, 256}})
      expect_definition(RecurrentCase(mixer, shape_with(mixer, head_dim, state_size)));
  RecurrentShape alternating = shape_with(Mixer::kDeltaNet, 20, 12);
  alternating.heads_alternate = true;
  expect_definition(RecurrentCase(Mixer::kDeltaNet, alternating));
}

TEST(kernel_recurrent_layers_have_the_same_bits_in_any_chunks_and_batches) {
  const int length = 24;
  for (const Mixer mixer : kMixers) {
    const RecurrentCase layer(mixer, RecurrentCase::small_shape(mixer));
    const Results whole = run(layer, {{chunk(0, 0, length, 0)}, {chunk(1, 0, length, 1)}});
    EXPECT(run(layer, uneven_steps(length)) == whole);
  }
}

// The state after each row of a step is kept, the first one in the slot that the step reads. The next step goes on
// after `accepted` rows. Two copies of the sequence read the same slot.
TEST(kernel_recurrent_layers_go_on_from_any_row_of_a_step) {
  const int length = 16;
  for (const Mixer mixer : kMixers) {
    const RecurrentCase layer(mixer, RecurrentCase::small_shape(mixer));
    const Results whole = run(layer, {{chunk(0, 0, length, 0)}});
    for (int accepted = 1; accepted <= 5; ++accepted) {
      Chunk drafts = chunk(0, 6, 11, 4);
      drafts.write_slots = {4, 5, 6, 7, 3};
      Chunk rest = chunk(0, 6 + accepted, length, 0), copy = chunk(0, 6 + accepted, length, 1);
      rest.read_slot = copy.read_slot = drafts.write_slots[static_cast<size_t>(accepted) - 1];
      EXPECT(run(layer, {{chunk(0, 0, 6, 4)}, {drafts}, {copy, rest}}) == whole);
    }
  }
}

// The snapshot in the middle of a long chunk, and a chunk whose last rows have no slot.
TEST(kernel_recurrent_layers_keep_states_within_a_chunk) {
  const int length = 70;
  for (const Mixer mixer : kMixers) {
    const RecurrentCase layer(mixer, RecurrentCase::small_shape(mixer));
    const Results whole = run(layer, {{chunk(0, 0, length, 0)}});
    Chunk first = chunk(0, 0, 60, 5);
    first.write_slots[40] = 2;
    first.write_slots.back() = -1;
    Chunk rest = chunk(0, 41, length, 6);
    rest.read_slot = 2;
    EXPECT(run(layer, {{first}, {rest}}) == whole);
  }
}

// Padding of a graph: rows without a slot change no state, and NaN of one sequence does not reach another.
TEST(kernel_recurrent_layers_keep_sequences_apart) {
  for (const Mixer mixer : kMixers) {
    const RecurrentCase layer(mixer, RecurrentCase::small_shape(mixer));
    const Results alone = run(layer, {{chunk(0, 0, 5, 0)}, {chunk(0, 5, 6, 0)}});
    Chunk padding{1, 0, 1, -1, {-1}}, broken = chunk(2, 3, 4, 7);  // slot 7 holds NaN
    const Results beside = run(layer, {{chunk(0, 0, 5, 0), padding}, {broken, chunk(0, 5, 6, 0), padding}});
    for (int position = 0; position < 6; ++position)
      EXPECT(beside.at({0, position}) == alone.at({0, position}));
    EXPECT(std::isnan(value_of(FloatType::kF16, beside.at({2, 3})[0])));
  }
}

TEST(kernel_output_gate_multiplies_by_the_sigmoid) {
  const int64_t size = 72, stride = 200;
  for (const FloatType type : kTypes)
    for (const bool is_row_major : {false, true}) {
      const int tokens = 9;
      const DepthSplit split = split_depth(size, size, row_parallel_parts(size));
      const std::vector<float> values = rounded(type, noise(1, tokens * size, 1)), gates = noise(2, tokens * stride, 2);
      Bits bits(static_cast<size_t>(round_up(tokens, 64) * split.padded()), 0);
      const auto at = [&](int64_t token, int64_t k) {
        return static_cast<size_t>(act_index(is_row_major, token, split.place(k), split.padded()));
      };
      for (int64_t token = 0; token < tokens; ++token)
        for (int64_t k = 0; k < size; ++k)
          bits[at(token, k)] = bits_of(type, values[static_cast<size_t>(token * size + k)]);
      const OnDevice<float> on_gates(gates);
      const OnDevice<uint16_t> acts(bits);
      launch_output_gate({type, tokens, on_gates.get(), stride, split, acts.get(), is_row_major}, stream());
      const Bits got = acts.read();
      for (int64_t token = 0; token < tokens; ++token)
        for (int64_t k = 0; k < size; ++k) {
          const double wanted = values[static_cast<size_t>(token * size + k)] /
                                (1 + std::exp(-double{gates[static_cast<size_t>(token * stride + k)]}));
          expect_close(value_of(type, got[at(token, k)]), wanted, rounding_of(type) * std::abs(wanted) + 1e-6, "gated",
                       token, k);
        }
    }
}

}  // namespace
}  // namespace capstan::testing
