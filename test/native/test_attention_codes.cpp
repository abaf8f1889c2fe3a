// A KV cache in 8 bits: its codes and scales, and numbers that are not finite.
#include <array>
#include <cmath>
#include <cstring>

#include "test/native/attention_fixture.h"
#include "test/native/testing.h"

namespace capstan::testing {
namespace {

using Shape = AttentionCase;
using Problem = AttentionProblem;

// A code of the cache and its scale, as kernels.h states the layout.
struct StoredCode {
  int code;
  float scale;
};

StoredCode stored_code(const Problem& problem, bool is_key, int position, int head, int dim) {
  const KvLayout& layout = problem.cache.layout;
  const int64_t block = problem.table[position / layout.block_size];
  const int64_t slot = (block * layout.num_kv_heads + head) * layout.block_size + position % layout.block_size;
  const int64_t lane = slot % kSlotGroup, dims = is_key ? layout.k_dim : layout.v_dim;
  const char* group = static_cast<const char*>(is_key ? problem.cache.k : problem.cache.v) +
                      (slot - lane) * slot_bytes(DType::kInt8, dims);
  constexpr int kOrder[4] = {0, 2, 1, 3};
  const int64_t at =
      is_key ? dim / 4 * 64 + lane * 4 + kOrder[dim % 4] : (lane / 4 * dims + dim) * 4 + kOrder[lane % 4];
  StoredCode stored{static_cast<signed char>(group[at]), 0};
  std::memcpy(&stored.scale, group + dims * kSlotGroup + lane * 4, sizeof stored.scale);
  return stored;
}

TEST(attention_codes_are_the_nearest_ones_and_scales_the_smallest) {
  for (const CpuIsa isa : available_cpu_isas()) {
    for (const int head_dim : {15, 64, 80, 96, 256}) {
      Shape shape;
      shape.dtype = DType::kInt8, shape.head_dim = head_dim, shape.context = 37, shape.block_size = 48;
      const Problem problem(shape, isa);
      const int q_size = shape.num_heads * head_dim;
      for (int position = 0; position < shape.context; ++position)
        for (const bool is_key : {true, false})
          for (int head = 0; head < shape.num_kv_heads; ++head) {
            const float* x = problem.qkv.data() + position * problem.stride + q_size +
                             ((is_key ? 0 : shape.num_kv_heads) + head) * head_dim;
            const reference::Row mixed = problem.mixed(x);
            double largest = 0;
            for (const double value : mixed)
              largest = std::max(largest, std::abs(value));
            for (int d = 0; d < head_dim; ++d) {
              const StoredCode stored = stored_code(problem, is_key, position, head, d);
              EXPECT(std::abs(stored.scale - largest / 127) <= 1e-6 * stored.scale);
              EXPECT(std::abs(static_cast<double>(stored.code) * stored.scale - mixed[static_cast<size_t>(d)]) <=
                     stored.scale * 0.5001);
            }
          }
    }
  }
}

// A dimension with large keys, as trained models have, takes the precision of no other one.
TEST(attention_over_codes_keeps_small_dimensions_beside_a_large_one) {
  for (const CpuIsa isa : available_cpu_isas()) {
    Shape shape;
    shape.dtype = DType::kInt8, shape.num_heads = 2, shape.num_kv_heads = 1, shape.head_dim = 64;
    Problem problem(shape, isa);
    std::vector<float> row = random_values(5, problem.stride + 16, 1.0f);
    float* const key = row.data() + shape.num_heads * shape.head_dim;
    key[5] = 40;
    QkvRowArgs args;
    args.qkv = row.data();
    args.num_heads = shape.num_heads;
    args.q_scale = 1;
    args.cache = problem.cache;
    args.slot = int64_t{problem.table[2]} * 16 + 8;  // position 40
    problem.kernels.qkv_row(args);
    reference::Row codes;
    for (int d = 0; d < 64; ++d) {
      const StoredCode stored = stored_code(problem, true, 40, 0, d);
      codes.push_back(static_cast<double>(stored.code) * stored.scale);
    }
    const reference::Row twice = problem.mixed(codes.data());
    double error = 0;
    for (size_t d = 0; d < 64; ++d)
      error += std::pow(twice[d] / 64 - key[d], 2) / 64;
    // Codes of the key itself would be apart by 40 / 127.
    EXPECT(std::sqrt(error) < 0.25 * 40 / 127 / std::sqrt(12.0));
  }
}

// A wrong scale of one slot must show: the score of its key, or its value, changes by that factor and no other.
TEST(attention_reads_the_scale_of_each_slot) {
  for (const CpuIsa isa : available_cpu_isas()) {
    for (const bool is_key : {true, false}) {
      for (const int position : {0, 17, 63, 64, 99}) {
        Shape shape;
        shape.dtype = DType::kInt8, shape.num_heads = 2, shape.num_kv_heads = 1;
        Problem problem(shape, isa);
        const KvLayout& layout = problem.cache.layout;
        const int64_t slot = int64_t{problem.table[position / 16]} * 16 + position % 16, lane = slot % kSlotGroup;
        const int64_t dims = is_key ? layout.k_dim : layout.v_dim;
        char* at = static_cast<char*>(is_key ? problem.cache.k : problem.cache.v) +
                   (slot - lane) * slot_bytes(DType::kInt8, dims) + dims * kSlotGroup + lane * 4;
        float scale;
        std::memcpy(&scale, at, sizeof scale);
        scale *= 1.5f;
        std::memcpy(at, &scale, sizeof scale);
        reference::Row& changed = (is_key ? problem.keys : problem.values)[0][static_cast<size_t>(position)];
        const reference::Row before = changed;
        double difference = 0, rounding = 0;
        for (const bool is_changed : {false, true}) {
          for (size_t d = 0; d < before.size(); ++d)
            changed[d] = before[d] * (is_changed ? 1.5 : 1);
          const std::vector<float> out = problem.attend(99, 1, {2});
          for (int h = 0; h < 2; ++h) {
            const reference::Row wanted =
                reference::attention(problem.queries[99 * 2 + h], problem.keys[0], problem.values[0], 99, 100,
                                     problem.scale(), {0, nullptr});
            for (int d = 0; d < shape.head_dim; ++d) {
              const double error = std::abs(out[h * shape.head_dim + d] - wanted[d]);
              double& largest = is_changed ? rounding : difference;
              largest = std::max(largest, error);
            }
          }
        }
        EXPECT(rounding <= bounds_of(shape).first);
        EXPECT(difference > 2 * rounding);
      }
    }
  }
}

// Whatever keys, values and queries hold, a row is finite or not as the numbers that it sees, and the rows that do not
// see a slot do not change.
TEST(attention_over_codes_survives_any_number) {
  constexpr float kInfinity = __builtin_inff();
  for (const CpuIsa isa : available_cpu_isas()) {
    for (const float odd : {std::nanf(""), kInfinity, -kInfinity, 3e38f, -1e-40f, 0.0f, 1e20f}) {
      for (const int part : {0, 1, 2}) {  // of the query, the key or the value
        for (const bool is_whole : {false, true}) {
          Shape shape;
          shape.dtype = DType::kInt8, shape.num_heads = 2, shape.num_kv_heads = 1, shape.head_dim = 32;
          Problem problem(shape, isa);
          const std::vector<float> before = problem.attend(0, 40, {2});
          std::vector<float> row = random_values(5, problem.stride + 16, 1.0f);
          float* from = row.data() + std::array{0, 64, 96}[part];
          for (int d = 0; d < (is_whole ? 32 : 1); ++d)
            from[d + (is_whole ? 0 : 7)] = odd;
          QkvRowArgs args;
          args.qkv = row.data();
          args.num_heads = 2;
          args.q_scale = problem.scale() * kLog2E;
          args.cache = problem.cache;
          args.slot = int64_t{problem.table[2]} * 16 + 8;  // position 40
          problem.kernels.qkv_row(args);
          std::copy(row.begin(), row.begin() + problem.stride, problem.qkv.begin() + 40 * problem.stride);
          EXPECT(problem.attend(0, 40, {2}) == before);
          const std::vector<float> after = problem.attend(40, 1, {2});
          const bool is_poison = !std::isfinite(odd);
          const bool may_overflow = std::abs(odd) > 1e30f;
          for (int d = 0; d < 32; ++d) {
            if (is_poison) EXPECT(!std::isfinite(after[d]));
            if (!is_poison && !may_overflow) EXPECT(std::isfinite(after[d]));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace capstan::testing
