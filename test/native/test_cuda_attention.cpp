// Attention by wgmma: its index arithmetic (exhaustively), the choice of sequences, and a backend that uses it.
#include <algorithm>
#include <map>
#include <set>

#include "cuda/attention_layout.h"
#include "cuda/attention_plan.h"
#include "test/native/cuda_host/cuda_host.h"
#include "test/native/gpu/device.h"
#include "test/native/testing.h"

namespace capstan::testing {
namespace {

using namespace cuda;

// The index of (row, k) in a panel with rows of 64.
int place_of(int row, int k) {
  return static_cast<int>(swizzle_128(static_cast<uint32_t>(row * kSwizzledRow + k * 2)));
}

TEST(cuda_attention_copies_all_keys_and_values) {
  for (const int d : {1, 2, 3, 4, 6, 8})
    for (const int block_size : {64, 192}) {
      const int k_dim = d * 32;
      // Maps positions in shared memory to positions in the cache, in 16-bit elements.
      std::map<int, int> keys, values;
      const auto add = [](std::map<int, int>& to, const Copy16& copy) {
        EXPECT(copy.from % 16 == 0 && copy.to % 16 == 0);
        for (int i = 0; i < 8; ++i)
          EXPECT(to.emplace(copy.to / 2 + i, copy.from / 2 + i).second);
      };
      for (int thread = 0; thread < 128; ++thread) {
        for (int iteration = 0; iteration < key_iterations(d); ++iteration)
          if (key_half(thread, iteration, d) < d) add(keys, key_copy(thread, d) + key_iteration_offset(iteration, d));
        for (int iteration = 0; iteration < value_iterations(d); ++iteration)
          add(values, value_copy(thread, block_size) + value_iteration_offset(iteration, block_size));
      }
      EXPECT_EQ(keys.size(), static_cast<size_t>(kTileKeys * k_dim));
      EXPECT_EQ(values.size(), static_cast<size_t>(kTileKeys * k_dim));
      // Rows of keys are in the order of the score columns, with their dimensions in the cache's order. Rows of values
      // have the same order of keys.
      for (int c = 0; c < kTileKeys; ++c)
        for (int dim = 0; dim < k_dim; ++dim) {
          const auto mixed = static_cast<int>(operand_index(0, dim % 32, 32)) + dim / 32 * 32;
          EXPECT_EQ(keys.at((mixed / 64 * kPanelBytes + place_of(c, mixed % 64)) / 2),
                    static_cast<int>(operand_index(key_of_column(c), dim, k_dim)));
          EXPECT_EQ(values.at(place_of(dim, c) / 2),
                    static_cast<int>(operand_index(dim, key_of_column(c), block_size)));
        }
    }
}

TEST(cuda_attention_threads_copy_without_bank_conflicts) {
  for (int thread = 0; thread < 128; ++thread) {
    // Eight neighbors write one row, in eight groups of banks.
    std::set<int> banks, value_banks;
    for (int i = 0; i < 8; ++i)
      banks.insert(key_copy(thread / 8 * 8 + i, 4).to / 16 % 8),
          value_banks.insert(value_copy(thread / 8 * 8 + i, 64).to / 16 % 8);
    EXPECT(banks.size() == 8 && value_banks.size() == 8);
    for (int iteration = 0; iteration < value_iterations(4); ++iteration) {
      const Copy16 copy = value_copy(thread, 64) + value_iteration_offset(iteration, 64);
      for (int word = 0; word < 4; ++word)
        for (int half = 0; half < 2; ++half)
          EXPECT_EQ(operand_index(value_dim(thread, iteration), value_key(thread, word) + half, 64),
                    copy.from / 2 + word * 2 + half);
    }
  }
  for (const int d : {1, 2, 3, 4, 6, 8})
    EXPECT(attention_shared_bytes(d) <= kHopperSharedBytes && attention_stages(d) >= 3 &&
           attention_stage_bytes(d) % kSwizzleAtom == 0 && key_tile_bytes(d) % kSwizzleAtom == 0);
}

AttentionPlan plan_of(const std::vector<int>& counts, const std::vector<int32_t>& contexts, int group, int num_kv_heads,
                      int multiprocessors, int rows_of_tile = 128) {
  std::vector<int32_t> cu_seqlens{0};
  for (const int count : counts)
    cu_seqlens.push_back(cu_seqlens.back() + count);
  AttentionPlan plan;
  plan_attention(cu_seqlens, contexts, group, num_kv_heads, {multiprocessors, rows_of_tile}, plan);
  // Every row of every sequence is in exactly one tile.
  for (size_t seq = 0; seq < counts.size(); ++seq) {
    std::set<int> rows;
    const auto add = [&](const std::vector<AttentionTile>& tiles, int size) {
      for (const AttentionTile& tile : tiles)
        for (int row = tile.first_row;
             tile.seq == static_cast<int>(seq) && row < std::min(tile.first_row + size, counts[seq] * group); ++row)
          EXPECT(rows.insert(row).second);
    };
    add(plan.tiles, 16);
    add(plan.wide_tiles, rows_of_tile);
    EXPECT_EQ(rows.size(), static_cast<size_t>(counts[seq] * group));
  }
  return plan;
}

TEST(cuda_attention_uses_wgmma_for_many_rows) {
  // A prompt of 1,024 tokens, 12 heads, 2 KV heads, 132 multiprocessors: 96 blocks.
  AttentionPlan plan = plan_of({1024}, {1024}, 6, 2, 132);
  EXPECT(plan.wide_tiles.size() == 48 && plan.tiles.empty());
  EXPECT(std::ranges::is_sorted(plan.wide_tiles, std::ranges::greater{},
                                &AttentionTile::first_row));  // most keys first
  // With decodes beside it, which launch_attention computes. `longest` covers only those.
  plan = plan_of({1, 1024, 10, 1}, {5000, 9000, 70, 300}, 6, 2, 132);
  EXPECT(plan.wide_tiles.size() == 48 && plan.tiles.size() == 1 + 4 + 1 && plan.longest == 5000);
  EXPECT(std::ranges::all_of(plan.wide_tiles, [](const AttentionTile& tile) { return tile.seq == 1; }));
  // Several prompts: the tile with most keys comes first.
  plan = plan_of({200, 400, 200}, {200, 400, 4000}, 6, 2, 132);
  EXPECT(plan.wide_tiles.size() == 10 + 19 + 10 && plan.wide_tiles.front().seq == 2 &&
         plan.wide_tiles.front().first_row == 1152 && plan.wide_tiles.back().first_row == 0);
  // Large heads have smaller tiles.
  plan = plan_of({1024}, {1024}, 6, 2, 132, wide_rows(8));
  EXPECT_EQ(plan.wide_tiles.size(), 96u);
  // Not when most multiprocessors would be idle, and not when wgmma is disabled.
  EXPECT(plan_of({512}, {512}, 6, 2, 132).wide_tiles.empty());
  EXPECT(plan_of({1024}, {1024}, 6, 2, 0).wide_tiles.empty());
  EXPECT(plan_of({1, 1, 1}, {900, 900, 900}, 8, 1, 1).wide_tiles.empty());
}

// ---- a backend that uses it

// Makes the device one of compute capability 9.0 during its lifetime.
struct Hopper {
  Hopper() { cuda_host::set_compute_capability(9); }
  ~Hopper() {
    cuda_host::set_compute_capability(8);
    cuda_host::set_multiprocessors(2);
  }
};

// Chunks after cached prefixes, together with few rows of another sequence.
TEST(cuda_attention_wgmma_decoder_equals_reference) {
  const Hopper hopper;
  for (const DecoderShape& base : decoder_shapes()) {
    DecoderShape shape = base;
    shape.file_dtype = DType::kF16;
    DecoderFixture fixture(shape);
    RunOptions options = cuda_options(DType::kF16, false);
    options.prefill_chunk_size = 70;
    const double worst = worst_difference(fixture, options,
                                          {random_ids(1, 150, shape.vocab_size), random_ids(2, 5, shape.vocab_size),
                                           random_ids(3, 100, shape.vocab_size)},
                                          5);
    if (!(worst < 0.02))
      fail(__FILE__, __LINE__, "head_dim " + std::to_string(shape.head_dim) + ": difference " + show(worst));
  }
}

// Products by wgmma have the same bits on any number of multiprocessors, so only attention can differ.
TEST(cuda_attention_wgmma_requires_a_16_bit_cache_and_enough_blocks) {
  const Hopper hopper;
  DecoderShape shape;
  shape.file_dtype = DType::kF16;
  DecoderFixture fixture(shape);
  const Prompts prompts = {random_ids(1, 90, shape.vocab_size)};
  for (const DType cache : {DType::kF16, DType::kFp8E4m3}) {
    RunOptions options = cuda_options(DType::kF16, false);
    options.kv_cache_dtype = cache;
    cuda_host::set_multiprocessors(2);
    const LogProbs few = fixture.run(options, prompts);
    cuda_host::set_multiprocessors(1000);
    EXPECT_EQ(is_same(few, fixture.run(options, prompts)), cache == DType::kFp8E4m3);
  }
}

}  // namespace
}  // namespace capstan::testing
