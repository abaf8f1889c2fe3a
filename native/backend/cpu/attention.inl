// Attention over the KV cache in blocks, in float. One row is one (position, query head). Softmax is updated once per tile of kKvTile keys, tiles in
// order, so the bits of a row depend on its position and window alone.
namespace {

using namespace capstan;

constexpr float kMinusInfinity = -__builtin_inff();

// c (R, P * 16) = a (R, k) · w (k, P * 16), or added to c. a row r at a + r * a_stride; step k of panel p at w + k * w_step + p * w_panel.
template <int R, int P>
[[gnu::noinline]] void multiply_tile(const float* a, int64_t a_stride, const float* w, int64_t w_step, int64_t w_panel, int64_t k,
                                     float* c, int64_t c_stride, bool accumulate) {
  Vec acc[P][R];
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) acc[p][r] = accumulate ? vec_load(c + r * c_stride + p * 16) : vec_zero();
  for (int64_t i = 0; i < k; ++i) {
    Vec weight[P];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) weight[p] = vec_load(w + i * w_step + p * w_panel);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Vec x = vec_set(a[r * a_stride + i]);
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) acc[p][r] = vec_fma(x, weight[p], acc[p][r]);
    }
  }
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) vec_store(c + r * c_stride + p * 16, acc[p][r]);
}

template <int P>
void multiply_rows(int rows, const float* a, int64_t a_stride, const float* w, int64_t w_step, int64_t w_panel, int64_t k, float* c,
                   int64_t c_stride, bool accumulate) {
  switch (rows) {
    case 1: return multiply_tile<1, P>(a, a_stride, w, w_step, w_panel, k, c, c_stride, accumulate);
    case 2: return multiply_tile<2, P>(a, a_stride, w, w_step, w_panel, k, c, c_stride, accumulate);
    case 3: return multiply_tile<3, P>(a, a_stride, w, w_step, w_panel, k, c, c_stride, accumulate);
    case 4: return multiply_tile<4, P>(a, a_stride, w, w_step, w_panel, k, c, c_stride, accumulate);
  }
  if constexpr (kTileRows > 4) {
    switch (rows) {
      case 5: return multiply_tile<5, P>(a, a_stride, w, w_step, w_panel, k, c, c_stride, accumulate);
      case 6: return multiply_tile<6, P>(a, a_stride, w, w_step, w_panel, k, c, c_stride, accumulate);
    }
  }
  if constexpr (kTileRows > 6) {
    switch (rows) {
      case 7: return multiply_tile<7, P>(a, a_stride, w, w_step, w_panel, k, c, c_stride, accumulate);
      case 8: return multiply_tile<8, P>(a, a_stride, w, w_step, w_panel, k, c, c_stride, accumulate);
    }
  }
}

// c (rows <= kTileRows, panels * 16) in runs of up to kTilePanels panels.
void multiply(int rows, int panels, const float* a, int64_t a_stride, const float* w, int64_t w_step, int64_t w_panel, int64_t k, float* c,
              int64_t c_stride, bool accumulate) {
  int p = 0;
  if constexpr (kTilePanels > 1) {
    for (; p + 2 <= panels; p += 2)
      multiply_rows<2>(rows, a, a_stride, w + p * w_panel, w_step, w_panel, k, c + p * 16, c_stride, accumulate);
  }
  for (; p < panels; ++p)
    multiply_rows<1>(rows, a, a_stride, w + p * w_panel, w_step, w_panel, k, c + p * 16, c_stride, accumulate);
}

inline int at_least(int x, int low) { return x > low ? x : low; }
inline int at_most(int x, int high) { return x < high ? x : high; }

// Keys and values of one tile in float: keys (groups of 16 slots, k_dim, 16), values (slots, v_dim). Groups [group_begin, group_end) of the tile.
// Slots that nobody wrote are copied as they are; nothing reads them.
void load_kv_tile(const AttentionArgs& args, int tile_begin, int group_begin, int group_end, float* keys, float* values) {
  const KvLayout& layout = args.cache.layout;
  for (int g = group_begin; g < group_end; ++g) {
    const int first = tile_begin + g * kSlotGroup;
    const int64_t block = args.block_table[first / layout.block_size];
    const int64_t slot = (block * layout.num_kv_heads + args.kv_head) * layout.block_size + first % layout.block_size;
    float* k_to = keys + g * kSlotGroup * layout.k_dim;
    float* v_to = values + g * kSlotGroup * layout.v_dim;
    const int64_t k_count = kSlotGroup * layout.k_dim, v_count = kSlotGroup * layout.v_dim;
    if (layout.dtype == DType::kF32) {
      const float* k_from = static_cast<const float*>(args.cache.k) + slot * layout.k_dim;
      const float* v_from = static_cast<const float*>(args.cache.v) + slot * layout.v_dim;
      for (int64_t i = 0; i < k_count; i += 16) vec_store(k_to + i, vec_load(k_from + i));
      for (int64_t i = 0; i < v_count; i += 16) vec_store(v_to + i, vec_load(v_from + i));
      continue;
    }
    const uint16_t* k_from = static_cast<const uint16_t*>(args.cache.k) + slot * layout.k_dim;
    const uint16_t* v_from = static_cast<const uint16_t*>(args.cache.v) + slot * layout.v_dim;
    if (layout.dtype == DType::kBf16) {
      for (int64_t i = 0; i < k_count; i += 32) {
        Vec even, odd;
        vec_load_bf16_pairs(reinterpret_cast<const uint32_t*>(k_from + i), even, odd);
        vec_store(k_to + i, even);
        vec_store(k_to + i + 16, odd);
      }
      for (int64_t i = 0; i < v_count; i += 16) vec_store(v_to + i, vec_load_bf16(v_from + i));
    } else {
      for (int64_t i = 0; i < k_count; i += 32) {
        float pair[32];
        vec_store(pair, vec_load_f16(k_from + i));
        vec_store(pair + 16, vec_load_f16(k_from + i + 16));
        for (int j = 0; j < 16; ++j) {
          k_to[i + j] = pair[2 * j];
          k_to[i + 16 + j] = pair[2 * j + 1];
        }
      }
      for (int64_t i = 0; i < v_count; i += 16) vec_store(v_to + i, vec_load_f16(v_from + i));
    }
  }
}

// scores (kKvTile) of one row become exp2(score - maximum so far), 0 outside [begin, end). Updates the row's maximum and sum; returns what the
// row's output so far is scaled by.
inline float softmax_tile(float* scores, int begin, int end, float& maximum, float& sum) {
  constexpr int kVecs = kKvTile / 16;
  Vec s[kVecs];
  Vec top = vec_set(kMinusInfinity);
  for (int i = 0; i < kVecs; ++i) {
    const int from = at_most(at_least(begin - i * 16, 0), 16), to = at_most(at_least(end - i * 16, 0), 16);
    s[i] = vec_select_range(vec_load(scores + i * 16), from, at_least(to, from), vec_set(kMinusInfinity));
    top = vec_max(s[i], top);
  }
  const float tile_maximum = vec_reduce_max(top);
  const float new_maximum = tile_maximum > maximum ? tile_maximum : maximum;
  for (int i = 0; i < kVecs; ++i) {
    s[i] = vec_exp2(vec_sub(s[i], vec_set(new_maximum)));
    vec_store(scores + i * 16, s[i]);
  }
  const float tile_sum = vec_reduce_add(vec_add(vec_add(s[0], s[1]), vec_add(s[2], s[3])));
  float scale[16];
  vec_store(scale, vec_exp2(vec_set(maximum - new_maximum)));
  sum = __builtin_fmaf(sum, scale[0], tile_sum);
  maximum = new_maximum;
  return scale[0];
}

struct KeyRange {
  int begin, end;  // of a row within the tile; empty: the row sees nothing of it
};

inline KeyRange visible(const AttentionArgs& args, int row, int tile_begin) {
  const int position = args.first_position + row / args.num_heads;
  const int first = args.window > 0 ? at_least(position - args.window + 1, 0) : 0;
  const int begin = at_least(first - tile_begin, 0), end = at_most(position + 1 - tile_begin, kKvTile);
  return {begin, end > begin ? end : begin};
}

// out (rows, v_dim) += weights (rows, kKvTile) · values over each row's keys in order: what not all rows see, what all see, the rest.
void add_values(int rows, const KeyRange* ranges, const float* weights, const float* values, int v_dim, float* out) {
  int begin = 0, end = kKvTile;
  for (int r = 0; r < rows; ++r) {
    begin = at_least(begin, ranges[r].begin);
    end = at_most(end, ranges[r].end);
  }
  const int panels = v_dim / 16;
  const auto add_row = [&](int r, int from, int to) {
    if (from < to)
      multiply(1, panels, weights + r * kKvTile + from, kKvTile, values + from * v_dim, v_dim, 16, to - from, out + r * v_dim, v_dim, true);
  };
  if (begin >= end) {
    for (int r = 0; r < rows; ++r) add_row(r, ranges[r].begin, ranges[r].end);
    return;
  }
  for (int r = 0; r < rows; ++r) add_row(r, ranges[r].begin, begin);
  multiply(rows, panels, weights + begin, kKvTile, values + begin * v_dim, v_dim, 16, end - begin, out, v_dim, true);
  for (int r = 0; r < rows; ++r) add_row(r, end, ranges[r].end);
}

void attention(const AttentionArgs& args) {
  const KvLayout& layout = args.cache.layout;
  const int rows = args.num_rows * args.num_heads;
  const int k_dim = layout.k_dim, v_dim = layout.v_dim;
  float* keys = args.scratch;
  float* values = keys + kKvTile * k_dim;
  float* q = values + kKvTile * v_dim;
  float* weights = q + rows * k_dim;  // scores, then exponentials
  float* out = weights + rows * kKvTile;
  float* maximum = out + rows * v_dim;
  float* sum = maximum + rows;

  for (int row = 0; row < rows; ++row) {
    const float* from = args.q + (row / args.num_heads) * args.q_stride + (row % args.num_heads) * layout.head_dim;
    copy_head(q + row * k_dim, from, layout.head_dim, k_dim);
    for (int d = 0; d < v_dim; d += 16) vec_store(out + row * v_dim + d, vec_zero());
    maximum[row] = kMinusInfinity;
    sum[row] = 0;
  }

  const int last_position = args.first_position + args.num_rows - 1;
  const int first_key = args.window > 0 ? at_least(args.first_position - args.window + 1, 0) : 0;
  for (int tile = first_key / kKvTile * kKvTile; tile <= last_position; tile += kKvTile) {
    const int group_begin = at_least(first_key - tile, 0) / kSlotGroup;
    const int group_end = at_most(last_position - tile, kKvTile - 1) / kSlotGroup + 1;
    load_kv_tile(args, tile, group_begin, group_end, keys, values);
    for (int row = 0; row < rows; row += kTileRows) {
      const int count = at_most(rows - row, kTileRows);
      KeyRange ranges[kTileRows];
      for (int r = 0; r < count; ++r) ranges[r] = visible(args, row + r, tile);
      multiply(count, group_end - group_begin, q + row * k_dim, k_dim, keys + group_begin * kSlotGroup * k_dim, 16, kSlotGroup * k_dim, k_dim,
               weights + row * kKvTile + group_begin * kSlotGroup, kKvTile, false);
      for (int r = 0; r < count; ++r) {
        if (ranges[r].begin == ranges[r].end) continue;
        float* row_out = out + (row + r) * v_dim;
        const Vec scale = vec_set(softmax_tile(weights + (row + r) * kKvTile, ranges[r].begin, ranges[r].end, maximum[row + r], sum[row + r]));
        for (int d = 0; d < v_dim; d += 16) vec_store(row_out + d, vec_mul(vec_load(row_out + d), scale));
      }
      add_values(count, ranges, weights + row * kKvTile, values, v_dim, out + row * v_dim);
    }
  }

  for (int row = 0; row < rows; ++row) {
    float* to = args.q + (row / args.num_heads) * args.q_stride + (row % args.num_heads) * layout.head_dim;
    for (int d = 0; d < layout.head_dim; ++d) to[d] = out[row * v_dim + d] / sum[row];
  }
}

}  // namespace
