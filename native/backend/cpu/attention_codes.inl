// The products of attention over a KV cache in 8 bits. q and the weights of the values become integers in 16 bits: q
// with one scale per row, the weights with one scale per row and tile. The products are added exactly, so all
// instruction sets give the same bits. A score is sum * scale of the row * scale of the slot. The scales of the values
// are factors of the weights. Keys and values are mixed (mix_head), and so are q and the result, which undoes it.
//
// NOTE: codes are finite whatever a slot holds, so a weight of 0 excludes a slot. Its scale may be NaN, and is excluded
// by a select.
namespace {

using namespace capstan;

constexpr float kLargestWord = 32767;

struct CodeStep {
  static constexpr int kItems = 4, kBytes = 64, kWords = 2;
  static constexpr bool kIsBf16 = false, kIsCodes = true;
  static constexpr ActFormat kRowFormat = ActFormat::kInt8;  // of two words in 16 bits instead of four codes
};

// acc[p][r] += four items of row r · the codes of the 16 lanes at from[p] + offset. Items 0 and 1 of row r are at
// a[r * kRowStride], items 2 and 3 are kWordStride after them.
template <int R, int P, int kRowStride, int kWordStride>
[[gnu::always_inline]] inline void add_codes(const uint32_t* a, const char* const (&from)[P], int64_t offset,
                                             IntVec (&acc)[P][R]) {
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    IntVec words[P];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      const IntVec codes = ivec_load(from[p] + offset);
      words[p] = half == 0 ? ivec_even_words(codes) : ivec_odd_words(codes);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p)
        acc[p][r] = ivec_dot_words(acc[p][r], words[p], a[r * kRowStride + half * kWordStride]);
  }
}

// As score_tile. q: (steps, 2, R) words, with the scales of the rows.
template <int R, int P>
[[gnu::noinline]] void score_code_tile(const uint32_t* q, const float* q_scales, int steps, const char* const* groups,
                                       Ahead* ahead, float* scores) {
  IntVec acc[P][R];
  const char* from[P];
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) {
    from[p] = groups[p];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
      acc[p][r] = ivec_set(0);
  }
  for (int step = 0; step < steps; ++step, q += CodeStep::kWords * R) {
    if (ahead != nullptr) ahead->template next<P>();
    add_codes<R, P, 1, R>(q, from, int64_t{step} * CodeStep::kBytes, acc);
  }
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) {
    const Vec slot_scales = vec_load(reinterpret_cast<const float*>(from[p] + int64_t{steps} * CodeStep::kBytes));
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
      vec_store(scores + r * kKvTile + p * 16,
                vec_mul(vec_mul(ivec_float(acc[p][r]), vec_set(q_scales[r])), slot_scales));
  }
}

// As value_tile, over the slots of groups [begin, end). Rows with a scale of 0 stay as they are.
template <int R, int P>
[[gnu::noinline]] void value_code_tile(const uint32_t* weights, const float* scales, int begin, int end,
                                       const TileGroups& groups, Ahead* ahead, int dim, int v_dim, float* out) {
  constexpr int kGroupSteps = kSlotGroup / CodeStep::kItems;
  const int64_t stride = int64_t{v_dim} / 16 * CodeStep::kBytes;
  IntVec acc[P][R];
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
      acc[p][r] = ivec_set(0);
  for (int group = begin; group < end; ++group) {
    const char* from[P];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p)
      from[p] = groups.v[group] + int64_t{dim / 16 + p} * CodeStep::kBytes;
    for (int step = 0; step < kGroupSteps; ++step) {
      if (ahead != nullptr) ahead->template next<P>();
      add_codes<R, P, kKvTile, 1>(weights + (group * kGroupSteps + step) * CodeStep::kWords, from, step * stride, acc);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    if (scales[r] == 0) continue;
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      float* to = out + r * v_dim + p * 16;
      vec_store(to, vec_fma(ivec_float(acc[p][r]), vec_set(scales[r]), vec_load(to)));
    }
  }
}

// As score_rows.
void score_code_rows(int rows, const uint32_t* q, const float* q_scales, int steps, const TileGroups& groups,
                     Ahead* ahead, int group_begin, int group_end, float* scores) {
  with_rows(rows, [&]<int R>() {
    constexpr int P = attention_panels(R);
    for (int g = group_begin / P * P; g < group_end; g += P)
      score_code_tile<R, P>(q, q_scales, steps, groups.k + g, ahead, scores + g * kSlotGroup);
  });
}

// out (rows, v_dim) += scales · weights (rows, words), rows kKvTile apart · values of groups [begin, end).
void value_code_rows(int rows, const uint32_t* weights, const float* scales, int begin, int end,
                     const TileGroups& groups, Ahead* ahead, int v_dim, float* out) {
  with_rows(rows, [&]<int R>() {
    for_dims<R>(v_dim, [&]<int P>(int dim) {
      value_code_tile<R, P>(weights, scales, begin, end, groups, ahead, dim, v_dim, out + dim);
    });
  });
}

// Mixes x (k), which is readable up to a multiple of 16, and stores it as row `row` of q and its scale.
void pack_query(float* x, int k, const ActTiles& q, int64_t row, float* scale) {
  mix_head(x, k);
  const CodeScale found = find_code_scale(x, k, kLargestWord);
  *scale = found.scale / static_cast<float>(mixed_dims(k));
  const ActRow to = act_row(q, row);
  for (int i = 0; i < k; i += 16) {
    int16_t codes[16];
    uint32_t words[8];
    vec_round_int16(codes, vec_mul(load_part(x + i, k - i), vec_set(found.inverse)));
    __builtin_memcpy(words, codes, sizeof words);
    const int64_t left = q.words - i / 2;
    for (int64_t j = 0; j < (left < 8 ? left : 8); ++j)
      to.data[(i / 2 + j) * to.stride] = words[j];
  }
}

// Replaces the weights (rows, kKvTile), 0 outside of a row's range, by words: weight * scale of the slot's values =
// word * scale. The scale is NaN when the slots that a row sees have such a weight or scale.
void weights_to_codes(int rows, const KeyRange* ranges, const TileGroups& groups, int v_dim, float* weights,
                      float* scales) {
  for (int r = 0; r < rows; ++r) {
    float* row = weights + r * kKvTile;
    int16_t* words = reinterpret_cast<int16_t*>(row);
    if (ranges[r].begin == ranges[r].end) {
      scales[r] = 0;
      for (int i = 0; i < kKvTile / 2; i += 16)
        vec_store(row + i, vec_zero());
      continue;
    }
    Vec w[kTileGroups];
    for (int i = 0; i < kTileGroups; ++i)
      w[i] = vec_mul(vec_load(row + i * 16), vec_load(reinterpret_cast<const float*>(groups.v[i]) + v_dim * 4));
    select_visible(ranges[r], w, vec_zero());
    const float total = vec_reduce_add(vec_add(vec_add(w[0], w[1]), vec_add(w[2], w[3])));
    const bool is_zero = !(total > kSmallestMagnitude);
    const Vec inverse = vec_set(is_zero ? 0.0f : kLargestWord / total);
    scales[r] = is_zero ? total * 0.0f : total / kLargestWord;
    for (int i = 0; i < kTileGroups; ++i)
      vec_round_int16(words + i * 16, vec_mul(w[i], inverse));
  }
}

}  // namespace
