#pragma once
// Index arithmetic of launch_gemm_wgmma: shared memory and its descriptors, the ring of stages, and the order and width
// of tiles.
#include <cstdint>

#include "cuda/layout.h"

namespace capstan::cuda {

// ---- shared memory
// An operand of wgmma has rows (tokens) of 64 K values, 128 bytes. Eight rows form a swizzle atom of 1,024 bytes,
// aligned to its size: bits 4 to 6 of an address (the 16-byte word) are XORed with bits 7 to 9 (the row), so that a
// column of eight rows lies in different banks. TMA writes this layout and wgmma reads it.

constexpr int kSwizzledRow = 128;
constexpr int kSwizzleAtom = 1024;
constexpr int kStageDepth = kSwizzledRow / 2;  // K per stage

CAPSTAN_BOTH constexpr uint32_t swizzle_128(uint32_t address) {
  return address ^ (address >> 7 & 7) << 4;
}

// The matrix descriptor. Bits 0-13: address / 16. Bits 16-29: leading offset / 16 (unused with this swizzle). Bits
// 32-45: distance between groups of eight rows / 16. Bits 62-63: swizzle, 1 = 128 bytes.
CAPSTAN_BOTH constexpr uint64_t swizzled_operand(uint32_t address) {
  return uint64_t{(address & 0x3ffff) >> 4} | uint64_t{1} << 16 | uint64_t{kSwizzleAtom >> 4} << 32 | uint64_t{1} << 62;
}
// The descriptor `steps` × 16 K values further. The hardware swizzles addresses, so a descriptor may start inside a
// row.
CAPSTAN_BOTH constexpr uint64_t next_depth(uint64_t descriptor, int steps) {
  return descriptor + static_cast<uint64_t>(steps * 32 >> 4);
}

// ---- the ring of stages

constexpr int kBlockFeatures = 128;  // two warpgroups with 64 features each
constexpr int kStageSteps = kStageDepth / 16;
constexpr int kRingBytes = 192 << 10;  // most bytes of all stages
constexpr int kMaxStages = 6;

CAPSTAN_BOTH constexpr int weight_stage_bytes() {
  return kBlockFeatures * kStageDepth * 2;
}
CAPSTAN_BOTH constexpr int stage_bytes(int tokens) {
  return weight_stage_bytes() + tokens * kSwizzledRow;
}
CAPSTAN_BOTH constexpr int num_stages(int tokens) {
  return kRingBytes / stage_bytes(tokens) < kMaxStages ? kRingBytes / stage_bytes(tokens) : kMaxStages;
}
// Includes the alignment to a swizzle atom and two mbarriers per stage.
CAPSTAN_BOTH constexpr int ring_shared_bytes(int tokens) {
  return kSwizzleAtom + num_stages(tokens) * (stage_bytes(tokens) + 16);
}

// A position in the ring: the slot, and the parity of the number of completed rounds.
struct RingPlace {
  int slot = 0, parity = 0;
  CAPSTAN_BOTH void advance(int stages) {
    if (++slot == stages) slot = 0, parity ^= 1;
  }
};

// ---- the end of a tile
// After the products each lane of a warp holds 4-byte values of many tokens. The warp transposes them in shared memory,
// kTransposeTokens tokens at a time, so that a lane holds 16 bytes of one token.

constexpr int kTransposeTokens = 32;
// Floats between tokens. With this stride a warp's writes, and its reads, hit different banks.
constexpr int kTransposeStride = kTileRows + 4;
constexpr int kTransposeFloats = kTransposeTokens * kTransposeStride;

// The token that a lane reads in an iteration of eight tokens. It reads rows lane % 4 * 4 to lane % 4 * 4 + 3.
CAPSTAN_BOTH constexpr int transposed_token(int lane, int iteration) {
  return iteration * 8 + lane / 4 % 2 * 4 + lane / 8;
}

// The ring, the transposition buffer of each warp, and the number of the block.
CAPSTAN_BOTH constexpr int gemm_shared_bytes(int tokens) {
  return ring_shared_bytes(tokens) + kBlockFeatures / kTileRows * kTransposeFloats * 4 + 16;
}

// ---- tiles

constexpr int kTokenWidths[] = {64, 96, 128, 256};
// Kernels for codes take long to compile, and narrow tiles take longer to convert codes than to multiply them.
CAPSTAN_BOTH constexpr bool has_code_kernel(int width) {
  return width >= 128;
}

// Enumerates all (block of features, block of tokens) tiles. Within a band of kBand blocks of tokens, tokens vary
// fastest, so that tiles that run at the same time share both operands in L2.
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

// A long K is split in two, so that a product with few rows has twice as many blocks. The second half adds its sums to
// the stored sums of the first. One flag per warp and tile signals that those are stored. Before the flags lies the
// next number of a block (flags.h).
constexpr int kLongDepth = 4096;
constexpr int kMaxKSplits = 2;
CAPSTAN_BOTH constexpr int k_splits_of(int64_t padded_k) {
  return padded_k < kLongDepth ? 1 : kMaxKSplits;
}
CAPSTAN_BOTH constexpr int k_split_begin(int k_split, int k_splits, int num_steps) {
  const int stages = (num_steps + kStageSteps - 1) / kStageSteps, begin = stages * k_split / k_splits * kStageSteps;
  return begin < num_steps ? begin : num_steps;
}
constexpr int64_t num_tile_flags(int64_t rows, int64_t tokens) {
  return 1 + (rows + kBlockFeatures - 1) / kBlockFeatures * ((tokens + kTokenWidths[0] - 1) / kTokenWidths[0]) *
                 (kBlockFeatures / kTileRows);
}

// The tile width with the shortest total time over all rounds of tiles; among equals the widest. The time of a tile is
// its width plus a constant for its weights: they come from L2, which delivers about half the bytes per cycle that
// tiles of 64 tokens would consume.
inline int choose_width(int64_t rows, int tokens, int multiprocessors, int k_splits = 1, bool has_codes = false) {
  constexpr int kOfWeights = kBlockFeatures / 2;
  int best = 0;
  int64_t least = 0;
  for (const int width : kTokenWidths) {
    if (has_codes && !has_code_kernel(width)) continue;
    const int64_t rounds =
        (int64_t{tile_order(rows, tokens, width).size()} * k_splits + multiprocessors - 1) / multiprocessors;
    const int64_t time = rounds * (width + kOfWeights);
    if (best == 0 || time <= least) best = width, least = time;
  }
  return best;
}

}  // namespace capstan::cuda
