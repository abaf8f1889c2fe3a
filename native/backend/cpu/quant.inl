// Kernels for quantized weights, over the Vec of the including file. Products of codes are added as integers, so
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
  return vec_min(vec_max(a, vec_set(low)), vec_set(high));
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

// Stores words [first, first + 4) of the codes of a run that ends with word `num_words`. kInt8Blocks: and its padding.
inline void store_codes(const ActRow& to, uint32_t* run_words, int64_t first, int64_t num_words, const int8_t* codes) {
  uint32_t words[4];
  __builtin_memcpy(words, codes, sizeof words);
  if (to.format == ActFormat::kInt8Blocks) {
    __builtin_memcpy(run_words + first / kBlockWords * to.stride + first % kBlockWords, words, sizeof words);
    if (first + 4 < num_words) return;
    for (int64_t i = first + 4; i % kBlockWords != 0; ++i)
      run_words[i / kBlockWords * to.stride + i % kBlockWords] = 0;
    return;
  }
  const int64_t left = num_words - first;
  for (int64_t i = 0; i < (left < 4 ? left : 4); ++i)
    run_words[(first + i) * to.stride] = words[i];
}

void quantize_row(const float* x, const float* norm, int64_t k, float eps, const ActTiles& acts, int64_t row) {
  const Vec factor = vec_set(norm == nullptr ? 1.0f : inverse_rms(x, k, eps));
  const ActRow to = act_row(acts, row);
  const bool has_blocks = acts.format == ActFormat::kInt8Blocks;
  const int64_t tile_rows = has_blocks ? to.stride / kBlockWords : to.stride;
  const int64_t first_row = row - row % acts.tile_rows;
  const auto value = [&](const QuantRun& run, int64_t i) {
    const Vec v = load_some(x + run.begin + i, run.count - i);
    return norm == nullptr ? v : vec_mul(vec_mul(v, factor), load_some(norm + run.begin + i, run.count - i));
  };
  uint32_t* word = to.data;
  for (int first = 0; first < acts.num_runs; first += acts.runs[first].span_runs) {
    const QuantRun* span = acts.runs + first;
    Vec largest = vec_zero(), check = vec_zero();
    for (int r = 0; r < span->span_runs; ++r)
      for (int64_t i = 0; i < span[r].count; i += 16) {
        const Vec v = value(span[r], i);
        largest = vec_max(largest, vec_abs(v));
        check = vec_fma(v, vec_zero(), check);  // NaN when a value is NaN or Inf
      }
    const float magnitude = vec_reduce_max(largest), bad = vec_reduce_add(check);
    const bool is_zero = !(magnitude > kSmallestMagnitude);
    const Vec inverse = vec_set(is_zero ? 0.0f : 127.0f / magnitude);
    const float scale = (is_zero ? 0.0f : magnitude / 127.0f) + bad;
    for (int r = 0; r < span->span_runs; ++r) {
      const QuantRun& run = span[r];
      Vec sum = vec_zero();
      for (int64_t i = 0; i < run.count; i += 16) {
        const Vec codes = vec_round(vec_mul(value(run, i), inverse));
        sum = vec_add(sum, codes);
        int8_t bytes[16];
        vec_store_int8(bytes, codes);
        store_codes(to, word, i / 4, run.num_words, bytes);
      }
      const int64_t at = first_row * acts.num_runs + (first + r) * tile_rows + (row - first_row);
      const float total = bad == 0.0f ? vec_reduce_add(sum) : 0.0f;
      acts.scales[at] = scale;
      acts.sums[at] = static_cast<int32_t>(total);
      acts.totals[at] = scale * total;
      word += (has_blocks ? (run.num_words + kBlockWords - 1) / kBlockWords : run.num_words) * to.stride;
    }
  }
}

// ---- weights ----

constexpr int kScaleTries = 11;

// The values of a group, and zeros after them.
template <int kVecs>
struct Group {
  Vec x[kVecs];
};

// Returns the first value of the largest magnitude.
template <int kVecs>
inline float first_extreme(const Group<kVecs>& group, const float* values) {
  Vec largest = vec_zero();
  for (int i = 0; i < kVecs; ++i)
    largest = vec_max(largest, vec_abs(group.x[i]));
  const Vec magnitude = vec_set(vec_reduce_max(largest));
  for (int i = 0; i < kVecs; ++i) {
    const uint32_t found = vec_eq(vec_abs(group.x[i]), magnitude);
    if (found != 0) return values[i * 16 + __builtin_ctz(found)];
  }
  return 0;
}

// Returns the scale with the least weighted squared error among those that map the value of the largest magnitude to
// -7 … -8.8 or to 7, each after a least-squares fit to its codes. The error of a value counts |x| + the root mean
// square of the group, both divided by the extreme. With equal weights the error is smaller, but on two of three
// references the model diverges further from the exact one (benchmarks/results/quality-smollm2.md).
template <int kVecs>
inline float best_scale_4bit(const Group<kVecs>& group, int count, float extreme) {
  const Vec unit = vec_set(1.0f / extreme);  // no sum overflows
  Vec weights[kVecs];
  Vec squares = vec_zero();
  for (int i = 0; i < kVecs; ++i) {
    const Vec x = vec_mul(group.x[i], unit);
    squares = vec_fma(x, x, squares);
    weights[i] = vec_abs(x);
  }
  const Vec mean = vec_set(__builtin_sqrtf(vec_reduce_add(squares) / static_cast<float>(count)));
  for (int i = 0; i < kVecs; ++i)
    weights[i] = vec_add(weights[i], mean);
  // The weighted sums of x·q and q·q, for the codes q that a scale gives.
  float sums_xq[kScaleTries], sums_qq[kScaleTries];
  for (int i = 0; i < kScaleTries; ++i) {
    const bool is_last = i == kScaleTries - 1;
    const Vec inverse = vec_set((is_last ? 7.0f : -8.8f + 0.2f * static_cast<float>(i)) / extreme);
    Vec xq = vec_zero(), qq = vec_zero();
    for (int j = 0; j < kVecs; ++j) {
      const Vec q = vec_clamp(vec_round(vec_mul(group.x[j], inverse)), -8.0f, 7.0f);
      const Vec weighted = vec_mul(weights[j], q);
      xq = vec_fma(group.x[j], weighted, xq);
      qq = vec_fma(q, weighted, qq);
    }
    sums_xq[i] = vec_reduce_add(xq);
    sums_qq[i] = vec_reduce_add(qq);
  }
  float best_scale = 0, best_gain = 0;
  for (int i = 0; i < kScaleTries; ++i) {
    const float gain = sums_xq[i] * sums_xq[i] / sums_qq[i];  // the error is that of all zeros - gain
    const bool is_better = gain > best_gain;
    best_gain = is_better ? gain : best_gain;
    best_scale = is_better ? sums_xq[i] / sums_qq[i] : best_scale;
  }
  return best_scale;
}

// `values` has zeros after `count` values.
template <int kVecs>
uint16_t quantize_vecs(const float* values, int count, int bits, uint8_t* codes) {
  Group<kVecs> group;
  for (int i = 0; i < kVecs; ++i)
    group.x[i] = vec_load(values + i * 16);
  const float extreme = first_extreme(group, values), largest = __builtin_fabsf(extreme);
  uint16_t scale = 0;
  if (largest > kSmallestMagnitude) {
    if (bits == 4) {
      scale = float_to_f16(best_scale_4bit(group, count, extreme));
    } else {
      scale = float_to_f16(largest / 127.0f);
      if (f16_to_float(scale) * 127.0f < largest) ++scale;  // the next f16 above
    }
  }
  const float step = f16_to_float(scale);
  const Vec inverse = vec_set(step == 0.0f ? 0.0f : 1.0f / step);
  const float low = bits == 4 ? -8.0f : -127.0f, high = bits == 4 ? 7.0f : 127.0f;
  // In each byte: code + 2^(bits - 1).
  const uint64_t bytes = 0x0101010101010101u, mask = bytes * ((1u << bits) - 1), zero = bytes << (bits - 1);
  for (int i = 0; i < kVecs; ++i) {
    const Vec scaled = vec_clamp(vec_mul(group.x[i], inverse), -1000.0f, 1000.0f);
    int8_t numbers[16];
    vec_store_int8(numbers, vec_clamp(vec_round(scaled), low, high));
    uint64_t halves[2];
    __builtin_memcpy(halves, numbers, sizeof halves);
    for (uint64_t& half : halves)
      half = (half & mask) ^ zero;
    __builtin_memcpy(codes + i * 16, halves, sizeof halves);
  }
  return scale;
}

uint16_t quantize_group(const QuantGroupArgs& args) {
  if (args.count == 128) return quantize_vecs<8>(args.values, args.count, args.bits, args.codes);
  if (args.count == 64) return quantize_vecs<4>(args.values, args.count, args.bits, args.codes);
  if (args.count == 32) return quantize_vecs<2>(args.values, args.count, args.bits, args.codes);
  float values[kMaxQuantGroup] = {};
  uint8_t codes[kMaxQuantGroup];
  for (int i = 0; i < args.count; ++i)
    values[i] = args.values[i];
  const uint16_t scale = quantize_vecs<kMaxQuantGroup / 16>(values, args.count, args.bits, codes);
  for (int i = 0; i < (args.count + 15) / 16 * 16; ++i)
    args.codes[i] = codes[i];
  return scale;
}

// Returns the numbers of word `index` (0 or 1) of a pair.
template <int kBits, bool kHasTable, int index>
[[gnu::always_inline]] inline IntVec load_numbers(const char* pair, const QuantType& type) {
  if constexpr (kBits == 8) return ivec_load(pair + 64 * index);
  IntVec codes = index == 0 ? ivec_low_nibbles(ivec_load(pair)) : ivec_high_nibbles(ivec_load(pair));
  if constexpr (kBits > 4 && kBits < 8) codes = ivec_add_high_bits<kBits - 4, index>(codes, pair + 64);
  return kHasTable ? ivec_look_up(codes, type.table) : codes;
}

inline Vec load_f16_row(const char* panel, int64_t at, int64_t row) {
  return vec_load_f16(reinterpret_cast<const uint16_t*>(panel + at) + row * 16);
}

// The types of scales and offsets that kernels for a few rows know when they are compiled, with kAllTilesKnowScales all
// kernels. The others look at the type.
enum class KnownScales { kAny, kF16, kTimesF16, kTimesF16WithOffsets };

inline KnownScales known_scales(const QuantType& type) {
  if (type.scale == ScaleKind::kF16 && type.offset == OffsetKind::kNone) return KnownScales::kF16;
  if (type.scale != ScaleKind::kTimesF16) return KnownScales::kAny;
  if (type.offset == OffsetKind::kNone) return KnownScales::kTimesF16;
  return type.offset == OffsetKind::kTimesF16 ? KnownScales::kTimesF16WithOffsets : KnownScales::kAny;
}

template <KnownScales kScales = KnownScales::kAny>
inline Vec load_scales(const QuantWeights& quant, const char* panel, int run) {
  constexpr bool kIsAny = kScales == KnownScales::kAny;
  const uint8_t* bytes = reinterpret_cast<const uint8_t*>(panel) + run * 16;
  if constexpr (kScales == KnownScales::kF16) return load_f16_row(panel, 0, run);
  if (kIsAny && quant.type.scale == ScaleKind::kF16) return load_f16_row(panel, 0, run);
  if (kIsAny && quant.type.scale == ScaleKind::kF32) return vec_load(reinterpret_cast<const float*>(panel) + run * 16);
  if (kIsAny && quant.type.scale == ScaleKind::kE8m0) return vec_load_e8m0(bytes);
  if (kIsAny && quant.type.scale == ScaleKind::kE4m3) {
    const Vec scale = vec_load_e4m3(bytes);
    const float* factors = reinterpret_cast<const float*>(panel + quant.block_scales_at);
    return vec_fma(scale, vec_load(factors), vec_mul(scale, vec_load(factors + 16)));
  }
  return vec_mul(vec_load_int8(bytes), load_f16_row(panel, quant.block_scales_at, quant.runs[run].block));
}

// For types with offsets. `scale` is that of the run.
template <KnownScales kScales = KnownScales::kAny>
inline Vec load_offsets(const QuantWeights& quant, const char* panel, int run, Vec scale) {
  constexpr bool kIsAny = kScales == KnownScales::kAny;
  if (kIsAny && quant.type.offset == OffsetKind::kF16) return load_f16_row(panel, quant.offsets_at, run);
  const uint8_t* bytes = reinterpret_cast<const uint8_t*>(panel) + quant.offsets_at + run * 16;
  if (kIsAny && quant.type.offset == OffsetKind::kZeroPoint) return vec_mul(vec_load_int8(bytes), scale);
  return vec_mul(vec_load_uint8(bytes), load_f16_row(panel, quant.block_offsets_at, quant.runs[run].block));
}

// ---- products with activations in 8 bits ----

// One tile: activations of R rows times the weights of P panels at `panels`.
struct QuantTile {
  const uint32_t* words;
  const float* scales;
  const int32_t* sums;
  const float* totals;
  const char* panels;
  QuantWeights quant;
  bool copies_heads;       // see kMaxCopiedHead
  int64_t prefetch_bytes;  // ahead of the reads of each panel; 0 = none
};

// Ahead of the reads of each panel. Codes of 5 and 6 bits take more instructions per byte, so the processor looks less
// far ahead by itself.
template <int kBits>
constexpr int64_t kQuantPrefetchBytes = kBits == 5 || kBits == 6 ? 12288 : 8192;

// A processor prefetches best what is read in order, and stops at each gap. So the head of a panel, which is all before
// its codes, is copied when the tile begins. The codes push a larger head out of the L1 cache before it is used.
constexpr int64_t kMaxCopiedHead = 3072;

// Numbers above 127 need an unsigned byte.
template <int kBits, bool kHasTable>
constexpr bool kIsWide = kBits == 8 || kHasTable;

// totals (P, R) = the sums of the products of one run: of `num_words` words at `codes`, which it moves behind the run,
// and at `a`. `sums` are those of the activations.
template <int kBits, bool kHasTable, int R, int P>
[[gnu::always_inline]] inline void multiply_run(const QuantType& type, const uint32_t* a, const int32_t* sums,
                                                const char* (&codes)[P], int num_words, int64_t ahead,
                                                IntVec (&totals)[P][R]) {
#ifdef CAPSTAN_DOT_TWO_WORDS
  constexpr bool kHasTwoChains = false;  // an addition takes one cycle
#else
  constexpr bool kHasTwoChains = R * P <= 4;  // few accumulators would wait for each other
#endif
  constexpr bool kWide = kIsWide<kBits, kHasTable>;
  constexpr int64_t kPairBytes = quant_pair_bytes(kBits);
  constexpr int kUnrolledPairs = R * P <= 4 ? 2 : 1;
  const int zero = type.zero - kDotShift<kWide>;
  IntVec acc[P][R], odd_acc[P][R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const IntVec start = ivec_set(-zero * sums[r]);
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      acc[p][r] = start;
      if constexpr (kHasTwoChains) odd_acc[p][r] = ivec_set(0);
    }
  }
  const auto multiply_pair = [&](int pair) __attribute__((always_inline)) {
    const uint32_t *words = a + 2 * pair * R, *next_words = words + R;
#ifdef CAPSTAN_DOT_TWO_WORDS
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      const char* at = codes[p] + pair * kPairBytes;
      const IntVec first = load_numbers<kBits, kHasTable, 0>(at, type);
      const IntVec second = load_numbers<kBits, kHasTable, 1>(at, type);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
        acc[p][r] = ivec_dot_two_words<kWide>(acc[p][r], first, second, words[r], next_words[r]);
    }
#else
    IntVec weight[P];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p)
      weight[p] = load_numbers<kBits, kHasTable, 0>(codes[p] + pair * kPairBytes, type);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p)
        acc[p][r] = ivec_dot<kWide>(acc[p][r], weight[p], words[r]);
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p)
      weight[p] = load_numbers<kBits, kHasTable, 1>(codes[p] + pair * kPairBytes, type);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        IntVec& sum = kHasTwoChains ? odd_acc[p][r] : acc[p][r];
        sum = ivec_dot<kWide>(sum, weight[p], next_words[r]);
      }
#endif
  };
  const auto multiply_pairs = [&]<int kPairs>() __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
      for (int byte = 0; byte < kPairs * kPairBytes; byte += 64)
        prefetch(codes[p] + ahead + byte);
#pragma GCC unroll 4
    for (int pair = 0; pair < kPairs; ++pair)
      multiply_pair(pair);
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p)
      codes[p] += kPairs * kPairBytes;
    a += kPairs * 2 * R;
  };
  int left = num_words;
  for (; left >= 2 * kUnrolledPairs; left -= 2 * kUnrolledPairs)
    multiply_pairs.template operator()<kUnrolledPairs>();
  for (; kUnrolledPairs > 1 && left > 0; left -= 2)
    multiply_pairs.template operator()<1>();
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
      totals[p][r] = kHasTwoChains ? ivec_add(acc[p][r], odd_acc[p][r]) : acc[p][r];
}

#ifdef CAPSTAN_DOT_HALVES
// The same sums for codes of 4 and 5 bits, one half of the features after the other: the sums of a half fit into the
// registers.
template <int kBits, int R>
[[gnu::always_inline]] inline void multiply_run_in_halves(const QuantType& type, const uint32_t* a, const int32_t* sums,
                                                          const char* (&codes)[1], int num_words, int64_t ahead,
                                                          IntVec (&totals)[1][R]) {
  constexpr int64_t kPairBytes = quant_pair_bytes(kBits);
  constexpr int kPairs = kPairsIn16Bits<kBits>;
  const int num_pairs = num_words / 2;
  const auto multiply_half = [&]<int half>() __attribute__((always_inline)) {
    __m256i acc[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
      acc[r] = _mm256_setzero_si256();
    const char* at = codes[0];
    const uint32_t* words = a;
    const auto load_words = [&](int pair, __m256i& first, __m256i& second) __attribute__((always_inline)) {
      const IntVec words_of[2] = {load_numbers<kBits, false, 0>(at + pair * kPairBytes, type),
                                  load_numbers<kBits, false, 1>(at + pair * kPairBytes, type)};
      first = half == 0 ? words_of[0].lo : words_of[0].hi;
      second = half == 0 ? words_of[1].lo : words_of[1].hi;
    };
    int pair = 0;
    for (; pair + kPairs <= num_pairs; pair += kPairs) {
      if constexpr (half == 0)
#pragma GCC unroll 8
        for (int byte = 0; byte < kPairs * kPairBytes; byte += 64)
          prefetch(at + ahead + byte);
      dot_half<kPairs>(acc, words, load_words);
      at += kPairs * kPairBytes;
      words += kPairs * 2 * R;
    }
    for (; pair < num_pairs; ++pair) {
      dot_half<1>(acc, words, load_words);
      at += kPairBytes;
      words += 2 * R;
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
      (half == 0 ? totals[0][r].lo : totals[0][r].hi) = acc[r];
  };
  multiply_half.template operator()<0>();
  multiply_half.template operator()<1>();
  codes[0] += num_pairs * kPairBytes;
  if (type.zero == 0) return;
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
    totals[0][r] = ivec_add(totals[0][r], ivec_set(-type.zero * sums[r]));
}
#endif

#ifdef CAPSTAN_INT8_MATRIX
// The same sums, with instructions that multiply pairs of rows with pairs of features, eight codes deep.
template <int kBits, bool kHasTable, int R>
[[gnu::always_inline]] inline void multiply_run_in_pairs(const QuantType& type, const uint32_t* a, const int32_t* sums,
                                                         const char* (&codes)[1], int num_words, int64_t ahead,
                                                         IntVec (&totals)[1][R]) {
  PairSums<R> pairs;
  for (int word = 0; word < num_words; word += 2) {
    prefetch(codes[0] + ahead);
    if constexpr (kBits > 4) prefetch(codes[0] + ahead + 64);
    pairs.add(load_numbers<kBits, kHasTable, 0>(codes[0], type), load_numbers<kBits, kHasTable, 1>(codes[0], type), a);
    codes[0] += quant_pair_bytes(kBits);
    a += 2 * R;
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
    totals[0][r] = ivec_add(pairs.row(r), ivec_set(-type.zero * sums[r]));
}
#endif

// Computes sums (P, R, 16) of one tile.
template <int kBits, bool kHasTable, KnownScales kScales, int R, int P>
[[gnu::noinline]] void compute_quant_tile(const QuantTile& tile, float* sums) {
  const QuantWeights& quant = tile.quant;
  const bool has_offset = kScales == KnownScales::kAny ? quant.type.offset != OffsetKind::kNone
                                                       : kScales == KnownScales::kTimesF16WithOffsets;
  const uint32_t* a = tile.words;
  const char *codes[P], *heads[P];
  for (int p = 0; p < P; ++p) {
    heads[p] = tile.panels + p * quant.panel_bytes;
    codes[p] = heads[p] + quant.codes_at;
  }
  alignas(64) char copy[kMaxCopiedHead];
  if (P == 1 && tile.copies_heads) {
    for (int64_t i = 0; i < quant.codes_at; i += 64) {
      prefetch(heads[0] + i + tile.prefetch_bytes);
      __builtin_memcpy(copy + i, heads[0] + i, 64);
    }
    heads[0] = copy;
  }
  Vec part_sums[P][R];
  float pending[3][P * R * 16];  // by level: subtrees whose right half is not computed yet
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
      part_sums[p][r] = vec_zero();
  int part = 0;
  const int64_t scale_step = quant.codes_at / quant.num_runs;
  for (int run = 0; run < quant.num_runs; ++run) {
    // Near the end of a panel, prefetches the codes of the next tile's panels. Heads that are not copied are a separate
    // stream.
    const int64_t left = tile.panels + quant.panel_bytes - codes[0];
    int64_t ahead = tile.prefetch_bytes;
    if (ahead > 0 && !tile.copies_heads) {
      if (left <= ahead) ahead += (P - 1) * quant.panel_bytes + quant.codes_at;
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p)
        prefetch(tile.panels + (P + p) * quant.panel_bytes + run * scale_step);
    }
    if constexpr (R == 1) prefetch(a + 32);  // the codes of a long panel push the activations out of the L1 cache
    const int num_words = quant.runs[run].num_words;
    const int32_t* act_sums = tile.sums + run * R;
    IntVec totals[P][R];
#ifdef CAPSTAN_INT8_MATRIX
    if constexpr (R > 1)
      multiply_run_in_pairs<kBits, kHasTable, R>(quant.type, a, act_sums, codes, num_words, ahead, totals);
    else
#elif defined(CAPSTAN_DOT_HALVES)
    if constexpr (R > 2 && !kHasTable && (kBits == 4 || kBits == 5))
      multiply_run_in_halves<kBits, R>(quant.type, a, act_sums, codes, num_words, ahead, totals);
    else
#endif
      multiply_run<kBits, kHasTable, R, P>(quant.type, a, act_sums, codes, num_words, ahead, totals);
    a += num_words * R;
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      const Vec scale = load_scales<kScales>(quant, heads[p], run);
      const Vec offset = has_offset ? load_offsets<kScales>(quant, heads[p], run, scale) : vec_zero();
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        Vec& sum = part_sums[p][r];
        sum = vec_fma(ivec_float(totals[p][r]), vec_mul(scale, vec_set(tile.scales[run * R + r])), sum);
        if (has_offset) sum = vec_fma(vec_set(-tile.totals[run * R + r]), offset, sum);
      }
    }
    if (!quant.runs[run].ends_part) continue;
    // Adds like a binary counter: part 1 to part 0, part 3 to part 2, then (2 + 3) to (0 + 1), and so on.
    int level = 0;
    for (; (part >> level) & 1; ++level)
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
          part_sums[p][r] = vec_add(vec_load(pending[level] + (p * R + r) * 16), part_sums[p][r]);
    float* to = run + 1 == quant.num_runs ? sums : pending[level];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        vec_store(to + (p * R + r) * 16, part_sums[p][r]);
        part_sums[p][r] = vec_zero();
      }
    ++part;
  }
}

// Whether a type of weights has these codes and scales. The kernel for any scales serves a type that is missing here.
constexpr bool has_known_scales(int bits, bool has_table, KnownScales scales) {
  if (scales == KnownScales::kF16) return bits != 6;
  if (scales == KnownScales::kTimesF16) return bits == 4 || bits == 6;
  return !has_table && bits <= 5;
}

#ifdef CAPSTAN_DOT_HALVES
constexpr bool kAllTilesKnowScales = true;  // the end of a run takes a third of the time
#else
constexpr bool kAllTilesKnowScales = false;
#endif

template <int kBits, bool kHasTable>
struct QuantizedTile {
  template <int R, int P>
  static void compute(const QuantTile& tile, float* sums) {
    switch (known_scales(tile.quant.type)) {
      case KnownScales::kF16:
        return compute_known<KnownScales::kF16, R, P>(tile, sums);
      case KnownScales::kTimesF16:
        return compute_known<KnownScales::kTimesF16, R, P>(tile, sums);
      case KnownScales::kTimesF16WithOffsets:
        return compute_known<KnownScales::kTimesF16WithOffsets, R, P>(tile, sums);
      case KnownScales::kAny:
        return compute_quant_tile<kBits, kHasTable, KnownScales::kAny, R, P>(tile, sums);
    }
  }

 private:
  template <KnownScales kScales, int R, int P>
  static void compute_known(const QuantTile& tile, float* sums) {
    constexpr bool has_kernel =
        (kAllTilesKnowScales || (R <= 2 && P <= R)) && has_known_scales(kBits, kHasTable, kScales);
    compute_quant_tile<kBits, kHasTable, has_kernel ? kScales : KnownScales::kAny, R, P>(tile, sums);
  }
};

// A tile of many rows has two panels, because the sums of three do not fit into the registers. Few rows wait for
// memory, which is fastest with one stream. But panels in 4 bits are so short that two at a time are faster for two
// rows, unless they are read in order.
template <int kBits>
inline int num_quant_tile_panels(int64_t rows, bool copies_heads) {
  const bool is_one_stream = copies_heads || rows == 1 || (rows == 2 && kBits != 4);
  return kTilePanels == 1 || is_one_stream ? 1 : 2;
}

// All panels are multiplied with one tile of rows before the next: a piece of a matrix is smaller than the activations.
template <int kBits, bool kHasTable>
void gemm_quantized(const GemmArgs& args) {
  const char* weights = static_cast<const char*>(args.weights);
  float sums[2 * kTileRows * kPanelFeatures];
  const bool copies_heads = args.acts.rows <= kMaxFewRows && args.quant.codes_at <= kMaxCopiedHead;
  const int step = num_quant_tile_panels<kBits>(args.acts.rows, copies_heads);
  const int stored = args.output == GemmOutput::kGated ? 2 : step;  // the values of two panels fill a vector
  const int tile_rows = args.acts.tile_rows;
  for (int64_t row = 0; row < args.acts.rows; row += tile_rows) {
    const int rows = args.acts.rows - row < tile_rows ? static_cast<int>(args.acts.rows - row) : tile_rows;
    QuantTile tile;
    tile.words = args.acts.data + row * args.acts.words;
    tile.scales = args.acts.scales + row * args.acts.num_runs;
    tile.sums = args.acts.sums + row * args.acts.num_runs;
    tile.totals = args.acts.totals + row * args.acts.num_runs;
    tile.quant = args.quant;
    // The first tile of rows reads the panels from memory, the others from the cache.
    tile.copies_heads = row == 0 && copies_heads;
    const bool prefetches = row == 0 && (args.prefetches || args.acts.rows > 1 || !copies_heads);
    tile.prefetch_bytes = prefetches ? kQuantPrefetchBytes<kBits> : 0;
    for (int64_t panel = args.panel_begin; panel < args.panel_end; panel += stored) {
      const int panels = args.panel_end - panel < stored ? 1 : stored;
      for (int p = 0; p < panels; p += step) {
        tile.panels = weights + (panel + p - args.weights_panel) * args.quant.panel_bytes;
        const int num_panels = panels - p < step ? 1 : step;
        compute_tile_any<QuantizedTile<kBits, kHasTable>>(rows, num_panels, tile, sums + p * rows * kPanelFeatures);
      }
      store_sums(args, row, rows, panel, panels, sums);
    }
  }
}

// ---- products with f32 activations ----

// out (padded_k, 16) = the values of one panel.
template <int kBits, bool kHasTable>
void dequantize_panel(const QuantWeights& quant, const char* panel, int64_t padded_k, float* out) {
  const bool has_zero_point = quant.type.offset == OffsetKind::kZeroPoint;
  const bool has_offset = quant.type.offset != OffsetKind::kNone && !has_zero_point;
  const char* pair = panel + quant.codes_at;
  int64_t k = 0;
  for (int r = 0; r < quant.num_runs; ++r) {
    const QuantRun& run = quant.runs[r];
    const Vec scale = load_scales(quant, panel, r);
    const Vec offset = has_offset ? load_offsets(quant, panel, r, scale) : vec_zero();
    Vec zero = vec_set(static_cast<float>(quant.type.zero));
    if (has_zero_point)
      zero = vec_add(zero, vec_load_int8(reinterpret_cast<const uint8_t*>(panel) + quant.offsets_at + r * 16));
    for (int word = 0; word < run.num_words; word += 2) {
      const IntVec numbers[2] = {load_numbers<kBits, kHasTable, 0>(pair, quant.type),
                                 load_numbers<kBits, kHasTable, 1>(pair, quant.type)};
      pair += quant_pair_bytes(kBits);
      for (int i = 0; i < 8 && word * 4 + i < run.count; ++i) {
        const Vec value = vec_mul(vec_sub(ivec_byte(numbers[i / 4], i % 4), zero), scale);
        vec_store(out + k++ * 16, has_offset ? vec_sub(value, offset) : value);
      }
    }
  }
  for (; k < padded_k; ++k)
    vec_store(out + k * 16, vec_zero());
}

// The kernels for one kind of code.
struct QuantKernels {
  void (*gemm)(const GemmArgs& args);
  void (*dequantize_panel)(const QuantWeights& quant, const char* panel, int64_t padded_k, float* out);
#ifdef CAPSTAN_TILES
  void (*decode_panel)(const QuantWeights& quant, const char* panel, char* out);
#endif
};

#ifdef CAPSTAN_TILES
void gemm_int8_tiles(const GemmArgs& args);

// out (num_words, 16, 4) bytes = the numbers of one panel.
template <int kBits, bool kHasTable>
void decode_panel(const QuantWeights& quant, const char* panel, char* out) {
  const char* pair = panel + quant.codes_at;
  for (int64_t word = 0; word < quant.num_words; word += 2, pair += quant_pair_bytes(kBits), out += 128) {
    prefetch(pair + kQuantPrefetchBytes<kBits>);
    ivec_store(out, load_numbers<kBits, kHasTable, 0>(pair, quant.type));
    ivec_store(out + 64, load_numbers<kBits, kHasTable, 1>(pair, quant.type));
  }
}

template <int kBits, bool kHasTable>
constexpr QuantKernels kQuantKernels = {gemm_quantized<kBits, kHasTable>, dequantize_panel<kBits, kHasTable>,
                                        decode_panel<kBits, kHasTable>};
#else
template <int kBits, bool kHasTable>
constexpr QuantKernels kQuantKernels = {gemm_quantized<kBits, kHasTable>, dequantize_panel<kBits, kHasTable>};
#endif

inline const QuantKernels& quant_kernels(const QuantType& type) {
  if (type.bits == 8) return kQuantKernels<8, false>;
  if (type.bits == 6) return kQuantKernels<6, false>;
  if (type.bits == 5) return kQuantKernels<5, false>;
  return type.table == nullptr ? kQuantKernels<4, false> : kQuantKernels<4, true>;
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
      float* to = args.scratch + p * padded_k * 16;
      quant_kernels(args.quant.type).dequantize_panel(args.quant, from, padded_k, to);
    }
    GemmArgs part = args;
    part.weights = args.scratch;
    part.weights_panel = panel;
    part.panel_begin = panel;
    part.panel_end = panel + panels;
    gemm_with<F32Weights>(part);
  }
}

void gemm_any(const GemmArgs& args) {
  if (args.quant.type.bits == 0) return gemm(args);
#ifdef CAPSTAN_TILES
  if (args.acts.format == ActFormat::kInt8Blocks) return gemm_int8_tiles(args);
#endif
  if (args.acts.format != ActFormat::kInt8) return gemm_dequantized(args);
  quant_kernels(args.quant.type).gemm(args);
}

}  // namespace
