// Recurrent layers, over the Vec of the including file.
namespace {

using namespace capstan;

// log(1 + e) for e in [0, 1]: 2 artanh(s) with s = e / (2 + e), which is at most 1/3.
inline Vec vec_log1p(Vec e) {
  const Vec s = vec_div(e, vec_add(vec_set(2.0f), e)), square = vec_mul(s, s);
  Vec p = vec_set(2.0f / 15);
  p = vec_fma(p, square, vec_set(2.0f / 13));
  p = vec_fma(p, square, vec_set(2.0f / 11));
  p = vec_fma(p, square, vec_set(2.0f / 9));
  p = vec_fma(p, square, vec_set(2.0f / 7));
  p = vec_fma(p, square, vec_set(2.0f / 5));
  p = vec_fma(p, square, vec_set(2.0f / 3));
  p = vec_fma(p, square, vec_set(2.0f));
  return vec_mul(p, s);
}

// Returns exp(x) for x up to 80.
inline Vec vec_exp(Vec x) {
  return vec_exp2(vec_mul(x, vec_set(kLog2E)));
}

// log(1 + exp(x)).
inline Vec vec_softplus(Vec x) {
  const Vec minus = vec_sub(vec_zero(), x);
  // NOTE: vec_max(a, b) is b when either is NaN.
  return vec_add(vec_max(vec_zero(), x), vec_log1p(vec_exp(vec_min(x, minus))));
}

void conv_row(const ConvRowArgs& args) {
  for (int64_t c = 0; c < args.channels; c += 16) {
    const float* weight = args.weights + c;
    Vec sum = vec_load(weight + args.taps * args.weight_stride);
    for (int tap = 0; tap < args.taps; ++tap)
      sum = vec_fma(vec_load(weight + tap * args.weight_stride), vec_load(args.inputs[tap] + c), sum);
    vec_store(args.out + c, args.has_silu ? vec_silu(sum) : sum);
  }
}

void gate_row(const GateRowArgs& args) {
  for (int head = 0; head < args.num_heads; head += 16) {
    const int count = args.num_heads - head;
    const Vec step =
        vec_softplus(vec_add(load_filled(args.steps + head, count, 0), load_filled(args.dt_bias + head, count, 0)));
    const Vec rate = vec_exp(load_filled(args.a_log + head, count, 0));
    store_part(args.decays + head, count, vec_exp(vec_sub(vec_zero(), vec_mul(rate, step))));
    store_part(args.scales + head, count,
               args.betas == nullptr ? step : vec_sigmoid(load_filled(args.betas + head, count, 0)));
  }
}

inline float sum_of_squares(const float* x, int64_t size) {
  Vec sum = vec_zero();
  for (int64_t i = 0; i < size; i += 16) {
    const Vec v = load_filled(x + i, size - i, 0);
    sum = vec_fma(v, v, sum);
  }
  return vec_reduce_add(sum);
}

void l2_norm(float* x, int num_heads, int64_t size, float scale) {
  for (int head = 0; head < num_heads; ++head, x += size) {
    const Vec factor = vec_set(scale / __builtin_sqrtf(sum_of_squares(x, size) + 1e-6f));
    for (int64_t i = 0; i < size; i += 16)
      store_part(x + i, size - i, vec_mul(load_filled(x + i, size - i, 0), factor));
  }
}

// Returns stateᵀ key.
inline Vec state_product(const float* state, const float* key, int size) {
  Vec even = vec_zero(), odd = vec_zero();
  int i = 0;
  for (; i + 1 < size; i += 2) {
    even = vec_fma(vec_set(key[i]), vec_load(state + i * kStatePanel), even);
    odd = vec_fma(vec_set(key[i + 1]), vec_load(state + (i + 1) * kStatePanel), odd);
  }
  if (i < size) even = vec_fma(vec_set(key[i]), vec_load(state + i * kStatePanel), even);
  return vec_add(even, odd);
}

// The two chains of a sum over the rows of a state.
struct StateSum {
  Vec chain[2] = {vec_zero(), vec_zero()};
};

// to = decay · from + key ⊗ update; `to` may be `from`. Returns toᵀ query. With `kHasNext`, `next_sum` = toᵀ next_key,
// which the next token needs: the state is read once per token.
template <bool kHasNext>
inline Vec advance_state(const float* from, float* to, int size, const float* key, const float* query,
                         const float* next_key, Vec decay, Vec update, Vec& next_sum) {
  StateSum result, next;
  const auto advance_row = [&](int i, int chain) __attribute__((always_inline)) {
    const Vec old = vec_mul(decay, vec_load(from + i * kStatePanel));
    const Vec state = vec_fma(vec_set(key[i]), update, old);
    vec_store(to + i * kStatePanel, state);
    result.chain[chain] = vec_fma(vec_set(query[i]), state, result.chain[chain]);
    if constexpr (kHasNext) next.chain[chain] = vec_fma(vec_set(next_key[i]), state, next.chain[chain]);
  };
  int i = 0;
  for (; i + 1 < size; i += 2) {
    advance_row(i, 0);
    advance_row(i + 1, 1);
  }
  if (i < size) advance_row(i, 0);
  if constexpr (kHasNext) next_sum = vec_add(next.chain[0], next.chain[1]);
  return vec_add(result.chain[0], result.chain[1]);
}

// Returns the state before the first row.
inline const float* initial_state(const RecurrenceArgs& args) {
  if (args.read_slot >= 0) return args.states + args.read_slot * args.slot_stride;
  for (int i = 0; i < args.state_size; ++i)
    vec_store(args.scratch + i * kStatePanel, vec_zero());
  return args.scratch;
}

template <bool kIsDelta>
inline void recurrence_of(const RecurrenceArgs& args) {
  const float* state = initial_state(args);
  Vec product = kIsDelta ? state_product(state, args.keys, args.state_size) : vec_zero();
  for (int row = 0; row < args.num_rows; ++row) {
    const Vec decay = vec_set(args.decays[row * args.gate_stride]),
              scale = vec_set(args.scales[row * args.gate_stride]);
    float* values = args.values + row * args.row_stride;
    const float* key = args.keys + row * args.row_stride;
    const float* query = args.queries + row * args.row_stride;
    const Vec value = load_filled(values, args.num_columns, 0);
    const Vec error = kIsDelta ? vec_fma(vec_sub(vec_zero(), decay), product, value) : value;
    const Vec update = vec_mul(scale, error);
    const int slot = args.write_slots[row];
    float* to = slot >= 0 ? args.states + slot * args.slot_stride : args.scratch;
    Vec result;
    if (kIsDelta && row + 1 < args.num_rows)
      result =
          advance_state<true>(state, to, args.state_size, key, query, key + args.row_stride, decay, update, product);
    else
      result = advance_state<false>(state, to, args.state_size, key, query, nullptr, decay, update, product);
    if (!kIsDelta) result = vec_fma(vec_set(args.skip), value, result);
    store_part(values, args.num_columns, result);
    state = to;
  }
}

void recurrence(const RecurrenceArgs& args) {
  args.is_delta ? recurrence_of<true>(args) : recurrence_of<false>(args);
}

void gated_norm(const GatedNormArgs& args) {
  for (int norm = 0; norm < args.num_norms; ++norm) {
    float* x = args.values + norm * args.size;
    const float* gate = args.gates + norm * args.size;
    const float* weight = args.weight + norm * args.weight_stride;
    const auto gate_at = [&](int64_t i) { return vec_silu(load_filled(gate + i, args.size - i, 0)); };
    if (args.is_gated_first)
      for (int64_t i = 0; i < args.size; i += 16)
        store_part(x + i, args.size - i, vec_mul(load_filled(x + i, args.size - i, 0), gate_at(i)));
    const float mean = sum_of_squares(x, args.size) / static_cast<float>(args.size);
    const Vec scale = vec_set(1.0f / __builtin_sqrtf(mean + args.eps));
    for (int64_t i = 0; i < args.size; i += 16) {
      const int64_t count = args.size - i;
      const Vec normed = vec_mul(vec_mul(load_filled(x + i, count, 0), scale), load_filled(weight + i, count, 0));
      store_part(x + i, count, args.is_gated_first ? normed : vec_mul(normed, gate_at(i)));
    }
  }
}

void multiply(float* x, const float* factor, int64_t count) {
  for (int64_t i = 0; i < count; i += 16)
    store_part(x + i, count - i, vec_mul(load_filled(x + i, count - i, 0), load_filled(factor + i, count - i, 0)));
}

void sigmoid_gate(float* x, const float* gate, int64_t count) {
  for (int64_t i = 0; i < count; i += 16)
    store_part(x + i, count - i,
               vec_mul(load_filled(x + i, count - i, 0), vec_sigmoid(load_filled(gate + i, count - i, 0))));
}

constexpr RecurrentKernels kRecurrentKernels = {conv_row,   gate_row, l2_norm,     recurrence,
                                                gated_norm, multiply, sigmoid_gate};

}  // namespace
