// Matrix kernels over the Vec of the including file. An output element is one chain of FMAs in K order per part of K.
namespace {

using namespace capstan;

constexpr int64_t kPrefetchWords = 512;  // 2 KB ahead of the reads of each panel
// Up to this size, the current panels and the next ones fit in the L2 cache.
constexpr int64_t kNextPanelsBytes = int64_t{640} << 10;
// The next panels are prefetched in at most this many shares, one for each tile of rows.
constexpr int64_t kMaxShares = 16;
// A share of at most this many lines is prefetched at once before its tile, so that the steps have no prefetches.
constexpr int64_t kMaxShareLines = 128;

// Readers of the weights by number type. One step of a chain reads kStepWords 4-byte words of each panel and kActWords
// words of each row.
struct F32Weights {
  static constexpr bool kIsF32 = true;
  static constexpr int kStepWords = 16, kActWords = 1;
  template <int R, int P>
  [[gnu::always_inline]] static void step(const uint32_t* a, const uint32_t* w, int64_t panel_words, Vec (&acc)[P][R]) {
    Vec weight[P];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p)
      weight[p] = vec_load(reinterpret_cast<const float*>(w + p * panel_words));
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Vec x = vec_set(bits_float(a[r]));
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p)
        acc[p][r] = vec_fma(x, weight[p], acc[p][r]);
    }
  }
};

struct F16Weights {
  static constexpr bool kIsF32 = false;
  static constexpr int kStepWords = 8, kActWords = 1;
  template <int R, int P>
  [[gnu::always_inline]] static void step(const uint32_t* a, const uint32_t* w, int64_t panel_words, Vec (&acc)[P][R]) {
    Vec weight[P];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p)
      weight[p] = vec_load_f16(reinterpret_cast<const uint16_t*>(w + p * panel_words));
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Vec x = vec_set(bits_float(a[r]));
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p)
        acc[p][r] = vec_fma(x, weight[p], acc[p][r]);
    }
  }
};

// bf16 weights, float activations. kOddFirst adds in the order of `vdpbf16ps`, for activations rounded to bf16.
template <bool kOddFirst>
struct Bf16Weights {
  static constexpr bool kIsF32 = false;
  static constexpr int kStepWords = 16, kActWords = 2;
  template <int R, int P>
  [[gnu::always_inline]] static void step(const uint32_t* a, const uint32_t* w, int64_t panel_words, Vec (&acc)[P][R]) {
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const bool is_odd = kOddFirst == (i == 0);
      Vec weight[P];
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        Vec even, odd;
        vec_load_bf16_pairs(w + p * panel_words, even, odd);
        weight[p] = is_odd ? odd : even;
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const Vec x = vec_set(bits_float(a[r + (is_odd ? R : 0)]));
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p)
          acc[p][r] = vec_fma(x, weight[p], acc[p][r]);
      }
      // With tiles of one panel there are registers for one half, so the compiler has to load the pairs again.
      if constexpr (kTilePanels == 1) asm("" : "+r"(w));
    }
  }
};

#ifdef CAPSTAN_BF16_DOT
struct Bf16DotWeights {
  static constexpr bool kIsF32 = false;
  static constexpr int kStepWords = 16, kActWords = 1;
  template <int R, int P>
  [[gnu::always_inline]] static void step(const uint32_t* a, const uint32_t* w, int64_t panel_words, Vec (&acc)[P][R]) {
    IntVec weight[P];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p)
      weight[p] = ivec_load(w + p * panel_words);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p)
        acc[p][r] = vec_dot_bf16(acc[p][r], a[r], weight[p]);
  }
};
#endif

// One tile: activations of R rows at `a` times the weights of P panels at `w`.
struct TileArgs {
  const uint32_t* a;
  const uint32_t* w;
  int64_t panel_words;
  int64_t steps;  // per part
  int num_parts;
  int64_t ahead[kTilePanels];  // prefetch distance of the first step in words, by panel
  int64_t ahead_bytes;         // … which each step moves by this
  int64_t tail_steps;          // the last steps of the last part, which prefetch …
  int64_t tail_jump;           // … this many words further
  bool prefetches;             // false: no step prefetches
};

// Computes sums (P, R, 16) of one tile.
template <class W, int R, int P>
[[gnu::noinline]] void compute_tile(const TileArgs& args, float* sums) {
  const uint32_t* a = args.a;
  const uint32_t* w = args.w;
  const char* ahead[P];
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p)
    ahead[p] = reinterpret_cast<const char*>(w + args.ahead[p]);
  int64_t moved = 0;
  float pending[3][P * R * 16];  // by level: subtrees whose right half is not computed yet
  for (int part = 0;; ++part) {
    Vec acc[P][R];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
        acc[p][r] = vec_zero();
    const bool is_last = part + 1 == args.num_parts;
    int64_t step = 0, end = is_last ? args.steps - args.tail_steps : args.steps;
    if constexpr (R > 2 && kF32TileSteps > 1) {
      constexpr int kSteps = W::kIsF32 ? kF32TileSteps : kTileSteps;
      if (!args.prefetches) {
        for (; step + kSteps <= args.steps; step += kSteps) {
#pragma GCC unroll 8
          for (int i = 0; i < kSteps; ++i)
            W::template step<R, P>(a + i * W::kActWords * R, w + i * W::kStepWords, args.panel_words, acc);
          a += kSteps * W::kActWords * R;
          w += kSteps * W::kStepWords;
        }
      }
    }
    for (int segment = 0; segment < 2; ++segment) {
      for (; step < end; ++step) {
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p)
          if constexpr (R <= 2)
            prefetch(ahead[p] + moved);
          else
            prefetch_panel(ahead[p] + moved);
        moved += args.ahead_bytes;
        W::template step<R, P>(a, w, args.panel_words, acc);
        a += W::kActWords * R;
        w += W::kStepWords;
      }
      moved += is_last && segment == 0 ? args.tail_jump * 4 : 0;
      end = args.steps;
    }
    // Adds like a binary counter: part 1 to part 0, part 3 to part 2, then (2 + 3) to (0 + 1), and so on.
    int level = 0;
    for (; (part >> level) & 1; ++level) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
          acc[p][r] = vec_add(vec_load(pending[level] + (p * R + r) * 16), acc[p][r]);
    }
    float* to = is_last ? sums : pending[level];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
        vec_store(to + (p * R + r) * 16, acc[p][r]);
    if (is_last) return;
  }
}

// Calls Tile::compute<rows, panels>(args, sums).
template <class Tile, int P, class Args>
void compute_tile_rows(int rows, const Args& args, float* sums) {
  switch (rows) {
    case 1:
      return Tile::template compute<1, P>(args, sums);
    case 2:
      return Tile::template compute<2, P>(args, sums);
    case 3:
      return Tile::template compute<3, P>(args, sums);
    case 4:
      return Tile::template compute<4, P>(args, sums);
  }
  if constexpr (kTileRows > 4) {
    switch (rows) {
      case 5:
        return Tile::template compute<5, P>(args, sums);
      case 6:
        return Tile::template compute<6, P>(args, sums);
    }
  }
  if constexpr (kTileRows > 6) {
    switch (rows) {
      case 7:
        return Tile::template compute<7, P>(args, sums);
      case 8:
        return Tile::template compute<8, P>(args, sums);
    }
  }
}

template <class Tile, class Args>
void compute_tile_any(int rows, int panels, const Args& args, float* sums) {
  if (panels == 1) return compute_tile_rows<Tile, 1>(rows, args, sums);
  if constexpr (kTilePanels > 1) {
    if (panels == 2) return compute_tile_rows<Tile, 2>(rows, args, sums);
    if (panels == 3) return compute_tile_rows<Tile, 3>(rows, args, sums);
  }
}

template <class W>
struct WeightsTile {
  template <int R, int P>
  static void compute(const TileArgs& args, float* sums) {
    compute_tile<W, R, P>(args, sums);
  }
};

// Writes out rows [row, row + rows), features from `panel` on, from sums (panels, rows, 16). At most kBlockRows rows.
void store_tile(const GemmArgs& args, int64_t row, int rows, int64_t panel, int panels, const float* sums) {
  for (int p = 0; p < panels; ++p) {
    const int64_t feature = (panel + p) * kPanelFeatures;
    const int64_t left = args.num_features - feature;
    for (int r = 0; r < rows; ++r) {
      Vec sum = vec_load(sums + (p * rows + r) * 16);
      if (args.bias != nullptr) sum = vec_add(sum, vec_load(args.bias + feature));
      float* out = args.out + (row + r) * args.out_stride + feature;
      if (left >= 16) {
        vec_store(out, args.output == GemmOutput::kResidual ? vec_add(vec_load(out), sum) : sum);
      } else {
        float lane[16];
        vec_store(lane, sum);
        for (int i = 0; i < left; ++i)
          out[i] = args.output == GemmOutput::kResidual ? out[i] + lane[i] : lane[i];
      }
    }
  }
}

// Rows [row, row + count) of activations.
struct ActRows {
  const ActTiles& acts;
  int64_t row;
  int count;  // at most kBlockRows
  ActRow rows[kBlockRows];

  ActRows(const ActTiles& tiles, int64_t first, int num_rows) : acts(tiles), row(first), count(num_rows) {
    for (int r = 0; r < count; ++r)
      rows[r] = act_row(acts, row + r);
  }

  // Stores elements [k, k + num_values) of every row r: value_of(r).
  template <class ValueOf>
  void store(int64_t k, int num_values, ValueOf value_of) const {
#ifdef CAPSTAN_WHOLE_TILES
    if (num_values == 16 && count == kTileRows && is_whole_tile(acts, row, count)) {
      Vec values[kTileRows];
      for (int r = 0; r < kTileRows; ++r)
        values[r] = value_of(r);
      return store_act_tile(acts, row, k, values);
    }
#endif
    for (int r = 0; r < count; ++r)
      store_act_words(rows[r], k, vec_select_range(value_of(r), 0, num_values, vec_zero()), num_values);
  }
};

// Writes gated rows [row, row + rows) from sums (panels, rows, 8 gates then 8 ups).
void store_gated_tile(const GemmArgs& args, int64_t row, int rows, int64_t panel, int panels, const float* sums) {
  const auto sum_of = [&](int p, int r) {
    const Vec sum = vec_load(sums + (p * rows + r) * 16);
    return args.bias == nullptr ? sum : vec_add(sum, vec_load(args.bias + (panel + p) * 16));
  };
  const ActRows to(args.gated, row, rows);
  for (int p = 0; p < panels; p += 2) {
    const int64_t k = (panel + p) * (kPanelFeatures / 2);
    const int64_t left = args.num_features - k;
    const int valid = p + 1 < panels ? 16 : 8;
    to.store(k, left < valid ? static_cast<int>(left) : valid, [&](int r) {
      const Vec first = sum_of(p, r), second = p + 1 < panels ? sum_of(p + 1, r) : first;
      return vec_gated(args.activation, vec_low_halves(first, second), vec_high_halves(first, second));
    });
  }
}

// Writes activated rows [row, row + rows) from sums (panels, rows, 16).
void store_activated_tile(const GemmArgs& args, int64_t row, int rows, int64_t panel, int panels, const float* sums) {
  const ActRows to(args.gated, row, rows);
  for (int p = 0; p < panels; ++p) {
    const int64_t k = (panel + p) * kPanelFeatures;
    const int count = args.num_features - k < 16 ? static_cast<int>(args.num_features - k) : 16;
    to.store(k, count, [&](int r) {
      Vec sum = vec_load(sums + (p * rows + r) * 16);
      if (args.bias != nullptr) sum = vec_add(sum, vec_load(args.bias + k));
      return args.activation == Activation::kXielu ? vec_xielu(args.xielu, sum) : vec_activate(args.activation, sum);
    });
  }
}

// Adds the updates to the sums of a tile and writes it.
void store_sums(const GemmArgs& args, int64_t row, int rows, int64_t panel, int panels, float* sums) {
  if (args.lora != nullptr) add_lora(args.lora + row, rows, panel, panels, sums);
  if (args.output == GemmOutput::kGated) return store_gated_tile(args, row, rows, panel, panels, sums);
  if (args.output == GemmOutput::kActivated) return store_activated_tile(args, row, rows, panel, panels, sums);
  store_tile(args, row, rows, panel, panels, sums);
}

// Returns the panels of the next tile. A few rows are bound by memory, which is fastest with few streams: one row reads
// 29.5 GB/s from one panel at a time and 26.4 GB/s from three (one thread, Zen 4). Many rows use all accumulators.
// Never leaves a single panel as the rest.
inline int num_tile_panels(int64_t rows, int64_t left) {
  int wanted = kTilePanels;
  if (rows <= 2)
    wanted = 1;
  else if (rows <= kTileRows && kTilePanels > 2)
    wanted = 2;
  if (left <= wanted) return static_cast<int>(left);
  return wanted == 3 && left == 4 ? 2 : wanted;
}

// Sets what a tile prefetches. A single tile of rows prefetches 2 KB ahead in each of its panels, and then the start of
// the next panels. With several tiles of rows, each one prefetches a share of the next panels, so that memory traffic
// stays even while all tiles compute. A share is contiguous: consecutive steps prefetch the same line.
inline void plan_ahead(TileArgs& tile, int panels, int64_t tile_idx, int64_t num_tiles, int64_t step_words) {
  const int64_t panel_bytes = tile.panel_words * 4;
  tile.ahead_bytes = step_words * 4;
  tile.prefetches = true;
  if (num_tiles == 1 || 2 * panels * panel_bytes > kNextPanelsBytes) {
    for (int p = 0; p < panels; ++p)
      tile.ahead[p] = p * tile.panel_words + kPrefetchWords;
    tile.tail_steps = kPrefetchWords / step_words < tile.steps ? kPrefetchWords / step_words : tile.steps;
    tile.tail_jump = (panels - 1) * tile.panel_words;
    return;
  }
  tile.tail_steps = tile.tail_jump = 0;
  const int64_t share_lines = (panels * panel_bytes / 64 + num_tiles - 1) / num_tiles;
  if (kF32TileSteps > 1 && share_lines <= kMaxShareLines) {
    const char* share = reinterpret_cast<const char*>(tile.w + panels * tile.panel_words) + tile_idx * share_lines * 64;
    for (int64_t line = 0; line < share_lines; ++line)
      prefetch_panel(share + line * 64);
    tile.prefetches = false;
    return;
  }
  if (tile_idx >= kMaxShares) return;  // prefetches the line of each step, no extra traffic
  const int64_t shares = num_tiles < kMaxShares ? num_tiles : kMaxShares;
  tile.ahead_bytes = (step_words * 4 + shares - 1) / shares;
  for (int p = 0; p < panels; ++p)
    tile.ahead[p] = (panels + p) * tile.panel_words + tile_idx * tile.ahead_bytes * tile.steps * tile.num_parts / 4;
}

template <class W>
void gemm_with(const GemmArgs& args) {
  const int64_t steps = args.acts.words / W::kActWords;
  const int64_t panel_words = steps * W::kStepWords;
  const uint32_t* weights = static_cast<const uint32_t*>(args.weights);
  const int tile_rows = args.acts.tile_rows;
  const int64_t num_tiles = (args.acts.rows + tile_rows - 1) / tile_rows;
  float sums[kTilePanels * kTileRows * 16];
  int panels = 0;
  for (int64_t panel = args.panel_begin; panel < args.panel_end; panel += panels) {
    panels = num_tile_panels(args.acts.rows, args.panel_end - panel);
    for (int64_t row = 0; row < args.acts.rows; row += tile_rows) {
      const int rows = args.acts.rows - row < tile_rows ? static_cast<int>(args.acts.rows - row) : tile_rows;
      TileArgs tile{};
      tile.a = args.acts.data + row * args.acts.words;
      tile.w = weights + (panel - args.weights_panel) * panel_words;
      tile.panel_words = panel_words;
      tile.steps = steps / args.num_parts;
      tile.num_parts = args.num_parts;
      if (args.prefetches || args.acts.rows > 1) plan_ahead(tile, panels, row / tile_rows, num_tiles, W::kStepWords);
      compute_tile_any<WeightsTile<W>>(rows, panels, tile, sums);
      store_sums(args, row, rows, panel, panels, sums);
    }
  }
}

#ifdef CAPSTAN_TILES
void gemm_amx(const GemmArgs& args);
#endif

void gemm(const GemmArgs& args) {
  if (args.weight_dtype == DType::kF32) return gemm_with<F32Weights>(args);
  if (args.weight_dtype == DType::kF16) return gemm_with<F16Weights>(args);
  if (args.acts.format == ActFormat::kF32) return gemm_with<Bf16Weights<false>>(args);
#if defined(CAPSTAN_TILES)
  return gemm_amx(args);
#elif defined(CAPSTAN_BF16_DOT)
  return gemm_with<Bf16DotWeights>(args);
#else
  return gemm_with<Bf16Weights<true>>(args);
#endif
}

}  // namespace
