// The attention kernels of every instruction set, over a KV cache whose unused slots hold NaN.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "native/backend/cpu/attention_plan.h"
#include "test/native/attention_fixture.h"
#include "test/native/testing.h"

namespace capstan::testing {
namespace {

using Shape = AttentionCase;
using Problem = AttentionProblem;

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
