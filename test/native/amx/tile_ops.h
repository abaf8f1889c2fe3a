#pragma once
// One product of tiles, as the instructions of AMX and as their twin compute it.
namespace capstan::testing {

// sums (rows, n) += a (rows, words) · b (words, n), all of 4 bytes. rows, words and n are 1 to 16.
struct TileProduct {
  int rows, words, n;
  const void* a;
  const void* b;
  void* sums;
};

struct TileOps {
  void (*dot_bf16)(const TileProduct& product);
  void (*dot_int8)(const TileProduct& product);
};

// NOTE: kAmxTileOps needs the processor (CpuIsa::kAmx is available) or the emulator (emulator.h).
extern const TileOps kAmxTileOps, kTwinTileOps;

}  // namespace capstan::testing
