// The products of one tile of keys with a few rows.
namespace {

using namespace capstan;

constexpr int kTileGroups = kKvTile / kSlotGroup;

// With 32 registers, tiles of 6 rows × 4 panels have 24 accumulators. A panel is a slot group of the keys, or 16
// dimensions of the values. Up to 8 rows, such as the heads of one decoded token, are one tile of 2 panels.
constexpr int kWideRows = 6;
constexpr int attention_panels(int rows) {
  if (kTilePanels == 1) return 1;
  return rows <= kWideRows ? 4 : 2;
}
inline int attention_tile_rows(int rows) {
  return kTilePanels > 1 && rows > kTileRows ? kWideRows : kTileRows;
}

// Addresses of the slot groups of one tile. A group that the item does not see has the address of one that it sees.
struct TileGroups {
  const char* k[kTileGroups];
  const char* v[kTileGroups];
};

// The keys of a tile that one row sees, relative to the tile. Empty = none.
struct KeyRange {
  int begin, end;
};

inline int at_least(int x, int low) {
  return x > low ? x : low;
}
inline int at_most(int x, int high) {
  return x < high ? x : high;
}

// Replaces the lanes outside of the range.
inline void select_visible(const KeyRange& range, Vec (&of_groups)[kTileGroups], Vec other) {
  if (range.begin == 0 && range.end == kKvTile) return;
  for (int i = 0; i < kTileGroups; ++i) {
    const int from = at_most(at_least(range.begin - i * 16, 0), 16), to = at_most(at_least(range.end - i * 16, 0), 16);
    of_groups[i] = vec_select_range(of_groups[i], from, at_least(to, from), other);
  }
}

// Prefetches slot groups, one after the other: the values of a tile while its scores are computed, and the keys of the
// next tile while its values are added. Two whole tiles do not fit in the L1 cache, because the slot groups of one head
// use only half of its sets.
struct Ahead {
  const char* const* group;  // that comes after the current one
  const char* const* groups_end;
  int64_t bytes;  // of a group
  const char* at;
  const char* end;

  Ahead(const char* const (&groups)[kTileGroups], int64_t group_bytes)
      : group(groups + 1), groups_end(groups + kTileGroups), bytes(group_bytes), at(groups[0]), end(at + bytes) {}

  // NOTE: GCC 12 deletes loops that only prefetch, and calls of `prefetch` in functions that it finds to be pure.
  template <int kLines>
  [[gnu::always_inline]] void next() {
    if (at >= end) {
      if (group == groups_end) return;
      at = *group++;
      end = at + bytes;
    }
    __builtin_prefetch(at);
    if constexpr (kLines >= 2) __builtin_prefetch(at + 64);
    if constexpr (kLines >= 4) {
      __builtin_prefetch(at + 128);
      __builtin_prefetch(at + 192);
    }
    at += kLines * 64;
  }
};

// scores (R, P * 16), rows kKvTile apart = q (words, R) · keys of P groups. Prefetches the same groups of the next
// tile.
template <class S, int R, int P>
[[gnu::noinline]] void score_tile(const uint32_t* q, int steps, const char* const* groups, Ahead* ahead,
                                  float* scores) {
  Vec acc[P][R];
  const char* from[P];
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) {
    from[p] = groups[p];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
      acc[p][r] = vec_zero();
  }
  for (int step = 0; step < steps; ++step, q += S::kWords * R) {
    const int64_t offset = int64_t{step} * S::kBytes;
    if (ahead != nullptr) ahead->template next<P>();
    S::template add<R, P, 1, R>(q, from, offset, acc);
  }
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
      vec_store(scores + r * kKvTile + p * 16, acc[p][r]);
}

// out (R, P * 16), rows v_dim apart += weights (R, words), rows kKvTile apart · values of steps [begin, end).
template <class S, int R, int P>
[[gnu::noinline]] void value_tile(const uint32_t* weights, int begin, int end, const TileGroups& groups, Ahead* ahead,
                                  int dim, int v_dim, float* out) {
  constexpr int kGroupSteps = kSlotGroup / S::kItems;
  const int64_t stride = int64_t{v_dim} / 16 * S::kBytes;
  Vec acc[P][R];
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
      acc[p][r] = vec_load(out + r * v_dim + p * 16);
  for (int step = begin; step < end;) {
    const int group = step / kGroupSteps;
    const int group_end = (group + 1) * kGroupSteps < end ? (group + 1) * kGroupSteps : end;
    const char* from[P];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p)
      from[p] = groups.v[group] + (dim / 16 + p) * S::kBytes;
    int64_t offset = (step % kGroupSteps) * stride;
    for (; step < group_end; ++step, offset += stride) {
      if (ahead != nullptr) ahead->template next<P>();
      S::template add<R, P, kKvTile, 1>(weights + step * S::kWords, from, offset, acc);
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

// Computes the scores of at least the groups [group_begin, group_end).
template <class S>
void score_rows(int rows, const uint32_t* q, int steps, const TileGroups& groups, Ahead* ahead, int group_begin,
                int group_end, float* scores) {
  with_rows(rows, [&]<int R>() {
    constexpr int P = attention_panels(R);
    for (int g = group_begin / P * P; g < group_end; g += P)
      score_tile<S, R, P>(q, steps, groups.k + g, ahead, scores + g * kSlotGroup);
  });
}

// Calls call.template operator()<P>(dim) for tiles of P * 16 dimensions from `dim` on, with the most that R rows allow.
template <int R, class Call>
[[gnu::always_inline]] inline void for_dims(int v_dim, Call call) {
  constexpr int P = attention_panels(R);
  int dim = 0;
  for (; dim + P * 16 <= v_dim; dim += P * 16)
    call.template operator()<P>(dim);
  if constexpr (P > 2)
    for (; dim + 32 <= v_dim; dim += 32)
      call.template operator()<2>(dim);
  for (; dim < v_dim; dim += 16)
    call.template operator()<1>(dim);
}

template <class S>
void value_rows(int rows, const uint32_t* weights, int begin, int end, const TileGroups& groups, Ahead* ahead,
                int v_dim, float* out) {
  if (begin >= end) return;
  with_rows(rows, [&]<int R>() {
    for_dims<R>(
        v_dim, [&]<int P>(int dim) { value_tile<S, R, P>(weights, begin, end, groups, ahead, dim, v_dim, out + dim); });
  });
}

}  // namespace
