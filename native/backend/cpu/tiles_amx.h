// The tile functions as AMX instructions. A thread configures its tiles, uses them and releases them. Every other order
// is an illegal instruction, and so is any tile instruction before the process has the permission (isa.cpp).
//
// NOTE: inline assembly, because the intrinsics of GCC 12 do not state what memory they read and write: it drops the
// stores to a configuration before `_tile_loadconfig`.
#include <cstdint>

#include "native/backend/cpu/tiles.h"

namespace {

using capstan::TileConfig;

#define CAPSTAN_TILES 1

// Zeroes all tiles.
inline void tile_configure(const TileConfig& config) {
  asm volatile("ldtilecfg %0" : : "m"(config));
}
inline void tile_release() {
  asm volatile("tilerelease" : : : "memory");
}
template <int kTile>
inline void tile_zero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}
// Row i of the tile is at from + i * stride bytes.
template <int kTile>
inline void tile_load(const void* from, int64_t stride) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0" : : "i"(kTile), "r"(from), "r"(stride) : "memory");
}
template <int kTile>
inline void tile_store(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c0, (%1,%2,1)" : : "i"(kTile), "r"(to), "r"(stride) : "memory");
}
// sum (rows, n) f32 += a (rows, pairs, 2) bf16 · b (pairs, n, 2) bf16. Adds the products of the first elements of the
// pairs by a chain of FMAs that begins with zero, and those of the second elements by another, then the two chains,
// then that sum to the tile. Rounds to nearest even and flushes denormals, whatever MXCSR says.
template <int kSum, int kA, int kB>
inline void tile_dot_bf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kA), "i"(kB));
}
// sum (rows, n) int32 += a (rows, words, 4) signed bytes · b (words, n, 4) unsigned bytes.
template <int kSum, int kA, int kB>
inline void tile_dot_int8() {
  asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kA), "i"(kB));
}

}  // namespace
