// 16 lanes in two AVX2 registers. Every Vec has the same interface and gives the same bits.
#include <immintrin.h>

#include <cstdint>

namespace {

struct Vec {
  __m256 lo, hi;
};

// Tile of the matrix kernels: 6 rows × 1 panel = 12 accumulators, 2 weights and a broadcast in 16 registers.
constexpr int kTileRows = 6;
constexpr int kTilePanels = 1;
// Steps of a tile in one iteration, when there are many rows. With more, the compilers reorder them and store sums.
#ifdef __clang__
constexpr int kTileSteps = 1;
constexpr int kF32TileSteps = 4;
#else
constexpr int kTileSteps = 2;
constexpr int kF32TileSteps = 2;
#endif

inline Vec vec_zero() {
  return {_mm256_setzero_ps(), _mm256_setzero_ps()};
}
inline Vec vec_set(float x) {
  return {_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
inline Vec vec_load(const float* p) {
  return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
inline void vec_store(float* p, Vec a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
inline Vec vec_add(Vec a, Vec b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
inline Vec vec_sub(Vec a, Vec b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
inline Vec vec_mul(Vec a, Vec b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
inline Vec vec_div(Vec a, Vec b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
inline Vec vec_fma(Vec a, Vec b, Vec c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
// a > b ? a : b, so the result is b when either is NaN.
inline Vec vec_max(Vec a, Vec b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}

inline __m256 bf16_half(__m128i h) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
inline Vec vec_load_bf16(const uint16_t* p) {
  return {bf16_half(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          bf16_half(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
inline Vec vec_load_f16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
// 16 unsigned or signed bytes, 16 powers of two 2^(byte - 128), and 16 numbers in e4m3 without a sign.
inline __m128i load_8_bytes(const uint8_t* p) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
}
inline Vec vec_load_uint8(const uint8_t* p) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(load_8_bytes(p))),
          _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(load_8_bytes(p + 8)))};
}
inline Vec vec_load_int8(const uint8_t* p) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load_8_bytes(p))),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load_8_bytes(p + 8)))};
}
inline __m256 load_e8m0_half(const uint8_t* p) {
  const __m256i bits = _mm256_slli_epi32(_mm256_cvtepu8_epi32(load_8_bytes(p)), 23);  // 0 for the byte 0
  return _mm256_max_ps(_mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(0.5f)), _mm256_set1_ps(0x1p-128f));
}
inline Vec vec_load_e8m0(const uint8_t* p) {
  return {load_e8m0_half(p), load_e8m0_half(p + 8)};
}
inline Vec vec_load_e4m3(const uint8_t* p) {
  const __m256i wide = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i halves = _mm256_slli_epi16(wide, 7);  // in f16, divided by 256
  const __m256 factor = _mm256_set1_ps(256.0f);
  return {_mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), factor),
          _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1)), factor)};
}
// 16 pairs of bf16: the first of each pair into `even`, the second into `odd`.
inline void vec_load_bf16_pairs(const uint32_t* p, Vec& even, Vec& odd) {
  const __m256i lo = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i hi = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8));
  const __m256i mask = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  even = {_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16))};
  odd = {_mm256_castsi256_ps(_mm256_and_si256(lo, mask)), _mm256_castsi256_ps(_mm256_and_si256(hi, mask))};
}

// bf16 bits in the low half of each 32-bit lane.
inline __m256i bf16_bits(__m256 a) {
  const __m256i bits = _mm256_castps_si256(a);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded =
      _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, odd), _mm256_set1_epi32(0x7fff)), 16);
  const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
  return _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)));
}
inline void vec_store_bf16(uint16_t* p, Vec a) {
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(bf16_bits(a.lo), bf16_bits(a.hi)), 0xd8);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), packed);
}
inline Vec vec_round_bf16(Vec a) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(bf16_bits(a.lo), 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(bf16_bits(a.hi), 16))};
}
inline void vec_store_f16(uint16_t* p, Vec a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT));
}

// Lanes in [begin, end) of a, `other` elsewhere; 0 <= begin, end <= 16.
inline __m256 select_half(__m256 a, int begin, int end, __m256 other, __m256i lane) {
  const __m256i below_end = _mm256_cmpgt_epi32(_mm256_set1_epi32(end), lane);
  const __m256i below_begin = _mm256_cmpgt_epi32(_mm256_set1_epi32(begin), lane);
  return _mm256_blendv_ps(other, a, _mm256_castsi256_ps(_mm256_andnot_si256(below_begin, below_end)));
}
inline Vec vec_select_range(Vec a, int begin, int end, Vec other) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return {select_half(a.lo, begin, end, other.lo, lane), select_half(a.hi, begin - 8, end - 8, other.hi, lane)};
}
// 2^n for t = n + 1.5 · 2^23, whose low mantissa bits hold n. n is in [-127, 127]; -127 gives 0.
inline __m256 pow2_half(__m256 t) {
  return _mm256_castsi256_ps(
      _mm256_add_epi32(_mm256_slli_epi32(_mm256_castps_si256(t), 23), _mm256_set1_epi32(0x3f800000)));
}
inline Vec vec_pow2_of_magic(Vec t) {
  return {pow2_half(t.lo), pow2_half(t.hi)};
}

// The low halves of a and b, or the high ones; a first.
inline Vec vec_low_halves(Vec a, Vec b) {
  return {a.lo, b.lo};
}
inline Vec vec_high_halves(Vec a, Vec b) {
  return {a.hi, b.hi};
}

#define CAPSTAN_STORE_COLUMNS 1
// Stores (8, 6): lane 0 of all rows, then lane 1 of all rows, and so on.
inline void store_columns_half(float* p, __m256 a, __m256 b, __m256 c, __m256 d, __m256 e, __m256 f) {
  // Lanes 0, 1, 4 and 5, then lanes 2, 3, 6 and 7, in pairs of rows.
  const __m256d low[3] = {_mm256_castps_pd(_mm256_unpacklo_ps(a, b)), _mm256_castps_pd(_mm256_unpacklo_ps(c, d)),
                          _mm256_castps_pd(_mm256_unpacklo_ps(e, f))};
  const __m256d high[3] = {_mm256_castps_pd(_mm256_unpackhi_ps(a, b)), _mm256_castps_pd(_mm256_unpackhi_ps(c, d)),
                           _mm256_castps_pd(_mm256_unpackhi_ps(e, f))};
  const auto store = [](float* to, const __m256d(&pairs)[3]) {
    const __m256 parts[3] = {_mm256_castpd_ps(_mm256_unpacklo_pd(pairs[0], pairs[1])),
                             _mm256_castpd_ps(_mm256_shuffle_pd(pairs[2], pairs[0], 0b1010)),
                             _mm256_castpd_ps(_mm256_unpackhi_pd(pairs[1], pairs[2]))};
    for (int i = 0; i < 3; ++i) {
      _mm_storeu_ps(to + i * 4, _mm256_castps256_ps128(parts[i]));
      _mm_storeu_ps(to + 24 + i * 4, _mm256_extractf128_ps(parts[i], 1));
    }
  };
  store(p, low);
  store(p + 12, high);
}
// Stores (16, 6).
inline void vec_store_columns(float* p, const Vec (&rows)[6]) {
  store_columns_half(p, rows[0].lo, rows[1].lo, rows[2].lo, rows[3].lo, rows[4].lo, rows[5].lo);
  store_columns_half(p + 48, rows[0].hi, rows[1].hi, rows[2].hi, rows[3].hi, rows[4].hi, rows[5].hi);
}

inline float vec_reduce_add(Vec a) {
  const __m256 s8 = _mm256_add_ps(a.lo, a.hi);
  const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}
inline float vec_reduce_max(Vec a) {
  const __m256 s8 = _mm256_max_ps(a.lo, a.hi);
  const __m128 s4 = _mm_max_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_max_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_max_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}

// 16 lanes of 32 bits: sums, or four codes in bytes.
struct IntVec {
  __m256i lo, hi;
};

inline IntVec ivec_set(int32_t x) {
  return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
}
inline IntVec ivec_load(const void* p) {
  const __m256i* at = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(at), _mm256_loadu_si256(at + 1)};
}
inline IntVec ivec_add(IntVec a, IntVec b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
inline IntVec ivec_low_nibbles(IntVec a) {
  const __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(a.lo, mask), _mm256_and_si256(a.hi, mask)};
}
inline IntVec ivec_high_nibbles(IntVec a) {
  return ivec_low_nibbles({_mm256_srli_epi16(a.lo, 4), _mm256_srli_epi16(a.hi, 4)});
}
// Adds bits 4 and 5 (kCount = 2) or bit 4 (1) of the codes of word `index` of a pair, whose high bits are at p.
template <int kCount, int index>
inline IntVec ivec_add_high_bits(IntVec a, const void* p) {
  __m256i lo, hi;
  if constexpr (kCount == 2) {
    const __m256i bits = _mm256_loadu_si256(static_cast<const __m256i*>(p));
    lo = index == 0 ? _mm256_slli_epi16(bits, 4) : bits;
    hi = index == 0 ? _mm256_slli_epi16(bits, 2) : _mm256_srli_epi16(bits, 2);
  } else {
    const __m256i bits = _mm256_broadcastsi128_si256(_mm_loadu_si128(static_cast<const __m128i*>(p)));
    const __m256i for_lo = index == 0 ? _mm256_setr_epi64x(4, 4, 3, 3) : _mm256_setr_epi64x(0, 0, 1, 1);
    const __m256i for_hi = index == 0 ? _mm256_setr_epi64x(2, 2, 1, 1) : _mm256_setr_epi64x(2, 2, 3, 3);
    lo = index == 0 ? _mm256_sllv_epi64(bits, for_lo) : _mm256_srlv_epi64(bits, for_lo);
    hi = index == 0 ? _mm256_sllv_epi64(bits, for_hi) : _mm256_srlv_epi64(bits, for_hi);
  }
  const __m256i mask = _mm256_set1_epi8(kCount == 2 ? 0x30 : 0x10);
  return {_mm256_or_si256(a.lo, _mm256_and_si256(lo, mask)), _mm256_or_si256(a.hi, _mm256_and_si256(hi, mask))};
}
// Replaces each byte, 0 to 15, by the entry of the table.
inline IntVec ivec_look_up(IntVec a, const uint8_t* table) {
  const __m256i entries = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  return {_mm256_shuffle_epi8(entries, a.lo), _mm256_shuffle_epi8(entries, a.hi)};
}
// Byte `index` of each lane, as a float.
inline Vec ivec_byte(IntVec a, int index) {
  const __m128i shift = _mm_cvtsi32_si128(8 * index);
  const __m256i mask = _mm256_set1_epi32(255);
  return {_mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srl_epi32(a.lo, shift), mask)),
          _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srl_epi32(a.hi, shift), mask))};
}
inline Vec ivec_float(IntVec a) {
  return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)};
}
#ifdef __AVXVNNI__
// What ivec_dot subtracts from the codes.
template <bool kIsWide>
constexpr int kDotShift = 0;
// acc + the products of four unsigned codes in each lane with the four signed codes of `word`. Exact.
template <bool kIsWide>
inline IntVec ivec_dot(IntVec acc, IntVec codes, uint32_t word) {
  const __m256i x = _mm256_set1_epi32(static_cast<int>(word));
  return {_mm256_dpbusd_avx_epi32(acc.lo, codes.lo, x), _mm256_dpbusd_avx_epi32(acc.hi, codes.hi, x)};
}
#else
#define CAPSTAN_DOT_TWO_WORDS 1
// What ivec_dot_two_words subtracts from the codes: wide ones become signed.
template <bool kIsWide>
constexpr int kDotShift = kIsWide ? 128 : 0;
// Without VNNI, products of bytes are added in pairs, in 16 bits. Two products of signed codes fit (2 * 128 * 127),
// once the sign of the weight has moved to the activation. Four products of codes below 64 fit (4 * 63 * 127).
inline __m256i add_int16_pairs(__m256i acc, __m256i sums) {
  return _mm256_add_epi32(acc, _mm256_madd_epi16(sums, _mm256_set1_epi16(1)));
}
inline __m256i dot_signed(__m256i acc, __m256i codes, __m256i x) {
  return add_int16_pairs(acc, _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes)));
}
template <bool kIsWide>
inline __m256i dot_two_words_half(__m256i acc, __m256i first, __m256i second, __m256i x, __m256i y) {
  if constexpr (kIsWide) {
    const __m256i high_bits = _mm256_set1_epi8(-128);
    return dot_signed(dot_signed(acc, _mm256_xor_si256(first, high_bits), x), _mm256_xor_si256(second, high_bits), y);
  }
  return add_int16_pairs(acc, _mm256_add_epi16(_mm256_maddubs_epi16(first, x), _mm256_maddubs_epi16(second, y)));
}
// acc + the products of the eight codes in each lane, shifted, with those of two words, from -127 to 127. Exact.
template <bool kIsWide>
inline IntVec ivec_dot_two_words(IntVec acc, IntVec first, IntVec second, uint32_t word, uint32_t next_word) {
  const __m256i x = _mm256_set1_epi32(static_cast<int>(word)), y = _mm256_set1_epi32(static_cast<int>(next_word));
  return {dot_two_words_half<kIsWide>(acc.lo, first.lo, second.lo, x, y),
          dot_two_words_half<kIsWide>(acc.hi, first.hi, second.hi, x, y)};
}

#define CAPSTAN_DOT_HALVES 1
// Pairs of words with codes of 4 or 5 bits whose products are added in 16 bits: 4 * 2 * 2 * 15 * 127 and
// 2 * 2 * 2 * 31 * 127 are below 2^15.
template <int kBits>
constexpr int kPairsIn16Bits = kBits == 4 ? 4 : 2;
// totals (R) += the products of `kPairs` pairs of words with the rows at `a`, (2 * kPairs, R), in 16 bits first.
// load_words(pair, first, second) gives the codes of one half of the lanes.
// NOTE: without the barrier GCC adds in an order that needs more registers than there are.
template <int kPairs, int R, class LoadWords>
[[gnu::always_inline]] inline void dot_half(__m256i (&totals)[R], const uint32_t* a, const LoadWords& load_words) {
  __m256i sums[R];
#pragma GCC unroll 4
  for (int pair = 0; pair < kPairs; ++pair) {
    __m256i first, second;
    load_words(pair, first, second);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const __m256i x = _mm256_set1_epi32(static_cast<int>(a[2 * pair * R + r]));
      const __m256i y = _mm256_set1_epi32(static_cast<int>(a[(2 * pair + 1) * R + r]));
      const __m256i product = _mm256_maddubs_epi16(first, x);
      sums[r] = pair == 0 ? product : _mm256_add_epi16(sums[r], product);
      asm("" : "+x"(sums[r]));
      sums[r] = _mm256_add_epi16(sums[r], _mm256_maddubs_epi16(second, y));
      asm("" : "+x"(sums[r]));
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
    totals[r] = add_int16_pairs(totals[r], sums[r]);
}
#endif
// Stores whole numbers from -128 to 127 as bytes.
inline void vec_store_int8(int8_t* p, Vec a) {
  const __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi));
  const __m256i ordered = _mm256_permute4x64_epi64(words, 0xd8);
  const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}

// Bytes 0 and 2 of each lane, or 1 and 3, as signed words in 16 bits.
inline IntVec ivec_even_words(IntVec a) {
  return {_mm256_srai_epi16(_mm256_slli_epi16(a.lo, 8), 8), _mm256_srai_epi16(_mm256_slli_epi16(a.hi, 8), 8)};
}
inline IntVec ivec_odd_words(IntVec a) {
  return {_mm256_srai_epi16(a.lo, 8), _mm256_srai_epi16(a.hi, 8)};
}
// acc + the products of the two words in each lane with the two of `pair`. Exact.
inline __m256i dot_words_half(__m256i acc, __m256i words, __m256i x) {
#ifdef __AVXVNNI__
  return _mm256_dpwssd_avx_epi32(acc, words, x);
#else
  return _mm256_add_epi32(acc, _mm256_madd_epi16(words, x));
#endif
}
inline IntVec ivec_dot_words(IntVec acc, IntVec words, uint32_t pair) {
  const __m256i x = _mm256_set1_epi32(static_cast<int>(pair));
  return {dot_words_half(acc.lo, words.lo, x), dot_words_half(acc.hi, words.hi, x)};
}
// Stores values from -32767 to 32767, rounded to whole numbers, ties to even. NaN gives any number.
inline void vec_round_int16(int16_t* p, Vec a) {
  const __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(words, 0xd8));
}

// NOTE: always_inline, because GCC removes calls of it that it does not inline early.
[[gnu::always_inline]] inline void prefetch(const void* p) {
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
}

// For panels that several rows multiply. Into the L2 cache: a panel and its rows fill the L1 cache of 32 KB.
[[gnu::always_inline]] inline void prefetch_panel(const void* p) {
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1);
}

// ---- lane masks (bit i is lane i) and 32-bit integers ----

// a < b ? a : b, so the result is b when either is NaN.
inline Vec vec_min(Vec a, Vec b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
inline uint32_t mask_of(__m256 lo, __m256 hi) {
  return static_cast<uint32_t>(_mm256_movemask_ps(lo)) | static_cast<uint32_t>(_mm256_movemask_ps(hi)) << 8;
}
inline uint32_t vec_gt(Vec a, Vec b) {
  return mask_of(_mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ));
}
inline uint32_t vec_ge(Vec a, Vec b) {
  return mask_of(_mm256_cmp_ps(a.lo, b.lo, _CMP_GE_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_GE_OQ));
}
inline uint32_t vec_eq(Vec a, Vec b) {
  return mask_of(_mm256_cmp_ps(a.lo, b.lo, _CMP_EQ_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_EQ_OQ));
}
// a where the mask has a 1, b elsewhere.
inline __m256 select_half(uint32_t mask, __m256 a, __m256 b) {
  const __m256i lane_bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i bits = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(mask)), lane_bit);
  return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(_mm256_cmpeq_epi32(bits, lane_bit)));
}
inline Vec vec_select(uint32_t mask, Vec a, Vec b) {
  return {select_half(mask, a.lo, b.lo), select_half(mask >> 8, a.hi, b.hi)};
}

struct VecI {
  __m256i lo, hi;
};

inline VecI int_set(uint32_t x) {
  return {_mm256_set1_epi32(static_cast<int>(x)), _mm256_set1_epi32(static_cast<int>(x))};
}
inline VecI int_load(const uint32_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
}
inline void int_store(uint32_t* p, VecI a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), a.hi);
}
inline VecI int_sub(VecI a, VecI b) {
  return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}
// The smaller one as unsigned integers.
inline VecI int_min(VecI a, VecI b) {
  return {_mm256_min_epu32(a.lo, b.lo), _mm256_min_epu32(a.hi, b.hi)};
}
inline VecI int_shift_right(VecI a, int count) {
  const __m128i n = _mm_cvtsi32_si128(count);
  return {_mm256_srl_epi32(a.lo, n), _mm256_srl_epi32(a.hi, n)};
}
// Lanes must be below 2^31.
inline Vec int_to_float(VecI a) {
  return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)};
}
// Unsigned integers in the order of the floats. -0 and +0 give the same one.
inline __m256i order_half(__m256 a) {
  const __m256i bits = _mm256_castps_si256(_mm256_add_ps(a, _mm256_setzero_ps()));
  const __m256i sign = _mm256_set1_epi32(static_cast<int>(0x80000000u));
  return _mm256_xor_si256(bits, _mm256_or_si256(_mm256_srai_epi32(bits, 31), sign));
}
inline VecI int_order(Vec a) {
  return {order_half(a.lo), order_half(a.hi)};
}
// Lanes of a that are at least b, as unsigned integers.
inline __m256 ge_half(__m256i a, __m256i b) {
  return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_max_epu32(a, b), a));
}
inline uint32_t int_ge(VecI a, VecI b) {
  return mask_of(ge_half(a.lo, b.lo), ge_half(a.hi, b.hi));
}

// 8 unsigned 64-bit integers.
struct VecL {
  __m256i lo, hi;
};

inline VecL long_set(uint64_t x) {
  const __m256i all = _mm256_set1_epi64x(static_cast<long long>(x));
  return {all, all};
}
inline VecL long_load(const uint64_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 4))};
}
inline VecL long_add(VecL a, VecL b) {
  return {_mm256_add_epi64(a.lo, b.lo), _mm256_add_epi64(a.hi, b.hi)};
}
inline VecL long_xor(VecL a, VecL b) {
  return {_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi)};
}
inline VecL long_high_half(VecL a) {
  return {_mm256_srli_epi64(a.lo, 32), _mm256_srli_epi64(a.hi, 32)};
}
// The products of the low halves.
inline VecL long_mul_low(VecL a, VecL b) {
  return {_mm256_mul_epu32(a.lo, b.lo), _mm256_mul_epu32(a.hi, b.hi)};
}
// The low halves of lanes 0, 2, 4 and 6 of a, b, c and d, lane by lane: a0 b0 c0 d0 a2 … d6. Then those of the odd
// lanes.
inline __m256i join_low(__m256i a, __m256i b) {
  return _mm256_blend_epi32(a, _mm256_slli_epi64(b, 32), 0xaa);
}
inline void long_join(VecL a, VecL b, VecL c, VecL d, VecI& even, VecI& odd) {
  const __m256i ab_lo = join_low(a.lo, b.lo), ab_hi = join_low(a.hi, b.hi);
  const __m256i cd_lo = join_low(c.lo, d.lo), cd_hi = join_low(c.hi, d.hi);
  even = {_mm256_unpacklo_epi64(ab_lo, cd_lo), _mm256_unpacklo_epi64(ab_hi, cd_hi)};
  odd = {_mm256_unpackhi_epi64(ab_lo, cd_lo), _mm256_unpackhi_epi64(ab_hi, cd_hi)};
}
// Truncates 16 lanes from 0 to 2^51. Adding 2^52 leaves an integer in the low mantissa bits of a double.
inline void store_int64_quarter(int64_t* p, __m128 a) {
  const __m256d magic = _mm256_set1_pd(0x1p52);
  const __m256d sum = _mm256_add_pd(_mm256_floor_pd(_mm256_cvtps_pd(a)), magic);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm256_xor_si256(_mm256_castpd_si256(sum), _mm256_castpd_si256(magic)));
}
inline void vec_store_int64(int64_t* p, Vec a) {
  store_int64_quarter(p, _mm256_castps256_ps128(a.lo));
  store_int64_quarter(p + 4, _mm256_extractf128_ps(a.lo, 1));
  store_int64_quarter(p + 8, _mm256_castps256_ps128(a.hi));
  store_int64_quarter(p + 12, _mm256_extractf128_ps(a.hi, 1));
}

}  // namespace
