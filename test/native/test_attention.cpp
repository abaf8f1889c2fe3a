// The attention kernels of every instruction set, over a KV cache whose unused slots hold NaN.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "native/backend/cpu/attention_plan.h"
#include "native/backend/cpu/isa.h"
#include "native/backend/cpu/memory.h"
#include "native/base/number.h"
#include "test/native/checkpoint.h"
#include "test/native/reference.h"
#include "test/native/testing.h"

namespace capstan::testing {
namespace {

struct Shape {
  int num_heads = 4, num_kv_heads = 2, head_dim = 64;
  int context = 100, block_size = 16, window = 0;
  DType dtype = DType::kF32;
  bool has_bf16_products = false;
  float soft_cap = 0;
  bool has_sinks = false;
  bool is_causal = true;

  int num_keys() const { return is_causal ? 0 : context; }
  int first_key(int position) const { return first_visible_key(position, window); }
  int end_key(int position) const { return end_visible_key(position, window, num_keys()); }
};

// The number types of the cache, and for bf16 both types of products.
const std::vector<std::pair<DType, bool>>& number_types() {
  static const std::vector<std::pair<DType, bool>> all = {
      {DType::kF32, false}, {DType::kF16, false}, {DType::kBf16, false}, {DType::kBf16, true}, {DType::kInt8, false}};
  return all;
}

std::string name_of(const Shape& shape, CpuIsa isa) {
  return std::string(cpu_isa_name(isa)) + " " + dtype_name(shape.dtype) +
         (shape.has_bf16_products ? " products, heads " : " heads ") + show(shape.num_heads) + "/" +
         show(shape.num_kv_heads) + " of " + show(shape.head_dim) + ", context " + show(shape.context) + ", window " +
         show(shape.window) + (shape.is_causal ? "" : " on both sides") + ", blocks of " + show(shape.block_size);
}

// One sequence with random q, k and v. qkv_row writes its slots of the cache; all other slots hold NaN.
struct Problem {
  Shape shape;
  const CpuKernels& kernels;
  std::vector<int32_t> table;
  HugeBuffer k_memory, v_memory;
  KvCache cache;
  int64_t stride;
  std::vector<float> qkv;                     // (context, stride); q scaled
  std::vector<reference::Rows> keys, values;  // [kv head] (context, head_dim), rounded as in the cache
  reference::Rows queries;                    // (context * num_heads, head_dim)
  std::vector<float> sinks;                   // (num_heads)

  Problem(const Shape& what, CpuIsa isa) : shape(what), kernels(cpu_kernels(isa)) {
    const int num_blocks = (shape.context + shape.block_size - 1) / shape.block_size;
    for (int i = 0; i < num_blocks; ++i)
      table.push_back(2 * (num_blocks - 1 - i) + 1);  // the even blocks belong to other sequences
    cache.layout = {shape.dtype,
                    shape.block_size,
                    shape.num_kv_heads,
                    shape.head_dim,
                    shape.dtype == DType::kInt8 ? (shape.head_dim + 3) / 4 * 4 : (shape.head_dim + 1) / 2 * 2,
                    (shape.head_dim + 15) / 16 * 16};
    const size_t slots = static_cast<size_t>(2 * num_blocks) * shape.block_size * shape.num_kv_heads;
    k_memory = HugeBuffer(slots * slot_bytes(shape.dtype, cache.layout.k_dim), "keys");
    v_memory = HugeBuffer(slots * slot_bytes(shape.dtype, cache.layout.v_dim), "values");
    std::memset(k_memory.as<char>(), 0xff, k_memory.bytes());
    std::memset(v_memory.as<char>(), 0xff, v_memory.bytes());
    cache.k = k_memory.as<void>();
    cache.v = v_memory.as<void>();
    const int q_size = shape.num_heads * shape.head_dim, kv_size = shape.num_kv_heads * shape.head_dim;
    stride = q_size + 2 * kv_size;
    qkv = random_values(11, shape.context * stride + 16, 1.0f);
    sinks = random_values(12, shape.num_heads, 3.0f);
    keys.resize(static_cast<size_t>(shape.num_kv_heads));
    values.resize(keys.size());
    for (int position = 0; position < shape.context; ++position) {
      float* row = qkv.data() + position * stride;
      for (int h = 0; h < shape.num_heads; ++h)
        queries.emplace_back(row + h * shape.head_dim, row + (h + 1) * shape.head_dim);
      for (int h = 0; h < shape.num_kv_heads; ++h) {
        keys[h].push_back(stored(row + q_size + h * shape.head_dim));
        values[h].push_back(stored(row + q_size + kv_size + h * shape.head_dim));
      }
      QkvRowArgs args;
      args.qkv = row;
      args.num_heads = shape.num_heads;
      args.q_scale = scale() * kLog2E;
      args.cache = cache;
      args.slot = int64_t{table[position / shape.block_size]} * shape.block_size + position % shape.block_size;
      kernels.qkv_row(args);
    }
  }

  float scale() const { return 1 / std::sqrt(static_cast<float>(shape.head_dim)); }

  reference::Row stored(const float* from) const {
    reference::Row row;
    float largest = 0;
    for (int i = 0; i < shape.head_dim; ++i)
      largest = std::max(largest, std::abs(from[i]));
    const float scale = largest / 127;
    for (int i = 0; i < shape.head_dim; ++i) {
      float value = from[i];
      if (shape.dtype == DType::kInt8) value = std::nearbyint(value / scale) * scale;
      if (shape.dtype == DType::kBf16) value = bf16_to_float(float_to_bf16(value));
      if (shape.dtype == DType::kF16) value = f16_to_float(float_to_f16(value));
      row.push_back(value);
    }
    return row;
  }

  // How attention is cut into calls. chunks = 0: all chunks of a row in one call.
  struct Calls {
    int heads = 1, chunks = 0;
  };

  // Returns (count, num_heads * head_dim): the attention of positions [first, first + count).
  std::vector<float> attend(int first, int count, const Calls& calls) const {
    std::vector<float> rows(qkv.begin() + first * stride, qkv.begin() + (first + count) * stride);
    const int64_t num_rows = int64_t{count} * calls.heads;
    std::vector<float> scratch(
        static_cast<size_t>(attention_scratch_floats(num_rows, cache.layout.k_dim, cache.layout.v_dim)));
    const int heads_per_kv = shape.num_heads / shape.num_kv_heads;
    const int first_chunk = shape.first_key(first) / kKvChunk;
    const int end_chunk = (shape.end_key(first + count - 1) - 1) / kKvChunk + 1;
    const int64_t state_floats = chunk_state_floats(num_rows, cache.layout.v_dim);
    std::vector<float> states(static_cast<size_t>((end_chunk - first_chunk) * state_floats), std::nanf(""));
    for (int head = 0; head < shape.num_heads; head += calls.heads) {
      AttentionArgs args;
      args.q = rows.data() + head * shape.head_dim;
      args.q_stride = stride;
      args.num_rows = count;
      args.num_heads = calls.heads;
      args.first_position = first;
      args.window = shape.window;
      args.num_keys = shape.num_keys();
      args.has_bf16_products = shape.has_bf16_products;
      args.soft_cap = shape.soft_cap * kLog2E;
      if (shape.has_sinks) args.sinks = sinks.data() + head;
      args.kv_head = head / heads_per_kv;
      args.block_table = table.data();
      args.cache = cache;
      args.scratch = scratch.data();
      args.first_chunk = first_chunk;
      args.end_chunk = end_chunk;
      if (calls.chunks == 0) {
        kernels.attention(args);
        continue;
      }
      AttentionArgs part = args;
      for (int chunk = end_chunk; chunk > first_chunk; chunk -= calls.chunks) {  // in any order
        part.first_chunk = std::max(first_chunk, chunk - calls.chunks);
        part.end_chunk = chunk;
        part.states = states.data() + (part.first_chunk - first_chunk) * state_floats;
        kernels.attention(part);
      }
      args.states = states.data();
      kernels.combine_chunks(args);
    }
    std::vector<float> out;
    for (int i = 0; i < count; ++i)
      out.insert(out.end(), rows.begin() + i * stride, rows.begin() + i * stride + shape.num_heads * shape.head_dim);
    return out;
  }
};

// The worst and the mean difference to the reference. Products of bf16 round q and the weights to 8 bits. Over codes,
// q has 15 bits, and the weights of a tile have 15 bits together.
std::pair<double, double> bounds_of(const Shape& shape) {
  if (shape.has_bf16_products) return {0.02, 2e-3};
  return shape.dtype == DType::kInt8 ? std::pair{2e-3, 2e-4} : std::pair{5e-6, 1e-6};
}

// Compares the last positions, or the first ones, with the reference, for all instruction sets.
void check_against_reference(const Shape& shape, bool is_start = false) {
  const auto [bound, mean_bound] = bounds_of(shape);
  const int count = std::min(shape.context, 24), first = is_start ? 0 : shape.context - count;
  const int heads_per_kv = shape.num_heads / shape.num_kv_heads;
  reference::Rows wanted;
  for (const CpuIsa isa : available_cpu_isas()) {
    const Problem problem(shape, isa);
    for (int i = first; wanted.size() < static_cast<size_t>(count) * shape.num_heads; ++i) {
      const int last_key = shape.end_key(i) - 1, num_seen = last_key + 1 - shape.first_key(i);
      for (int h = 0; h < shape.num_heads; ++h)
        wanted.push_back(reference::attention(problem.queries[i * shape.num_heads + h], problem.keys[h / heads_per_kv],
                                              problem.values[h / heads_per_kv], last_key, num_seen, problem.scale(),
                                              {shape.soft_cap, shape.has_sinks ? &problem.sinks[h] : nullptr}));
    }
    const std::vector<float> out = problem.attend(first, count, {heads_per_kv});
    double total = 0;
    for (size_t row = 0; row < wanted.size(); ++row)
      for (int d = 0; d < shape.head_dim; ++d) {
        const float got = out[row * shape.head_dim + d];
        total += std::abs(got - wanted[row][d]);
        if (!(std::abs(got - wanted[row][d]) <= bound))
          fail(__FILE__, __LINE__, name_of(shape, isa) + ": got " + show(got) + ", expected " + show(wanted[row][d]));
      }
    const double mean = total / static_cast<double>(out.size());
    if (!(mean <= mean_bound)) fail(__FILE__, __LINE__, name_of(shape, isa) + ": mean difference " + show(mean));
  }
}

TEST(attention_is_close_to_the_reference_for_every_shape) {
  for (const auto& [dtype, has_bf16_products] : number_types()) {
    for (const auto& [heads, kv_heads] : {std::pair{2, 2}, {3, 1}, {8, 2}, {7, 1}})
      for (const int head_dim : {15, 24, 40, 64, 80, 128}) {
        Shape shape;
        shape.dtype = dtype, shape.num_heads = heads, shape.num_kv_heads = kv_heads, shape.head_dim = head_dim;
        shape.has_bf16_products = has_bf16_products;
        check_against_reference(shape);
      }
    for (const int context : {1, 2, 15, 16, 17, 63, 64, 65, 128, 129, 200})
      for (const int block_size : {16, 48})
        for (const int window : {0, 1, 5, 64, 100}) {
          Shape shape;
          shape.dtype = dtype, shape.context = context, shape.block_size = block_size, shape.window = window,
          shape.head_dim = 32;
          shape.has_bf16_products = has_bf16_products;
          check_against_reference(shape);
        }
  }
}

TEST(attention_with_soft_caps_and_sinks_is_close_to_the_reference) {
  for (const auto& [dtype, has_bf16_products] : number_types())
    for (const float soft_cap : {0.0f, 0.5f, 30.0f})
      for (const bool has_sinks : {false, true})
        for (const int window : {0, 20}) {
          Shape shape;
          shape.dtype = dtype, shape.has_bf16_products = has_bf16_products, shape.window = window;
          shape.soft_cap = soft_cap, shape.has_sinks = has_sinks, shape.num_heads = 6;
          check_against_reference(shape);
        }
}

TEST(attention_on_both_sides_is_close_to_the_reference) {
  for (const auto& [dtype, has_bf16_products] : number_types())
    for (const int context : {1, 17, 64, 130})
      for (const int window : {0, 1, 30, 64})
        for (const bool is_start : {false, true}) {
          Shape shape;
          shape.dtype = dtype, shape.has_bf16_products = has_bf16_products, shape.context = context;
          shape.window = window, shape.head_dim = 32, shape.is_causal = false;
          check_against_reference(shape, is_start);
        }
}

TEST(attention_on_both_sides_has_bits_that_depend_only_on_the_sequence) {
  for (const CpuIsa isa : available_cpu_isas()) {
    for (const auto& [dtype, has_bf16_products] : number_types()) {
      for (const auto& [context, window] : {std::pair{140, 0}, {140, 30}, {1100, 60}}) {
        if (isa == CpuIsa::kPortable && context > 1000) continue;  // slow, and the same template code
        Shape shape;
        shape.dtype = dtype, shape.has_bf16_products = has_bf16_products, shape.is_causal = false;
        shape.num_heads = 2, shape.num_kv_heads = 1, shape.head_dim = 16;
        shape.context = context, shape.window = window;
        const Problem problem(shape, isa);
        const size_t row = static_cast<size_t>(shape.num_heads) * shape.head_dim;
        const std::vector<float> whole = problem.attend(0, context, {2});
        for (const Problem::Calls& calls : {Problem::Calls{1, 0}, {2, 1}}) {
          for (int first = 0; first < context; first += context / 4 + 2) {
            const std::vector<float> part = problem.attend(first, std::min(context / 4 + 2, context - first), calls);
            if (std::memcmp(part.data(), whole.data() + first * row, part.size() * sizeof(float)) != 0)
              fail(__FILE__, __LINE__, name_of(shape, isa) + ": positions from " + show(first));
          }
        }
        if (context < 1000) EXPECT(Problem(shape, CpuIsa::kPortable).attend(0, context, {2}) == whole);
      }
    }
  }
}

TEST(attention_bits_depend_only_on_position_and_window) {
  for (const CpuIsa isa : available_cpu_isas()) {
    for (const auto& [dtype, has_bf16_products] : number_types()) {
      for (const int window : {0, 3, 30, 70}) {
        Shape shape;
        shape.has_bf16_products = has_bf16_products;
        shape.dtype = dtype, shape.num_heads = 6, shape.window = window, shape.context = 140;
        const Problem problem(shape, isa);
        const std::vector<float> whole = problem.attend(0, 140, {3});
        const size_t row = static_cast<size_t>(shape.num_heads) * shape.head_dim;
        for (const int step : {1, 7, 64}) {
          if (isa == CpuIsa::kPortable && step < 64) continue;  // slow, and the same template code
          for (int first = 0; first < 140; first += step) {
            const int count = std::min(step, 140 - first);
            for (const int heads : {1, 3}) {
              const std::vector<float> part = problem.attend(first, count, {heads});
              if (std::memcmp(part.data(), whole.data() + first * row, part.size() * sizeof(float)) != 0)
                fail(__FILE__, __LINE__,
                     name_of(shape, isa) + ": positions from " + show(first) + ", " + show(count) + " at once");
            }
          }
        }
        Shape other = shape;
        other.block_size = 48;
        EXPECT(Problem(other, isa).attend(0, 140, {3}) == whole);
        EXPECT(Problem(shape, CpuIsa::kPortable).attend(0, 140, {3}) == whole);
      }
    }
  }
}

// Sequences of several chunks, with windows that begin inside a chunk.
TEST(attention_bits_do_not_depend_on_who_computes_a_chunk) {
  for (const CpuIsa isa : available_cpu_isas()) {
    for (const auto& [dtype, has_bf16_products] : number_types()) {
      for (const int window : {0, 1500}) {
        Shape shape;
        shape.dtype = dtype, shape.has_bf16_products = has_bf16_products, shape.window = window;
        shape.num_heads = 2, shape.num_kv_heads = 1, shape.head_dim = 16, shape.context = 3105;
        const Problem problem(shape, isa), portable(shape, CpuIsa::kPortable);
        const size_t row = static_cast<size_t>(shape.num_heads) * shape.head_dim;
        // The last positions see 4 chunks, and those around 1024 and 2048 are in two chunks.
        for (const auto& [first, count] : {std::pair{3098, 7}, {1020, 9}, {2045, 5}, {2524, 3}}) {
          const std::vector<float> whole = problem.attend(first, count, {2});
          const auto expect_same = [&](const std::vector<float>& part, int from, const char* what) {
            if (std::memcmp(part.data(), whole.data() + from * row, part.size() * sizeof(float)) != 0)
              fail(__FILE__, __LINE__, name_of(shape, isa) + ", position " + show(first + from) + ": " + what);
          };
          for (const int chunks : {1, 2, 3})
            expect_same(problem.attend(first, count, {2, chunks}), 0, "split chunks");
          for (int i = 0; i < count; ++i)
            expect_same(problem.attend(first + i, 1, {1, i % 2}), i, "one position at a time");
          expect_same(portable.attend(first, count, {2}), 0, "portable");
        }
      }
    }
  }
}

TEST(attention_of_several_chunks_is_close_to_the_reference) {
  for (const auto& [dtype, has_bf16_products] : number_types()) {
    for (const int window : {0, 1500}) {
      Shape shape;
      shape.dtype = dtype, shape.has_bf16_products = has_bf16_products, shape.window = window;
      shape.num_heads = 2, shape.num_kv_heads = 1, shape.head_dim = 32, shape.context = 3082;
      check_against_reference(shape);
    }
  }
}

TEST(attention_handles_large_scores) {
  for (const CpuIsa isa : available_cpu_isas()) {
    for (const auto& [dtype, has_bf16_products] : number_types()) {
      Shape shape;
      shape.dtype = dtype, shape.has_bf16_products = has_bf16_products, shape.context = 1300;
      Problem problem(shape, isa);
      const int last = shape.context - 1;
      for (int i = 0; i < shape.num_heads * shape.head_dim; ++i)
        problem.qkv[last * problem.stride + i] *= 500.0f;
      const std::vector<float> out = problem.attend(last, 1, {2});
      for (const float value : out)
        EXPECT(std::isfinite(value) && std::abs(value) < 6);
    }
  }
}

// A NaN in a visible key must reach the output. A maximum must not drop it.
TEST(attention_propagates_nan) {
  for (const CpuIsa isa : available_cpu_isas()) {
    for (const auto& [dtype, has_bf16_products] : number_types()) {
      Shape shape;
      shape.dtype = dtype, shape.has_bf16_products = has_bf16_products, shape.context = 1100;
      Problem problem(shape, isa);
      QkvRowArgs args;
      std::vector<float> row(static_cast<size_t>(problem.stride + 16), std::nanf(""));
      // The values are finite, so the NaN must arrive through the scores.
      std::fill(row.end() - 16 - shape.num_kv_heads * shape.head_dim, row.end(), 1.0f);
      args.qkv = row.data();
      args.num_heads = shape.num_heads;
      args.cache = problem.cache;
      args.slot = int64_t{problem.table[1]} * shape.block_size + 3;  // position 19
      problem.kernels.qkv_row(args);
      for (const float value : problem.attend(18, 1, {2}))
        EXPECT(std::isfinite(value));
      for (const int position : {19, 70, 1090})
        for (const float value : problem.attend(position, 1, {2}))
          EXPECT(std::isnan(value));
    }
  }
}

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
    for (const int head_dim : {15, 64, 80}) {
      Shape shape;
      shape.dtype = DType::kInt8, shape.head_dim = head_dim, shape.context = 37, shape.block_size = 48;
      const Problem problem(shape, isa);
      const int q_size = shape.num_heads * head_dim;
      for (int position = 0; position < shape.context; ++position)
        for (const bool is_key : {true, false})
          for (int head = 0; head < shape.num_kv_heads; ++head) {
            const float* x = problem.qkv.data() + position * problem.stride + q_size +
                             ((is_key ? 0 : shape.num_kv_heads) + head) * head_dim;
            float largest = 0;
            for (int d = 0; d < head_dim; ++d)
              largest = std::max(largest, std::abs(x[d]));
            for (int d = 0; d < head_dim; ++d) {
              const StoredCode stored = stored_code(problem, is_key, position, head, d);
              EXPECT_EQ(stored.scale, largest / 127);
              EXPECT(std::abs(static_cast<double>(stored.code) * stored.scale - x[d]) <= stored.scale * 0.50001);
            }
          }
    }
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
        double difference = 0;
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
              if (is_changed) EXPECT(error <= bounds_of(shape).first);
              if (!is_changed) difference = std::max(difference, error);
            }
          }
        }
        EXPECT(difference > 2 * bounds_of(shape).first);
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

// The arrays of a step whose sequences have these (tokens in the step, tokens in the cache).
struct Batch {
  std::vector<int32_t> positions, cu_seqlens{0}, context_lens;

  explicit Batch(const std::vector<std::pair<int, int>>& seqs) {
    for (const auto& [count, context] : seqs) {
      for (int i = context - count; i < context; ++i)
        positions.push_back(i);
      context_lens.push_back(context);
      cu_seqlens.push_back(static_cast<int32_t>(positions.size()));
    }
  }
  StepInput step() const { return {positions, positions, cu_seqlens, context_lens, {}, 1}; }
};

void check_plan(const std::vector<std::pair<int, int>>& seqs, int heads, int kv_heads, int window, int num_threads) {
  const Batch batch(seqs);
  AttentionShape shape{heads, kv_heads, window, num_threads, 0};
  shape.max_states = max_attention_states(shape, 64, 32'768);
  AttentionPlan plan;
  plan_attention(batch.step(), shape, plan);
  EXPECT(static_cast<int64_t>(plan.items.size()) <= max_attention_items(shape, 512));
  EXPECT(static_cast<int>(plan.splits.size()) <= max_attention_splits(shape));

  const int heads_per_kv = heads / kv_heads, num_chunks = 32'768 / kKvChunk;
  std::vector<int> times(batch.positions.size() * heads * num_chunks), split_items(plan.splits.size());
  std::vector<int> state_times(static_cast<size_t>(shape.max_states));
  for (const AttentionItem& item : plan.items) {
    EXPECT(item.num_rows * item.num_heads <= std::max(kAttentionRows, heads_per_kv));
    EXPECT_EQ(item.first_position, batch.positions[item.first_row]);
    const int item_rows = item.num_rows * item.num_heads;
    if (item.split >= 0) {
      const AttentionSplit& split = plan.splits[item.split];
      ++split_items[item.split];
      EXPECT(split.first_chunk <= item.first_chunk && item.end_chunk <= split.end_chunk);
      for (int i = (item.first_chunk - split.first_chunk) * item_rows;
           i < (item.end_chunk - split.first_chunk) * item_rows; ++i)
        ++state_times.at(static_cast<size_t>(split.first_state + i));
    }
    for (int row = 0; row < item.num_rows; ++row) {
      EXPECT(item.first_row + row < batch.cu_seqlens[item.seq + 1] && item.first_row >= batch.cu_seqlens[item.seq]);
      for (int h = 0; h < item.num_heads; ++h)
        for (int chunk = item.first_chunk; chunk < item.end_chunk; ++chunk)
          ++times[((item.first_row + row) * heads + item.kv_head * heads_per_kv + item.first_head + h) * num_chunks +
                  chunk];
    }
  }
  for (size_t row = 0; row < batch.positions.size(); ++row)
    for (int head = 0; head < heads; ++head)
      for (int chunk = 0; chunk < num_chunks; ++chunk) {
        const int position = batch.positions[row];
        const bool is_seen = chunk <= position / kKvChunk && chunk >= first_visible_key(position, window) / kKvChunk;
        const int time = times[(row * heads + head) * num_chunks + chunk];
        EXPECT(time == 1 || (time == 0 && !is_seen));
      }
  for (size_t i = 0; i < plan.splits.size(); ++i)
    EXPECT_EQ(split_items[i], plan.splits[i].num_items);
  for (const int time : state_times)
    EXPECT(time <= 1);
  if (num_threads == 2) EXPECT(plan.items.size() >= 2 || heads == kv_heads);
}

TEST(attention_plan_covers_every_row_head_and_chunk_once) {
  using Seqs = std::vector<std::pair<int, int>>;
  for (const int num_threads : {1, 2, 3, 16})
    for (const auto& [heads, kv_heads] : {std::pair{2, 2}, {14, 2}, {7, 1}, {200, 1}})
      for (const int window : {0, 1500})
        for (const Seqs& seqs :
             {Seqs{{1, 701}}, Seqs(8, {1, 701}), Seqs{{512, 512}}, Seqs{{1, 701}, {300, 300}}, Seqs{{1, 30'000}},
              Seqs(8, {1, 5'000}), Seqs{{1, 32'000}, {1, 9}, {100, 9'000}}, Seqs{{5, 20'000}}, Seqs{{60, 20'000}}})
          check_plan(seqs, heads, kv_heads, window, num_threads);
}

// Few streams with long contexts keep all threads busy.
TEST(attention_plan_splits_the_chunks_of_long_decodes) {
  for (const int num_threads : {2, 8}) {
    AttentionShape shape{14, 2, 0, num_threads, 0};
    shape.max_states = max_attention_states(shape, 64, 32'768);
    AttentionPlan plan;
    plan_attention(Batch({{1, 32'000}}).step(), shape, plan);
    EXPECT_EQ(plan.splits.size(), 2u);
    EXPECT(static_cast<int>(plan.items.size()) >= 4 * num_threads);
    for (const AttentionItem& item : plan.items)
      EXPECT_EQ(item.num_heads, 7);
  }
}

}  // namespace
}  // namespace capstan::testing
