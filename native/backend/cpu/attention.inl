// Attention over the KV cache in blocks, in float. One row is one (position, query head) pair. Online softmax: one
// update per tile of kKvTile keys, tiles in order. So the bits of a row depend only on its position and window.
namespace {

using namespace capstan;

constexpr float kMinusInfinity = -__builtin_inff();

// Readers of the KV cache by number type. keys() reads kDims dimensions of the keys of 16 slots; the next dimensions
// are kStepBytes further. values() reads 16 dimensions of one slot.
struct F32Cache {
  static constexpr int kDims = 1, kStepBytes = 64, kItemBytes = 4;
  static void keys(const char* p, Vec (&dims)[1]) { dims[0] = vec_load(reinterpret_cast<const float*>(p)); }
  static Vec values(const char* p) { return vec_load(reinterpret_cast<const float*>(p)); }
};
struct F16Cache {
  static constexpr int kDims = 1, kStepBytes = 32, kItemBytes = 2;
  static void keys(const char* p, Vec (&dims)[1]) { dims[0] = vec_load_f16(reinterpret_cast<const uint16_t*>(p)); }
  static Vec values(const char* p) { return vec_load_f16(reinterpret_cast<const uint16_t*>(p)); }
};
struct Bf16Cache {
  static constexpr int kDims = 2, kStepBytes = 64, kItemBytes = 2;
  static void keys(const char* p, Vec (&dims)[2]) {
    vec_load_bf16_pairs(reinterpret_cast<const uint32_t*>(p), dims[0], dims[1]);
  }
  static Vec values(const char* p) { return vec_load_bf16(reinterpret_cast<const uint16_t*>(p)); }
};

constexpr int kTileGroups = kKvTile / kSlotGroup;
constexpr int kAttentionPanels = kTilePanels > 1 ? 2 : 1;  // slot groups (keys) or 16-dim columns (values) per call

// Addresses of the slot groups of one tile. A group that the item does not see has the address of one that it sees.
struct TileGroups {
  const char* k[kTileGroups];
  const char* v[kTileGroups];
};

// scores (R, P * 16), rows kKvTile apart = q (R, k_dim) · keys of P groups. Each step prefetches one cache line of
// `ahead`, the same groups of the next tile.
template <class Cache, int R, int P>
[[gnu::noinline]] void score_tile(const float* q, int k_dim, const char* const* groups, const char* const* ahead,
                                  float* scores) {
  Vec acc[P][R];
  const char* from[P];
  const char* next[P];
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) {
    from[p] = groups[p];
    next[p] = ahead[p];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
      acc[p][r] = vec_zero();
  }
  for (int d = 0; d < k_dim; d += Cache::kDims) {
    Vec dims[P][Cache::kDims];
    const int64_t offset = int64_t{d / Cache::kDims} * Cache::kStepBytes;
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      Cache::keys(from[p] + offset, dims[p]);
      prefetch(next[p] + offset);
    }
#pragma GCC unroll 2
    for (int i = 0; i < Cache::kDims; ++i) {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const Vec x = vec_set(q[r * k_dim + d + i]);
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p)
          acc[p][r] = vec_fma(x, dims[p][i], acc[p][r]);
      }
    }
  }
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
      vec_store(scores + r * kKvTile + p * 16, acc[p][r]);
}

// out (R, P * 16), rows v_dim apart += weights (R, kKvTile) · values of slots [begin, end), in slot order.
template <class Cache, int R, int P>
[[gnu::noinline]] void value_tile(const float* weights, int begin, int end, const TileGroups& groups,
                                  const TileGroups& ahead, int dim, int v_dim, float* out) {
  Vec acc[P][R];
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
      acc[p][r] = vec_load(out + r * v_dim + p * 16);
  for (int slot = begin; slot < end;) {
    const int group = slot / kSlotGroup;
    const int group_end = (group + 1) * kSlotGroup < end ? (group + 1) * kSlotGroup : end;
    int64_t offset = (int64_t{slot % kSlotGroup} * v_dim + dim) * Cache::kItemBytes;
    for (; slot < group_end; ++slot, offset += int64_t{v_dim} * Cache::kItemBytes) {
      Vec value[P];
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p)
        value[p] = Cache::values(groups.v[group] + offset + p * 16 * Cache::kItemBytes);
      prefetch(ahead.v[group] + offset);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const Vec x = vec_set(weights[r * kKvTile + slot]);
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p)
          acc[p][r] = vec_fma(x, value[p], acc[p][r]);
      }
    }
  }
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
      vec_store(out + r * v_dim + p * 16, acc[p][r]);
}

// Calls call.template operator()<R>() with R = rows, from 1 to kTileRows.
template <class Call>
[[gnu::always_inline]] inline void with_rows(int rows, Call call) {
  switch (rows) {
    case 1:
      return call.template operator()<1>();
    case 2:
      return call.template operator()<2>();
    case 3:
      return call.template operator()<3>();
    case 4:
      return call.template operator()<4>();
  }
  if constexpr (kTileRows > 4) {
    switch (rows) {
      case 5:
        return call.template operator()<5>();
      case 6:
        return call.template operator()<6>();
    }
  }
  if constexpr (kTileRows > 6) {
    switch (rows) {
      case 7:
        return call.template operator()<7>();
      case 8:
        return call.template operator()<8>();
    }
  }
}

template <class Cache>
void score_rows(int rows, const float* q, int k_dim, const TileGroups& groups, const TileGroups& ahead, int group_begin,
                int group_end, float* scores) {
  with_rows(rows, [&]<int R>() {
    int g = group_begin;
    if constexpr (kAttentionPanels > 1)
      for (; g + 2 <= group_end; g += 2)
        score_tile<Cache, R, 2>(q, k_dim, groups.k + g, ahead.k + g, scores + g * kSlotGroup);
    for (; g < group_end; ++g)
      score_tile<Cache, R, 1>(q, k_dim, groups.k + g, ahead.k + g, scores + g * kSlotGroup);
  });
}

template <class Cache>
void value_rows(int rows, const float* weights, int begin, int end, const TileGroups& groups, const TileGroups& ahead,
                int v_dim, float* out) {
  if (begin >= end) return;
  with_rows(rows, [&]<int R>() {
    int dim = 0;
    if constexpr (kAttentionPanels > 1)
      for (; dim + 32 <= v_dim; dim += 32)
        value_tile<Cache, R, 2>(weights, begin, end, groups, ahead, dim, v_dim, out + dim);
    for (; dim < v_dim; dim += 16)
      value_tile<Cache, R, 1>(weights, begin, end, groups, ahead, dim, v_dim, out + dim);
  });
}

inline int at_least(int x, int low) {
  return x > low ? x : low;
}
inline int at_most(int x, int high) {
  return x < high ? x : high;
}

// Returns the addresses of groups [group_begin, group_end) of the tile at `tile_begin`.
TileGroups find_groups(const AttentionArgs& args, int tile_begin, int group_begin, int group_end) {
  const KvLayout& layout = args.cache.layout;
  const int64_t item = layout.dtype == DType::kF32 ? 4 : 2;
  TileGroups groups;
  for (int g = 0; g < kTileGroups; ++g) {
    const int first = tile_begin + at_most(at_least(g, group_begin), group_end - 1) * kSlotGroup;
    const int64_t block = args.block_table[first / layout.block_size];
    const int64_t slot = (block * layout.num_kv_heads + args.kv_head) * layout.block_size + first % layout.block_size;
    groups.k[g] = static_cast<const char*>(args.cache.k) + slot * layout.k_dim * item;
    groups.v[g] = static_cast<const char*>(args.cache.v) + slot * layout.v_dim * item;
  }
  return groups;
}

// The keys of a tile that one row sees, relative to the tile. Empty = none.
struct KeyRange {
  int begin, end;
};

inline KeyRange visible_range(const AttentionArgs& args, int row, int tile_begin) {
  const int position = args.first_position + row / args.num_heads;
  const int first = args.window > 0 ? at_least(position - args.window + 1, 0) : 0;
  const int begin = at_least(first - tile_begin, 0), end = at_most(position + 1 - tile_begin, kKvTile);
  return {begin, end > begin ? end : begin};
}

// One update of the online softmax for a tile of rows. Replaces scores (rows, kKvTile) by exp2(score - running
// maximum), 0 outside the row's range. Updates the running maximum and sum, and rescales the output so far (rows,
// v_dim). Skips a row that sees no key of the tile.
inline void softmax_rows(int rows, const KeyRange* ranges, float* scores, float* maximum, float* sum, float* out,
                         int v_dim) {
  constexpr int kVecs = kKvTile / 16;
  const Vec minus_infinity = vec_set(kMinusInfinity);
  float drop[16] = {};  // old maximum - new maximum
  for (int r = 0; r < rows; ++r) {
    float* row = scores + r * kKvTile;
    const KeyRange range = ranges[r];
    if (range.begin == range.end) continue;
    Vec s[kVecs];
    for (int i = 0; i < kVecs; ++i)
      s[i] = vec_load(row + i * 16);
    if (range.begin > 0 || range.end < kKvTile) {
      for (int i = 0; i < kVecs; ++i) {
        const int from = at_most(at_least(range.begin - i * 16, 0), 16),
                  to = at_most(at_least(range.end - i * 16, 0), 16);
        s[i] = vec_select_range(s[i], from, at_least(to, from), minus_infinity);
        vec_store(row + i * 16, s[i]);
      }
    }
    // NOTE: vec_max returns its second operand when either is NaN. The running maximum is second, so a NaN stays in
    // the scores and reaches the sum.
    const float top = vec_reduce_max(vec_max(s[3], vec_max(s[2], vec_max(s[1], vec_max(s[0], minus_infinity)))));
    const float new_maximum = top > maximum[r] ? top : maximum[r];
    drop[r] = maximum[r] - new_maximum;
    maximum[r] = new_maximum;
  }
  float scale[16];
  vec_store(scale, vec_exp2(vec_load(drop)));
  for (int r = 0; r < rows; ++r) {
    if (ranges[r].begin == ranges[r].end) continue;
    float* row = scores + r * kKvTile;
    const Vec top = vec_set(maximum[r]);
    Vec s[kVecs];
    for (int i = 0; i < kVecs; ++i) {
      s[i] = vec_exp2(vec_sub(vec_load(row + i * 16), top));
      vec_store(row + i * 16, s[i]);
    }
    sum[r] = __builtin_fmaf(sum[r], scale[r], vec_reduce_add(vec_add(vec_add(s[0], s[1]), vec_add(s[2], s[3]))));
    if (scale[r] == 1.0f) continue;
    const Vec factor = vec_set(scale[r]);
    for (int d = 0; d < v_dim; d += 16)
      vec_store(out + r * v_dim + d, vec_mul(vec_load(out + r * v_dim + d), factor));
  }
}

// out (rows, v_dim) += weights (rows, kKvTile) · values, over each row's keys in order. The keys that all rows see are
// added for all rows at once, those before and after row by row.
template <class Cache>
void add_values(int rows, const KeyRange* ranges, const float* weights, const TileGroups& groups,
                const TileGroups& ahead, int v_dim, float* out) {
  int begin = 0, end = kKvTile;
  for (int r = 0; r < rows; ++r) {
    begin = at_least(begin, ranges[r].begin);
    end = at_most(end, ranges[r].end);
  }
  const auto add_row = [&](int r, int from, int to) {
    value_rows<Cache>(1, weights + r * kKvTile, from, to, groups, ahead, v_dim, out + r * v_dim);
  };
  if (begin >= end) {
    for (int r = 0; r < rows; ++r)
      add_row(r, ranges[r].begin, ranges[r].end);
    return;
  }
  for (int r = 0; r < rows; ++r)
    add_row(r, ranges[r].begin, begin);
  value_rows<Cache>(rows, weights, begin, end, groups, ahead, v_dim, out);
  for (int r = 0; r < rows; ++r)
    add_row(r, end, ranges[r].end);
}

template <class Cache>
void attention_with(const AttentionArgs& args) {
  const KvLayout& layout = args.cache.layout;
  const int rows = args.num_rows * args.num_heads;
  const int k_dim = layout.k_dim, v_dim = layout.v_dim;
  float* q = args.scratch;
  float* out = q + rows * k_dim;
  float* weights = out + rows * v_dim;  // (kTileRows, kKvTile) scores, then exponentials
  float* maximum = weights + kMaxTileRows * kKvTile;
  float* sum = maximum + rows;

  for (int row = 0; row < rows; ++row) {
    const float* from = args.q + (row / args.num_heads) * args.q_stride + (row % args.num_heads) * layout.head_dim;
    copy_head(q + row * k_dim, from, layout.head_dim, k_dim);
    for (int d = 0; d < v_dim; d += 16)
      vec_store(out + row * v_dim + d, vec_zero());
    maximum[row] = kMinusInfinity;
    sum[row] = 0;
  }

  const int last_position = args.first_position + args.num_rows - 1;
  const int first_key = args.window > 0 ? at_least(args.first_position - args.window + 1, 0) : 0;
  const auto group_end_of = [&](int tile) { return at_most(last_position - tile, kKvTile - 1) / kSlotGroup + 1; };
  const int first_tile = first_key / kKvTile * kKvTile;
  TileGroups ahead = find_groups(args, first_tile, (first_key - first_tile) / kSlotGroup, group_end_of(first_tile));
  for (int tile = first_tile; tile <= last_position; tile += kKvTile) {
    const TileGroups groups = ahead;
    if (tile + kKvTile <= last_position) ahead = find_groups(args, tile + kKvTile, 0, group_end_of(tile + kKvTile));
    for (int row = 0; row < rows; row += kTileRows) {
      const int count = at_most(rows - row, kTileRows);
      KeyRange ranges[kTileRows];
      int first = kKvTile, last = 0;  // range of the keys that at least one row sees
      for (int r = 0; r < count; ++r) {
        ranges[r] = visible_range(args, row + r, tile);
        if (ranges[r].begin == ranges[r].end) continue;
        first = at_most(first, ranges[r].begin);
        last = at_least(last, ranges[r].end);
      }
      if (first >= last) continue;
      score_rows<Cache>(count, q + row * k_dim, k_dim, groups, ahead, first / kSlotGroup,
                        (last + kSlotGroup - 1) / kSlotGroup, weights);
      softmax_rows(count, ranges, weights, maximum + row, sum + row, out + row * v_dim, v_dim);
      add_values<Cache>(count, ranges, weights, groups, ahead, v_dim, out + row * v_dim);
    }
  }

  for (int row = 0; row < rows; ++row) {
    float* to = args.q + (row / args.num_heads) * args.q_stride + (row % args.num_heads) * layout.head_dim;
    for (int d = 0; d < layout.head_dim; ++d)
      to[d] = out[row * v_dim + d] / sum[row];
  }
}

void attention(const AttentionArgs& args) {
  switch (args.cache.layout.dtype) {
    case DType::kF32:
      return attention_with<F32Cache>(args);
    case DType::kF16:
      return attention_with<F16Cache>(args);
    case DType::kBf16:
      return attention_with<Bf16Cache>(args);
    case DType::kFp8E4m3:
      break;  // the CPU has no fp8 cache
  }
}

}  // namespace
