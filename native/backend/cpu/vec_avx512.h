// 16 lanes in one AVX-512 register. Every Vec has the same interface and gives the same bits.
#include <immintrin.h>

#include <cstdint>

namespace {

#define CAPSTAN_INTERLEAVE

struct Vec {
  __m512 v;
};

// Tile of the matrix kernels: 8 rows × 3 panels = 24 accumulators, 3 weights and a broadcast in 32 registers.
constexpr int kTileRows = 8;
constexpr int kTilePanels = 3;
constexpr int kTileSteps = 1;
constexpr int kF32TileSteps = 1;

inline Vec vec_zero() {
  return {_mm512_setzero_ps()};
}
inline Vec vec_set(float x) {
  return {_mm512_set1_ps(x)};
}
inline Vec vec_load(const float* p) {
  return {_mm512_loadu_ps(p)};
}
inline void vec_store(float* p, Vec a) {
  _mm512_storeu_ps(p, a.v);
}
inline Vec vec_add(Vec a, Vec b) {
  return {_mm512_add_ps(a.v, b.v)};
}
inline Vec vec_sub(Vec a, Vec b) {
  return {_mm512_sub_ps(a.v, b.v)};
}
inline Vec vec_mul(Vec a, Vec b) {
  return {_mm512_mul_ps(a.v, b.v)};
}
inline Vec vec_div(Vec a, Vec b) {
  return {_mm512_div_ps(a.v, b.v)};
}
inline Vec vec_fma(Vec a, Vec b, Vec c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
// a > b ? a : b, so the result is b when either is NaN.
inline Vec vec_max(Vec a, Vec b) {
  return {_mm512_max_ps(a.v, b.v)};
}

inline Vec vec_load_bf16(const uint16_t* p) {
  const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16))};
}
inline Vec vec_load_f16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
// 16 unsigned or signed bytes, 16 powers of two 2^(byte - 128), and 16 numbers in e4m3 without a sign.
inline Vec vec_load_uint8(const uint8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
inline Vec vec_load_int8(const uint8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
inline Vec vec_load_e8m0(const uint8_t* p) {
  const __m512i bits = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m512 doubled = _mm512_castsi512_ps(_mm512_slli_epi32(bits, 23));  // 0 for the byte 0
  return {_mm512_max_ps(_mm512_mul_ps(doubled, _mm512_set1_ps(0.5f)), _mm512_set1_ps(0x1p-128f))};
}
inline Vec vec_load_e4m3(const uint8_t* p) {
  const __m256i wide = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i halves = _mm256_slli_epi16(wide, 7);  // in f16, divided by 256
  return {_mm512_mul_ps(_mm512_cvtph_ps(halves), _mm512_set1_ps(256.0f))};
}
// 16 pairs of bf16: the first of each pair into `even`, the second into `odd`.
inline void vec_load_bf16_pairs(const uint32_t* p, Vec& even, Vec& odd) {
  const __m512i raw = _mm512_loadu_si512(p);
  even = {_mm512_castsi512_ps(_mm512_slli_epi32(raw, 16))};
  odd = {_mm512_castsi512_ps(_mm512_and_si512(raw, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
}

inline __m256i bf16_bits(Vec a) {
#ifdef __AVX512BF16__
  return (__m256i)_mm512_cvtneps_pbh(a.v);
#else
  const __m512i bits = _mm512_castps_si512(a.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded =
      _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7fff)), 16);
  const __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
  const __mmask16 is_nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_mask_blend_epi32(is_nan, rounded, quiet));
#endif
}
inline void vec_store_bf16(uint16_t* p, Vec a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), bf16_bits(a));
}
inline Vec vec_round_bf16(Vec a) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bf16_bits(a)), 16))};
}
inline void vec_store_f16(uint16_t* p, Vec a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}

// Lanes in [begin, end) of a, `other` elsewhere; 0 <= begin, end <= 16.
inline Vec vec_select_range(Vec a, int begin, int end, Vec other) {
  const uint32_t below_end = (1u << end) - 1, below_begin = (1u << begin) - 1;
  return {_mm512_mask_blend_ps(static_cast<__mmask16>(below_end & ~below_begin), other.v, a.v)};
}
// 2^n for t = n + 1.5 · 2^23, whose low mantissa bits hold n. n is in [-127, 127]; -127 gives 0.
inline Vec vec_pow2_of_magic(Vec t) {
  const __m512i shifted = _mm512_slli_epi32(_mm512_castps_si512(t.v), 23);
  return {_mm512_castsi512_ps(_mm512_add_epi32(shifted, _mm512_set1_epi32(0x3f800000)))};
}

// The low halves of a and b, or the high ones; a first.
inline Vec vec_low_halves(Vec a, Vec b) {
  return {_mm512_shuffle_f32x4(a.v, b.v, 0x44)};
}
inline Vec vec_high_halves(Vec a, Vec b) {
  return {_mm512_shuffle_f32x4(a.v, b.v, 0xee)};
}

// a0 b0 a1 b1 … a7 b7, and the same of the other lanes.
inline void vec_interleave(Vec a, Vec b, Vec& first, Vec& second) {
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  first = {_mm512_permutex2var_ps(a.v, low, b.v)};
  second = {_mm512_permutex2var_ps(a.v, high, b.v)};
}

// a0 a8 a1 a9 … a7 a15.
inline Vec vec_interleave_halves(Vec a) {
  return {_mm512_permutexvar_ps(_mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15), a.v)};
}
// The 8 pairs of bf16 of `a`, then those of `b`.
inline Vec vec_bf16_pairs(Vec a, Vec b) {
  return {_mm512_castsi512_ps(_mm512_inserti64x4(_mm512_castsi256_si512(bf16_bits(a)), bf16_bits(b), 1))};
}

inline float vec_reduce_add(Vec a) {
  const __m256 lo = _mm512_castps512_ps256(a.v);
  const __m256 hi = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.v), 1));
  const __m256 s8 = _mm256_add_ps(lo, hi);
  const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}
inline float vec_reduce_max(Vec a) {
  const __m256 lo = _mm512_castps512_ps256(a.v);
  const __m256 hi = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.v), 1));
  const __m256 s8 = _mm256_max_ps(lo, hi);
  const __m128 s4 = _mm_max_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_max_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_max_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}

// 16 lanes of 32 bits: sums, or four codes in bytes. NOTE: GCC keeps a __m512i that loops over dot products carry in
// two registers, because their type is __v16si.
struct IntVec {
  __v16si v;
};

inline IntVec ivec_of(__m512i a) {
  return {(__v16si)a};
}
inline __m512i ivec_bits(IntVec a) {
  return (__m512i)a.v;
}
inline IntVec ivec_set(int32_t x) {
  return ivec_of(_mm512_set1_epi32(x));
}
inline IntVec ivec_load(const void* p) {
  return ivec_of(_mm512_loadu_si512(p));
}
inline void ivec_store(void* p, IntVec a) {
  _mm512_storeu_si512(p, ivec_bits(a));
}
inline IntVec ivec_add(IntVec a, IntVec b) {
  return {a.v + b.v};
}
inline IntVec ivec_low_nibbles(IntVec a) {
  return ivec_of(_mm512_and_si512(ivec_bits(a), _mm512_set1_epi8(15)));
}
inline IntVec ivec_high_nibbles(IntVec a) {
  return ivec_of(_mm512_and_si512(_mm512_srli_epi16(ivec_bits(a), 4), _mm512_set1_epi8(15)));
}
// Adds bits 4 and 5 (kCount = 2) or bit 4 (1) of the codes of word `index` of a pair, whose high bits are at p.
template <int kCount, int index>
inline IntVec ivec_add_high_bits(IntVec a, const void* p) {
  __m512i bits;
  if constexpr (kCount == 2) {
    bits = _mm512_broadcast_i64x4(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
    bits = index == 0 ? _mm512_sllv_epi64(bits, _mm512_setr_epi64(4, 4, 4, 4, 2, 2, 2, 2))
                      : _mm512_srlv_epi64(bits, _mm512_setr_epi64(0, 0, 0, 0, 2, 2, 2, 2));
  } else {
    bits = _mm512_broadcast_i32x4(_mm_loadu_si128(static_cast<const __m128i*>(p)));
    bits = index == 0 ? _mm512_sllv_epi64(bits, _mm512_setr_epi64(4, 4, 3, 3, 2, 2, 1, 1))
                      : _mm512_srlv_epi64(bits, _mm512_setr_epi64(0, 0, 1, 1, 2, 2, 3, 3));
  }
  const __m512i mask = _mm512_set1_epi8(kCount == 2 ? 0x30 : 0x10);
  return ivec_of(_mm512_ternarylogic_epi64(ivec_bits(a), bits, mask, 0xf8));  // a | (bits & mask)
}
// Replaces each byte, 0 to 15, by the entry of the table.
inline IntVec ivec_look_up(IntVec a, const uint8_t* table) {
  const __m128i entries = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return ivec_of(_mm512_shuffle_epi8(_mm512_broadcast_i32x4(entries), ivec_bits(a)));
}
// Byte `index` of each lane, as a float.
inline Vec ivec_byte(IntVec a, int index) {
  const __m512i shifted = _mm512_srl_epi32(ivec_bits(a), _mm_cvtsi32_si128(8 * index));
  return {_mm512_cvtepi32_ps(_mm512_and_si512(shifted, _mm512_set1_epi32(255)))};
}
inline Vec ivec_float(IntVec a) {
  return {_mm512_cvtepi32_ps(ivec_bits(a))};
}
#ifdef __AVX512VNNI__
// What ivec_dot subtracts from the codes.
template <bool kIsWide>
constexpr int kDotShift = 0;
// acc + the products of four unsigned codes in each lane with the four signed codes of `word`. Exact.
template <bool kIsWide>
inline IntVec ivec_dot(IntVec acc, IntVec codes, uint32_t word) {
  const __m512i x = _mm512_set1_epi32(static_cast<int>(word));
  return ivec_of(_mm512_dpbusd_epi32(ivec_bits(acc), ivec_bits(codes), x));
}
#else
#define CAPSTAN_DOT_TWO_WORDS 1
// What ivec_dot_two_words subtracts from the codes: wide ones become signed.
template <bool kIsWide>
constexpr int kDotShift = kIsWide ? 128 : 0;
// Without VNNI, products of bytes are added in pairs, in 16 bits. Two products of signed codes fit (2 * 128 * 127),
// once the sign of the weight has moved to the activation. Four products of codes below 64 fit (4 * 63 * 127).
inline __m512i add_int16_pairs(__m512i acc, __m512i sums) {
  return _mm512_add_epi32(acc, _mm512_madd_epi16(sums, _mm512_set1_epi16(1)));
}
inline __m512i dot_signed(__m512i acc, __m512i codes, __m512i x) {
  const __m512i with_sign = _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(codes), _mm512_setzero_si512(), x);
  return add_int16_pairs(acc, _mm512_maddubs_epi16(_mm512_abs_epi8(codes), with_sign));
}
// acc + the products of the eight codes in each lane, shifted, with those of two words, from -127 to 127. Exact.
template <bool kIsWide>
inline IntVec ivec_dot_two_words(IntVec acc, IntVec first, IntVec second, uint32_t word, uint32_t next_word) {
  const __m512i x = _mm512_set1_epi32(static_cast<int>(word)), y = _mm512_set1_epi32(static_cast<int>(next_word));
  const __m512i v = ivec_bits(first), w = ivec_bits(second), sum = ivec_bits(acc);
  if constexpr (kIsWide) {
    const __m512i high_bits = _mm512_set1_epi8(-128);
    return ivec_of(dot_signed(dot_signed(sum, _mm512_xor_si512(v, high_bits), x), _mm512_xor_si512(w, high_bits), y));
  }
  return ivec_of(add_int16_pairs(sum, _mm512_add_epi16(_mm512_maddubs_epi16(v, x), _mm512_maddubs_epi16(w, y))));
}
#endif
// Stores whole numbers from -128 to 127 as bytes.
inline void vec_store_int8(int8_t* p, Vec a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a.v)));
}

// Bytes 0 and 2 of each lane, or 1 and 3, as signed words in 16 bits.
inline IntVec ivec_even_words(IntVec a) {
  return ivec_of(_mm512_srai_epi16(_mm512_slli_epi16(ivec_bits(a), 8), 8));
}
inline IntVec ivec_odd_words(IntVec a) {
  return ivec_of(_mm512_srai_epi16(ivec_bits(a), 8));
}
// acc + the products of the two words in each lane with the two of `pair`. Exact.
inline IntVec ivec_dot_words(IntVec acc, IntVec words, uint32_t pair) {
  const __m512i x = _mm512_set1_epi32(static_cast<int>(pair));
#ifdef __AVX512VNNI__
  return ivec_of(_mm512_dpwssd_epi32(ivec_bits(acc), ivec_bits(words), x));
#else
  return ivec_of(_mm512_add_epi32(ivec_bits(acc), _mm512_madd_epi16(ivec_bits(words), x)));
#endif
}
// Stores values from -32767 to 32767, rounded to whole numbers, ties to even. NaN gives any number.
inline void vec_round_int16(int16_t* p, Vec a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(a.v)));
}

// NOTE: always_inline, because GCC removes calls of it that it does not inline early.
[[gnu::always_inline]] inline void prefetch(const void* p) {
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
}

// For panels that several rows multiply.
[[gnu::always_inline]] inline void prefetch_panel(const void* p) {
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
}

#ifdef __AVX512BF16__
// acc + the products of the pairs of bf16 in each lane with one pair. `vdpbf16ps` does an FMA with the second element
// of each pair, then one with the first, and flushes denormals.
#define CAPSTAN_BF16_DOT 1
inline Vec vec_dot_bf16(Vec acc, uint32_t pair, IntVec pairs) {
  return {_mm512_dpbf16_ps(acc.v, (__m512bh)_mm512_set1_epi32(static_cast<int>(pair)), (__m512bh)ivec_bits(pairs))};
}
#endif

// ---- lane masks (bit i is lane i) and 32-bit integers ----

// a < b ? a : b, so the result is b when either is NaN.
inline Vec vec_min(Vec a, Vec b) {
  return {_mm512_min_ps(a.v, b.v)};
}
inline uint32_t vec_gt(Vec a, Vec b) {
  return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ);
}
inline uint32_t vec_ge(Vec a, Vec b) {
  return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ);
}
inline uint32_t vec_eq(Vec a, Vec b) {
  return _mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ);
}
// a where the mask has a 1, b elsewhere.
inline Vec vec_select(uint32_t mask, Vec a, Vec b) {
  return {_mm512_mask_blend_ps(static_cast<__mmask16>(mask), b.v, a.v)};
}

struct VecI {
  __m512i v;
};

inline VecI int_set(uint32_t x) {
  return {_mm512_set1_epi32(static_cast<int>(x))};
}
inline VecI int_load(const uint32_t* p) {
  return {_mm512_loadu_si512(p)};
}
inline void int_store(uint32_t* p, VecI a) {
  _mm512_storeu_si512(p, a.v);
}
inline VecI int_sub(VecI a, VecI b) {
  return {_mm512_sub_epi32(a.v, b.v)};
}
// The smaller one as unsigned integers.
inline VecI int_min(VecI a, VecI b) {
  return {_mm512_min_epu32(a.v, b.v)};
}
inline VecI int_shift_right(VecI a, int count) {
  return {_mm512_srl_epi32(a.v, _mm_cvtsi32_si128(count))};
}
// Lanes must be below 2^31.
inline Vec int_to_float(VecI a) {
  return {_mm512_cvtepi32_ps(a.v)};
}
// Unsigned integers in the order of the floats. -0 and +0 give the same one.
inline VecI int_order(Vec a) {
  const __m512i bits = _mm512_castps_si512(_mm512_add_ps(a.v, _mm512_setzero_ps()));
  const __m512i sign = _mm512_set1_epi32(static_cast<int>(0x80000000u));
  return {_mm512_xor_si512(bits, _mm512_or_si512(_mm512_srai_epi32(bits, 31), sign))};
}
// Lanes of a that are at least b, as unsigned integers.
inline uint32_t int_ge(VecI a, VecI b) {
  return _mm512_cmpge_epu32_mask(a.v, b.v);
}

// 8 unsigned 64-bit integers.
struct VecL {
  __m512i v;
};

inline VecL long_set(uint64_t x) {
  return {_mm512_set1_epi64(static_cast<long long>(x))};
}
inline VecL long_load(const uint64_t* p) {
  return {_mm512_loadu_si512(p)};
}
inline VecL long_add(VecL a, VecL b) {
  return {_mm512_add_epi64(a.v, b.v)};
}
inline VecL long_xor(VecL a, VecL b) {
  return {_mm512_xor_si512(a.v, b.v)};
}
inline VecL long_high_half(VecL a) {
  return {_mm512_srli_epi64(a.v, 32)};
}
// The products of the low halves.
inline VecL long_mul_low(VecL a, VecL b) {
  return {_mm512_mul_epu32(a.v, b.v)};
}
// The low halves of lanes 0, 2, 4 and 6 of a, b, c and d, lane by lane: a0 b0 c0 d0 a2 … d6. Then those of the odd
// lanes.
inline void long_join(VecL a, VecL b, VecL c, VecL d, VecI& even, VecI& odd) {
  const __m512i ab = _mm512_mask_shuffle_epi32(a.v, 0xaaaa, b.v, _MM_PERM_CCAA);
  const __m512i cd = _mm512_mask_shuffle_epi32(c.v, 0xaaaa, d.v, _MM_PERM_CCAA);
  even = {_mm512_unpacklo_epi64(ab, cd)};
  odd = {_mm512_unpackhi_epi64(ab, cd)};
}
// Truncates 16 lanes from 0 to 2^51.
inline void vec_store_int64(int64_t* p, Vec a) {
  _mm512_storeu_si512(p, _mm512_cvttps_epi64(_mm512_castps512_ps256(a.v)));
  _mm512_storeu_si512(p + 8, _mm512_cvttps_epi64(_mm512_extractf32x8_ps(a.v, 1)));
}

}  // namespace
