#pragma once
// Index arithmetic of attention by wgmma: tiles of 64 keys and values in shared memory, and which thread copies which
// part of them from the KV cache.
#include <cstdint>

#include "cuda/layout.h"
#include "cuda/wgmma_layout.h"

namespace capstan::cuda {

constexpr int kGroupRows = 64;  // rows of a warpgroup
constexpr int kTileKeys = 64;
constexpr int kCopyWarps = 4;
constexpr int kMaxAttentionStages = 5;

// D = key_dim / 32. The two warpgroups of a block have different rows. The registers of one cannot hold the outputs of
// a large head: then both have the same rows, and each has half of the dimensions of the values.
CAPSTAN_BOTH constexpr bool splits_dims(int d) {
  return d > 4;
}
CAPSTAN_BOTH constexpr int wide_rows(int d) {  // of a block
  return splits_dims(d) ? kGroupRows : 2 * kGroupRows;
}

// ---- shared memory
// Keys and values are operands with swizzled rows of 128 bytes (wgmma_layout.h).
// A row of keys holds 64 dimensions; more dimensions are split into panels. The dimensions have the cache's order,
// which permutes each group of 32, and queries are permuted the same way.
// A row of values (one dimension) holds 64 keys, also in the cache's order. The rows of keys have that order too, so
// that the first product leaves the weights in the order that the second product needs.

constexpr int kPanelBytes = kTileKeys * kSwizzledRow;
CAPSTAN_BOTH constexpr int key_tile_bytes(int d) {
  return (d + 1) / 2 * kPanelBytes;
}
CAPSTAN_BOTH constexpr int attention_stage_bytes(int d) {
  return key_tile_bytes(d) + d * 32 * kSwizzledRow;
}
constexpr int kHopperSharedBytes = 232448;  // most per block
CAPSTAN_BOTH constexpr int attention_stages(int d) {
  const int fits = (kHopperSharedBytes - kSwizzleAtom) / (attention_stage_bytes(d) + 16);
  return fits < kMaxAttentionStages ? fits : kMaxAttentionStages;
}
// Includes the alignment to a swizzle atom and two mbarriers per stage.
CAPSTAN_BOTH constexpr int attention_shared_bytes(int d) {
  return kSwizzleAtom + attention_stages(d) * (attention_stage_bytes(d) + 16);
}

// The key, within the tile, of column c of the scores.
CAPSTAN_BOTH constexpr int key_of_column(int c) {
  return c / 32 * 32 + c % 8 / 2 * 8 + c % 32 / 8 * 2 + c % 2;
}

// ---- copies
// 128 threads copy 16 bytes each per iteration. Eight neighbors fill one row of shared memory, in different banks.
// Offsets are in bytes; the offset of a thread and the offset of an iteration are added.

struct Copy16 {
  int from = 0, to = 0;
  CAPSTAN_BOTH constexpr Copy16 operator+(const Copy16& other) const { return {from + other.from, to + other.to}; }
};

// Offsets start at key 0 of the tile, dimension 0. A thread copies words of one half of each panel.
CAPSTAN_BOTH constexpr int key_iterations(int d) {
  return (d + 1) / 2 * 4;
}
CAPSTAN_BOTH constexpr int key_half(int thread, int iteration, int d) {
  return iteration % ((d + 1) / 2) * 2 + thread / 4 % 2;
  // The half panel, in units of 32 dimensions. Halves from d on do not exist.
}
CAPSTAN_BOTH constexpr Copy16 key_copy(int thread, int d) {
  const int word = thread % 8, key = thread / 8 % 4, warp = thread / 32;
  const int row = key / 2 * 8 + warp * 2 + key % 2;
  return {warp * d * 512 + word / 4 * 512 + key * 64 + word % 4 * 16,
          static_cast<int>(swizzle_128(static_cast<uint32_t>(row * kSwizzledRow + word * 16)))};
}
CAPSTAN_BOTH constexpr Copy16 key_iteration_offset(int iteration, int d) {
  const int panels = (d + 1) / 2, panel = iteration % panels, four = iteration / panels % 2,
            half = iteration / panels / 2;
  return {half * d * 2048 + four * 256 + panel * 1024,
          half * 32 * kSwizzledRow + four * 16 * kSwizzledRow + panel * kPanelBytes};
}

// Offsets start at dimension 0, key 0 of the tile.
CAPSTAN_BOTH constexpr int value_iterations(int d) {
  return d * 2;
}
CAPSTAN_BOTH constexpr int value_dim(int thread, int iteration) {
  return iteration * 16 + thread / 32 * 4 + thread / 8 % 4;
}
CAPSTAN_BOTH constexpr Copy16 value_copy(int thread, int block_size) {
  const int word = thread % 8, dim = value_dim(thread, 0);
  return {dim / 8 * block_size * 16 + dim % 8 * 64 + word / 4 * 512 + word % 4 * 16,
          static_cast<int>(swizzle_128(static_cast<uint32_t>(dim * kSwizzledRow + word * 16)))};
}
CAPSTAN_BOTH constexpr Copy16 value_iteration_offset(int iteration, int block_size) {
  return {iteration * block_size * 32, iteration * 16 * kSwizzledRow};
}
// The first of the two keys in a 4-byte word of the values that a thread copies.
CAPSTAN_BOTH constexpr int value_key(int thread, int word) {
  return thread / 4 % 2 * 32 + word * 8 + thread % 4 * 2;
}

}  // namespace capstan::cuda
