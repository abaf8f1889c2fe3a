#pragma once
// The tile configuration of AMX: eight registers of up to 16 rows of 64 bytes. Each tile function exists twice, over
// one interface: tiles_amx.h has the instructions, test/native/amx/tiles_twin.h computes the same bits without them.
#include <cstdint>

namespace capstan {

constexpr int kMaxTileConfigRows = 16;
constexpr int kTileRowBytes = 64;

// The memory operand of LDTILECFG for palette 1. A tile of 0 rows has 0 bytes per row and cannot be used.
struct TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

}  // namespace capstan
