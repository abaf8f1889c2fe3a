// Elementwise functions and row kernels, over the Vec of the including file.
namespace {

using namespace capstan;

// ---- elementwise functions ----

// Returns 2^x with a relative error below 2e-7. 0 below -126.5, correct up to 127. NaN stays NaN.
inline Vec vec_exp2(Vec x) {
  x = vec_max(vec_set(-127.0f), x);
  const Vec magic = vec_set(12582912.0f);  // 1.5 · 2^23: adding it rounds to an integer in the low mantissa bits
  const Vec t = vec_add(x, magic);
  const Vec f = vec_sub(x, vec_sub(t, magic));  // [-0.5, 0.5]
  Vec p = vec_set(1.5403530393381608e-4f);      // Taylor of 2^f: ln(2)^n / n!
  p = vec_fma(p, f, vec_set(1.3333558146428443e-3f));
  p = vec_fma(p, f, vec_set(9.6181291076284772e-3f));
  p = vec_fma(p, f, vec_set(5.5504108664821580e-2f));
  p = vec_fma(p, f, vec_set(2.4022650695910071e-1f));
  p = vec_fma(p, f, vec_set(6.9314718055994531e-1f));
  p = vec_fma(p, f, vec_set(1.0f));
  return vec_mul(p, vec_pow2_of_magic(t));
}

inline Vec vec_sigmoid(Vec x) {
  // The exponents are limited to ±126 so that nothing overflows. Sigmoid is below 1e-37 there.
  const Vec exponent = vec_max(vec_set(-126.0f), vec_mul(x, vec_set(kLog2E)));
  const Vec e = vec_exp2(vec_max(vec_set(-126.0f), vec_sub(vec_zero(), exponent)));
  return vec_div(vec_set(1.0f), vec_add(vec_set(1.0f), e));
}

inline Vec vec_silu(Vec x) {
  return vec_mul(x, vec_sigmoid(x));
}

// 0.5 x (1 + tanh(y)) = x · sigmoid(2 y), y = sqrt(2 / pi) (x + 0.044715 x³).
inline Vec vec_gelu_tanh(Vec x) {
  const Vec cubed = vec_mul(vec_mul(x, x), x);
  const Vec y = vec_mul(vec_set(0.79788456080286536f), vec_fma(vec_set(0.044715f), cubed, x));
  return vec_mul(x, vec_sigmoid(vec_add(y, y)));
}

// x · Phi(x). erf is Abramowitz and Stegun 7.1.26, absolute error 1.5e-7.
inline Vec vec_gelu(Vec x) {
  const Vec z = vec_mul(vec_max(x, vec_sub(vec_zero(), x)), vec_set(0.70710678118654752f));
  const Vec t = vec_div(vec_set(1.0f), vec_fma(vec_set(0.3275911f), z, vec_set(1.0f)));
  Vec p = vec_set(1.061405429f);
  p = vec_fma(p, t, vec_set(-1.453152027f));
  p = vec_fma(p, t, vec_set(1.421413741f));
  p = vec_fma(p, t, vec_set(-0.284496736f));
  p = vec_fma(p, t, vec_set(0.254829592f));
  const Vec tail = vec_mul(vec_mul(p, t), vec_exp2(vec_mul(vec_mul(z, z), vec_set(-kLog2E))));  // 1 - erf(|z|)
  // x ≥ 0: x (1 - tail / 2); x < 0: x tail / 2. Both are max(x, 0) - |x| tail / 2.
  const Vec magnitude = vec_max(x, vec_sub(vec_zero(), x));
  return vec_sub(vec_max(vec_zero(), x), vec_mul(vec_mul(magnitude, tail), vec_set(0.5f)));
}

// The gated unit of gpt-oss.
inline Vec vec_clamped_swish(Vec gate, Vec up) {
  gate = vec_min(vec_set(7.0f), gate);
  up = vec_max(vec_set(-7.0f), vec_min(vec_set(7.0f), up));
  return vec_mul(vec_add(up, vec_set(1.0f)), vec_mul(gate, vec_sigmoid(vec_mul(vec_set(1.702f), gate))));
}

// tanh(x) = 2 · sigmoid(2 x) - 1.
inline Vec vec_tanh(Vec x) {
  const Vec half = vec_sigmoid(vec_add(x, x));
  return vec_sub(vec_add(half, half), vec_set(1.0f));
}

// x · linear + max(x, 0)² · square + (exp(n) - 1 - n) · exponential with n = min(x, 0).
inline Vec vec_xielu(const Xielu& values, Vec x) {
  const Vec positive = vec_max(vec_zero(), x), negative = vec_min(vec_zero(), x);
  const Vec growth = vec_sub(vec_sub(vec_exp2(vec_mul(negative, vec_set(kLog2E))), vec_set(1.0f)), negative);
  const Vec square = vec_mul(vec_mul(positive, positive), vec_set(values.square));
  return vec_fma(x, vec_set(values.linear), vec_fma(growth, vec_set(values.exponential), square));
}

// Of activations without other arguments.
inline Vec vec_activate(Activation activation, Vec x) {
  switch (activation) {
    case Activation::kSilu:
      return vec_silu(x);
    case Activation::kGelu:
      return vec_gelu(x);
    case Activation::kGeluTanh:
      return vec_gelu_tanh(x);
    case Activation::kRelu:
      return vec_max(vec_zero(), x);
    case Activation::kTanh:
      return vec_tanh(x);
    case Activation::kClampedSwish:
    case Activation::kXielu:
    case Activation::kIdentity:
      return x;
  }
  return x;
}

inline Vec vec_gated(Activation activation, Vec gate, Vec up) {
  if (activation == Activation::kClampedSwish) return vec_clamped_swish(gate, up);
  return vec_mul(vec_activate(activation, gate), up);
}

// cap · tanh(x / cap) = cap · (2 · sigmoid(2 x / cap) - 1).
inline Vec vec_soft_cap(Vec x, float cap) {
  const Vec half = vec_sigmoid(vec_mul(x, vec_set(2.0f / cap)));
  return vec_mul(vec_set(cap), vec_sub(vec_add(half, half), vec_set(1.0f)));
}

// ---- rows ----

// One row within its tile of activations. Word i is at data + i * stride. kBf16Blocks and kInt8Blocks: word i of block
// b is at data + b * stride + i.
struct ActRow {
  uint32_t* data;
  int64_t stride;
  ActFormat format;
  int64_t part_k;
};

inline ActRow act_row(const ActTiles& acts, int64_t row) {
  const int64_t first = row - row % acts.tile_rows;
  const int64_t rows = acts.rows - first < acts.tile_rows ? acts.rows - first : acts.tile_rows;
  const bool has_blocks = acts.format == ActFormat::kBf16Blocks || acts.format == ActFormat::kInt8Blocks;
  const int64_t words = has_blocks ? kBlockWords : 1;
  return {acts.data + first * acts.words + (row - first) * words, rows * words, acts.format, acts.part_k};
}

// Stores pairs of bf16, at most 8, from column k on. At the end of a part, also stores its padding.
inline void store_block_words(const ActRow& row, int64_t k, const uint32_t* words, int count) {
  const int64_t part_words = row.part_k / 2, padded_words = (part_words + kBlockWords - 1) & ~int64_t{kBlockWords - 1};
  int64_t part = k < row.part_k ? 0 : k / row.part_k;
  int64_t i = k / 2 - part * part_words;  // within the part
  const auto at = [&](int64_t word) {
    return row.data + (part * padded_words + word) / kBlockWords * row.stride + word % kBlockWords;
  };
  if (count == 8 && i % 8 == 0 && i + 8 < part_words) {
    __builtin_memcpy(at(i), words, 32);
    return;
  }
  for (int n = 0; n < count; ++n) {
    *at(i++) = words[n];
    if (i < part_words) continue;
    for (; i < padded_words; ++i)
      *at(i) = 0;
    ++part;
    i = 0;
  }
}

// Stores elements [k, k + count) of a row; k is even, count <= 16. Lanes from `count` on must be 0: an odd count also
// stores the next lane, as padding.
inline void store_act_words(const ActRow& row, int64_t k, Vec value, int count) {
  uint32_t word[16];
  int64_t index = k;
  int n = (count + 1) & ~1;
  if (row.format == ActFormat::kBf16Blocks) {
    vec_store_bf16(reinterpret_cast<uint16_t*>(word), value);
    return store_block_words(row, k, word, n / 2);
  }
  if (row.format == ActFormat::kBf16Pairs) {
    vec_store_bf16(reinterpret_cast<uint16_t*>(word), value);
    index = k / 2;
    n /= 2;
  } else {
    vec_store(reinterpret_cast<float*>(word), row.format == ActFormat::kBf16Rounded ? vec_round_bf16(value) : value);
  }
  uint32_t* to = row.data + index * row.stride;
  for (int i = 0; i < n; ++i)
    to[i * row.stride] = word[i];
}

#if defined(CAPSTAN_STORE_COLUMNS) || defined(CAPSTAN_INTERLEAVE)
#define CAPSTAN_WHOLE_TILES 1
#endif

// Whether store_act_tile can store `count` rows that begin with `row`.
inline bool is_whole_tile(const ActTiles& acts, int64_t row, int64_t count) {
#ifdef CAPSTAN_STORE_COLUMNS
  if (acts.format == ActFormat::kBf16Pairs) return false;  // no kernel for these tiles reads it
#endif
#ifdef CAPSTAN_WHOLE_TILES
  return count >= kTileRows && row % kTileRows == 0 && acts.tile_rows == kTileRows &&
         acts.format != ActFormat::kBf16Blocks;
#else
  (void)acts, (void)row, (void)count;
  return false;
#endif
}

#if defined(CAPSTAN_STORE_COLUMNS)
static_assert(kTileRows == 6);

// Stores elements [k, k + 16) of the tile of 6 rows that begins with `row`; k is even.
inline void store_act_tile(const ActTiles& acts, int64_t row, int64_t k, const Vec (&values)[6]) {
  float* to = reinterpret_cast<float*>(acts.data + row * acts.words) + k * 6;
  if (acts.format != ActFormat::kBf16Rounded) return vec_store_columns(to, values);
  Vec rounded[6];
  for (int r = 0; r < 6; ++r)
    rounded[r] = vec_round_bf16(values[r]);
  vec_store_columns(to, rounded);
}
#elif defined(CAPSTAN_INTERLEAVE)
static_assert(kTileRows == 8);

// Stores elements [k, k + 16) of the tile of 8 rows that begins with `row`; k is even. Interleaving two rows, then two
// results, and so on brings the values of all rows together: 0 and 4, 2 and 6, 1 and 5, 3 and 7; then the even and the
// odd rows; then all.
inline void store_act_tile(const ActTiles& acts, int64_t row, int64_t k, const Vec (&values)[8]) {
  float* to = reinterpret_cast<float*>(acts.data + row * acts.words);
  Vec pairs[8], quads[8], all[8];
  if (acts.format == ActFormat::kBf16Pairs) {
    // Rows r and r + 4 share a register.
    for (int r = 0; r < 4; ++r)
      pairs[r] = vec_interleave_halves(vec_bf16_pairs(values[r], values[r + 4]));
    for (int r = 0; r < 2; ++r)
      vec_interleave(pairs[r], pairs[r + 2], quads[r * 2], quads[r * 2 + 1]);
    for (int part = 0; part < 2; ++part)
      vec_interleave(quads[part], quads[part + 2], all[part * 2], all[part * 2 + 1]);
    for (int i = 0; i < 4; ++i)
      vec_store(to + k * 4 + i * 16, all[i]);
    return;
  }
  const bool rounds = acts.format == ActFormat::kBf16Rounded;
  const auto row_of = [&](int r) { return rounds ? vec_round_bf16(values[r]) : values[r]; };
  for (int r = 0; r < 4; ++r)
    vec_interleave(row_of(r), row_of(r + 4), pairs[r * 2], pairs[r * 2 + 1]);
  for (int r = 0; r < 2; ++r)
    for (int part = 0; part < 2; ++part)
      vec_interleave(pairs[r * 2 + part], pairs[r * 2 + part + 4], quads[r * 4 + part * 2],
                     quads[r * 4 + part * 2 + 1]);
  for (int part = 0; part < 4; ++part)
    vec_interleave(quads[part], quads[part + 4], all[part * 2], all[part * 2 + 1]);
  for (int i = 0; i < 8; ++i)
    vec_store(to + k * 8 + i * 16, all[i]);
}
#endif

inline Vec load_part(const float* p, int64_t count) {
  return count >= 16 ? vec_load(p) : vec_select_range(vec_load(p), 0, static_cast<int>(count), vec_zero());
}

// Returns 1 / rms(x), from 16 partial sums added by a fixed tree.
inline float inverse_rms(const float* x, int64_t k, float eps) {
  Vec sum = vec_zero();
  for (int64_t i = 0; i < k; i += 16) {
    const Vec v = load_part(x + i, k - i);
    sum = vec_fma(v, v, sum);
  }
  return 1.0f / __builtin_sqrtf(vec_reduce_add(sum) / static_cast<float>(k) + eps);
}

void rms_norm(const float* x, const float* w, int64_t k, float eps, const ActTiles& acts, int64_t row) {
  const Vec scale = vec_set(inverse_rms(x, k, eps));
  const ActRow to = act_row(acts, row);
  for (int64_t i = 0; i < k; i += 16) {
    const Vec v = vec_mul(vec_mul(load_part(x + i, k - i), scale), load_part(w + i, k - i));
    store_act_words(to, i, v, k - i < 16 ? static_cast<int>(k - i) : 16);
  }
}

void pack_row(const float* x, int64_t k, const ActTiles& acts, int64_t row) {
  const ActRow to = act_row(acts, row);
  for (int64_t i = 0; i < k; i += 16)
    store_act_words(to, i, load_part(x + i, k - i), k - i < 16 ? static_cast<int>(k - i) : 16);
}

void pack_rows(const float* x, int64_t stride, int64_t k, const ActTiles& acts, int64_t row, int64_t count) {
  for (const int64_t end = row + count; row < end;) {
    if (!is_whole_tile(acts, row, end - row)) {
      pack_row(x, k, acts, row++);
      x += stride;
      continue;
    }
#ifdef CAPSTAN_WHOLE_TILES
    int64_t i = 0;
    for (; i + 16 <= k; i += 16) {
      Vec values[kTileRows];
      for (int r = 0; r < kTileRows; ++r)
        values[r] = vec_load(x + r * stride + i);
      store_act_tile(acts, row, i, values);
    }
    for (int r = 0; r < kTileRows && i < k; ++r)
      store_act_words(act_row(acts, row + r), i, load_part(x + r * stride + i, k - i), static_cast<int>(k - i));
    row += kTileRows;
    x += kTileRows * stride;
#endif
  }
}

inline void store_part(float* to, Vec value, int64_t count) {
  if (count >= 16) return vec_store(to, value);
  float lane[16];
  vec_store(lane, value);
  for (int64_t j = 0; j < count; ++j)
    to[j] = lane[j];
}

// Returns elements [i, i + 16) of the partials, added by the fixed tree, plus the update and the bias.
inline Vec sum_partials(const float* const* partials, int num_partials, const float* bias, int64_t i, int64_t n,
                        const float* update = nullptr) {
  Vec part[8];
  part[0] = load_part(partials[0] + i, n - i);
  for (int p = 1; p < num_partials; ++p)
    part[p] = load_part(partials[p] + i, n - i);
  for (int width = num_partials; width > 1; width /= 2)
    for (int p = 0; p < width / 2; ++p)
      part[p] = vec_add(part[2 * p], part[2 * p + 1]);
  if (update != nullptr) part[0] = vec_add(part[0], load_part(update + i, n - i));
  return bias == nullptr ? part[0] : vec_add(part[0], load_part(bias + i, n - i));
}

void add_residual(const ResidualArgs& args) {
  const int64_t n = args.n;
  const auto sum_at = [&](int64_t i) {
    return sum_partials(args.partials, args.num_partials, args.bias, i, n, args.update);
  };
  Vec inverse_rms = vec_set(1.0f);
  if (args.norm != nullptr) {
    Vec squares = vec_zero();
    for (int64_t i = 0; i < n; i += 16)
      squares = vec_fma(sum_at(i), sum_at(i), squares);
    inverse_rms = vec_set(1.0f / __builtin_sqrtf(vec_reduce_add(squares) / static_cast<float>(n) + args.eps));
  }
  for (int64_t i = 0; i < n; i += 16) {
    Vec sum = sum_at(i);
    if (args.norm != nullptr) sum = vec_mul(vec_mul(sum, inverse_rms), load_part(args.norm + i, n - i));
    store_part(args.hidden + i, vec_add(load_part(args.hidden + i, n - i), vec_mul(sum, vec_set(args.scale))), n - i);
  }
}

void layer_norm(const LayerNormArgs& args) {
  const int64_t n = args.n;
  Vec sum = vec_zero();
  for (int64_t i = 0; i < n; i += 16)
    sum = vec_add(sum, load_part(args.x + i, n - i));
  const Vec mean = vec_set(vec_reduce_add(sum) / static_cast<float>(n));
  Vec squares = vec_zero();
  for (int64_t i = 0; i < n; i += 16) {
    const Vec centred = vec_sub(load_part(args.x + i, n - i), mean);
    const Vec counted = n - i >= 16 ? centred : vec_select_range(centred, 0, static_cast<int>(n - i), vec_zero());
    squares = vec_fma(counted, counted, squares);
  }
  const Vec scale = vec_set(1.0f / __builtin_sqrtf(vec_reduce_add(squares) / static_cast<float>(n) + args.eps));
  for (int64_t i = 0; i < n; i += 16) {
    const Vec centred = vec_mul(vec_sub(load_part(args.x + i, n - i), mean), scale);
    store_part(args.out + i, vec_fma(centred, load_part(args.weight + i, n - i), load_part(args.bias + i, n - i)),
               n - i);
  }
}

void activate(float* x, int64_t n, Activation activation) {
  for (int64_t i = 0; i < n; i += 16)
    store_part(x + i, vec_activate(activation, load_part(x + i, n - i)), n - i);
}

void add_row(float* to, const float* x, int64_t n) {
  for (int64_t i = 0; i < n; i += 16)
    store_part(to + i, vec_add(load_part(to + i, n - i), load_part(x + i, n - i)), n - i);
}

void weighted_sum(const WeightedSumArgs& args) {
  for (int64_t i = 0; i < args.n; i += 16) {
    Vec total = vec_zero();
    for (int row = 0; row < args.num_rows; ++row) {
      const Vec sum = sum_partials(args.partials + row * args.num_partials, args.num_partials, args.biases[row], i,
                                   args.n, args.updates[row]);
      total = vec_fma(sum, vec_set(args.weights[row]), total);
    }
    store_part(args.out + i, total, args.n - i);
  }
}

void head_squares(const float* x, int num_heads, int head_dim, float* squares) {
  for (int head = 0; head < num_heads; ++head, x += head_dim) {
    Vec sum = vec_zero();
    for (int i = 0; i < head_dim; i += 16) {
      const Vec v = load_part(x + i, head_dim - i);
      sum = vec_fma(v, v, sum);
    }
    squares[head] = vec_reduce_add(sum);
  }
}

void scale_logits(float* logits, int64_t n, float scale, float cap) {
  for (int64_t i = 0; i < n; i += 16) {
    const Vec scaled = vec_mul(load_part(logits + i, n - i), vec_set(scale));
    store_part(logits + i, cap > 0 ? vec_soft_cap(scaled, cap) : scaled, n - i);
  }
}

void gated_row(float* gate, const float* up, int64_t n, Activation activation) {
  for (int64_t i = 0; i < n; i += 16)
    store_part(gate + i, vec_gated(activation, load_part(gate + i, n - i), load_part(up + i, n - i)), n - i);
}

void per_layer_inputs(const PerLayerInputArgs& args) {
  const Vec projection_scale = vec_set(args.projection_scale), table_scale = vec_set(args.table_scale),
            sum_scale = vec_set(args.sum_scale);
  for (int layer = 0; layer < args.num_layers; ++layer) {
    float* x = args.inputs + layer * args.size;
    const float* table = args.table + layer * args.size;
    Vec squares = vec_zero();
    for (int64_t i = 0; i < args.size; i += 16) {
      const Vec scaled = vec_mul(load_part(x + i, args.size - i), projection_scale);
      squares = vec_fma(scaled, scaled, squares);
    }
    const float mean = vec_reduce_add(squares) / static_cast<float>(args.size);
    const Vec scale = vec_mul(projection_scale, vec_set(1.0f / __builtin_sqrtf(mean + args.eps)));
    for (int64_t i = 0; i < args.size; i += 16) {
      const int64_t left = args.size - i;
      const Vec projected = vec_mul(vec_mul(load_part(x + i, left), scale), load_part(args.norm + i, left));
      store_part(x + i, vec_mul(vec_fma(load_part(table + i, left), table_scale, projected), sum_scale), left);
    }
  }
}

}  // namespace
