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

void scan(ScanArgs& args) {
  const Vec divisor = vec_set(args.divisor), infinity = vec_set(-kNegativeInfinity),
            masked = vec_set(kNegativeInfinity);
  Vec lowest = vec_set(args.lowest), non_finite = vec_zero();  // Inf - Inf and NaN - NaN are NaN
  for (int64_t begin = 0; begin < args.count; begin += kMaxBlock) {
    const int64_t end = args.count - begin < kMaxBlock ? args.count : begin + kMaxBlock;
    Vec highest = masked;
    for (int64_t i = begin; i < end; i += 16) {
      const Vec value = load_filled(args.values + i, end - i, 0);
      non_finite = vec_add(non_finite, vec_sub(value, value));
      Vec result = args.divisor == 1 ? value : vec_div(value, divisor);
      if (args.allowed_mask != nullptr)
        result = vec_select(args.allowed_mask[i / 32] >> (i % 32) & 0xffff, result, masked);
      if (end - i < 16) result = vec_select_range(result, 0, static_cast<int>(end - i), masked);
      highest = vec_max(result, highest);
      lowest = vec_min(vec_select(vec_gt(result, masked), result, infinity), lowest);
      if (args.out != nullptr) store_part(args.out + i, end - i, result);
    }
    args.block_max[begin / kMaxBlock] = vec_reduce_max(highest);
  }
  args.lowest = lowest_lane(lowest);
  args.is_finite = args.is_finite && vec_eq(non_finite, non_finite) == 0xffff;
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

void add_histogram(const HistogramArgs& args) {
  const Vec lowest = vec_set(args.lowest), best = vec_set(args.best), unit = vec_set(static_cast<float>(kMassUnit));
  const VecI highest_key = int_set(args.highest_key), last = int_set(kDigits);
  uint32_t digit[16];
  float mass[16];
  for (int64_t i = 0; i < args.count; i += 16) {
    const Vec score = load_filled(args.scores + i, args.count - i, kNegativeInfinity);
    const uint32_t present = vec_ge(score, lowest);
    if (present == 0) continue;
    int_store(digit, int_min(int_shift_right(int_sub(highest_key, int_order(score)), args.shift), last));
    if (args.has_mass) {
      vec_store(mass, vec_mul(exp_below(score, best), unit));
      for (int lane = 0; lane < 16; ++lane)
        args.digits[digit[lane]] += static_cast<uint64_t>(static_cast<int64_t>(mass[lane]));
    } else {
      for (int lane = 0; lane < 16; ++lane)
        args.digits[digit[lane]] += 1;
    }
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

// The noise words of 64 ids: words[k] has those of ids first_id + 16 k on.
inline void noise_words(const DrawArgs& args, uint32_t first_id, VecI words[4]) {
  // Lane 4 i + k counts for ids 16 k + 4 i on, so that the transposition leaves the words in the order of the ids.
  static constexpr uint32_t kQuads[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
  VecI c0 = int_set(args.position), c1 = int_set(args.choice), c3 = int_set(0);
  VecI c2 = int_add(int_set(first_id / 4), int_load(kQuads));
  uint32_t key0 = static_cast<uint32_t>(args.seed), key1 = static_cast<uint32_t>(args.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    VecI high0, low0, high1, low1;
    int_mul_wide(c0, 0xD2511F53, high0, low0);
    int_mul_wide(c2, 0xCD9E8D57, high1, low1);
    c0 = int_xor(int_xor(high1, c1), int_set(key0));
    c1 = low1;
    c2 = int_xor(int_xor(high0, c3), int_set(key1));
    c3 = low0;
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  int_transpose_quads(c0, c1, c2, c3);
  words[0] = c0;
  words[1] = c1;
  words[2] = c2;
  words[3] = c3;
}

// A value below `value` by more than the rounding of the comparisons with it.
inline float slightly_below(double value) {
  const float rounded = static_cast<float>(value);
  return rounded - __builtin_fabsf(rounded) * 1e-6f;
}

// Lanes whose word may let the score beat `to_beat`. The noise of a word is less than -log(1 - u), u = (word + 1/2) /
// 2^32, so a winner has 1 - u <= exp(score - to_beat). Compares the upper 24 bits of 2^32 (1 - u); 1.01 covers
// rounding.
inline uint32_t possible_winners(Vec score, VecI words, Vec to_beat) {
  const Vec exponent = vec_add(vec_mul(vec_sub(score, to_beat), vec_set(kLog2E)), vec_set(24.0f));
  const Vec reach = vec_mul(vec_exp2(vec_min(exponent, vec_set(40.0f))), vec_set(1.01f));
  return vec_ge(reach, int_to_float(int_shift_right(int_xor(words, int_set(0xffffffffu)), 8)));
}

// The two logarithms of the noise are taken only for possible winners, of which there are few, in double precision.
inline void offer(DrawArgs& args, float score, int32_t id, uint32_t word) {
  if (!(score > args.floor || (score == args.floor && id <= args.last_id))) return;
  const double noisy = score - __builtin_log(-__builtin_log((static_cast<double>(word) + 0.5) * 0x1p-32));
  if (noisy < args.best || (noisy == args.best && id >= args.best_id)) return;
  args.best = noisy;
  args.best_id = id;
}

void draw(DrawArgs& args) {
  float to_beat = slightly_below(args.best);
  for (int64_t begin = 0; begin < args.count; begin += 64) {
    const float cutoff = to_beat - kMaxGumbel > args.floor ? to_beat - kMaxGumbel : args.floor;
    Vec score[4];
    uint32_t candidates[4];
    for (int k = 0; k < 4; ++k) {
      const int64_t left = args.count - begin - 16 * k;
      score[k] =
          left > 0 ? load_filled(args.scores + begin + 16 * k, left, kNegativeInfinity) : vec_set(kNegativeInfinity);
      candidates[k] = vec_ge(score[k], vec_set(cutoff));
    }
    if ((candidates[0] | candidates[1] | candidates[2] | candidates[3]) == 0) continue;
    VecI words[4];
    const int32_t first_id = args.first_id + static_cast<int32_t>(begin);
    noise_words(args, static_cast<uint32_t>(first_id), words);
    for (int k = 0; k < 4; ++k) {
      uint32_t found = candidates[k];
      if (found != 0) found &= possible_winners(score[k], words[k], vec_set(to_beat));
      if (found == 0) continue;
      uint32_t word[16];
      int_store(word, words[k]);
      for (; found != 0; found &= found - 1) {
        const int lane = __builtin_ctz(found);
        offer(args, args.scores[begin + 16 * k + lane], first_id + 16 * k + lane, word[lane]);
      }
      to_beat = slightly_below(args.best);
    }
  }
}

constexpr SampleKernels kSampleKernels = {scan, exp_sum, add_histogram, list_candidates, rank_value, draw};

}  // namespace
