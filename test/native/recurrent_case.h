#pragma once
// A random recurrent layer and its definition in double precision, for the tests of the CPU and of CUDA.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "native/backend/backend.h"
#include "test/native/testing.h"

namespace capstan::testing {

constexpr Mixer kMixers[] = {Mixer::kDeltaNet, Mixer::kShortConv, Mixer::kMamba2};

// One step of a sequence, in rows of its projections.
struct Chunk {
  int sequence = 0, begin = 0, end = 0;
  int32_t read_slot = -1;
  std::vector<int32_t> write_slots;  // (end - begin)
};

// A chunk that ends in `slot`.
inline Chunk chunk(int sequence, int begin, int end, int32_t slot) {
  Chunk result{sequence, begin, end, begin == 0 ? -1 : slot,
               std::vector<int32_t>(static_cast<size_t>(end - begin), -1)};
  result.write_slots.back() = slot;
  return result;
}

// Returns steps with chunks of 1 to 7 rows of two sequences. The second one begins later and runs in batches with the
// first.
inline std::vector<std::vector<Chunk>> uneven_steps(int length) {
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
  return steps;
}

// A step of chunks, as arrays.
struct ChunkArrays {
  std::vector<int32_t> cu_seqlens{0}, reads, writes;

  explicit ChunkArrays(const std::vector<Chunk>& chunks) {
    for (const Chunk& chunk : chunks) {
      cu_seqlens.push_back(cu_seqlens.back() + chunk.end - chunk.begin);
      reads.push_back(chunk.read_slot);
      writes.insert(writes.end(), chunk.write_slots.begin(), chunk.write_slots.end());
    }
  }
};

// The random weights of one layer, and its projections.
class RecurrentCase {
 public:
  using Doubles = std::vector<double>;

  RecurrentCase(Mixer mixer, const RecurrentShape& shape) : mixer(mixer), shape(shape) {
    conv = noise(1, shape.conv_channels * shape.conv_taps, 0.5f);
    conv_bias = noise(2, shape.conv_channels, 0.3f);
    a_log = noise(3, shape.num_heads, 0.5f);
    dt_bias = noise(4, shape.num_heads, 1.0f);
    skip = noise(5, shape.num_heads, 1.0f);
    norm = noise(6, mixer == Mixer::kDeltaNet ? shape.head_dim : shape.output_size(), 0.5f);
  }

  static RecurrentShape small_shape(Mixer mixer) {
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

  int num_columns() const {
    if (shape.num_heads == 0) return static_cast<int>(3 * shape.conv_channels);
    return static_cast<int>(shape.conv_channels + shape.output_size() + 2 * shape.num_heads);
  }

  // The projections at `position` of a sequence in a layer.
  std::vector<float> projection(int layer, int sequence, int position) const {
    return noise(static_cast<uint64_t>(1000 + 100000 * layer + 1000 * sequence + position), num_columns(), 1.0f);
  }

  // The definition, for positions [0, length) of a sequence.
  std::vector<Doubles> reference(int layer, int sequence, int length) const {
    std::vector<Doubles> inputs, results;
    std::vector<Doubles> state(static_cast<size_t>(shape.num_heads * shape.head_dim),
                               Doubles(static_cast<size_t>(shape.state_size), 0.0));
    const int channels = static_cast<int>(shape.conv_channels), size = static_cast<int>(shape.output_size());
    for (int position = 0; position < length; ++position) {
      const std::vector<float> row = projection(layer, sequence, position);
      Doubles input(row.begin(), row.begin() + channels);
      if (mixer == Mixer::kShortConv)
        for (int c = 0; c < channels; ++c)
          input[c] *= row[2 * channels + c];
      inputs.push_back(input);
      Doubles mixed(conv_bias.begin(), conv_bias.end());
      for (int c = 0; c < channels; ++c)
        for (int tap = 0; tap < shape.conv_taps; ++tap)
          if (const int at = position - shape.conv_taps + 1 + tap; at >= 0)
            mixed[c] += conv[c * shape.conv_taps + tap] * inputs[at][c];
      if (mixer == Mixer::kShortConv) {
        for (int c = 0; c < channels; ++c)
          mixed[c] *= row[channels + c];
        results.push_back(mixed);
        continue;
      }
      for (double& value : mixed)
        value = silu(value);
      Doubles result(static_cast<size_t>(size));
      for (int head = 0; head < shape.num_heads; ++head)
        recur(row, mixed, head, state, result);
      results.push_back(normed(row, result));
    }
    return results;
  }

  const Mixer mixer;
  const RecurrentShape shape;
  std::vector<float> conv, conv_bias, a_log, dt_bias, skip, norm;

 private:
  static double silu(double x) { return x / (1 + std::exp(-x)); }

  void recur(const std::vector<float>& row, const Doubles& mixed, int head, std::vector<Doubles>& state,
             Doubles& result) const {
    const int size = shape.state_size, values = static_cast<int>(shape.output_size());
    const int group = shape.heads_alternate ? head % shape.num_groups : head / (shape.num_heads / shape.num_groups);
    const auto steps = row.begin() + shape.conv_channels + values;
    const double x = double{steps[head]} + dt_bias[head], step = std::log1p(std::exp(x));
    const double decay = std::exp(-std::exp(a_log[head]) * step);
    Doubles key(mixed.begin() + values + group * size, mixed.begin() + values + (group + 1) * size);
    const int first_query = values + (shape.num_groups + group) * size;
    Doubles query(mixed.begin() + first_query, mixed.begin() + first_query + size);
    const bool is_delta = mixer == Mixer::kDeltaNet;
    if (is_delta) {
      const auto normalize = [&](Doubles& head_values, double scale) {
        const double sum = std::inner_product(head_values.begin(), head_values.end(), head_values.begin(), 1e-6);
        for (double& value : head_values)
          value *= scale / std::sqrt(sum);
      };
      normalize(key, 1);
      normalize(query, 1 / std::sqrt(double(size)));
    }
    const double scale = is_delta ? 1 / (1 + std::exp(-double{steps[shape.num_heads + head]})) : step;
    for (int c = 0; c < shape.head_dim; ++c) {
      Doubles& column = state[head * shape.head_dim + c];
      const double value = mixed[head * shape.head_dim + c];
      for (double& entry : column)
        entry *= decay;
      const double memory = std::inner_product(column.begin(), column.end(), key.begin(), 0.0);
      for (int i = 0; i < size; ++i)
        column[i] += key[i] * scale * (value - (is_delta ? memory : 0));
      result[head * shape.head_dim + c] =
          std::inner_product(column.begin(), column.end(), query.begin(), 0.0) + (is_delta ? 0 : skip[head] * value);
    }
  }

  Doubles normed(const std::vector<float>& row, Doubles result) const {
    const bool is_delta = mixer == Mixer::kDeltaNet;
    const int num_norms = is_delta ? shape.num_heads : shape.num_groups;
    const int size = static_cast<int>(result.size()) / num_norms;
    for (int n = 0; n < num_norms; ++n) {
      double sum = 0;
      for (int i = n * size; i < (n + 1) * size; ++i) {
        if (!is_delta) result[i] *= silu(row[shape.conv_channels + i]);
        sum += result[i] * result[i];
      }
      for (int i = n * size; i < (n + 1) * size; ++i) {
        result[i] *= norm[is_delta ? i - n * size : i] / std::sqrt(sum / size + 1e-5);
        if (is_delta) result[i] *= silu(row[shape.conv_channels + i]);
      }
    }
    return result;
  }
};

}  // namespace capstan::testing
