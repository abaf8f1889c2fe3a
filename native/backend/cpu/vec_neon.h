// 16 lanes in four NEON registers. The Vec of every instruction set has the same interface and computes the same bits.
#include <arm_neon.h>

#include <cstdint>

namespace {

struct Vec {
  float32x4_t q0, q1, q2, q3;
};

#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
#define CAPSTAN_BF16_DOT 1
// Tile of the matrix kernels: 6 rows × 1 panel = 24 accumulators, 4 weights and a broadcast in 32 registers.
constexpr int kTileRows = 6;
#else
// bf16 weights take 8 registers as floats, so 5 rows are left.
constexpr int kTileRows = 5;
#endif
constexpr int kTilePanels = 1;
constexpr int kTileSteps = 1;
constexpr int kF32TileSteps = 1;

inline Vec vec_set(float x) {
  const float32x4_t all = vdupq_n_f32(x);
  return {all, all, all, all};
}
inline Vec vec_zero() {
  return vec_set(0);
}
inline Vec vec_load(const float* p) {
  return {vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)};
}
inline void vec_store(float* p, Vec a) {
  vst1q_f32(p, a.q0);
  vst1q_f32(p + 4, a.q1);
  vst1q_f32(p + 8, a.q2);
  vst1q_f32(p + 12, a.q3);
}
inline Vec vec_add(Vec a, Vec b) {
  return {vaddq_f32(a.q0, b.q0), vaddq_f32(a.q1, b.q1), vaddq_f32(a.q2, b.q2), vaddq_f32(a.q3, b.q3)};
}
inline Vec vec_sub(Vec a, Vec b) {
  return {vsubq_f32(a.q0, b.q0), vsubq_f32(a.q1, b.q1), vsubq_f32(a.q2, b.q2), vsubq_f32(a.q3, b.q3)};
}
inline Vec vec_mul(Vec a, Vec b) {
  return {vmulq_f32(a.q0, b.q0), vmulq_f32(a.q1, b.q1), vmulq_f32(a.q2, b.q2), vmulq_f32(a.q3, b.q3)};
}
inline Vec vec_div(Vec a, Vec b) {
  return {vdivq_f32(a.q0, b.q0), vdivq_f32(a.q1, b.q1), vdivq_f32(a.q2, b.q2), vdivq_f32(a.q3, b.q3)};
}
inline Vec vec_fma(Vec a, Vec b, Vec c) {
  return {vfmaq_f32(c.q0, a.q0, b.q0), vfmaq_f32(c.q1, a.q1, b.q1), vfmaq_f32(c.q2, a.q2, b.q2),
          vfmaq_f32(c.q3, a.q3, b.q3)};
}
// a > b ? a : b, so the result is b when either is NaN. FMAXNM would return the number.
inline float32x4_t max_quarter(float32x4_t a, float32x4_t b) {
  return vbslq_f32(vcgtq_f32(a, b), a, b);
}
inline Vec vec_max(Vec a, Vec b) {
  return {max_quarter(a.q0, b.q0), max_quarter(a.q1, b.q1), max_quarter(a.q2, b.q2), max_quarter(a.q3, b.q3)};
}

inline float32x4_t bf16_quarter(uint16x4_t h) {
  return vreinterpretq_f32_u32(vshll_n_u16(h, 16));
}
inline Vec vec_load_bf16(const uint16_t* p) {
  const uint16x8_t lo = vld1q_u16(p), hi = vld1q_u16(p + 8);
  return {bf16_quarter(vget_low_u16(lo)), bf16_quarter(vget_high_u16(lo)), bf16_quarter(vget_low_u16(hi)),
          bf16_quarter(vget_high_u16(hi))};
}
inline float32x4_t f16_quarter(uint16x4_t h) {
  return vcvt_f32_f16(vreinterpret_f16_u16(h));
}
inline Vec vec_load_f16(const uint16_t* p) {
  const uint16x8_t lo = vld1q_u16(p), hi = vld1q_u16(p + 8);
  return {f16_quarter(vget_low_u16(lo)), f16_quarter(vget_high_u16(lo)), f16_quarter(vget_low_u16(hi)),
          f16_quarter(vget_high_u16(hi))};
}
// 16 unsigned or signed bytes, 16 powers of two 2^(byte - 128), and 16 numbers in e4m3 without a sign.
inline Vec floats_of_words(uint16x8_t lo, uint16x8_t hi) {
  return {vcvtq_f32_u32(vmovl_u16(vget_low_u16(lo))), vcvtq_f32_u32(vmovl_u16(vget_high_u16(lo))),
          vcvtq_f32_u32(vmovl_u16(vget_low_u16(hi))), vcvtq_f32_u32(vmovl_u16(vget_high_u16(hi)))};
}
inline Vec vec_load_uint8(const uint8_t* p) {
  const uint8x16_t bytes = vld1q_u8(p);
  return floats_of_words(vmovl_u8(vget_low_u8(bytes)), vmovl_u8(vget_high_u8(bytes)));
}
inline Vec vec_load_int8(const uint8_t* p) {
  // The bytes plus 128 are unsigned, and the floats are exact.
  const uint8x16_t bytes = veorq_u8(vld1q_u8(p), vdupq_n_u8(128));
  return vec_sub(floats_of_words(vmovl_u8(vget_low_u8(bytes)), vmovl_u8(vget_high_u8(bytes))), vec_set(128));
}
inline float32x4_t e8m0_quarter(uint16x4_t bytes) {
  const uint32x4_t bits = vshlq_n_u32(vmovl_u16(bytes), 23);  // 0 for the byte 0
  return vmaxq_f32(vmulq_f32(vreinterpretq_f32_u32(bits), vdupq_n_f32(0.5f)), vdupq_n_f32(0x1p-128f));
}
inline Vec vec_load_e8m0(const uint8_t* p) {
  const uint8x16_t bytes = vld1q_u8(p);
  const uint16x8_t lo = vmovl_u8(vget_low_u8(bytes)), hi = vmovl_u8(vget_high_u8(bytes));
  return {e8m0_quarter(vget_low_u16(lo)), e8m0_quarter(vget_high_u16(lo)), e8m0_quarter(vget_low_u16(hi)),
          e8m0_quarter(vget_high_u16(hi))};
}
inline float32x4_t e4m3_quarter(uint16x4_t halves) {
  return vmulq_f32(f16_quarter(halves), vdupq_n_f32(256.0f));
}
inline Vec vec_load_e4m3(const uint8_t* p) {
  const uint8x16_t bytes = vld1q_u8(p);
  const uint16x8_t lo = vshll_n_u8(vget_low_u8(bytes), 7), hi = vshll_n_u8(vget_high_u8(bytes), 7);  // f16, / 256
  return {e4m3_quarter(vget_low_u16(lo)), e4m3_quarter(vget_high_u16(lo)), e4m3_quarter(vget_low_u16(hi)),
          e4m3_quarter(vget_high_u16(hi))};
}
// 4 pairs of bf16: the first of each pair, or the second.
inline float32x4_t even_quarter(uint32x4_t pairs) {
  return vreinterpretq_f32_u32(vshlq_n_u32(pairs, 16));
}
inline float32x4_t odd_quarter(uint32x4_t pairs) {
  return vreinterpretq_f32_u32(vandq_u32(pairs, vdupq_n_u32(0xffff0000u)));
}
// 16 pairs of bf16: the first of each pair into `even`, the second into `odd`.
inline void vec_load_bf16_pairs(const uint32_t* p, Vec& even, Vec& odd) {
  const uint32x4_t q0 = vld1q_u32(p), q1 = vld1q_u32(p + 4), q2 = vld1q_u32(p + 8), q3 = vld1q_u32(p + 12);
  even = {even_quarter(q0), even_quarter(q1), even_quarter(q2), even_quarter(q3)};
  odd = {odd_quarter(q0), odd_quarter(q1), odd_quarter(q2), odd_quarter(q3)};
}

// A bf16 in the high half of each lane. The low half is not 0. Unlike BFCVTN, it keeps denormals.
inline uint32x4_t bf16_bits(float32x4_t a) {
  const uint32x4_t bits = vreinterpretq_u32_f32(a);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, odd), vdupq_n_u32(0x7fff));
  const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
  return vbslq_u32(vceqq_f32(a, a), rounded, quiet);
}
inline uint16x8_t bf16_half(float32x4_t a, float32x4_t b) {
  return vshrn_high_n_u32(vshrn_n_u32(bf16_bits(a), 16), bf16_bits(b), 16);
}
inline void vec_store_bf16(uint16_t* p, Vec a) {
  vst1q_u16(p, bf16_half(a.q0, a.q1));
  vst1q_u16(p + 8, bf16_half(a.q2, a.q3));
}
inline float32x4_t round_quarter(float32x4_t a) {
  return odd_quarter(bf16_bits(a));
}
inline Vec vec_round_bf16(Vec a) {
  return {round_quarter(a.q0), round_quarter(a.q1), round_quarter(a.q2), round_quarter(a.q3)};
}
inline void vec_store_f16(uint16_t* p, Vec a) {
  vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(a.q0)));
  vst1_u16(p + 4, vreinterpret_u16_f16(vcvt_f16_f32(a.q1)));
  vst1_u16(p + 8, vreinterpret_u16_f16(vcvt_f16_f32(a.q2)));
  vst1_u16(p + 12, vreinterpret_u16_f16(vcvt_f16_f32(a.q3)));
}

// Lanes in [begin, end) of a, `other` elsewhere; 0 <= begin, end <= 16.
inline float32x4_t select_quarter(float32x4_t a, int begin, int end, float32x4_t other) {
  static constexpr int32_t kLanes[4] = {0, 1, 2, 3};
  const int32x4_t lane = vld1q_s32(kLanes);
  const uint32x4_t from = vcgeq_s32(lane, vdupq_n_s32(begin)), below = vcltq_s32(lane, vdupq_n_s32(end));
  return vbslq_f32(vandq_u32(from, below), a, other);
}
inline Vec vec_select_range(Vec a, int begin, int end, Vec other) {
  return {select_quarter(a.q0, begin, end, other.q0), select_quarter(a.q1, begin - 4, end - 4, other.q1),
          select_quarter(a.q2, begin - 8, end - 8, other.q2), select_quarter(a.q3, begin - 12, end - 12, other.q3)};
}
// 2^n for t = n + 1.5 · 2^23, whose low mantissa bits hold n. n is in [-127, 127]; -127 gives 0.
inline float32x4_t pow2_quarter(float32x4_t t) {
  const uint32x4_t exponent = vshlq_n_u32(vreinterpretq_u32_f32(t), 23);
  return vreinterpretq_f32_u32(vaddq_u32(exponent, vdupq_n_u32(0x3f800000)));
}
inline Vec vec_pow2_of_magic(Vec t) {
  return {pow2_quarter(t.q0), pow2_quarter(t.q1), pow2_quarter(t.q2), pow2_quarter(t.q3)};
}

// The low halves of a and b, or the high ones; a first.
inline Vec vec_low_halves(Vec a, Vec b) {
  return {a.q0, a.q1, b.q0, b.q1};
}
inline Vec vec_high_halves(Vec a, Vec b) {
  return {a.q2, a.q3, b.q2, b.q3};
}

// Adds the upper half to the lower half until one lane is left.
inline float vec_reduce_add(Vec a) {
  const float32x4_t s4 = vaddq_f32(vaddq_f32(a.q0, a.q2), vaddq_f32(a.q1, a.q3));
  const float32x2_t s2 = vadd_f32(vget_low_f32(s4), vget_high_f32(s4));
  return vget_lane_f32(s2, 0) + vget_lane_f32(s2, 1);
}
inline float vec_reduce_max(Vec a) {
  const float32x4_t s4 = max_quarter(max_quarter(a.q0, a.q2), max_quarter(a.q1, a.q3));
  const float32x4_t s2 = max_quarter(s4, vextq_f32(s4, s4, 2));
  return vgetq_lane_f32(max_quarter(s2, vextq_f32(s2, s2, 1)), 0);
}

// 16 lanes of 32 bits: sums, or four codes in bytes.
struct IntVec {
  int32x4_t q0, q1, q2, q3;
};

inline IntVec ivec_set(int32_t x) {
  const int32x4_t all = vdupq_n_s32(x);
  return {all, all, all, all};
}
inline IntVec ivec_load(const void* p) {
  const int32_t* at = static_cast<const int32_t*>(p);
  return {vld1q_s32(at), vld1q_s32(at + 4), vld1q_s32(at + 8), vld1q_s32(at + 12)};
}
inline IntVec ivec_add(IntVec a, IntVec b) {
  return {vaddq_s32(a.q0, b.q0), vaddq_s32(a.q1, b.q1), vaddq_s32(a.q2, b.q2), vaddq_s32(a.q3, b.q3)};
}
inline int32x4_t low_nibbles(int32x4_t a) {
  return vreinterpretq_s32_u8(vandq_u8(vreinterpretq_u8_s32(a), vdupq_n_u8(15)));
}
inline int32x4_t high_nibbles(int32x4_t a) {
  return vreinterpretq_s32_u8(vshrq_n_u8(vreinterpretq_u8_s32(a), 4));
}
inline IntVec ivec_low_nibbles(IntVec a) {
  return {low_nibbles(a.q0), low_nibbles(a.q1), low_nibbles(a.q2), low_nibbles(a.q3)};
}
inline IntVec ivec_high_nibbles(IntVec a) {
  return {high_nibbles(a.q0), high_nibbles(a.q1), high_nibbles(a.q2), high_nibbles(a.q3)};
}
// Adds bits 4 and 5 (kCount = 2) or bit 4 (1) of the codes of word `index` of a pair, whose high bits are at p.
template <int kCount, int index, int quarter>
inline int32x4_t add_high_bits_quarter(int32x4_t a, const uint8_t* p) {
  constexpr int kField = kCount == 2 ? 2 * index + quarter / 2 : 4 * index + quarter;
  constexpr int kUp = 4 - kField * kCount;
  uint8x16_t bits = vld1q_u8(p + (kCount == 2 ? quarter % 2 * 16 : 0));
  if constexpr (kUp > 0) bits = vshlq_n_u8(bits, kUp);
  if constexpr (kUp < 0) bits = vshrq_n_u8(bits, -kUp);
  const uint8x16_t mask = vdupq_n_u8(kCount == 2 ? 0x30 : 0x10);
  return vreinterpretq_s32_u8(vorrq_u8(vreinterpretq_u8_s32(a), vandq_u8(bits, mask)));
}
template <int kCount, int index>
inline IntVec ivec_add_high_bits(IntVec a, const void* p) {
  const uint8_t* bits = static_cast<const uint8_t*>(p);
  return {add_high_bits_quarter<kCount, index, 0>(a.q0, bits), add_high_bits_quarter<kCount, index, 1>(a.q1, bits),
          add_high_bits_quarter<kCount, index, 2>(a.q2, bits), add_high_bits_quarter<kCount, index, 3>(a.q3, bits)};
}
// Replaces each byte, 0 to 15, by the entry of the table.
inline int32x4_t look_up_quarter(uint8x16_t table, int32x4_t a) {
  return vreinterpretq_s32_u8(vqtbl1q_u8(table, vreinterpretq_u8_s32(a)));
}
inline IntVec ivec_look_up(IntVec a, const uint8_t* table) {
  const uint8x16_t entries = vld1q_u8(table);
  return {look_up_quarter(entries, a.q0), look_up_quarter(entries, a.q1), look_up_quarter(entries, a.q2),
          look_up_quarter(entries, a.q3)};
}
// Byte `index` of each lane, as a float.
inline float32x4_t byte_quarter(int32x4_t a, int index) {
  const uint32x4_t shifted = vshlq_u32(vreinterpretq_u32_s32(a), vdupq_n_s32(-8 * index));
  return vcvtq_f32_u32(vandq_u32(shifted, vdupq_n_u32(255)));
}
inline Vec ivec_byte(IntVec a, int index) {
  return {byte_quarter(a.q0, index), byte_quarter(a.q1, index), byte_quarter(a.q2, index), byte_quarter(a.q3, index)};
}
inline Vec ivec_float(IntVec a) {
  return {vcvtq_f32_s32(a.q0), vcvtq_f32_s32(a.q1), vcvtq_f32_s32(a.q2), vcvtq_f32_s32(a.q3)};
}
#if defined(__ARM_FEATURE_MATMUL_INT8)
constexpr bool kDotIsSigned = false;
inline int32x4_t dot_quarter(int32x4_t acc, int32x4_t codes, int32x4_t x) {
  return vusdotq_s32(acc, vreinterpretq_u8_s32(codes), vreinterpretq_s8_s32(x));
}
#elif defined(__ARM_FEATURE_DOTPROD)
constexpr bool kDotIsSigned = true;  // SDOT reads codes from -128 to 127
inline int32x4_t dot_quarter(int32x4_t acc, int32x4_t codes, int32x4_t x) {
  return vdotq_s32(acc, vreinterpretq_s8_s32(codes), vreinterpretq_s8_s32(x));
}
#else
constexpr bool kDotIsSigned = false;
// The products fit in 16 bits: -32640 … 32385.
inline int32x4_t dot_quarter(int32x4_t acc, int32x4_t codes, int32x4_t x) {
  const int16x8_t w = vreinterpretq_s16_s32(codes), words = vreinterpretq_s16_s32(x);
  const int16x8_t even = vandq_s16(w, vdupq_n_s16(255));
  const int16x8_t odd = vreinterpretq_s16_u16(vshrq_n_u16(vreinterpretq_u16_s16(w), 8));
  acc = vpadalq_s16(acc, vmulq_s16(even, vshrq_n_s16(vshlq_n_s16(words, 8), 8)));
  return vpadalq_s16(acc, vmulq_s16(odd, vshrq_n_s16(words, 8)));
}
#endif
// What ivec_dot subtracts from the codes, so that those above 127 (kIsWide) fit in a signed byte where it needs one.
template <bool kIsWide>
constexpr int kDotShift = kDotIsSigned && kIsWide ? 128 : 0;
template <bool kIsWide>
inline int32x4_t shift_quarter(int32x4_t codes) {
  return kDotShift<kIsWide> != 0 ? veorq_s32(codes, vdupq_n_s32(static_cast<int32_t>(0x80808080u))) : codes;
}
// acc + the products of four unsigned codes in each lane, shifted, with the four signed codes of `word`. Exact.
template <bool kIsWide>
inline IntVec ivec_dot(IntVec acc, IntVec codes, uint32_t word) {
  const int32x4_t x = vdupq_n_s32(static_cast<int32_t>(word));
  return {dot_quarter(acc.q0, shift_quarter<kIsWide>(codes.q0), x),
          dot_quarter(acc.q1, shift_quarter<kIsWide>(codes.q1), x),
          dot_quarter(acc.q2, shift_quarter<kIsWide>(codes.q2), x),
          dot_quarter(acc.q3, shift_quarter<kIsWide>(codes.q3), x)};
}
#ifdef __ARM_FEATURE_MATMUL_INT8
#define CAPSTAN_INT8_MATRIX 1
// Sums of products of codes with R rows of activations. USMMLA adds a product of (2 features, 8 codes) and
// (8 codes, 2 rows).
template <int R>
struct PairSums {
  static constexpr int kRowPairs = (R + 1) / 2;
  int32x4_t sums[kRowPairs][8] = {};  // of features 2 i and 2 i + 1: (2 features, 2 rows)

  // Adds the products of two words. a: (2 words, R rows). The last row of an odd number is its own partner.
  [[gnu::always_inline]] void add(IntVec first, IntVec second, const uint32_t* a) {
    int8x16_t rows[kRowPairs];
#pragma GCC unroll 4
    for (int i = 0; i < kRowPairs; ++i) {
      const bool is_pair = 2 * i + 1 < R;
      const uint32x2_t low = is_pair ? vld1_u32(a + 2 * i) : vdup_n_u32(a[2 * i]);
      const uint32x2_t high = is_pair ? vld1_u32(a + R + 2 * i) : vdup_n_u32(a[R + 2 * i]);
      rows[i] = vreinterpretq_s8_u32(vcombine_u32(vzip1_u32(low, high), vzip2_u32(low, high)));
    }
    add_quarter<0>(first.q0, second.q0, rows);
    add_quarter<1>(first.q1, second.q1, rows);
    add_quarter<2>(first.q2, second.q2, rows);
    add_quarter<3>(first.q3, second.q3, rows);
  }
  // Returns the sums of row r.
  [[gnu::always_inline]] IntVec row(int r) const {
    const int32x4_t(&of_pair)[8] = sums[r / 2];
    if (r % 2 == 0)
      return {vuzp1q_s32(of_pair[0], of_pair[1]), vuzp1q_s32(of_pair[2], of_pair[3]),
              vuzp1q_s32(of_pair[4], of_pair[5]), vuzp1q_s32(of_pair[6], of_pair[7])};
    return {vuzp2q_s32(of_pair[0], of_pair[1]), vuzp2q_s32(of_pair[2], of_pair[3]), vuzp2q_s32(of_pair[4], of_pair[5]),
            vuzp2q_s32(of_pair[6], of_pair[7])};
  }

 private:
  template <int kQuarter>
  [[gnu::always_inline]] void add_quarter(int32x4_t first, int32x4_t second, const int8x16_t (&rows)[kRowPairs]) {
    const uint8x16_t low = vreinterpretq_u8_s32(vzip1q_s32(first, second));
    const uint8x16_t high = vreinterpretq_u8_s32(vzip2q_s32(first, second));
#pragma GCC unroll 4
    for (int i = 0; i < kRowPairs; ++i) {
      sums[i][2 * kQuarter] = vusmmlaq_s32(sums[i][2 * kQuarter], low, rows[i]);
      sums[i][2 * kQuarter + 1] = vusmmlaq_s32(sums[i][2 * kQuarter + 1], high, rows[i]);
    }
  }
};
#endif
// Stores whole numbers from -128 to 127 as bytes.
inline void vec_store_int8(int8_t* p, Vec a) {
  const int16x8_t lo = vqmovn_high_s32(vqmovn_s32(vcvtq_s32_f32(a.q0)), vcvtq_s32_f32(a.q1));
  const int16x8_t hi = vqmovn_high_s32(vqmovn_s32(vcvtq_s32_f32(a.q2)), vcvtq_s32_f32(a.q3));
  vst1q_s8(p, vqmovn_high_s16(vqmovn_s16(lo), hi));
}

// Bytes 0 and 2 of each lane, or 1 and 3, as signed words in 16 bits.
inline int32x4_t even_words_quarter(int32x4_t a) {
  return vreinterpretq_s32_s16(vshrq_n_s16(vshlq_n_s16(vreinterpretq_s16_s32(a), 8), 8));
}
inline IntVec ivec_even_words(IntVec a) {
  return {even_words_quarter(a.q0), even_words_quarter(a.q1), even_words_quarter(a.q2), even_words_quarter(a.q3)};
}
inline int32x4_t odd_words_quarter(int32x4_t a) {
  return vreinterpretq_s32_s16(vshrq_n_s16(vreinterpretq_s16_s32(a), 8));
}
inline IntVec ivec_odd_words(IntVec a) {
  return {odd_words_quarter(a.q0), odd_words_quarter(a.q1), odd_words_quarter(a.q2), odd_words_quarter(a.q3)};
}
// acc + the products of the two words in each lane with the two of `pair`. Exact.
inline int32x4_t dot_words_quarter(int32x4_t acc, int32x4_t words, int16x8_t x) {
  const int16x8_t w = vreinterpretq_s16_s32(words);
  const int32x4_t low = vmull_s16(vget_low_s16(w), vget_low_s16(x)), high = vmull_high_s16(w, x);
  return vaddq_s32(acc, vpaddq_s32(low, high));
}
inline IntVec ivec_dot_words(IntVec acc, IntVec words, uint32_t pair) {
  const int16x8_t x = vreinterpretq_s16_u32(vdupq_n_u32(pair));
  return {dot_words_quarter(acc.q0, words.q0, x), dot_words_quarter(acc.q1, words.q1, x),
          dot_words_quarter(acc.q2, words.q2, x), dot_words_quarter(acc.q3, words.q3, x)};
}
// Stores values from -32767 to 32767, rounded to whole numbers, ties to even. NaN gives any number.
inline void vec_round_int16(int16_t* p, Vec a) {
  vst1q_s16(p, vqmovn_high_s32(vqmovn_s32(vcvtnq_s32_f32(a.q0)), vcvtnq_s32_f32(a.q1)));
  vst1q_s16(p + 8, vqmovn_high_s32(vqmovn_s32(vcvtnq_s32_f32(a.q2)), vcvtnq_s32_f32(a.q3)));
}

// NOTE: always_inline, because GCC removes calls of it that it does not inline early.
[[gnu::always_inline]] inline void prefetch(const void* p) {
  __builtin_prefetch(p);
}

// For panels that several rows multiply.
[[gnu::always_inline]] inline void prefetch_panel(const void* p) {
  __builtin_prefetch(p);
}

#ifdef CAPSTAN_BF16_DOT
// acc + the products of the pairs of bf16 in each lane with one pair: an FMA with the second element of each pair, then
// one with the first. Unlike BFDOT, these instructions round like FMLA.
inline float32x4_t dot_bf16_quarter(float32x4_t acc, bfloat16x8_t pair, int32x4_t pairs) {
  const bfloat16x8_t weights = vreinterpretq_bf16_s32(pairs);
  return vbfmlalbq_f32(vbfmlaltq_f32(acc, weights, pair), weights, pair);
}
inline Vec vec_dot_bf16(Vec acc, uint32_t pair, IntVec pairs) {
  const bfloat16x8_t all = vreinterpretq_bf16_u32(vdupq_n_u32(pair));
  return {dot_bf16_quarter(acc.q0, all, pairs.q0), dot_bf16_quarter(acc.q1, all, pairs.q1),
          dot_bf16_quarter(acc.q2, all, pairs.q2), dot_bf16_quarter(acc.q3, all, pairs.q3)};
}
#endif

// ---- lane masks (bit i is lane i) and 32-bit integers ----

// a < b ? a : b, so the result is b when either is NaN.
inline float32x4_t min_quarter(float32x4_t a, float32x4_t b) {
  return vbslq_f32(vcltq_f32(a, b), a, b);
}
inline Vec vec_min(Vec a, Vec b) {
  return {min_quarter(a.q0, b.q0), min_quarter(a.q1, b.q1), min_quarter(a.q2, b.q2), min_quarter(a.q3, b.q3)};
}
// Lanes are all ones or all zeros.
inline uint32_t mask_of(uint32x4_t q0, uint32x4_t q1, uint32x4_t q2, uint32x4_t q3) {
  static constexpr uint8_t kBits[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  const uint16x8_t lo = vmovn_high_u32(vmovn_u32(q0), q1), hi = vmovn_high_u32(vmovn_u32(q2), q3);
  const uint8x16_t bits = vandq_u8(vmovn_high_u16(vmovn_u16(lo), hi), vld1q_u8(kBits));
  return uint32_t{vaddv_u8(vget_low_u8(bits))} | uint32_t{vaddv_u8(vget_high_u8(bits))} << 8;
}
inline uint32_t vec_gt(Vec a, Vec b) {
  return mask_of(vcgtq_f32(a.q0, b.q0), vcgtq_f32(a.q1, b.q1), vcgtq_f32(a.q2, b.q2), vcgtq_f32(a.q3, b.q3));
}
inline uint32_t vec_ge(Vec a, Vec b) {
  return mask_of(vcgeq_f32(a.q0, b.q0), vcgeq_f32(a.q1, b.q1), vcgeq_f32(a.q2, b.q2), vcgeq_f32(a.q3, b.q3));
}
inline uint32_t vec_eq(Vec a, Vec b) {
  return mask_of(vceqq_f32(a.q0, b.q0), vceqq_f32(a.q1, b.q1), vceqq_f32(a.q2, b.q2), vceqq_f32(a.q3, b.q3));
}
// a where the mask has a 1, b elsewhere.
inline float32x4_t select_quarter(uint32_t mask, float32x4_t a, float32x4_t b) {
  static constexpr uint32_t kBits[4] = {1, 2, 4, 8};
  return vbslq_f32(vtstq_u32(vdupq_n_u32(mask), vld1q_u32(kBits)), a, b);
}
inline Vec vec_select(uint32_t mask, Vec a, Vec b) {
  return {select_quarter(mask, a.q0, b.q0), select_quarter(mask >> 4, a.q1, b.q1),
          select_quarter(mask >> 8, a.q2, b.q2), select_quarter(mask >> 12, a.q3, b.q3)};
}

struct VecI {
  uint32x4_t q0, q1, q2, q3;
};

inline VecI int_set(uint32_t x) {
  const uint32x4_t all = vdupq_n_u32(x);
  return {all, all, all, all};
}
inline VecI int_load(const uint32_t* p) {
  return {vld1q_u32(p), vld1q_u32(p + 4), vld1q_u32(p + 8), vld1q_u32(p + 12)};
}
inline void int_store(uint32_t* p, VecI a) {
  vst1q_u32(p, a.q0);
  vst1q_u32(p + 4, a.q1);
  vst1q_u32(p + 8, a.q2);
  vst1q_u32(p + 12, a.q3);
}
inline VecI int_sub(VecI a, VecI b) {
  return {vsubq_u32(a.q0, b.q0), vsubq_u32(a.q1, b.q1), vsubq_u32(a.q2, b.q2), vsubq_u32(a.q3, b.q3)};
}
// The smaller one as unsigned integers.
inline VecI int_min(VecI a, VecI b) {
  return {vminq_u32(a.q0, b.q0), vminq_u32(a.q1, b.q1), vminq_u32(a.q2, b.q2), vminq_u32(a.q3, b.q3)};
}
inline VecI int_shift_right(VecI a, int count) {
  const int32x4_t n = vdupq_n_s32(-count);
  return {vshlq_u32(a.q0, n), vshlq_u32(a.q1, n), vshlq_u32(a.q2, n), vshlq_u32(a.q3, n)};
}
// Lanes must be below 2^31.
inline Vec int_to_float(VecI a) {
  return {vcvtq_f32_u32(a.q0), vcvtq_f32_u32(a.q1), vcvtq_f32_u32(a.q2), vcvtq_f32_u32(a.q3)};
}
// Unsigned integers in the order of the floats. -0 and +0 give the same one.
inline uint32x4_t order_quarter(float32x4_t a) {
  const int32x4_t bits = vreinterpretq_s32_f32(vaddq_f32(a, vdupq_n_f32(0)));
  const uint32x4_t negative = vreinterpretq_u32_s32(vshrq_n_s32(bits, 31));
  return veorq_u32(vreinterpretq_u32_s32(bits), vorrq_u32(negative, vdupq_n_u32(0x80000000u)));
}
inline VecI int_order(Vec a) {
  return {order_quarter(a.q0), order_quarter(a.q1), order_quarter(a.q2), order_quarter(a.q3)};
}
// Lanes of a that are at least b, as unsigned integers.
inline uint32_t int_ge(VecI a, VecI b) {
  return mask_of(vcgeq_u32(a.q0, b.q0), vcgeq_u32(a.q1, b.q1), vcgeq_u32(a.q2, b.q2), vcgeq_u32(a.q3, b.q3));
}

// 8 unsigned 64-bit integers.
struct VecL {
  uint64x2_t q0, q1, q2, q3;
};

inline VecL long_set(uint64_t x) {
  const uint64x2_t all = vdupq_n_u64(x);
  return {all, all, all, all};
}
inline VecL long_load(const uint64_t* p) {
  return {vld1q_u64(p), vld1q_u64(p + 2), vld1q_u64(p + 4), vld1q_u64(p + 6)};
}
inline VecL long_add(VecL a, VecL b) {
  return {vaddq_u64(a.q0, b.q0), vaddq_u64(a.q1, b.q1), vaddq_u64(a.q2, b.q2), vaddq_u64(a.q3, b.q3)};
}
inline VecL long_xor(VecL a, VecL b) {
  return {veorq_u64(a.q0, b.q0), veorq_u64(a.q1, b.q1), veorq_u64(a.q2, b.q2), veorq_u64(a.q3, b.q3)};
}
inline VecL long_high_half(VecL a) {
  return {vshrq_n_u64(a.q0, 32), vshrq_n_u64(a.q1, 32), vshrq_n_u64(a.q2, 32), vshrq_n_u64(a.q3, 32)};
}
// The products of the low halves.
inline uint64x2_t mul_low(uint64x2_t a, uint64x2_t b) {
  return vmull_u32(vmovn_u64(a), vmovn_u64(b));
}
inline VecL long_mul_low(VecL a, VecL b) {
  return {mul_low(a.q0, b.q0), mul_low(a.q1, b.q1), mul_low(a.q2, b.q2), mul_low(a.q3, b.q3)};
}
// The low halves of lanes 0, 2, 4 and 6 of a, b, c and d, lane by lane: a0 b0 c0 d0 a2 … d6. Then those of the odd
// lanes.
inline void join_quarter(uint64x2_t a, uint64x2_t b, uint64x2_t c, uint64x2_t d, uint32x4_t& even, uint32x4_t& odd) {
  const auto pair_up = [](uint64x2_t x, uint64x2_t y) {
    return vreinterpretq_u64_u32(vtrn1q_u32(vreinterpretq_u32_u64(x), vreinterpretq_u32_u64(y)));
  };
  const uint64x2_t ab = pair_up(a, b), cd = pair_up(c, d);
  even = vreinterpretq_u32_u64(vtrn1q_u64(ab, cd));
  odd = vreinterpretq_u32_u64(vtrn2q_u64(ab, cd));
}
inline void long_join(VecL a, VecL b, VecL c, VecL d, VecI& even, VecI& odd) {
  join_quarter(a.q0, b.q0, c.q0, d.q0, even.q0, odd.q0);
  join_quarter(a.q1, b.q1, c.q1, d.q1, even.q1, odd.q1);
  join_quarter(a.q2, b.q2, c.q2, d.q2, even.q2, odd.q2);
  join_quarter(a.q3, b.q3, c.q3, d.q3, even.q3, odd.q3);
}
// Truncates 16 lanes from 0 to 2^51.
inline void store_int64_quarter(int64_t* p, float32x4_t a) {
  vst1q_s64(p, vcvtq_s64_f64(vcvt_f64_f32(vget_low_f32(a))));
  vst1q_s64(p + 2, vcvtq_s64_f64(vcvt_high_f64_f32(a)));
}
inline void vec_store_int64(int64_t* p, Vec a) {
  store_int64_quarter(p, a.q0);
  store_int64_quarter(p + 4, a.q1);
  store_int64_quarter(p + 8, a.q2);
  store_int64_quarter(p + 12, a.q3);
}

}  // namespace
