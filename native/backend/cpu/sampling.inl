// Sampling kernels, over the Vec of the including file.
namespace {

using namespace capstan;

// Gumbel noise of a 32-bit uniform is at most -log(-log(1 - 2^-33)) = 22.88.
constexpr float kMaxGumbel = 22.9f;
constexpr float kNegativeInfinity = -__builtin_inff();

// Loads up to 16 values. Lanes after the end are `fill`.
inline Vec load_filled(const float* p, int64_t count, float fill) {
  if (count >= 16) return vec_load(p);
  float lane[16];
  for (int i = 0; i < 16; ++i)
    lane[i] = i < count ? p[i] : fill;
  return vec_load(lane);
}

inline void store_part(float* p, int64_t count, Vec value) {
  if (count >= 16) return vec_store(p, value);
  float lane[16];
  vec_store(lane, value);
  for (int64_t i = 0; i < count; ++i)
    p[i] = lane[i];
}

inline float lowest_lane(Vec a) {
  return 0.0f - vec_reduce_max(vec_sub(vec_zero(), a));
}

struct ScanState {
  Vec highest, lowest, non_finite;
};

// Handles the values from i on. `count` of them belong to the row.
template <bool kDivides, bool kHasMask>
inline void scan_vector(const ScanArgs& args, int64_t i, int64_t count, ScanState& state) {
  const Vec masked = vec_set(kNegativeInfinity);
  const Vec value = load_filled(args.values + i, count, 0);
  state.non_finite = vec_add(state.non_finite, vec_sub(value, value));  // Inf - Inf and NaN - NaN are NaN
  Vec result = kDivides ? vec_div(value, vec_set(args.divisor)) : value;
  if (kHasMask) result = vec_select(args.allowed_mask[i / 32] >> (i % 32) & 0xffff, result, masked);
  if (count < 16) result = vec_select_range(result, 0, static_cast<int>(count), masked);
  state.highest = vec_max(result, state.highest);
  state.lowest = vec_min(vec_select(vec_gt(result, masked), result, vec_set(-kNegativeInfinity)), state.lowest);
  if (args.out != nullptr) store_part(args.out + i, count, result);
}

template <bool kDivides, bool kHasMask>
inline void scan_blocks(ScanArgs& args) {
  ScanState state = {vec_zero(), vec_set(args.lowest), vec_zero()};
  for (int64_t i = 0; i < args.count;) {
    const int64_t end = args.count - i < kMaxBlock ? args.count : i + kMaxBlock;
    float& block_max = args.block_max[i / kMaxBlock];
    state.highest = vec_set(kNegativeInfinity);
    for (; i + 16 <= end; i += 16)
      scan_vector<kDivides, kHasMask>(args, i, 16, state);
    if (i < end) scan_vector<kDivides, kHasMask>(args, i, end - i, state);
    block_max = vec_reduce_max(state.highest);
    i = end;
  }
  args.lowest = lowest_lane(state.lowest);
  args.is_finite = args.is_finite && vec_eq(state.non_finite, state.non_finite) == 0xffff;
}

void scan(ScanArgs& args) {
  const bool has_mask = args.allowed_mask != nullptr;
  if (args.divisor == 1)
    has_mask ? scan_blocks<false, true>(args) : scan_blocks<false, false>(args);
  else
    has_mask ? scan_blocks<true, true>(args) : scan_blocks<true, false>(args);
}

inline Vec exp_below(Vec value, Vec best) {
  return vec_exp2(vec_mul(vec_sub(value, best), vec_set(kLog2E)));
}

double exp_sum(const float* values, int64_t count, float best, float floor) {
  constexpr int64_t kFloatSum = 512;  // ids that are added in single precision
  const Vec bests = vec_set(best), floors = vec_set(floor);
  double total = 0;
  for (int64_t begin = 0; begin < count; begin += kFloatSum) {
    const int64_t end = count - begin < kFloatSum ? count : begin + kFloatSum;
    Vec sum = vec_zero();
    for (int64_t i = begin; i < end; i += 16) {
      const Vec value = load_filled(values + i, end - i, kNegativeInfinity);
      sum = vec_add(sum, vec_select(vec_ge(value, floors), exp_below(value, bests), vec_zero()));
    }
    total += static_cast<double>(vec_reduce_add(sum));
  }
  return total;
}

// Adds the weights of kHistogramBlock scores at a time, so that no element is read just after its vector was stored.
constexpr int kHistogramBlock = 256;

void add_histogram(const HistogramArgs& args) {
  const Vec lowest = vec_set(args.lowest), highest = vec_set(args.highest);
  const Vec best = vec_set(args.best), unit = vec_set(static_cast<float>(kMassUnit));
  // Each lane has its own entry for scores outside the range, because a chain of additions to one entry is slow.
  uint32_t outside_entries[16];
  for (uint32_t lane = 0; lane < 16; ++lane)
    outside_entries[lane] = kDigits + lane;
  const VecI highest_key = int_set(args.highest_key), outside = int_load(outside_entries);
  uint32_t digit[kHistogramBlock];
  int64_t mass[kHistogramBlock];
  for (int64_t i = 0; i < args.count;) {
    int length = 0;
    for (; length < kHistogramBlock && i < args.count; i += 16) {
      const Vec score = load_filled(args.scores + i, args.count - i, kNegativeInfinity);
      if ((vec_ge(score, lowest) & vec_ge(highest, score)) == 0) continue;
      int_store(digit + length, int_min(int_shift_right(int_sub(highest_key, int_order(score)), args.shift), outside));
      if (args.has_mass) vec_store_int64(mass + length, vec_mul(exp_below(score, best), unit));
      length += 16;
    }
    for (int j = 0; j < length; ++j)
      args.digits[digit[j]] += args.has_mass ? static_cast<uint64_t>(mass[j]) : 1;
  }
}

int64_t list_candidates(const float* scores, int64_t count, int32_t first_id, float low, float high, Candidate* list,
                        int64_t length) {
  const Vec lows = vec_set(low), highs = vec_set(high);
  for (int64_t i = 0; i < count && length <= kListed; i += 16) {
    const Vec score = load_filled(scores + i, count - i, kNegativeInfinity);
    uint32_t found = vec_ge(score, lows) & vec_ge(highs, score);
    for (; found != 0 && length <= kListed; found &= found - 1) {
      const int64_t at = i + __builtin_ctz(found);
      list[length++] = {scores[at], first_id + static_cast<int32_t>(at)};
    }
  }
  return length;
}

void rank_value(const float* values, int64_t count, float value, int64_t& num_above, int64_t& num_equal) {
  const Vec wanted = vec_set(value);
  int64_t above = 0, equal = 0;
  for (int64_t i = 0; i < count; i += 16) {
    const Vec other = load_filled(values + i, count - i, kNegativeInfinity);
    above += __builtin_popcount(vec_gt(other, wanted));
    equal += __builtin_popcount(vec_eq(other, wanted));
  }
  num_above += above;
  num_equal += equal;
}

// ---- drawing ----

// The noise words of 32 ids: words[0] has those of the first 16.
inline void noise_words(const DrawArgs& args, uint32_t first_id, VecI words[2]) {
  // The order in which long_join leaves the words in the order of the ids.
  static constexpr uint64_t kQuads[8] = {0, 4, 1, 5, 2, 6, 3, 7};
  // The high halves are not part of the counters.
  VecL c0 = long_set(args.position), c1 = long_set(args.choice), c3 = long_set(0);
  VecL c2 = long_add(long_set(first_id / 4), long_load(kQuads));
  uint32_t key0 = static_cast<uint32_t>(args.seed), key1 = static_cast<uint32_t>(args.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const VecL product0 = long_mul_low(c0, long_set(0xD2511F53));
    const VecL product1 = long_mul_low(c2, long_set(0xCD9E8D57));
    c0 = long_xor(long_xor(long_high_half(product1), c1), long_set(key0));
    c1 = product1;
    c2 = long_xor(long_xor(long_high_half(product0), c3), long_set(key1));
    c3 = product0;
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  long_join(c0, c1, c2, c3, words[0], words[1]);
}

// A value below `value` by more than the rounding of the comparisons with it.
inline float slightly_below(double value) {
  const float rounded = static_cast<float>(value);
  return rounded - __builtin_fabsf(rounded) * 1e-6f;
}

// What the upper 24 bits of 2^32 (1 - u), u = (word + 1/2) / 2^32, must not exceed to let a score beat `to_beat`. The
// noise of a word is less than -log(1 - u), so a winner has 1 - u <= exp(score - to_beat). The factor covers rounding.
inline Vec reach_of(Vec score, Vec to_beat) {
  const Vec exponent = vec_add(vec_mul(vec_sub(score, to_beat), vec_set(kLog2E)), vec_set(24.0f));
  return vec_mul(vec_exp2(vec_min(exponent, vec_set(25.0f))), vec_set(1.01f));
}

// Returns the lowest word that may let a score up to `highest` beat `to_beat`.
inline uint32_t least_word(float highest, float to_beat) {
  float reach[16];
  vec_store(reach, reach_of(vec_set(highest), vec_set(to_beat)));
  const float units = reach[0] + 1;
  return units >= 16777216.0f ? 0 : ~((static_cast<uint32_t>(units) << 8) | 0xff);
}

// Lanes whose word may let the score beat `to_beat`.
inline uint32_t possible_winners(Vec score, VecI words, Vec to_beat) {
  const VecI distance = int_shift_right(int_sub(int_set(0xffffffffu), words), 8);
  return vec_ge(reach_of(score, to_beat), int_to_float(distance));
}

// Takes the two logarithms of the noise in double precision. There are few possible winners.
inline void offer(DrawArgs& args, float score, int32_t id, uint32_t word) {
  if (!(score > args.floor || (score == args.floor && id <= args.last_id))) return;
  const double noisy = score - __builtin_log(-__builtin_log((static_cast<double>(word) + 0.5) * 0x1p-32));
  if (noisy < args.best || (noisy == args.best && id >= args.best_id)) return;
  args.best = noisy;
  args.best_id = id;
}

// Offers the possible winners of 16 ids from `at` on.
inline void offer_possible(DrawArgs& args, int64_t at, Vec score, VecI words, uint32_t candidates) {
  candidates &= possible_winners(score, words, vec_set(slightly_below(args.best)));
  if (candidates == 0) return;
  uint32_t word[16];
  int_store(word, words);
  for (; candidates != 0; candidates &= candidates - 1) {
    const int lane = __builtin_ctz(candidates);
    offer(args, args.scores[at + lane], args.first_id + static_cast<int32_t>(at) + lane, word[lane]);
  }
}

void draw(DrawArgs& args) {
  for (int64_t begin = 0; begin < args.count; begin += kMaxBlock) {
    const float highest = args.block_max[begin / kMaxBlock], to_beat = slightly_below(args.best);
    const float cutoff = to_beat - kMaxGumbel > args.floor ? to_beat - kMaxGumbel : args.floor;
    if (!(highest >= cutoff)) continue;
    const Vec cutoffs = vec_set(cutoff);
    const VecI least = int_set(least_word(highest, to_beat));
    const int64_t end = args.count - begin < kMaxBlock ? args.count : begin + kMaxBlock;
    for (int64_t i = begin; i < end; i += 32) {
      const Vec low = load_filled(args.scores + i, end - i, kNegativeInfinity);
      const Vec high = end - i > 16 ? load_filled(args.scores + i + 16, end - i - 16, kNegativeInfinity)
                                    : vec_set(kNegativeInfinity);
      uint32_t low_found = vec_ge(low, cutoffs), high_found = vec_ge(high, cutoffs);
      if ((low_found | high_found) == 0) continue;
      VecI words[2];
      noise_words(args, static_cast<uint32_t>(args.first_id + i), words);
      low_found &= int_ge(words[0], least);
      high_found &= int_ge(words[1], least);
      if ((low_found | high_found) == 0) continue;
      offer_possible(args, i, low, words[0], low_found);
      offer_possible(args, i + 16, high, words[1], high_found);
    }
  }
}

constexpr SampleKernels kSampleKernels = {scan, exp_sum, add_histogram, list_candidates, rank_value, draw};

}  // namespace
