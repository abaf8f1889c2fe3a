// Defines CAPSTAN_TILE_OPS over the tile functions of the including file.
namespace {

using capstan::testing::TileProduct;

// Tile 0 is the sum, tile 3 is a, tile 6 is b: any mistake in the order of operands shows.
template <class Dot>
void multiply(const TileProduct& product, Dot dot) {
  TileConfig config;
  const auto shape = [&](int tile, int rows, int words) {
    config.rows[tile] = static_cast<uint8_t>(rows);
    config.row_bytes[tile] = static_cast<uint16_t>(words * 4);
  };
  shape(0, product.rows, product.n);
  shape(3, product.rows, product.words);
  shape(6, product.words, product.n);
  tile_configure(config);
  tile_load<0>(product.sums, product.n * 4);
  tile_load<3>(product.a, product.words * 4);
  tile_load<6>(product.b, product.n * 4);
  dot();
  tile_store<0>(product.sums, product.n * 4);
  tile_zero<0>();
  tile_release();
}

void dot_bf16(const TileProduct& product) {
  multiply(product, [] { tile_dot_bf16<0, 3, 6>(); });
}
void dot_int8(const TileProduct& product) {
  multiply(product, [] { tile_dot_int8<0, 3, 6>(); });
}

}  // namespace

namespace capstan::testing {

const TileOps CAPSTAN_TILE_OPS = {dot_bf16, dot_int8};

}  // namespace capstan::testing
