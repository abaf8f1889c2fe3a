// The attention kernels of every instruction set, over a KV cache whose unused slots hold NaN.
#include <algorithm>
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
};

std::string name_of(const Shape& shape, CpuIsa isa) {
  return std::string(cpu_isa_name(isa)) + " " + dtype_name(shape.dtype) + " heads " + show(shape.num_heads) + "/" +
         show(shape.num_kv_heads) + " of " + show(shape.head_dim) + ", context " + show(shape.context) + ", window " +
         show(shape.window) + ", blocks of " + show(shape.block_size);
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

  Problem(const Shape& what, CpuIsa isa) : shape(what), kernels(cpu_kernels(isa)) {
    const int num_blocks = (shape.context + shape.block_size - 1) / shape.block_size;
    for (int i = 0; i < num_blocks; ++i)
      table.push_back(2 * (num_blocks - 1 - i) + 1);  // the even blocks belong to other sequences
    cache.layout = {shape.dtype,
                    shape.block_size,
                    shape.num_kv_heads,
                    shape.head_dim,
                    (shape.head_dim + 1) / 2 * 2,
                    (shape.head_dim + 15) / 16 * 16};
    const size_t slots = static_cast<size_t>(2 * num_blocks) * shape.block_size * shape.num_kv_heads;
    k_memory = HugeBuffer(slots * cache.layout.k_dim * dtype_size(shape.dtype), "keys");
    v_memory = HugeBuffer(slots * cache.layout.v_dim * dtype_size(shape.dtype), "values");
    std::memset(k_memory.as<char>(), 0xff, k_memory.bytes());
    std::memset(v_memory.as<char>(), 0xff, v_memory.bytes());
    cache.k = k_memory.as<void>();
    cache.v = v_memory.as<void>();
    const int q_size = shape.num_heads * shape.head_dim, kv_size = shape.num_kv_heads * shape.head_dim;
    stride = q_size + 2 * kv_size;
    qkv = random_values(11, shape.context * stride + 16, 1.0f);
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
    for (int i = 0; i < shape.head_dim; ++i) {
      float value = from[i];
      if (shape.dtype == DType::kBf16) value = bf16_to_float(float_to_bf16(value));
      if (shape.dtype == DType::kF16) value = f16_to_float(float_to_f16(value));
      row.push_back(value);
    }
    return row;
  }

  // Returns (count, num_heads * head_dim): the attention of positions [first, first + count), `heads_at_once` query
  // heads per call from `head_begin` on. The other heads keep q.
  std::vector<float> attend(int first, int count, int head_begin, int heads_at_once) const {
    std::vector<float> rows(qkv.begin() + first * stride, qkv.begin() + (first + count) * stride);
    std::vector<float> scratch(
        static_cast<size_t>(attention_scratch_floats(count * shape.num_heads, cache.layout.k_dim, cache.layout.v_dim)));
    const int heads_per_kv = shape.num_heads / shape.num_kv_heads;
    for (int head = head_begin; head < shape.num_heads; head += heads_at_once) {
      AttentionArgs args;
      args.q = rows.data() + head * shape.head_dim;
      args.q_stride = stride;
      args.num_rows = count;
      args.num_heads = heads_at_once;
      args.first_position = first;
      args.window = shape.window;
      args.kv_head = head / heads_per_kv;
      args.block_table = table.data();
      args.cache = cache;
      args.scratch = scratch.data();
      kernels.attention(args);
    }
    std::vector<float> out;
    for (int i = 0; i < count; ++i)
      out.insert(out.end(), rows.begin() + i * stride, rows.begin() + i * stride + shape.num_heads * shape.head_dim);
    return out;
  }
};

// Compares the last positions with the reference, for all instruction sets.
void check_against_reference(const Shape& shape) {
  const int count = std::min(shape.context, 24), first = shape.context - count;
  const int heads_per_kv = shape.num_heads / shape.num_kv_heads;
  reference::Rows wanted;
  for (const CpuIsa isa : available_cpu_isas()) {
    const Problem problem(shape, isa);
    for (int i = first; wanted.size() < static_cast<size_t>(count) * shape.num_heads; ++i)
      for (int h = 0; h < shape.num_heads; ++h)
        wanted.push_back(reference::attention(problem.queries[i * shape.num_heads + h], problem.keys[h / heads_per_kv],
                                              problem.values[h / heads_per_kv], i, shape.window, problem.scale()));
    const std::vector<float> out = problem.attend(first, count, 0, heads_per_kv);
    for (size_t row = 0; row < wanted.size(); ++row)
      for (int d = 0; d < shape.head_dim; ++d) {
        const float got = out[row * shape.head_dim + d];
        if (!(std::abs(got - wanted[row][d]) <= 5e-6))
          fail(__FILE__, __LINE__, name_of(shape, isa) + ": got " + show(got) + ", expected " + show(wanted[row][d]));
      }
  }
}

TEST(attention_is_close_to_the_reference_for_every_shape) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBf16}) {
    for (const auto& [heads, kv_heads] : {std::pair{2, 2}, {3, 1}, {8, 2}, {7, 1}})
      for (const int head_dim : {15, 24, 40, 64, 80, 128}) {
        Shape shape;
        shape.dtype = dtype, shape.num_heads = heads, shape.num_kv_heads = kv_heads, shape.head_dim = head_dim;
        check_against_reference(shape);
      }
    for (const int context : {1, 2, 15, 16, 17, 63, 64, 65, 128, 129, 200})
      for (const int block_size : {16, 48})
        for (const int window : {0, 1, 5, 64, 100}) {
          Shape shape;
          shape.dtype = dtype, shape.context = context, shape.block_size = block_size, shape.window = window,
          shape.head_dim = 32;
          check_against_reference(shape);
        }
  }
}

TEST(attention_bits_depend_only_on_position_and_window) {
  for (const CpuIsa isa : available_cpu_isas()) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBf16}) {
      for (const int window : {0, 3, 30, 70}) {
        Shape shape;
        shape.dtype = dtype, shape.num_heads = 6, shape.window = window, shape.context = 140;
        const Problem problem(shape, isa);
        const std::vector<float> whole = problem.attend(0, 140, 0, 3);
        const size_t row = static_cast<size_t>(shape.num_heads) * shape.head_dim;
        for (const int step : {1, 7, 64}) {
          if (isa == CpuIsa::kPortable && step < 64) continue;  // slow, and the same template code
          for (int first = 0; first < 140; first += step) {
            const int count = std::min(step, 140 - first);
            for (const int heads : {1, 3}) {
              const std::vector<float> part = problem.attend(first, count, 0, heads);
              if (std::memcmp(part.data(), whole.data() + first * row, part.size() * sizeof(float)) != 0)
                fail(__FILE__, __LINE__,
                     name_of(shape, isa) + ": positions from " + show(first) + ", " + show(count) + " at once");
            }
          }
        }
        Shape other = shape;
        other.block_size = 48;
        EXPECT(Problem(other, isa).attend(0, 140, 0, 3) == whole);
        EXPECT(Problem(shape, CpuIsa::kPortable).attend(0, 140, 0, 3) == whole);
      }
    }
  }
}

TEST(attention_handles_large_scores) {
  for (const CpuIsa isa : available_cpu_isas()) {
    Shape shape;
    Problem problem(shape, isa);
    const int last = shape.context - 1;
    for (int i = 0; i < shape.num_heads * shape.head_dim; ++i)
      problem.qkv[last * problem.stride + i] *= 500.0f;
    const std::vector<float> out = problem.attend(last, 1, 0, 2);
    for (const float value : out)
      EXPECT(std::isfinite(value) && std::abs(value) < 6);
  }
}

// A NaN in a visible key must reach the output. A maximum must not drop it.
TEST(attention_propagates_nan) {
  for (const CpuIsa isa : available_cpu_isas()) {
    Shape shape;
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
    const std::vector<float> before = problem.attend(18, 1, 0, 2), after = problem.attend(70, 1, 0, 2);
    for (const float value : before)
      EXPECT(std::isfinite(value));
    for (const float value : after)
      EXPECT(std::isnan(value));
  }
}

TEST(attention_plan_covers_every_row_and_head_once) {
  for (const int num_threads : {1, 2, 3, 16}) {
    for (const auto& [heads, kv_heads] : {std::pair{2, 2}, {14, 2}, {7, 1}, {200, 1}}) {
      for (const std::vector<int>& lengths : {std::vector<int>{1}, {1, 1, 1, 1, 1, 1, 1, 1}, {512}, {1, 300, 1, 17}}) {
        std::vector<int32_t> ids, positions, slots, cu_seqlens{0}, context_lens, tables(lengths.size(), 0);
        for (const int length : lengths) {
          for (int i = 0; i < length; ++i)
            positions.push_back(length == 1 ? 700 : i);
          context_lens.push_back(length == 1 ? 701 : length);
          cu_seqlens.push_back(static_cast<int32_t>(positions.size()));
        }
        ids = slots = positions;
        std::vector<AttentionItem> items;
        plan_attention({ids, positions, slots, cu_seqlens, context_lens, tables, 1}, heads, kv_heads, 0, num_threads,
                       items);
        std::vector<int> times(positions.size() * heads);
        for (const AttentionItem& item : items) {
          EXPECT(item.num_rows * item.num_heads <= std::max(kAttentionRows, heads / kv_heads));
          EXPECT_EQ(item.first_position, positions[item.first_row]);
          for (int row = 0; row < item.num_rows; ++row) {
            EXPECT(item.first_row + row < cu_seqlens[item.seq + 1] && item.first_row >= cu_seqlens[item.seq]);
            for (int h = 0; h < item.num_heads; ++h)
              ++times[(item.first_row + row) * heads + item.kv_head * (heads / kv_heads) + item.first_head + h];
          }
        }
        for (const int time : times)
          EXPECT_EQ(time, 1);
        if (num_threads == 2) EXPECT(items.size() >= 2 || heads == kv_heads);
      }
    }
  }
}

}  // namespace
}  // namespace capstan::testing
