// How the CUDA backend splits work and addresses memory: exhaustive tests, also beyond 2^31 elements.
#include <algorithm>
#include <array>
#include <set>

#include "cuda/attention_plan.h"
#include "cuda/gemm_layout.h"
#include "cuda/ranks.h"
#include "cuda/step.h"
#include "test/native/testing.h"

namespace capstan::testing {
namespace {

using namespace cuda;

// ---- products

TEST(cuda_groups_of_tiles_cover_every_tile_once) {
  for (const int max_warps : {1, 4, 5, 12})
    for (const int64_t max_blocks : {1, 2, 7, 33, 132})
      for (int64_t num_tiles = 1; num_tiles < 700; ++num_tiles) {
        const TileGroups groups = group_tiles(num_tiles, max_blocks, max_warps);
        EXPECT(groups.num_tiles == num_tiles && groups.warps >= 1 && groups.warps <= max_warps &&
               groups.num_blocks >= 1 && groups.num_blocks <= max_blocks);
        std::vector<int> times(static_cast<size_t>(num_tiles));
        for (int64_t block = 0; block < groups.num_blocks; ++block) {
          EXPECT(groups.iterations(block) >= 1);
          for (int64_t iteration = 0; iteration < groups.iterations(block); ++iteration)
            for (int warp = 0; warp < groups.warps; ++warp) {
              const int64_t tile = groups.first(block) + warp + iteration * groups.stride();
              EXPECT(warp > 0 || tile < num_tiles);  // every iteration has a tile for the first warp
              if (tile < num_tiles) ++times[static_cast<size_t>(tile)];
            }
        }
        EXPECT(std::ranges::all_of(times, [](int count) { return count == 1; }));
      }
}

TEST(cuda_warps_per_block_minimize_the_time) {
  for (const int64_t num_blocks : {1, 2, 7, 33, 132})
    for (int64_t num_tiles = 1; num_tiles < 5000; ++num_tiles) {
      const auto time = [&](int warps) {
        return ((num_tiles + warps - 1) / warps + num_blocks - 1) / num_blocks * warps;
      };
      const int chosen = choose_warps(num_tiles, num_blocks, 12);
      for (int warps = 1; warps <= 12; ++warps)
        EXPECT(time(chosen) < time(warps) || (time(chosen) == time(warps) && warps <= chosen));
    }
  EXPECT(choose_warps(100, 132, 0) == 0);
}

// ---- ranks

TEST(cuda_shares_of_ranks_cover_every_token_once) {
  for (int world_size = 1; world_size <= Ranks::kMaxRanks; ++world_size)
    for (int num_tokens = 1; num_tokens <= 3000; ++num_tokens) {
      const int size = share_size(num_tokens, world_size);
      const auto begin = [&](int rank) { return share_begin(rank, num_tokens, world_size); };
      EXPECT(begin(0) == 0 && begin(world_size) == num_tokens && size % kTileTokens == 0);
      for (int rank = 0; rank < world_size; ++rank) {
        EXPECT(begin(rank) <= begin(rank + 1) && begin(rank + 1) - begin(rank) <= size);
        EXPECT(begin(rank) % kTileTokens == 0 || begin(rank) == num_tokens);
        // The owner of a token is token / size.
        if (begin(rank) < begin(rank + 1)) EXPECT(begin(rank) / size == rank && (begin(rank + 1) - 1) / size == rank);
      }
    }
}

// ---- attention

TEST(cuda_attention_splits_all_chunks_or_none) {
  for (const int heads : {1, 2, 3, 8, 128})
    for (int chunks = 1; chunks <= 1 << 17; chunks *= 2)
      for (int tiles = 1; tiles < 1 << 21; tiles += 1 + tiles / 16) {
        const int k_splits = attention_splits(tiles, heads, chunks);
        const bool fits = int64_t{tiles} * heads * chunks <= kMaxSplits;
        EXPECT_EQ(k_splits, fits ? chunks : 1);
        EXPECT_EQ(prefers_warp_per_tile(tiles, heads, k_splits),
                  k_splits == 1 && int64_t{tiles} * heads > kMaxBlockTiles);
        // Blocks never split chunks when each warp has a tile.
        EXPECT(k_splits == 1 || !prefers_warp_per_tile(tiles, heads, k_splits));
      }
}

struct Serving {
  DeviceModel model;
  DeviceLimits limits;
};
Serving serving(int num_heads, int num_kv_heads, int max_num_tokens, int max_num_seqs, int max_model_len) {
  Serving of;
  of.model.num_heads = num_heads, of.model.num_kv_heads = num_kv_heads, of.model.max_model_len = max_model_len;
  of.model.kv_groups = {{0, 1}};
  of.limits.max_num_tokens = max_num_tokens, of.limits.max_num_seqs = max_num_seqs, of.limits.block_size = 64;
  return of;
}

// Sequences of one token, the last one of length `length`. Block tables are dummies.
struct Decodes {
  std::vector<int32_t> ids, lens, tables;
  KvGroupInput group;
  StepInput step;
  Decodes(int count, int length)
      : ids(static_cast<size_t>(count)), lens(static_cast<size_t>(count), 1), tables(static_cast<size_t>(count), 0) {
    lens.back() = length;
    step.input_ids = step.positions = group.slot_mapping = ids;
    step.context_lens = lens;
    group.block_tables = tables;
    step.kv_groups = {&group, 1};
    step.max_blocks_per_seq = 1;
  }
};

TEST(cuda_decode_plans_are_few_and_fit) {
  for (const auto& [heads, kv_heads] : {std::pair{1, 1}, {12, 2}, {32, 8}, {40, 2}})
    for (const int max_num_seqs : {1, 3, 8, 13, 64, 100, 256})
      for (const int max_model_len : {1, 256, 300, 4097, 40000}) {
        const auto [model, limits] = serving(heads, kv_heads, max_num_seqs, max_num_seqs, max_model_len);
        StepArrays arrays(model, limits);
        std::set<int> rows_of_plans;
        for (int count = 1; count <= max_num_seqs; ++count)
          for (const int length : {1, 255, 256, 257, 300, 4096, 4097, 12000, 40000}) {
            if (length > max_model_len) continue;
            const Decodes decodes(count, length);
            const DecodePlan plan = arrays.plan(decodes.step);
            EXPECT(plan.rows >= count && plan.rows <= max_num_seqs && plan.rows - count < (count <= 64 ? 8 : 32));
            EXPECT(plan.chunks * kChunk >= length && (plan.chunks == 1 || plan.chunks / 2 * kChunk < length) &&
                   (plan.chunks & (plan.chunks - 1)) == 0);
            // A full plan maps to itself.
            const Decodes most(plan.rows, length);
            EXPECT(arrays.plan(most.step) == plan);
            rows_of_plans.insert(plan.rows);
            // `place` throws if the arrays are too small. The chunks of attention must fit in the scratch memory.
            const DeviceStep placed = arrays.place(decodes.step, plan);
            const int num_tiles = placed.kv_groups[0].num_tiles, num_chunks = placed.kv_groups[0].num_chunks;
            if (num_chunks > 1)
              EXPECT(int64_t{num_tiles} * kv_heads * num_chunks <= max_attention_splits(model, 0, limits));
            EXPECT(num_chunks == 1 || num_chunks * kChunk >= length);
            EXPECT(placed.max_blocks_per_seq * limits.block_size >= length && placed.num_tokens == plan.rows);
          }
        EXPECT(rows_of_plans.size() <= size_t{3 + 8 + 6});
      }
}

// Prompts of all sizes.
TEST(cuda_attention_splits_of_prompts_fit) {
  for (const auto& [heads, kv_heads] : {std::pair{1, 1}, {12, 2}, {32, 8}, {40, 2}})
    for (const int max_model_len : {256, 300, 4097, 40000}) {
      const auto [model, limits] = serving(heads, kv_heads, 96, 8, max_model_len);
      for (int num_seqs = 1; num_seqs <= limits.max_num_seqs; ++num_seqs)
        for (int count = 1; count * num_seqs <= limits.max_num_tokens; ++count) {
          std::vector<int32_t> begins{0}, lens;
          for (int seq = 0; seq < num_seqs; ++seq)
            begins.push_back(begins.back() + count), lens.push_back(std::max(count, seq == 0 ? max_model_len : 1));
          AttentionPlan plan;
          plan_attention(begins, lens, heads / kv_heads, kv_heads, {}, plan);
          const int tiles = static_cast<int>(plan.tiles.size()),
                    k_splits = attention_splits(tiles, kv_heads, (plan.longest + kChunk - 1) / kChunk);
          if (k_splits > 1) EXPECT(int64_t{tiles} * kv_heads * k_splits <= max_attention_splits(model, 0, limits));
        }
    }
}

// ---- the cache

TEST(cuda_kv_layout_maps_elements_one_to_one) {
  constexpr int kBlocks = 2;
  for (const int block_size : {64, 128, 192})
    for (const int num_kv_heads : {1, 2, 3, 8})
      for (const int head_dim : {8, 15, 40, 64, 128, 256, 300})
        for (const bool is_fp8 : {false, true}) {
          const KvLayout layout = make_kv_layout(block_size, num_kv_heads, head_dim, is_fp8);
          EXPECT(layout.k_dim >= head_dim && layout.v_dim >= head_dim);
          std::vector<bool> is_taken(static_cast<size_t>(kBlocks * layout.block_elements()));
          int64_t num_taken = 0;
          const auto take = [&](int64_t place) {
            const bool is_new =
                place >= 0 && place < static_cast<int64_t>(is_taken.size()) && !is_taken[static_cast<size_t>(place)];
            EXPECT(is_new);
            if (is_new) is_taken[static_cast<size_t>(place)] = true, ++num_taken;
          };
          for (int64_t slot = 0; slot < kBlocks * block_size; ++slot)
            for (int head = 0; head < num_kv_heads; ++head) {
              for (int dim = 0; dim < layout.k_dim; ++dim)
                take(layout.key(slot, head, dim));
              for (int dim = 0; dim < layout.v_dim; ++dim)
                take(layout.value(slot, head, dim));
              for (int of = 0; is_fp8 && of < 2; ++of)
                take(layout.exponent(slot, head, of == 1));
            }
          EXPECT(num_taken == static_cast<int64_t>(is_taken.size()) &&
                 layout.block_bytes() == layout.block_elements() * (is_fp8 ? 1 : 2));
        }
}

// 32 Mi tokens with two heads of 256. No memory is allocated.
TEST(cuda_layouts_do_not_overflow_32_bits) {
  constexpr int64_t kTokens = int64_t{32} << 20, kBlock = 64, kNumBlocks = kTokens / kBlock;
  for (const bool is_fp8 : {false, true}) {
    const KvLayout layout = make_kv_layout(kBlock, 2, 256, is_fp8);
    const int64_t of_block = kBlock * 2 * (256 + 256 + (is_fp8 ? 2 : 0));
    EXPECT(layout.block_elements() == of_block && kNumBlocks * layout.block_elements() > int64_t{1} << 34);
    int64_t last = 0;
    for (const int64_t block : {int64_t{1}, int64_t{32767}, int64_t{32768}, kNumBlocks / 2, kNumBlocks - 1})
      for (int64_t slot = 0; slot < kBlock; ++slot)
        for (const int head : {0, 1})
          for (const int dim : {0, 1, 100, 255}) {
            const int64_t far = block * kBlock + slot;
            EXPECT(layout.key(far, head, dim) - layout.key(slot, head, dim) == block * of_block);
            EXPECT(layout.value(far, head, dim) - layout.value(slot, head, dim) == block * of_block);
            if (is_fp8)
              EXPECT(layout.exponent(far, head, true) - layout.exponent(slot, head, true) == block * of_block);
            last = std::max({last, layout.value(far, head, dim), is_fp8 ? layout.exponent(far, head, true) : 0});
          }
    EXPECT_EQ(last, kNumBlocks * of_block - 1);
  }
  // Weights and activations of 2^18 rows and 2^15 columns.
  constexpr int64_t kRows = int64_t{1} << 18, kDepth = int64_t{1} << 15;
  EXPECT_EQ(weight_index(kRows - 1, kDepth - 1, kDepth), kRows * kDepth - 1);
  EXPECT_EQ(weight_index(kRows - kTileRows, 0, kDepth), (kRows - kTileRows) * kDepth);
  for (const bool is_row_major : {false, true}) {
    EXPECT_EQ(act_index(is_row_major, kRows - 1, kDepth - 1, kDepth), kRows * kDepth - 1);
    EXPECT_EQ(act_index(is_row_major, kRows - kTileTokens, 0, kDepth), (kRows - kTileTokens) * kDepth);
  }
  const TileGroups groups = group_tiles(int64_t{1} << 33, 132, 12);
  EXPECT(groups.first(131) + groups.iterations(131) * groups.stride() >= groups.num_tiles &&
         groups.iterations(0) * groups.stride() >= groups.num_tiles);
}

}  // namespace
}  // namespace capstan::testing
