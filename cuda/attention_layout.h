#pragma once
// Index arithmetic of attention by wgmma: tiles of 64 keys and their values in shared memory, who copies what of them
// from the cache, and which tiles rows see.
#include <cstdint>

#include "cuda/layout.h"
#include "cuda/wgmma_layout.h"

namespace capstan::cuda {

constexpr int kGroupRows = 64;             // of four warps that multiply
constexpr int kWideRows = 2 * kGroupRows;  // of a block
constexpr int kTileKeys = 64;
constexpr int kCopyWarps = 4;
constexpr int kAttentionStages = 5;

// ---- shared memory
// ------------------------------------------------------------------------------------------------------------------------------
//
// Both are operands with rows of 128 bytes, swizzled (wgmma_layout.h). Keys are rows of 64 dimensions, in panels where
// there are more, as the cache mixes them within 32: queries are mixed alike. Values are rows (a dimension) of 64 keys,
// which the cache mixes within 32, too: the weights come out of the first product as the second takes them if the rows
// of keys are mixed in the same way. D = head_dim / 32, rounded up.

constexpr int kPanelBytes = kTileKeys * kSwizzledRow;
CAPSTAN_BOTH constexpr int key_tile_bytes(int d) {
  return (d + 1) / 2 * kPanelBytes;
}
CAPSTAN_BOTH constexpr int attention_stage_bytes(int d) {
  return key_tile_bytes(d) + d * 32 * kSwizzledRow;
}
// With room to begin at a multiple of the atom, and two barriers a stage.
CAPSTAN_BOTH constexpr int attention_shared_bytes(int d) {
  return kSwizzleAtom + kAttentionStages * (attention_stage_bytes(d) + 16);
}

// Of the tile, in column c of its scores.
CAPSTAN_BOTH constexpr int key_of_column(int c) {
  return c / 32 * 32 + c % 8 / 2 * 8 + c % 32 / 8 * 2 + c % 2;
}

// ---- copies
// -------------------------------------------------------------------------------------------------------------------------------------
//
// 128 threads copy 16 bytes each a turn, eight neighbours a row of shared memory, whose words lie in different banks.
// Offsets are in bytes; those of a thread and those of a turn are added.

struct Copy16 {
  int from = 0, to = 0;
  CAPSTAN_BOTH constexpr Copy16 operator+(const Copy16& other) const { return {from + other.from, to + other.to}; }
};

// From key 0 of the tile, dimension 0. A thread has the words of half a panel.
CAPSTAN_BOTH constexpr int key_turns(int d) {
  return (d + 1) / 2 * 4;
}
CAPSTAN_BOTH constexpr int key_half(int thread, int turn, int d) {
  return turn % ((d + 1) / 2) * 2 + thread / 4 % 2;
}  // of 32 dimensions; none where there are d
CAPSTAN_BOTH constexpr Copy16 key_copy(int thread, int d) {
  const int word = thread % 8, key = thread / 8 % 4, warp = thread / 32;
  const int row = key / 2 * 8 + warp * 2 + key % 2;
  return {warp * d * 512 + word / 4 * 512 + key * 64 + word % 4 * 16,
          static_cast<int>(swizzle_128(static_cast<uint32_t>(row * kSwizzledRow + word * 16)))};
}
CAPSTAN_BOTH constexpr Copy16 key_turn(int turn, int d) {
  const int panels = (d + 1) / 2, panel = turn % panels, four = turn / panels % 2, half = turn / panels / 2;
  return {half * d * 2048 + four * 256 + panel * 1024,
          half * 32 * kSwizzledRow + four * 16 * kSwizzledRow + panel * kPanelBytes};
}

// From dimension 0, key 0 of the tile.
CAPSTAN_BOTH constexpr int value_turns(int d) {
  return d * 2;
}
CAPSTAN_BOTH constexpr int value_dim(int thread, int turn) {
  return turn * 16 + thread / 32 * 4 + thread / 8 % 4;
}
CAPSTAN_BOTH constexpr Copy16 value_copy(int thread, int block_size) {
  const int word = thread % 8, dim = value_dim(thread, 0);
  return {dim / 8 * block_size * 16 + dim % 8 * 64 + word / 4 * 512 + word % 4 * 16,
          static_cast<int>(swizzle_128(static_cast<uint32_t>(dim * kSwizzledRow + word * 16)))};
}
CAPSTAN_BOTH constexpr Copy16 value_turn(int turn, int block_size) {
  return {turn * block_size * 32, turn * 16 * kSwizzledRow};
}
// The first of the two keys in a word of 4 bytes of what the thread copies of values.
CAPSTAN_BOTH constexpr int value_key(int thread, int word) {
  return thread / 4 % 2 * 32 + word * 8 + thread % 4 * 2;
}

}  // namespace capstan::cuda
