#include "native/backend/cpu/tiles_amx.h"
#include "test/native/amx/tile_ops.h"

#define CAPSTAN_TILE_OPS kAmxTileOps
#include "test/native/amx/tile_ops.inl"
