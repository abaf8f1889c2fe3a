// The tile functions of tiles_amx.h in AVX-512, with the same bits and the same faults. Needs F, BW and VNNI.
// Source: the operations of LDTILECFG, TILELOADD, TDPBF16PS and TDPBSUD in volume 2 of the Intel SDM.
// GCC 12 warns about the deliberately undefined operands in its own intrinsics.
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "native/backend/cpu/tiles.h"

namespace {

using capstan::TileConfig;

#define CAPSTAN_TILES 1

constexpr int kNumTwinTiles = 8;

struct TwinTiles {
  bool is_configured;
  TileConfig config;
  alignas(64) uint8_t data[kNumTwinTiles][16][64];
};
thread_local TwinTiles twin_tiles;

// Where the processor would raise an exception.
[[noreturn, gnu::cold]] inline void twin_fault(const char* what) {
  std::fprintf(stderr, "tile twin: %s\n", what);
  std::abort();
}

inline void check_twin_tile(int tile) {
  const TileConfig& config = twin_tiles.config;
  if (!twin_tiles.is_configured) twin_fault("the tiles are not configured");
  if (config.rows[tile] == 0) twin_fault("the tile has no rows");
  if (config.row_bytes[tile] % 4 != 0) twin_fault("the bytes of a row are no multiple of 4");
}

inline void twin_configure(const TileConfig& config) {
  if (config.palette > 1) twin_fault("unknown palette");
  if (config.start_row != 0) twin_fault("a restart is not supported");
  for (const uint8_t byte : config.reserved)
    if (byte != 0) twin_fault("a reserved byte is set");
  for (int tile = 0; tile < 16; ++tile) {
    if (tile >= kNumTwinTiles && (config.rows[tile] != 0 || config.row_bytes[tile] != 0)) twin_fault("no such tile");
    if (config.rows[tile] > 16 || config.row_bytes[tile] > 64) twin_fault("a tile is too large");
    if ((config.rows[tile] == 0) != (config.row_bytes[tile] == 0)) twin_fault("a tile is empty in one direction");
  }
  twin_tiles = {};
  twin_tiles.is_configured = config.palette == 1;
  twin_tiles.config = config;
}
inline void twin_release() {
  twin_tiles = {};
}
inline void twin_zero(int tile) {
  check_twin_tile(tile);
  std::memset(twin_tiles.data[tile], 0, sizeof twin_tiles.data[tile]);
}
inline void twin_load(int tile, const void* from, int64_t stride) {
  twin_zero(tile);
  for (int row = 0; row < twin_tiles.config.rows[tile]; ++row)
    std::memcpy(twin_tiles.data[tile][row], static_cast<const char*>(from) + row * stride,
                twin_tiles.config.row_bytes[tile]);
}
inline void twin_store(int tile, void* to, int64_t stride) {
  check_twin_tile(tile);
  for (int row = 0; row < twin_tiles.config.rows[tile]; ++row)
    std::memcpy(static_cast<char*>(to) + row * stride, twin_tiles.data[tile][row], twin_tiles.config.row_bytes[tile]);
}

inline void check_twin_product(int sum, int a, int b) {
  const TileConfig& config = twin_tiles.config;
  if (sum == a || sum == b || a == b) twin_fault("a product needs three tiles");
  check_twin_tile(sum), check_twin_tile(a), check_twin_tile(b);
  if (config.row_bytes[sum] != config.row_bytes[b] || config.rows[sum] != config.rows[a] ||
      config.row_bytes[a] / 4 != config.rows[b])
    twin_fault("the shapes of a product do not fit");
}

// Not inlined, so that no sum moves past the change of MXCSR.
[[gnu::noinline]] inline void twin_dot_bf16_sums(int sum, int a, int b) {
  const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  for (int row = 0; row < twin_tiles.config.rows[a]; ++row) {
    __m512 first = _mm512_setzero_ps(), second = _mm512_setzero_ps();
    for (int pair = 0; pair < twin_tiles.config.rows[b]; ++pair) {
      int32_t word;
      std::memcpy(&word, twin_tiles.data[a][row] + pair * 4, sizeof word);
      const __m512i x = _mm512_set1_epi32(word), w = _mm512_load_si512(twin_tiles.data[b][pair]);
      first = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(x, 16)),
                              _mm512_castsi512_ps(_mm512_slli_epi32(w, 16)), first);
      second = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(x, high)),
                               _mm512_castsi512_ps(_mm512_and_si512(w, high)), second);
    }
    uint8_t* to = twin_tiles.data[sum][row];
    _mm512_store_ps(to, _mm512_add_ps(_mm512_load_ps(to), _mm512_add_ps(first, second)));
  }
}
inline void twin_dot_bf16(int sum, int a, int b) {
  constexpr uint32_t kMaskedFlushingToNearest = 0x9fc0;
  check_twin_product(sum, a, b);
  const uint32_t mxcsr = _mm_getcsr();
  _mm_setcsr(kMaskedFlushingToNearest);
  twin_dot_bf16_sums(sum, a, b);
  _mm_setcsr(mxcsr);
}
inline void twin_dot_int8(int sum, int a, int b) {
  check_twin_product(sum, a, b);
  for (int row = 0; row < twin_tiles.config.rows[a]; ++row) {
    uint8_t* to = twin_tiles.data[sum][row];
    __m512i total = _mm512_load_si512(to);
    for (int word = 0; word < twin_tiles.config.rows[b]; ++word) {
      int32_t x;
      std::memcpy(&x, twin_tiles.data[a][row] + word * 4, sizeof x);
      total = _mm512_dpbusd_epi32(total, _mm512_load_si512(twin_tiles.data[b][word]), _mm512_set1_epi32(x));
    }
    _mm512_store_si512(to, total);
  }
}

inline void tile_configure(const TileConfig& config) {
  twin_configure(config);
}
inline void tile_release() {
  twin_release();
}
template <int kTile>
inline void tile_zero() {
  twin_zero(kTile);
}
template <int kTile>
inline void tile_load(const void* from, int64_t stride) {
  twin_load(kTile, from, stride);
}
template <int kTile>
inline void tile_store(void* to, int64_t stride) {
  twin_store(kTile, to, stride);
}
template <int kSum, int kA, int kB>
inline void tile_dot_bf16() {
  twin_dot_bf16(kSum, kA, kB);
}
template <int kSum, int kA, int kB>
inline void tile_dot_int8() {
  twin_dot_int8(kSum, kA, kB);
}

}  // namespace
