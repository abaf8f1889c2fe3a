// Attention over the KV cache in blocks. One row is one (position, query head) pair. The softmax is computed online:
// per chunk of kKvChunk keys, one update per tile of kKvTile keys, tiles in order; then the chunks are combined in
// order. So the bits of a row depend only on its position and window.
//
// With bf16 products, q and the weights of the values are rounded to bf16. The sum of the weights adds the rounded
// ones, so that the weights of a row are those of a mean. A cache in 8 bits is in attention_codes.inl.
namespace {

using namespace capstan;

constexpr float kMinusInfinity = -__builtin_inff();

// The weights of a chunk are relative to a maximum that is raised only when a score exceeds it by more than this
// exponent, because a raise rescales the sums.
constexpr float kMaxExponent = 8;

// Returns the addresses of groups [group_begin, group_end) of the tile at `tile_begin`.
TileGroups find_groups(const AttentionArgs& args, int tile_begin, int group_begin, int group_end) {
  const KvLayout& layout = args.cache.layout;
  const int64_t k_bytes = slot_bytes(layout.dtype, layout.k_dim), v_bytes = slot_bytes(layout.dtype, layout.v_dim);
  TileGroups groups;
  for (int g = 0; g < kTileGroups; ++g) {
    const int first = tile_begin + at_most(at_least(g, group_begin), group_end - 1) * kSlotGroup;
    const int64_t block = args.block_table[first / layout.block_size];
    const int64_t slot = (block * layout.num_kv_heads + args.kv_head) * layout.block_size + first % layout.block_size;
    groups.k[g] = static_cast<const char*>(args.cache.k) + slot * k_bytes;
    groups.v[g] = static_cast<const char*>(args.cache.v) + slot * v_bytes;
    if (layout.dtype == DType::kInt8) {
      __builtin_prefetch(groups.k[g] + layout.k_dim * kSlotGroup);  // the scales
      __builtin_prefetch(groups.v[g] + layout.v_dim * kSlotGroup);
    }
  }
  return groups;
}

inline int first_key(const AttentionArgs& args, int position) {
  return at_least(first_visible_key(position, args.window), args.first_key);
}

inline int end_key(const AttentionArgs& args, int position) {
  return end_visible_key(position, args.window, args.num_keys);
}

inline KeyRange visible_range(const AttentionArgs& args, int row, int tile_begin) {
  const int position = args.first_position + row / args.num_heads;
  const int first = first_key(args, position);
  const int begin = at_least(first - tile_begin, 0), end = at_most(end_key(args, position) - tile_begin, kKvTile);
  return {begin, end > begin ? end : begin};
}

// The online softmax of the rows of one chunk: their maximum, 16 partial sums, and the weighted sum of the values.
struct ChunkRows {
  float* maximum;  // (rows)
  float* sums;     // (rows, 16)
  float* out;      // (rows, v_dim)
  float soft_cap;  // 0 = none
};

// Raises the maximum of a row. Scales its sums to the new one.
[[gnu::noinline]] inline void raise_maximum(float maximum, float* old_maximum, float* sums, float* out, int v_dim) {
  const Vec scale = vec_exp2(vec_set(*old_maximum - maximum));
  *old_maximum = maximum;
  vec_store(sums, vec_mul(vec_load(sums), scale));
  for (int d = 0; d < v_dim; d += 16)
    vec_store(out + d, vec_mul(vec_load(out + d), scale));
}

// Stores 16 weights. Returns them as stored.
template <class S>
[[gnu::always_inline]] inline Vec store_weights(float* row, int index, Vec score, Vec maximum) {
  if constexpr (S::kIsCodes) {
    const Vec weight = vec_exp2_for_bf16(vec_sub(score, maximum));
    vec_store(row + index, weight);
    return weight;
  } else if constexpr (!S::kIsBf16) {
    const Vec weight = vec_exp2(vec_sub(score, maximum));
    vec_store(row + index, weight);
    return weight;
  } else {
    const Vec exact = vec_exp2_for_bf16(vec_sub(score, maximum)), weight = vec_round_bf16(exact);
    if constexpr (S::kWords == 1)
      vec_store_bf16(reinterpret_cast<uint16_t*>(row) + index, exact);
    else
      vec_store(row + index, weight);
    return weight;
  }
}

// One update of the online softmax for a tile of rows. Replaces scores (rows, kKvTile) by exp2(score - maximum), 0
// outside the row's range, as words of S or, for codes, as floats. Skips a row that sees no key of the tile.
template <class S>
void softmax_rows(int rows, const KeyRange* ranges, float* scores, const ChunkRows& chunk, int v_dim) {
  static_assert(kTileGroups == 4);
  const Vec minus_infinity = vec_set(kMinusInfinity);
  for (int r = 0; r < rows; ++r) {
    const KeyRange range = ranges[r];
    if (range.begin == range.end) continue;
    float* row = scores + r * kKvTile;
    float* sums = chunk.sums + r * 16;
    Vec s[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
      s[i] = vec_load(row + i * 16);
    if (chunk.soft_cap > 0)
      for (int i = 0; i < 4; ++i)
        s[i] = vec_soft_cap(s[i], chunk.soft_cap);
    select_visible(range, s, minus_infinity);
    // NOTE: vec_max returns its second operand when either is NaN, and vec_gt is false. So a NaN stays in the scores
    // and reaches the sum.
    const Vec top = vec_max(s[3], vec_max(s[2], vec_max(s[1], vec_max(s[0], minus_infinity))));
    if (vec_gt(top, vec_set(chunk.maximum[r] + kMaxExponent)) != 0)
      raise_maximum(vec_reduce_max(top), chunk.maximum + r, sums, chunk.out + r * v_dim, v_dim);
    const Vec maximum = vec_set(chunk.maximum[r]);
    Vec w[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
      w[i] = store_weights<S>(row, i * 16, s[i], maximum);
    vec_store(sums, vec_add(vec_load(sums), vec_add(vec_add(w[0], w[1]), vec_add(w[2], w[3]))));
  }
}

// out (v_dim) += the one visible slot of a pair. NOTE: the other slot may hold anything, so it is replaced by 0.
template <class S>
void add_half_pair(const uint32_t* weights, int slot, const TileGroups& groups, int v_dim, float* out) {
  const uint32_t mask = slot % 2 == 0 ? 0x0000ffffu : 0xffff0000u;
  const char* pair = groups.v[slot / kSlotGroup] + int64_t{slot % kSlotGroup / 2} * v_dim * 4;
  uint32_t words[kMaxHeadDim];
  __builtin_memcpy(words, pair, static_cast<size_t>(v_dim) * 4);
  for (int d = 0; d < v_dim; ++d)
    words[d] &= mask;
  for (int d = 0; d < v_dim; d += 16) {
    Vec acc[1][1] = {{vec_load(out + d)}};
    const char* const from[1] = {reinterpret_cast<const char*>(words + d)};
    S::template add<1, 1, kKvTile, 1>(weights + slot / 2 * S::kWords, from, 0, acc);
    vec_store(out + d, acc[0][0]);
  }
}

// out (v_dim) += weights · values over slots [begin, end), in order.
template <class S>
void add_row_values(const uint32_t* weights, int begin, int end, const TileGroups& groups, int v_dim, float* out) {
  if (begin >= end) return;
  if constexpr (S::kItems == 2) {
    if (begin % 2 != 0) add_half_pair<S>(weights, begin++, groups, v_dim, out);
    value_rows<S>(1, weights, begin / 2, end / 2, groups, nullptr, v_dim, out);
    if (end % 2 != 0 && end > begin) add_half_pair<S>(weights, end - 1, groups, v_dim, out);
  } else {
    value_rows<S>(1, weights, begin, end, groups, nullptr, v_dim, out);
  }
}

// out (rows, v_dim) += weights (rows, kKvTile) · values, over each row's keys in order. The steps that all rows see
// are added for all rows at once, those before and after row by row.
template <class S>
void add_values(int rows, const KeyRange* ranges, const uint32_t* weights, const TileGroups& groups, Ahead* ahead,
                int v_dim, float* out) {
  int begin = 0, end = kKvTile;
  for (int r = 0; r < rows; ++r) {
    begin = at_least(begin, ranges[r].begin);
    end = at_most(end, ranges[r].end);
  }
  begin = (begin + S::kItems - 1) / S::kItems * S::kItems;
  end = end / S::kItems * S::kItems;
  const auto add_row = [&](int r, int from, int to) {
    add_row_values<S>(weights + r * kKvTile, from, to, groups, v_dim, out + r * v_dim);
  };
  if (begin >= end) {
    for (int r = 0; r < rows; ++r)
      add_row(r, ranges[r].begin, ranges[r].end);
    return;
  }
  for (int r = 0; r < rows; ++r)
    add_row(r, ranges[r].begin, begin);
  value_rows<S>(rows, weights, begin / S::kItems, end / S::kItems, groups, ahead, v_dim, out);
  for (int r = 0; r < rows; ++r)
    add_row(r, end, ranges[r].end);
}

// The result of one chunk, or of the chunks so far.
struct RowStates {
  float* out;      // (rows, v_dim)
  float* maximum;  // (rows)
  float* sum;      // (rows)
};

inline RowStates states_at(float* memory, int rows, int v_dim) {
  return {memory, memory + rows * v_dim, memory + rows * v_dim + rows};
}

void clear_states(const RowStates& states, int rows, int v_dim) {
  for (int i = 0; i < rows * v_dim; i += 16)
    vec_store(states.out + i, vec_zero());
  for (int row = 0; row < rows; ++row) {
    states.maximum[row] = kMinusInfinity;
    states.sum[row] = 0;
  }
}

// Adds the states of `chunk` to those of the chunks before it. A row that does not see the chunk stays as it is.
void add_chunk(const AttentionArgs& args, int chunk, const RowStates& states, const RowStates& total) {
  const int v_dim = args.cache.layout.v_dim;
  for (int row = 0; row < args.num_rows * args.num_heads; ++row) {
    const int position = args.first_position + row / args.num_heads;
    if ((end_key(args, position) - 1) / kKvChunk < chunk || first_key(args, position) / kKvChunk > chunk) continue;
    const float maximum = states.maximum[row] > total.maximum[row] ? states.maximum[row] : total.maximum[row];
    const Vec old_scale = vec_exp2(vec_set(total.maximum[row] - maximum)),
              scale = vec_exp2(vec_set(states.maximum[row] - maximum));
    const auto combine = [&](Vec sum, Vec more) { return vec_fma(sum, old_scale, vec_mul(more, scale)); };
    float sum[16];
    vec_store(sum, combine(vec_set(total.sum[row]), vec_set(states.sum[row])));
    total.maximum[row] = maximum;
    total.sum[row] = sum[0];
    float* out = total.out + row * v_dim;
    for (int d = 0; d < v_dim; d += 16)
      vec_store(out + d, combine(vec_load(out + d), vec_load(states.out + row * v_dim + d)));
  }
}

// Returns what the sink of a head adds to the sum of its weights.
inline float sink_weight(const AttentionArgs& args, int head, float maximum) {
  if (args.sinks == nullptr) return 0;
  const Vec exponent = vec_min(vec_set(127.0f), vec_set(args.sinks[head] * kLog2E - maximum));
  float weight[16];
  vec_store(weight, vec_exp2(exponent));
  return weight[0];
}

void store_result(const AttentionArgs& args, const RowStates& total) {
  const KvLayout& layout = args.cache.layout;
  const bool is_mixed = layout.dtype == DType::kInt8;
  for (int row = 0; row < args.num_rows * args.num_heads; ++row) {
    float* to = args.q + (row / args.num_heads) * args.q_stride + (row % args.num_heads) * layout.head_dim;
    const float sum = total.sum[row] + sink_weight(args, row % args.num_heads, total.maximum[row]);
    float* const out = total.out + row * layout.v_dim;
    if (is_mixed) mix_head(out, layout.head_dim);
    const float divisor = is_mixed ? sum * static_cast<float>(mixed_dims(layout.head_dim)) : sum;
    for (int d = 0; d < layout.head_dim; ++d)
      to[d] = out[d] / divisor;
  }
}

// Adds the biases of distances to the scores of a tile. Also those of keys that a row does not see.
inline void add_biases(const AttentionArgs& args, int first_row, int rows, int tile, float* scores) {
  for (int r = 0; r < rows; ++r) {
    const int position = args.first_position + (first_row + r) / args.num_heads;
    const float* biases = args.biases + (first_row + r) % args.num_heads * args.bias_stride + tile - position;
    float* row = scores + r * kKvTile;
    for (int i = 0; i < kKvTile; i += 16)
      vec_store(row + i, vec_add(vec_load(row + i), vec_load(biases + i)));
  }
}

// Computes the states of one chunk.
template <class S>
void compute_chunk(const AttentionArgs& args, int chunk, const ActTiles& q, float* weights, float* sums,
                   const RowStates& states) {
  const int v_dim = args.cache.layout.v_dim, rows = args.num_rows * args.num_heads;
  const int last_position = args.first_position + args.num_rows - 1;
  const int chunk_begin = at_least(first_key(args, args.first_position), chunk * kKvChunk);
  const int last_end_key = end_key(args, last_position);
  const int chunk_end = at_most(last_end_key, (chunk + 1) * kKvChunk);
  const int last_first_key = first_key(args, last_position);
  const int end_ahead = at_most(last_end_key, args.end_chunk * kKvChunk);  // keys that the item sees
  const auto group_end_of = [&](int tile) { return at_most(last_end_key - 1 - tile, kKvTile - 1) / kSlotGroup + 1; };
  clear_states(states, rows, v_dim);
  for (int i = 0; i < rows * 16; i += 16)
    vec_store(sums + i, vec_zero());

  const int first_tile = chunk_begin / kKvTile * kKvTile;
  TileGroups next = find_groups(args, first_tile, (chunk_begin - first_tile) / kSlotGroup, group_end_of(first_tile));
  for (int tile = first_tile; tile < chunk_end; tile += kKvTile) {
    const TileGroups groups = next;
    const bool has_next = tile + kKvTile < end_ahead;
    if (has_next) next = find_groups(args, tile + kKvTile, 0, group_end_of(tile + kKvTile));
    const bool all_see_all = tile + kKvTile <= end_key(args, args.first_position) && tile >= last_first_key;
    Ahead v_ahead(groups.v, int64_t{v_dim} / S::kItems * S::kBytes);
    Ahead k_ahead(next.k, int64_t{args.cache.layout.k_dim} / S::kItems * S::kBytes);
    for (int row = 0; row < rows; row += q.tile_rows) {
      const int count = at_most(rows - row, q.tile_rows);
      const bool is_last = row + count == rows;
      KeyRange ranges[kTileRows];
      int first = kKvTile, last = 0;  // range of the keys that at least one row sees
      for (int r = 0; r < count; ++r) {
        ranges[r] = all_see_all ? KeyRange{0, kKvTile} : visible_range(args, row + r, tile);
        if (ranges[r].begin == ranges[r].end) continue;
        first = at_most(first, ranges[r].begin);
        last = at_least(last, ranges[r].end);
      }
      if (first >= last) continue;
      float* out = states.out + row * v_dim;
      const ChunkRows chunk_rows{states.maximum + row, sums + row * 16, out, args.soft_cap};
      const uint32_t* q_words = q.data + row * q.words;
      const int steps = static_cast<int>(q.words) / S::kWords;
      const int group_begin = first / kSlotGroup, group_end = (last + kSlotGroup - 1) / kSlotGroup;
      Ahead* const ahead_of_scores = row == 0 ? &v_ahead : nullptr;
      Ahead* const ahead_of_values = has_next && is_last ? &k_ahead : nullptr;
      if constexpr (S::kIsCodes) {
        float scales[kTileRows];
        score_code_rows(count, q_words, q.scales + row, steps, groups, ahead_of_scores, group_begin, group_end,
                        weights);
        if (args.biases != nullptr) add_biases(args, row, count, tile, weights);
        softmax_rows<S>(count, ranges, weights, chunk_rows, v_dim);
        weights_to_codes(count, ranges, groups, v_dim, weights, scales);
        value_code_rows(count, reinterpret_cast<const uint32_t*>(weights), scales, group_begin, group_end, groups,
                        ahead_of_values, v_dim, out);
      } else {
        score_rows<S>(count, q_words, steps, groups, ahead_of_scores, group_begin, group_end, weights);
        if (args.biases != nullptr) add_biases(args, row, count, tile, weights);
        softmax_rows<S>(count, ranges, weights, chunk_rows, v_dim);
        add_values<S>(count, ranges, reinterpret_cast<const uint32_t*>(weights), groups, ahead_of_values, v_dim, out);
      }
    }
  }
  for (int row = 0; row < rows; ++row)
    states.sum[row] = vec_reduce_add(vec_load(sums + row * 16));
}

template <class S>
void attention_with(const AttentionArgs& args) {
  const KvLayout& layout = args.cache.layout;
  const int rows = args.num_rows * args.num_heads;
  ActTiles q;
  q.data = reinterpret_cast<uint32_t*>(args.scratch);
  q.rows = rows;
  q.words = layout.k_dim / S::kItems * S::kWords;
  q.tile_rows = attention_tile_rows(rows);
  q.format = S::kRowFormat;
  q.scales = args.scratch + rows * q.words;  // (rows), for codes
  // pack_rows reads up to a multiple of 16, where another thread may store the result of the next head.
  float heads[kTileRows * kMaxHeadDim];
  const int64_t stride = (layout.head_dim + 15) & ~15;
  for (int row = 0; row < rows; row += kTileRows) {
    const int count = rows - row < kTileRows ? rows - row : kTileRows;
    for (int r = 0; r < count; ++r) {
      const int64_t position = (row + r) / args.num_heads, head = (row + r) % args.num_heads;
      __builtin_memcpy(heads + r * stride, args.q + position * args.q_stride + head * layout.head_dim,
                       sizeof(float) * static_cast<size_t>(layout.head_dim));
    }
    if constexpr (S::kIsCodes)
      for (int r = 0; r < count; ++r)
        pack_query(heads + r * stride, layout.head_dim, q, row + r, q.scales + row + r);
    else
      pack_rows(heads, stride, layout.head_dim, q, row, count);
  }

  float* weights = args.scratch + rows * layout.k_dim;  // (kTileRows, kKvTile) scores, then weights
  float* sums = weights + kTileRows * kKvTile;
  float* memory = sums + rows * 16;
  const int64_t state_floats = chunk_state_floats(rows, layout.v_dim);
  const RowStates total = states_at(memory, rows, layout.v_dim);
  if (args.states == nullptr) clear_states(total, rows, layout.v_dim);
  for (int chunk = args.first_chunk; chunk < args.end_chunk; ++chunk) {
    float* to =
        args.states == nullptr ? memory + state_floats : args.states + (chunk - args.first_chunk) * state_floats;
    const RowStates states = states_at(to, rows, layout.v_dim);
    compute_chunk<S>(args, chunk, q, weights, sums, states);
    if (args.states == nullptr) add_chunk(args, chunk, states, total);
  }
  if (args.states == nullptr) store_result(args, total);
}

void attention(const AttentionArgs& args) {
  switch (args.cache.layout.dtype) {
    case DType::kF32:
      return attention_with<F32Step>(args);
    case DType::kF16:
      return attention_with<F16Step>(args);
    case DType::kBf16:
      return args.has_bf16_products ? attention_with<Bf16ProductStep>(args) : attention_with<Bf16Step<false>>(args);
    case DType::kInt8:
      return attention_with<CodeStep>(args);
    case DType::kFp8E4m3:
      break;  // the CPU has no fp8 cache
  }
}

void combine_chunks(const AttentionArgs& args) {
  const int rows = args.num_rows * args.num_heads, v_dim = args.cache.layout.v_dim;
  const RowStates total = states_at(args.scratch, rows, v_dim);
  clear_states(total, rows, v_dim);
  const int64_t state_floats = chunk_state_floats(rows, v_dim);
  for (int chunk = args.first_chunk; chunk < args.end_chunk; ++chunk)
    add_chunk(args, chunk, states_at(args.states + (chunk - args.first_chunk) * state_floats, rows, v_dim), total);
  store_result(args, total);
}

}  // namespace
