// How work is cut and where elements lie: index arithmetic of the CUDA backend, exhaustively, and beyond 2^31.
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
// ---------------------------------------------------------------------------------------------------------------------------------

TEST(cuda_groups_of_tiles_cover_every_tile_once) {
  for (const int most_warps : {1, 4, 5, 12})
    for (const int64_t most_blocks : {1, 2, 7, 33, 132})
      for (int64_t num_tiles = 1; num_tiles < 700; ++num_tiles) {
        const TileGroups groups = group_tiles(num_tiles, most_blocks, most_warps);
        EXPECT(groups.num_tiles == num_tiles && groups.warps >= 1 && groups.warps <= most_warps &&
               groups.num_blocks >= 1 && groups.num_blocks <= most_blocks);
        std::vector<int> times(static_cast<size_t>(num_tiles));
        for (int64_t block = 0; block < groups.num_blocks; ++block) {
          EXPECT(groups.turns(block) >= 1);
          for (int64_t turn = 0; turn < groups.turns(block); ++turn)
            for (int warp = 0; warp < groups.warps; ++warp) {
              const int64_t tile = groups.first(block) + warp + turn * groups.stride();
              EXPECT(warp > 0 || tile < num_tiles);  // no turn of nobody
              if (tile < num_tiles) ++times[static_cast<size_t>(tile)];
            }
        }
        EXPECT(std::ranges::all_of(times, [](int count) { return count == 1; }));
      }
}

TEST(cuda_warps_of_a_block_take_least) {
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
// ------------------------------------------------------------------------------------------------------------------------------------

TEST(cuda_shares_of_ranks_cover_every_token_once) {
  for (int world_size = 1; world_size <= Ranks::kMost; ++world_size)
    for (int num_tokens = 1; num_tokens <= 3000; ++num_tokens) {
      const int size = share_size(num_tokens, world_size);
      const auto begin = [&](int rank) { return share_begin(rank, num_tokens, world_size); };
      EXPECT(begin(0) == 0 && begin(world_size) == num_tokens && size % kTileTokens == 0);
      for (int rank = 0; rank < world_size; ++rank) {
        EXPECT(begin(rank) <= begin(rank + 1) && begin(rank + 1) - begin(rank) <= size);
        EXPECT(begin(rank) % kTileTokens == 0 || begin(rank) == num_tokens);
        // Token / size is the rank that has it.
        if (begin(rank) < begin(rank + 1)) EXPECT(begin(rank) / size == rank && (begin(rank + 1) - 1) / size == rank);
      }
    }
}

// ---- attention
// --------------------------------------------------------------------------------------------------------------------------------

TEST(cuda_cuts_of_attention_are_all_or_none) {
  for (const int heads : {1, 2, 3, 8, 128})
    for (int chunks = 1; chunks <= 1 << 17; chunks *= 2)
      for (int tiles = 1; tiles < 1 << 21; tiles += 1 + tiles / 16) {
        const int cuts = cut_attention(tiles, heads, chunks);
        const bool fits = int64_t{tiles} * heads * chunks <= kMostCuts;
        EXPECT_EQ(cuts, fits ? chunks : 1);
        EXPECT_EQ(is_many_rows(tiles, heads, cuts), cuts == 1 && int64_t{tiles} * heads > kManyTiles);
        // Chunks are never cut where warps have rows of their own.
        EXPECT(cuts == 1 || !is_many_rows(tiles, heads, cuts));
      }
}

struct Serving {
  DeviceModel model;
  DeviceLimits limits;
};
Serving serving(int num_heads, int num_kv_heads, int max_num_tokens, int max_num_seqs, int max_model_len) {
  Serving of;
  of.model.num_heads = num_heads, of.model.num_kv_heads = num_kv_heads, of.model.max_model_len = max_model_len;
  of.limits.max_num_tokens = max_num_tokens, of.limits.max_num_seqs = max_num_seqs, of.limits.block_size = 64;
  return of;
}

// Sequences of equal length, without blocks.
struct Decodes {
  std::vector<int32_t> ids, lens, tables;
  StepInput step;
  Decodes(int count, int length)
      : ids(static_cast<size_t>(count)), lens(static_cast<size_t>(count), 1), tables(static_cast<size_t>(count), 0) {
    lens.back() = length;
    step.input_ids = step.positions = step.slot_mapping = ids;
    step.context_lens = lens;
    step.block_tables = tables;
    step.max_blocks_per_seq = 1;
  }
};

TEST(cuda_plans_of_decodes_are_few_and_have_room) {
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
            // As many rows as there may be are one plan's, and a plan's own rows are its rows.
            const Decodes most(plan.rows, length);
            EXPECT(arrays.plan(most.step) == plan);
            rows_of_plans.insert(plan.rows);
            // It has room in the arrays, or this throws; and attention's chunks have in the scratch.
            const DeviceStep placed = arrays.place(decodes.step, plan);
            if (placed.num_chunks > 1)
              EXPECT(int64_t{placed.num_tiles} * kv_heads * placed.num_chunks <= most_cuts(model, limits));
            EXPECT(placed.num_chunks == 1 || placed.num_chunks * kChunk >= length);
            EXPECT(placed.max_blocks_per_seq * limits.block_size >= length && placed.num_tokens == plan.rows);
          }
        EXPECT(rows_of_plans.size() <= size_t{3 + 8 + 6});
      }
}

// Prompts, whose tiles are planned as they come.
TEST(cuda_cuts_of_prompts_have_room) {
  for (const auto& [heads, kv_heads] : {std::pair{1, 1}, {12, 2}, {32, 8}, {40, 2}})
    for (const int max_model_len : {256, 300, 4097, 40000}) {
      const auto [model, limits] = serving(heads, kv_heads, 96, 8, max_model_len);
      for (int num_seqs = 1; num_seqs <= limits.max_num_seqs; ++num_seqs)
        for (int count = 1; count * num_seqs <= limits.max_num_tokens; ++count) {
          std::vector<int32_t> begins{0}, lens;
          for (int seq = 0; seq < num_seqs; ++seq)
            begins.push_back(begins.back() + count), lens.push_back(std::max(count, seq == 0 ? max_model_len : 1));
          AttentionPlan plan;
          plan_attention(begins, lens, heads / kv_heads, kv_heads, 0, plan);
          const int tiles = static_cast<int>(plan.tiles.size()),
                    cuts = cut_attention(tiles, kv_heads, (plan.longest + kChunk - 1) / kChunk);
          if (cuts > 1) EXPECT(int64_t{tiles} * kv_heads * cuts <= most_cuts(model, limits));
        }
    }
}

// ---- the cache
// --------------------------------------------------------------------------------------------------------------------------------

TEST(cuda_cache_gives_every_element_a_place) {
  constexpr int kBlocks = 2;
  for (const int block_size : {64, 128, 192})
    for (const int num_kv_heads : {1, 2, 3, 8})
      for (const int head_dim : {8, 15, 40, 64, 128, 256})
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

// 32 Mi tokens, with two heads of 256: nothing that lies there is touched.
TEST(cuda_places_beyond_32_bits_are_what_they_are_below) {
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
  // Weights and activations: 2^18 rows of 2^15.
  constexpr int64_t kRows = int64_t{1} << 18, kDepth = int64_t{1} << 15;
  EXPECT_EQ(weight_index(kRows - 1, kDepth - 1, kDepth), kRows * kDepth - 1);
  EXPECT_EQ(weight_index(kRows - kTileRows, 0, kDepth), (kRows - kTileRows) * kDepth);
  for (const bool in_rows : {false, true}) {
    EXPECT_EQ(act_index(in_rows, kRows - 1, kDepth - 1, kDepth), kRows * kDepth - 1);
    EXPECT_EQ(act_index(in_rows, kRows - kTileTokens, 0, kDepth), (kRows - kTileTokens) * kDepth);
  }
  const TileGroups groups = group_tiles(int64_t{1} << 33, 132, 12);
  EXPECT(groups.first(131) + groups.turns(131) * groups.stride() >= groups.num_tiles &&
         groups.turns(0) * groups.stride() >= groups.num_tiles);
}

}  // namespace
}  // namespace capstan::testing
