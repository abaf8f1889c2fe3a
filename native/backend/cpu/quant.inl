// Kernels for weights in 4 or 8 bits, over the Vec of the including file. Products of codes are added as integers, so
// their order does not matter.
namespace {

using namespace capstan;

// Below this, 127 / x overflows.
constexpr float kSmallestMagnitude = 1e-30f;

inline Vec vec_round(Vec a) {  // |a| < 2^22, ties to even
  const Vec magic = vec_set(12582912.0f);
  return vec_sub(vec_add(a, magic), magic);
}
inline Vec vec_abs(Vec a) {
  return vec_max(a, vec_sub(vec_zero(), a));
}
inline Vec vec_clamp(Vec a, float low, float high) {
  return vec_sub(vec_zero(), vec_max(vec_set(-high), vec_sub(vec_zero(), vec_max(vec_set(low), a))));
}

// Loads `count` values, at most 16, and zeros after them.
inline Vec load_some(const float* p, int64_t count) {
  if (count >= 16) return vec_load(p);
  float values[16] = {};
  for (int64_t i = 0; i < count; ++i)
    values[i] = p[i];
  return vec_load(values);
}

// ---- activations ----

void quantize_row(const float* x, const float* norm, int64_t k, float eps, const ActTiles& acts, int64_t row) {
  const Vec factor = vec_set(norm == nullptr ? 1.0f : inverse_rms(x, k, eps));
  const ActRow to = act_row(acts, row);
  const int64_t first_row = row - row % acts.tile_rows;
  const auto value = [&](const QuantRun& run, int64_t i) {
    const Vec v = load_some(x + run.begin + i, run.count - i);
    return norm == nullptr ? v : vec_mul(vec_mul(v, factor), load_some(norm + run.begin + i, run.count - i));
  };
  uint32_t* word = to.data;
  for (int r = 0; r < acts.num_runs; ++r) {
    const QuantRun& run = acts.runs[r];
    Vec largest = vec_zero(), check = vec_zero();
    for (int64_t i = 0; i < run.count; i += 16) {
      const Vec v = value(run, i);
      largest = vec_max(largest, vec_abs(v));
      check = vec_fma(v, vec_zero(), check);  // NaN when a value is NaN or Inf
    }
    const float magnitude = vec_reduce_max(largest);
    const bool is_zero = !(magnitude > kSmallestMagnitude);
    const Vec inverse = vec_set(is_zero ? 0.0f : 127.0f / magnitude);
    Vec sum = vec_zero();
    for (int64_t i = 0; i < run.count; i += 16) {
      const Vec codes = vec_round(vec_mul(value(run, i), inverse));
      sum = vec_add(sum, codes);
      uint32_t words[4];
      int8_t bytes[16];
      vec_store_int8(bytes, codes);
      __builtin_memcpy(words, bytes, sizeof words);
      const int64_t left = run.num_words - i / 4;
      for (int64_t j = 0; j < (left < 4 ? left : 4); ++j)
        word[(i / 4 + j) * to.stride] = words[j];
    }
    const int64_t at = first_row * acts.num_runs + r * to.stride + (row - first_row);
    const float total = vec_reduce_add(sum), bad = vec_reduce_add(check);
    acts.scales[at] = (is_zero ? 0.0f : magnitude / 127.0f) + bad;
    acts.sums[at] = bad == 0.0f ? static_cast<int32_t>(total) : 0;
    word += run.num_words * to.stride;
  }
}

// ---- weights ----

// The sums of x·q and q·q over a group, for the codes q that a scale gives.
struct CodeSums {
  float xq, qq;
};

inline CodeSums code_sums(const QuantGroupArgs& args, float inverse, float low, float high) {
  Vec xq = vec_zero(), qq = vec_zero();
  for (int i = 0; i < args.count; i += 16) {
    const Vec x = load_some(args.values + i, args.count - i);
    const Vec q = vec_clamp(vec_round(vec_mul(x, vec_set(inverse))), low, high);
    xq = vec_fma(x, q, xq);
    qq = vec_fma(q, q, qq);
  }
  return {vec_reduce_add(xq), vec_reduce_add(qq)};
}

// Returns the scale with the least squared error among those that map the value of the largest magnitude to -7 … -8.8
// or to 7, each after a least-squares fit to its codes.
inline float best_scale_4bit(const QuantGroupArgs& args, float extreme) {
  float best_scale = 0, best_gain = 0;
  for (int step = 0; step <= 10; ++step) {
    const float inverse = (step == 10 ? 7.0f : -8.8f + 0.2f * static_cast<float>(step)) / extreme;
    const CodeSums sums = code_sums(args, inverse, -8.0f, 7.0f);
    const float gain = sums.xq * sums.xq / sums.qq;  // the squared error is x·x - gain
    if (gain > best_gain) {
      best_gain = gain;
      best_scale = sums.xq / sums.qq;
    }
  }
  return best_scale;
}

uint16_t quantize_group(const QuantGroupArgs& args) {
  const int zero = 1 << (args.bits - 1);
  float extreme = 0;  // the first value of the largest magnitude
  for (int i = 0; i < args.count; ++i)
    if (__builtin_fabsf(args.values[i]) > __builtin_fabsf(extreme)) extreme = args.values[i];
  uint16_t scale = 0;
  if (__builtin_fabsf(extreme) > kSmallestMagnitude) {
    if (args.bits == 4) {
      scale = float_to_f16(best_scale_4bit(args, extreme));
    } else {
      const float largest = __builtin_fabsf(extreme);
      scale = float_to_f16(largest / 127.0f);
      if (f16_to_float(scale) * 127.0f < largest) ++scale;  // the next f16 above
    }
  }
  const float step = f16_to_float(scale);
  const float inverse = step == 0.0f ? 0.0f : 1.0f / step;
  const float low = args.bits == 4 ? -8.0f : -127.0f, high = args.bits == 4 ? 7.0f : 127.0f;
  for (int i = 0; i < args.count; i += 16) {
    const Vec x = load_some(args.values + i, args.count - i);
    int8_t codes[16];
    vec_store_int8(codes, vec_clamp(vec_round(vec_clamp(vec_mul(x, vec_set(inverse)), -1000.0f, 1000.0f)), low, high));
    for (int j = 0; j < 16; ++j)
      args.codes[i + j] = static_cast<uint8_t>(codes[j] + zero);
  }
  return scale;
}

// The codes of a pair of words in every lane take kPairBytes.
template <int kBits>
constexpr int64_t kPairBytes = kBits == 8 ? 128 : 64;

// Returns the codes of word `index` (0 or 1) of a pair.
template <int kBits, int index>
[[gnu::always_inline]] inline IntVec load_codes(const char* pair) {
  if constexpr (kBits == 8) return ivec_load(pair + 64 * index);
  if constexpr (index == 0) return ivec_low_nibbles(ivec_load(pair));
  return ivec_high_nibbles(ivec_load(pair));
}

// ---- products with activations in 8 bits ----

// One tile: activations of R rows times the weights of P panels at `panels`.
struct QuantTile {
  const uint32_t* words;
  const float* scales;
  const int32_t* sums;
  const char* panels;
  QuantWeights quant;
  bool prefetches;  // one tile of rows reads the panels from memory, the others from the cache
};

constexpr int64_t kQuantPrefetchBytes = 4096;

// totals (P, R) = the sums of the products of one run: of `num_words` words at `codes`, which it moves behind the run,
// and at `a`. `sums` are those of the activations.
template <int kBits, int R, int P>
[[gnu::always_inline]] inline void multiply_run(const uint32_t* a, const int32_t* sums, const char* (&codes)[P],
                                                int num_words, int64_t ahead, IntVec (&totals)[P][R]) {
  constexpr bool kHasTwoChains = R * P <= 4;  // few accumulators would wait for each other
  constexpr int kZero = kDotZero<kBits>;
  IntVec acc[P][R], odd_acc[P][R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const IntVec start = ivec_set(-kZero * sums[r]);
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      acc[p][r] = start;
      if constexpr (kHasTwoChains) odd_acc[p][r] = ivec_set(0);
    }
  }
  for (int word = 0; word < num_words; word += 2) {
    IntVec weight[P];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      prefetch(codes[p] + ahead);
      if constexpr (kBits == 8) prefetch(codes[p] + ahead + 64);
      weight[p] = load_codes<kBits, 0>(codes[p]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p)
        acc[p][r] = ivec_dot<kBits>(acc[p][r], weight[p], a[r]);
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      weight[p] = load_codes<kBits, 1>(codes[p]);
      codes[p] += kPairBytes<kBits>;
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        IntVec& sum = kHasTwoChains ? odd_acc[p][r] : acc[p][r];
        sum = ivec_dot<kBits>(sum, weight[p], a[R + r]);
      }
    a += 2 * R;
  }
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
      totals[p][r] = kHasTwoChains ? ivec_add(acc[p][r], odd_acc[p][r]) : acc[p][r];
}

#ifdef CAPSTAN_INT8_MATRIX
// The same sums, with instructions that multiply pairs of rows with pairs of features, eight codes deep.
template <int kBits, int R>
[[gnu::always_inline]] inline void multiply_run_in_pairs(const uint32_t* a, const int32_t* sums,
                                                         const char* (&codes)[1], int num_words, int64_t ahead,
                                                         IntVec (&totals)[1][R]) {
  PairSums<R> pairs;
  for (int word = 0; word < num_words; word += 2) {
    prefetch(codes[0] + ahead);
    if constexpr (kBits == 8) prefetch(codes[0] + ahead + 64);
    pairs.add(load_codes<kBits, 0>(codes[0]), load_codes<kBits, 1>(codes[0]), a);
    codes[0] += kPairBytes<kBits>;
    a += 2 * R;
  }
  constexpr int kZero = 1 << (kBits - 1);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
    totals[0][r] = ivec_add(pairs.row(r), ivec_set(-kZero * sums[r]));
}
#endif

// Computes sums (P, R, 16) of one tile.
template <int kBits, int R, int P>
[[gnu::noinline]] void compute_quant_tile(const QuantTile& tile, float* sums) {
  const uint32_t* a = tile.words;
  const char* codes[P];
  for (int p = 0; p < P; ++p)
    codes[p] = tile.panels + p * tile.quant.panel_bytes + tile.quant.codes_offset;
  float part_sums[P * R * 16];
  float pending[3][P * R * 16];  // by level: subtrees whose right half is not computed yet
  for (float& sum : part_sums)
    sum = 0;
  int part = 0;
  for (int run = 0; run < tile.quant.num_runs; ++run) {
    // Near the end of a panel, prefetches the panels of the next tile.
    const int64_t left = tile.panels + tile.quant.panel_bytes - codes[0];
    int64_t ahead =
        left > kQuantPrefetchBytes ? kQuantPrefetchBytes : kQuantPrefetchBytes + (P - 1) * tile.quant.panel_bytes;
    if (!tile.prefetches) ahead = 0;
    const int num_words = tile.quant.runs[run].num_words;
    IntVec totals[P][R];
#ifdef CAPSTAN_INT8_MATRIX
    if constexpr (R > 1)
      multiply_run_in_pairs<kBits, R>(a, tile.sums + run * R, codes, num_words, ahead, totals);
    else
#endif
      multiply_run<kBits, R, P>(a, tile.sums + run * R, codes, num_words, ahead, totals);
    a += num_words * R;
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      const Vec scale =
          vec_load_f16(reinterpret_cast<const uint16_t*>(tile.panels + p * tile.quant.panel_bytes) + run * 16);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        float* sum = part_sums + (p * R + r) * 16;
        vec_store(sum,
                  vec_fma(ivec_float(totals[p][r]), vec_mul(scale, vec_set(tile.scales[run * R + r])), vec_load(sum)));
      }
    }
    if (!tile.quant.runs[run].ends_part) continue;
    // Adds like a binary counter: part 1 to part 0, part 3 to part 2, then (2 + 3) to (0 + 1), and so on.
    int level = 0;
    for (; (part >> level) & 1; ++level)
      for (int i = 0; i < P * R * 16; i += 16)
        vec_store(part_sums + i, vec_add(vec_load(pending[level] + i), vec_load(part_sums + i)));
    float* to = run + 1 == tile.quant.num_runs ? sums : pending[level];
    for (int i = 0; i < P * R * 16; i += 16) {
      vec_store(to + i, vec_load(part_sums + i));
      vec_store(part_sums + i, vec_zero());
    }
    ++part;
  }
}

template <int kBits>
struct QuantizedTile {
  template <int R, int P>
  static void compute(const QuantTile& tile, float* sums) {
    compute_quant_tile<kBits, R, P>(tile, sums);
  }
};

template <int kBits>
void gemm_quantized(const GemmArgs& args) {
  const char* weights = static_cast<const char*>(args.weights);
  float sums[kTilePanels * kTileRows * 16];
  int panels = 0;
  for (int64_t panel = args.panel_begin; panel < args.panel_end; panel += panels) {
    // One or two rows: a panel in 4 bits is so short that two at a time are faster than one stream.
    panels = num_tile_panels(kBits == 4 && args.acts.rows <= 2 ? 3 : args.acts.rows, args.panel_end - panel);
    for (int64_t row = 0; row < args.acts.rows; row += kTileRows) {
      const int rows = args.acts.rows - row < kTileRows ? static_cast<int>(args.acts.rows - row) : kTileRows;
      QuantTile tile;
      tile.words = args.acts.data + row * args.acts.words;
      tile.scales = args.acts.scales + row * args.acts.num_runs;
      tile.sums = args.acts.sums + row * args.acts.num_runs;
      tile.panels = weights + (panel - args.weights_panel) * args.quant.panel_bytes;
      tile.quant = args.quant;
      tile.prefetches = row == 0;
      compute_tile_any<QuantizedTile<kBits>>(rows, panels, tile, sums);
      if (args.output == GemmOutput::kGated)
        store_gated_tile(args, row, rows, panel, panels, sums);
      else
        store_tile(args, row, rows, panel, panels, sums);
    }
  }
}

// ---- products with f32 activations ----

// out (padded_k, 16) = the values of one panel.
template <int kBits>
void dequantize_panel(const QuantWeights& quant, const char* panel, int64_t padded_k, float* out) {
  const Vec zero = vec_set(static_cast<float>(1 << (kBits - 1)));
  const char* codes = panel + quant.codes_offset;
  int64_t k = 0;
  for (int r = 0; r < quant.num_runs; ++r) {
    const QuantRun& run = quant.runs[r];
    const Vec scale = vec_load_f16(reinterpret_cast<const uint16_t*>(panel) + r * 16);
    for (int word = 0; word < run.num_words; word += 2) {
      const IntVec pair[2] = {load_codes<kBits, 0>(codes), load_codes<kBits, 1>(codes)};
      codes += kPairBytes<kBits>;
      for (int i = 0; i < 8 && word * 4 + i < run.count; ++i)
        vec_store(out + k++ * 16, vec_mul(vec_sub(ivec_byte(pair[i / 4], i % 4), zero), scale));
    }
  }
  for (; k < padded_k; ++k)
    vec_store(out + k * 16, vec_zero());
}

// Decodes a few panels at a time and multiplies them as f32.
void gemm_dequantized(const GemmArgs& args) {
  const int64_t padded_k = args.acts.words;
  int panels = 0;
  for (int64_t panel = args.panel_begin; panel < args.panel_end; panel += panels) {
    // An even number of gated panels holds complete words of activations.
    panels = args.panel_end - panel < 2 || kTilePanels < 2 ? 1 : 2;
    for (int p = 0; p < panels; ++p) {
      const char* from = static_cast<const char*>(args.weights) + (panel + p) * args.quant.panel_bytes;
      float* to = args.dequantized + p * padded_k * 16;
      if (args.quant.bits == 8)
        dequantize_panel<8>(args.quant, from, padded_k, to);
      else
        dequantize_panel<4>(args.quant, from, padded_k, to);
    }
    GemmArgs part = args;
    part.weights = args.dequantized;
    part.weights_panel = panel;
    part.panel_begin = panel;
    part.panel_end = panel + panels;
    gemm_with<F32Weights>(part);
  }
}

void gemm_any(const GemmArgs& args) {
  if (args.quant.bits == 0) return gemm(args);
  if (args.acts.format != ActFormat::kInt8) return gemm_dequantized(args);
  return args.quant.bits == 8 ? gemm_quantized<8>(args) : gemm_quantized<4>(args);
}

}  // namespace
