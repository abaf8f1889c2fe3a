#pragma once
// Index arithmetic of the product by wgmma: shared memory as descriptors name it, the ring of stages, the order of
// tiles and their width.
#include <cstdint>

#include "cuda/layout.h"

namespace capstan::cuda {

// ---- shared memory
// ----------------------------------------------------------------------------------------------------------------------------
//
// An operand of wgmma whose rows (tokens) each hold 64 of K, 128 bytes: eight rows are an atom of 1,024 bytes at a
// multiple of that, in which bits 4 to 6 of an address, the 16-byte word, are mixed with bits 7 to 9, the row, so that
// eight rows' words lie in different banks. Copies write and products read it so.

constexpr int kSwizzledRow = 128;
constexpr int kSwizzleAtom = 1024;
constexpr int kDepthOfStage = kSwizzledRow / 2;  // of K

CAPSTAN_BOTH constexpr uint32_t swizzle_128(uint32_t address) {
  return address ^ (address >> 7 & 7) << 4;
}

// Bits 0-13 the address / 16, 16-29 the leading offset / 16 (without a meaning here), 32-45 the offset from eight rows
// to the next / 16, 62-63 the swizzle: 1 = 128 bytes.
CAPSTAN_BOTH constexpr uint64_t swizzled_operand(uint32_t address) {
  return uint64_t{(address & 0x3ffff) >> 4} | uint64_t{1} << 16 | uint64_t{kSwizzleAtom >> 4} << 32 | uint64_t{1} << 62;
}
// The 16 of K that follow: the mixing is of addresses, so that a row may begin inside.
CAPSTAN_BOTH constexpr uint64_t next_depth(uint64_t descriptor, int steps) {
  return descriptor + static_cast<uint64_t>(steps * 32 >> 4);
}

// ---- the ring of stages
// -----------------------------------------------------------------------------------------------------------------------

constexpr int kBlockFeatures = 128;  // two groups of warps with 64 each
constexpr int kStageSteps = kDepthOfStage / 16;
constexpr int kRingBytes = 192 << 10;  // of stages, at most
constexpr int kMaxStages = 6;

CAPSTAN_BOTH constexpr int weight_stage_bytes() {
  return kBlockFeatures * kDepthOfStage * 2;
}
CAPSTAN_BOTH constexpr int stage_bytes(int tokens) {
  return weight_stage_bytes() + tokens * kSwizzledRow;
}
CAPSTAN_BOTH constexpr int num_stages(int tokens) {
  return kRingBytes / stage_bytes(tokens) < kMaxStages ? kRingBytes / stage_bytes(tokens) : kMaxStages;
}
// With room to begin at a multiple of the atom, and two barriers a stage.
CAPSTAN_BOTH constexpr int ring_shared_bytes(int tokens) {
  return kSwizzleAtom + num_stages(tokens) * (stage_bytes(tokens) + 16);
}

// A place in the ring: slots one after the other, and how often it has come round.
struct RingPlace {
  int slot = 0, parity = 0;
  CAPSTAN_BOTH void advance(int stages) {
    if (++slot == stages) slot = 0, parity ^= 1;
  }
};

// ---- the end of a tile
// ------------------------------------------------------------------------------------------------------------------------
//
// Each lane of a warp ends with pieces of 4 bytes of many tokens. The warp turns them in shared memory, some tokens at
// a time, so that a lane has 16 bytes of one.

constexpr int kTurnTokens = 32;
constexpr int kTurnStride = kTileRows + 4;  // floats from a token to the next: what lanes write together lies in
                                            // different banks, and so does what they read
constexpr int kTurnFloats = kTurnTokens * kTurnStride;

// The token whose rows lane % 4 * 4 and the next three the lane reads in a turn of eight tokens.
CAPSTAN_BOTH constexpr int turned_token(int lane, int turn) {
  return turn * 8 + lane / 4 % 2 * 4 + lane / 8;
}

CAPSTAN_BOTH constexpr int gemm_shared_bytes(int tokens) {
  return ring_shared_bytes(tokens) + kBlockFeatures / kTileRows * kTurnFloats * 4;
}

// ---- tiles
// ----------------------------------------------------------------------------------------------------------------------------------------

constexpr int kTokenWidths[] = {64, 96, 128, 256};

// Blocks of features × blocks of tokens, each once: within bands of kBand blocks of tokens, tokens first. Tiles that
// run at a time then share both operands in the second-level cache.
struct TileOrder {
  static constexpr int kBand = 16;
  int feature_blocks = 0, token_blocks = 0;

  CAPSTAN_BOTH int size() const { return feature_blocks * token_blocks; }
  CAPSTAN_BOTH void at(int i, int& feature_block, int& token_block) const {
    const int band = i / (kBand * feature_blocks);
    const int left = token_blocks - band * kBand, width = left < kBand ? left : kBand;
    const int within = i - band * kBand * feature_blocks;
    feature_block = within / width;
    token_block = band * kBand + within % width;
  }
};

CAPSTAN_BOTH TileOrder tile_order(int64_t rows, int tokens, int width) {
  return {static_cast<int>((rows + kBlockFeatures - 1) / kBlockFeatures), (tokens + width - 1) / width};
}

// A long K is cut in two, each with blocks of its own, so that a product of few rows has twice as many of them. The
// later one adds its sums to what the one before has stored: a flag for each warp of a tile says that this is there.
constexpr int kLongDepth = 4096;
constexpr int kMaxCuts = 2;
CAPSTAN_BOTH constexpr int depth_cuts(int64_t padded_k) {
  return padded_k < kLongDepth ? 1 : kMaxCuts;
}
CAPSTAN_BOTH constexpr int cut_begin(int cut, int cuts, int num_steps) {
  const int stages = (num_steps + kStageSteps - 1) / kStageSteps, begin = stages * cut / cuts * kStageSteps;
  return begin < num_steps ? begin : num_steps;
}
constexpr int64_t num_tile_flags(int64_t rows, int64_t tokens) {
  return (rows + kBlockFeatures - 1) / kBlockFeatures * ((tokens + kTokenWidths[0] - 1) / kTokenWidths[0]) *
         (kBlockFeatures / kTileRows);
}

// The width whose rounds of tiles over the multiprocessors take least, of equals the widest. A tile takes as long as it
// is wide, and some more: its weights come from the second-level cache in any case, which has about half the bytes a
// cycle that tiles of 64 tokens would take.
inline int choose_width(int64_t rows, int tokens, int multiprocessors, int cuts = 1) {
  constexpr int kOfWeights = kBlockFeatures / 2;
  int best = 0;
  int64_t least = 0;
  for (const int width : kTokenWidths) {
    const int64_t rounds =
        (int64_t{tile_order(rows, tokens, width).size()} * cuts + multiprocessors - 1) / multiprocessors;
    const int64_t time = rounds * (width + kOfWeights);
    if (best == 0 || time <= least) best = width, least = time;
  }
  return best;
}

}  // namespace capstan::cuda
