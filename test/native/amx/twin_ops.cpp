#include "test/native/amx/tile_ops.h"
#include "test/native/amx/tiles_twin.h"

#define CAPSTAN_TILE_OPS kTwinTileOps
#include "test/native/amx/tile_ops.inl"
