// Products on tile registers, over the Vec and the tile functions of the including file: bf16 with bf16 in the order of
// TDPBF16PS, and codes of quantized weights.
//
// Order of sums: each part of K is cut into blocks of 32 from its start. Within a block, the products of even columns
// are one chain of FMAs that begins with zero, those of odd columns another. The two are added, then their sum is added
// to the part's sum. Denormals are flushed. Parts are added by the tree as on every instruction set. Products of two
// bf16 are exact in f32, so FMAs reproduce the tile registers bit for bit.
//
// A block of a weight panel, (kBlockWords, 16, 2) bf16, is 16 rows of 64 bytes: a tile register as it is. The last
// block of a part may reach into the next part, panel or the slack after them. The activations there are zeros.
namespace {

using namespace capstan;

// What a thread works on should stay in its L2 cache: 2 MiB on the processors that have AMX.
constexpr int64_t kAmxCacheBytes = int64_t{3} << 19;
constexpr int kPairRows = 2 * kBlockRows;
constexpr int64_t kPanelBlockWords = kBlockWords * kPanelFeatures;
constexpr int64_t kStreamAheadWords = 1024;

// Floats that hold the sums of a tile of rows: at most (2 panels, kBlockRows, 16). They are (panels, its rows, 16).
constexpr int64_t kRowTileFloats = 2 * kBlockRows * kPanelFeatures;

// Adds a part to the parts before it like a binary counter: part 1 to part 0, part 3 to part 2, then (2 + 3) to (0 +
// 1), and so on. `pending` holds by level the subtrees whose right half is not computed yet.
template <int kFloats>
struct PartTree {
  float pending[3][kFloats];
  float part_sums[kFloats];

  // Returns where the sums of a part are to be stored before `add`.
  float* target(int part, bool is_last, float* sums) {
    if (part % 2 != 0) return part_sums;
    return is_last ? sums : pending[0];
  }
  void add(int part, bool is_last, float* sums) {
    for (int level = 0; part >> level & 1; ++level) {
      const bool is_top = (part >> (level + 1) & 1) == 0;
      float* to = part_sums;
      if (is_top) to = is_last ? sums : pending[level + 1];
      for (int i = 0; i < kFloats; i += 16)
        vec_store(to + i, vec_add(vec_load(pending[level] + i), vec_load(part_sums + i)));
    }
  }
};

// ---- many rows: tile registers ----

// Tiles 0 to 3 hold the sums of 2 tiles of rows × 2 panels, 4 and 5 the activations, 6 and 7 the weights.
struct TileProducts {
  const uint32_t* acts[2];  // (parts, blocks, rows, kBlockWords)
  int rows[2];              // of the two tiles of rows; the second one may be 0
  const uint32_t* weights;
  int64_t panel_words;
  int64_t part_words;  // words of K in one part, without padding
  int num_parts;
  // Blocks first_ahead, first_ahead + share, … prefetch the lines at this distance in words.
  int64_t ahead;
  int64_t share, first_ahead;
};

inline void configure_tiles(int first_rows, int second_rows) {
  TileConfig config;
  for (const int tile : {0, 1, 4}) {
    config.rows[tile] = static_cast<uint8_t>(first_rows);
    config.row_bytes[tile] = kTileRowBytes;
  }
  for (const int tile : {2, 3, 5}) {
    config.rows[tile] = static_cast<uint8_t>(second_rows);
    config.row_bytes[tile] = second_rows == 0 ? 0 : kTileRowBytes;
  }
  for (const int tile : {6, 7}) {
    config.rows[tile] = kBlockWords;
    config.row_bytes[tile] = kTileRowBytes;
  }
  tile_configure(config);
}

template <int R, int P>
inline void zero_sums() {
  tile_zero<0>();
  if constexpr (P == 2) tile_zero<1>();
  if constexpr (R == 2) tile_zero<2>();
  if constexpr (R == 2 && P == 2) tile_zero<3>();
}

template <int R, int P, class T>
inline void store_sums(const int (&rows)[2], T* sums) {
  tile_store<0>(sums, kTileRowBytes);
  if constexpr (P == 2) tile_store<1>(sums + rows[0] * kPanelFeatures, kTileRowBytes);
  if constexpr (R == 2) tile_store<2>(sums + kRowTileFloats, kTileRowBytes);
  if constexpr (R == 2 && P == 2) tile_store<3>(sums + kRowTileFloats + rows[1] * kPanelFeatures, kTileRowBytes);
}

// Multiplies one block of K.
template <int R, int P>
[[gnu::always_inline]] inline void multiply_block(const uint32_t* const (&acts)[2], const uint32_t* weights,
                                                  int64_t panel_words) {
  tile_load<6>(weights, kTileRowBytes);
  tile_load<4>(acts[0], kTileRowBytes);
  tile_dot_bf16<0, 4, 6>();
  if constexpr (P == 2) {
    tile_load<7>(weights + panel_words, kTileRowBytes);
    tile_dot_bf16<1, 4, 7>();
  }
  if constexpr (R == 2) {
    tile_load<5>(acts[1], kTileRowBytes);
    tile_dot_bf16<2, 5, 6>();
    if constexpr (P == 2) tile_dot_bf16<3, 5, 7>();
  }
}

// Computes sums (2, kRowTileFloats).
template <int R, int P>
[[gnu::noinline]] void compute_tiles(const TileProducts& tiles, float* sums) {
  PartTree<R * kRowTileFloats> tree;
  const uint32_t* acts[2] = {tiles.acts[0], tiles.acts[1]};
  int64_t block = 0, next_ahead = tiles.first_ahead;
  for (int part = 0; part < tiles.num_parts; ++part) {
    const uint32_t* weights = tiles.weights + part * tiles.part_words * kPanelFeatures;
    zero_sums<R, P>();
    for (int64_t word = 0; word < tiles.part_words; word += kBlockWords, ++block) {
      multiply_block<R, P>(acts, weights, tiles.panel_words);
      if (block == next_ahead) {
        next_ahead += tiles.share;
        for (int p = 0; p < P; ++p)
          for (int64_t line = 0; line < kPanelBlockWords; line += 16)
            __builtin_prefetch(weights + p * tiles.panel_words + tiles.ahead + line, 0, 2);  // into L2
      }
      weights += kPanelBlockWords;
      acts[0] += tiles.rows[0] * kBlockWords;
      acts[1] += tiles.rows[1] * kBlockWords;
    }
    const bool is_last = part + 1 == tiles.num_parts;
    store_sums<R, P>(tiles.rows, tree.target(part, is_last, sums));
    tree.add(part, is_last, sums);
  }
}

inline void compute_tiles_any(const TileProducts& tiles, int panels, float* sums) {
  if (tiles.rows[1] == 0) return panels == 1 ? compute_tiles<1, 1>(tiles, sums) : compute_tiles<1, 2>(tiles, sums);
  return panels == 1 ? compute_tiles<2, 1>(tiles, sums) : compute_tiles<2, 2>(tiles, sums);
}

// Sets what the rows from `row` on prefetch, of `chunk_rows` rows that multiply the same panels in turn. If this pair
// of panels and the next one fit in the cache, each pair of row tiles prefetches its share of the next one. Otherwise
// the first one prefetches a little ahead of itself.
inline void plan_prefetch(TileProducts& tiles, int panels, int64_t row, int64_t chunk_rows) {
  tiles.share = (chunk_rows + kPairRows - 1) / kPairRows;
  tiles.first_ahead = row / kPairRows;
  tiles.ahead = panels * tiles.panel_words;
  if (2 * panels * tiles.panel_words * 4 <= kAmxCacheBytes) return;
  tiles.ahead = kStreamAheadWords;
  tiles.share = 1;
  if (row != 0) tiles.first_ahead = -1;
}

// Rows are taken in chunks that stay in the cache together with the panels of this call, so that both come from memory
// once. Within a chunk all rows multiply a pair of panels while the next pair is on its way.
void gemm_tiles(const GemmArgs& args) {
  const ActTiles& acts = args.acts;
  TileProducts tiles;
  tiles.part_words = acts.part_k / 2;
  tiles.num_parts = args.num_parts;
  tiles.panel_words = tiles.part_words * args.num_parts * kPanelFeatures;
  const int64_t panels_bytes = (args.panel_end - args.panel_begin) * tiles.panel_words * 4;
  const int64_t fitting_rows = (kAmxCacheBytes - panels_bytes) / (acts.words * 4);
  const int64_t max_chunk = fitting_rows < kPairRows ? kPairRows : fitting_rows - fitting_rows % kPairRows;
  alignas(64) float sums[2 * kRowTileFloats];
  int configured[2] = {0, 0};
  for (int64_t chunk = 0; chunk < acts.rows; chunk += max_chunk) {
    const int64_t chunk_rows = acts.rows - chunk < max_chunk ? acts.rows - chunk : max_chunk;
    int panels = 0;
    for (int64_t panel = args.panel_begin; panel < args.panel_end; panel += panels) {
      panels = args.panel_end - panel < 2 ? 1 : 2;
      tiles.weights = static_cast<const uint32_t*>(args.weights) + (panel - args.weights_panel) * tiles.panel_words;
      for (int64_t row = chunk; row < chunk + chunk_rows; row += kPairRows) {
        for (int i = 0; i < 2; ++i) {
          const int64_t first = row + i * kBlockRows, left = acts.rows - first;
          tiles.rows[i] = static_cast<int>(left < 0 ? 0 : left < kBlockRows ? left : kBlockRows);
          tiles.acts[i] = acts.data + (left > 0 ? first : row) * acts.words;
        }
        if (configured[0] != tiles.rows[0] || configured[1] != tiles.rows[1])
          configure_tiles(configured[0] = tiles.rows[0], configured[1] = tiles.rows[1]);
        plan_prefetch(tiles, panels, row - chunk, chunk_rows);
        if (chunk > 0) tiles.first_ahead = -1;  // the panels are in the cache
        compute_tiles_any(tiles, panels, sums);
        for (int i = 0; i < 2 && tiles.rows[i] > 0; ++i)
          store_sums(args, row + i * kBlockRows, tiles.rows[i], panel, panels, sums + i * kRowTileFloats);
      }
    }
  }
  tile_release();
}

// ---- many rows, quantized weights: tile registers ----

// Tiles as in TileProducts. The order of sums is that of all kernels for quantized weights: only the exact sums of runs
// come from tile registers.
struct Int8Products {
  const uint32_t* acts[2];  // (blocks, rows, kBlockWords)
  const float* scales[2];   // (num_runs, rows), like the next two
  const int32_t* sums[2];
  const float* totals[2];
  int rows[2];            // of the two tiles of rows; the second one may be 0
  const char* panels[2];  // their scales and offsets
  const char* codes[2];   // (num_words, 16, 4) bytes
};

// out (R, kRowTileFloats) = the exact sums of the products of one run. Moves behind the run.
template <int R, int P>
[[gnu::always_inline]] inline void multiply_int8_run(int num_words, const int (&rows)[2], const uint32_t* (&acts)[2],
                                                     const char* (&codes)[2], int32_t* out) {
  zero_sums<R, P>();
  for (int word = 0; word < num_words; word += kBlockWords) {
    // Behind the run, the activations are zeros.
    tile_load<6>(codes[0] + word * int64_t{64}, kTileRowBytes);
    tile_load<4>(acts[0], kTileRowBytes);
    tile_dot_int8<0, 4, 6>();
    if constexpr (P == 2) {
      tile_load<7>(codes[1] + word * int64_t{64}, kTileRowBytes);
      tile_dot_int8<1, 4, 7>();
    }
    if constexpr (R == 2) {
      tile_load<5>(acts[1], kTileRowBytes);
      tile_dot_int8<2, 5, 6>();
      if constexpr (P == 2) tile_dot_int8<3, 5, 7>();
    }
    for (int i = 0; i < R; ++i)
      acts[i] += rows[i] * kBlockWords;
  }
  for (int p = 0; p < P; ++p)
    codes[p] += num_words * int64_t{64};
  store_sums<R, P>(rows, out);
}

// Computes sums (2, kRowTileFloats).
template <int R, int P>
[[gnu::noinline]] void compute_int8_tiles(const Int8Products& tiles, const QuantWeights& quant, float* sums) {
  constexpr int kFloats = R * kRowTileFloats;
  const bool has_offset = quant.type.offset != OffsetKind::kNone;
  const uint32_t* acts[2] = {tiles.acts[0], tiles.acts[1]};
  const char* codes[2] = {tiles.codes[0], tiles.codes[1]};
  alignas(64) int32_t products[kFloats];
  alignas(64) float part_sums[kFloats] = {};
  float pending[3][kFloats];  // by level: subtrees whose right half is not computed yet
  int part = 0;
  for (int run = 0; run < quant.num_runs; ++run) {
    multiply_int8_run<R, P>(quant.runs[run].num_words, tiles.rows, acts, codes, products);
    for (int p = 0; p < P; ++p) {
      const Vec scale = load_scales(quant, tiles.panels[p], run);
      const Vec offset = has_offset ? load_offsets(quant, tiles.panels[p], run, scale) : vec_zero();
      for (int i = 0; i < R; ++i) {
        const int rows = tiles.rows[i], first = run * rows;
        int at = i * static_cast<int>(kRowTileFloats) + p * rows * 16;
        for (int r = 0; r < rows; ++r, at += 16) {
          const IntVec total =
              ivec_add(ivec_load(products + at), ivec_set(-quant.type.zero * tiles.sums[i][first + r]));
          const Vec row_scale = vec_mul(scale, vec_set(tiles.scales[i][first + r]));
          Vec sum = vec_fma(ivec_float(total), row_scale, vec_load(part_sums + at));
          if (has_offset) sum = vec_fma(vec_set(-tiles.totals[i][first + r]), offset, sum);
          vec_store(part_sums + at, sum);
        }
      }
    }
    if (!quant.runs[run].ends_part) continue;
    // Adds like a binary counter: part 1 to part 0, part 3 to part 2, then (2 + 3) to (0 + 1), and so on.
    int level = 0;
    for (; part >> level & 1; ++level)
      for (int n = 0; n < kFloats; n += 16)
        vec_store(part_sums + n, vec_add(vec_load(pending[level] + n), vec_load(part_sums + n)));
    float* to = run + 1 == quant.num_runs ? sums : pending[level];
    for (int n = 0; n < kFloats; n += 16) {
      vec_store(to + n, vec_load(part_sums + n));
      vec_store(part_sums + n, vec_zero());
    }
    ++part;
  }
}

inline void compute_int8_tiles_any(const Int8Products& tiles, const QuantWeights& quant, int panels, float* sums) {
  if (tiles.rows[1] == 0)
    return panels == 1 ? compute_int8_tiles<1, 1>(tiles, quant, sums) : compute_int8_tiles<1, 2>(tiles, quant, sums);
  return panels == 1 ? compute_int8_tiles<2, 1>(tiles, quant, sums) : compute_int8_tiles<2, 2>(tiles, quant, sums);
}

// Chunks of rows as in gemm_tiles. The codes of a pair of panels are decoded once per chunk.
void gemm_int8_tiles(const GemmArgs& args) {
  const ActTiles& acts = args.acts;
  const QuantWeights& quant = args.quant;
  const bool is_decoded = quant.type.bits == 8;  // as tiles need it
  const int64_t decoded_bytes = (quant.num_words + kBlockWords) * 64;
  const int64_t panels_bytes = (args.panel_end - args.panel_begin) * quant.panel_bytes + 2 * decoded_bytes;
  const int64_t fitting_rows = (kAmxCacheBytes - panels_bytes) / (acts.words * 4);
  const int64_t max_chunk = fitting_rows < kPairRows ? kPairRows : fitting_rows - fitting_rows % kPairRows;
  alignas(64) float sums[2 * kRowTileFloats];
  int configured[2] = {0, 0};
  Int8Products tiles = {};
  for (int64_t chunk = 0; chunk < acts.rows; chunk += max_chunk) {
    const int64_t chunk_end = acts.rows - chunk < max_chunk ? acts.rows : chunk + max_chunk;
    int panels = 0;
    for (int64_t panel = args.panel_begin; panel < args.panel_end; panel += panels) {
      panels = args.panel_end - panel < 2 ? 1 : 2;
      for (int p = 0; p < panels; ++p) {
        tiles.panels[p] = static_cast<const char*>(args.weights) + (panel + p - args.weights_panel) * quant.panel_bytes;
        char* decoded = reinterpret_cast<char*>(args.scratch) + p * decoded_bytes;
        if (!is_decoded) quant_kernels(quant.type).decode_panel(quant, tiles.panels[p], decoded);
        tiles.codes[p] = is_decoded ? tiles.panels[p] + quant.codes_at : decoded;
      }
      for (int64_t row = chunk; row < chunk_end; row += kPairRows) {
        for (int i = 0; i < 2; ++i) {
          const int64_t left = acts.rows - row - i * kBlockRows, first = left > 0 ? row + i * kBlockRows : row;
          tiles.rows[i] = static_cast<int>(left < 0 ? 0 : left < kBlockRows ? left : kBlockRows);
          tiles.acts[i] = acts.data + first * acts.words;
          tiles.scales[i] = acts.scales + first * acts.num_runs;
          tiles.sums[i] = acts.sums + first * acts.num_runs;
          tiles.totals[i] = acts.totals + first * acts.num_runs;
        }
        if (configured[0] != tiles.rows[0] || configured[1] != tiles.rows[1])
          configure_tiles(configured[0] = tiles.rows[0], configured[1] = tiles.rows[1]);
        compute_int8_tiles_any(tiles, quant, panels, sums);
        for (int i = 0; i < 2 && tiles.rows[i] > 0; ++i)
          store_sums(args, row + i * kBlockRows, tiles.rows[i], panel, panels, sums + i * kRowTileFloats);
      }
    }
  }
  tile_release();
}

// ---- few rows: FMAs, which read the weights as fast as the memory delivers them ----

// Adds up to kBlockWords words of K to acc. a: (words, 2, R) floats.
template <int R, int P>
[[gnu::always_inline]] inline void add_block(const uint32_t* a, const uint32_t* weights, int64_t panel_words, int count,
                                             const int64_t (&ahead)[P], Vec (&acc)[P][R]) {
  Vec even_sum[P][R], odd_sum[P][R];
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
      even_sum[p][r] = odd_sum[p][r] = vec_zero();
  for (int i = 0; i < count; ++i, a += 2 * R, weights += kPanelFeatures) {
    Vec even[P], odd[P];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      prefetch(weights + ahead[p]);
      vec_load_bf16_pairs(weights + p * panel_words, even[p], odd[p]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Vec x = vec_set(bits_float(a[r])), y = vec_set(bits_float(a[R + r]));
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        even_sum[p][r] = vec_fma(x, even[p], even_sum[p][r]);
        odd_sum[p][r] = vec_fma(y, odd[p], odd_sum[p][r]);
      }
    }
  }
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
      acc[p][r] = vec_add(acc[p][r], vec_add(even_sum[p][r], odd_sum[p][r]));
}

// Computes sums (P, R, 16). args: one step is a word of K.
template <int R, int P>
[[gnu::noinline]] void compute_few_rows(const TileArgs& args, float* sums) {
  PartTree<P * R * 16> tree;
  const uint32_t* a = args.a;
  const uint32_t* weights = args.w;
  for (int part = 0; part < args.num_parts; ++part) {
    const bool is_last = part + 1 == args.num_parts;
    Vec acc[P][R];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
        acc[p][r] = vec_zero();
    for (int64_t word = 0; word < args.steps; word += kBlockWords) {
      const bool is_tail = is_last && word >= args.steps - args.tail_steps;
      int64_t ahead[P];
      for (int p = 0; p < P; ++p)
        ahead[p] = args.ahead[p] + (is_tail ? args.tail_jump : 0);
      const int count = args.steps - word < kBlockWords ? static_cast<int>(args.steps - word) : kBlockWords;
      add_block<R, P>(a, weights, args.panel_words, count, ahead, acc);
      a += count * 2 * R;
      weights += count * kPanelFeatures;
    }
    float* to = tree.target(part, is_last, sums);
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
        vec_store(to + (p * R + r) * 16, acc[p][r]);
    tree.add(part, is_last, sums);
  }
}

template <int P>
void compute_few_rows_any(int rows, const TileArgs& args, float* sums) {
  static_assert(kMaxFewRows == 4);
  switch (rows) {
    case 1:
      return compute_few_rows<1, P>(args, sums);
    case 2:
      return compute_few_rows<2, P>(args, sums);
    case 3:
      return compute_few_rows<3, P>(args, sums);
    case 4:
      return compute_few_rows<4, P>(args, sums);
  }
}

void gemm_few_rows(const GemmArgs& args) {
  const int rows = static_cast<int>(args.acts.rows);
  const int64_t words = args.acts.words / 2, panel_words = words * kPanelFeatures;
  alignas(64) float sums[2 * kMaxFewRows * 16];
  int panels = 0;
  for (int64_t panel = args.panel_begin; panel < args.panel_end; panel += panels) {
    panels = rows <= 2 || args.panel_end - panel < 2 ? 1 : 2;  // as num_tile_panels
    TileArgs tile{};
    tile.a = args.acts.data;
    tile.w = static_cast<const uint32_t*>(args.weights) + (panel - args.weights_panel) * panel_words;
    tile.panel_words = panel_words;
    tile.steps = words / args.num_parts;
    tile.num_parts = args.num_parts;
    plan_ahead(tile, panels, 0, 1, kPanelFeatures);
    if (panels == 1)
      compute_few_rows_any<1>(rows, tile, sums);
    else
      compute_few_rows_any<2>(rows, tile, sums);
    store_sums(args, 0, rows, panel, panels, sums);
  }
}

void gemm_amx(const GemmArgs& args) {
  if (args.acts.format == ActFormat::kBf16Blocks) return gemm_tiles(args);
  gemm_few_rows(args);
}

}  // namespace
