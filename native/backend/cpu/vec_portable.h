// 16 lanes in an array, for every processor. Gives the same bits as the other Vecs. Slow on processors without an FMA
// instruction, where it is a library call.
#include <cmath>
#include <cstdint>

#include "native/base/number.h"

namespace {

struct Vec {
  float lane[16];
};

constexpr int kTileRows = 4;
constexpr int kTilePanels = 1;
constexpr int kTileSteps = 1;
constexpr int kF32TileSteps = 1;

#define CAPSTAN_LANES for (int i = 0; i < 16; ++i)

inline Vec vec_set(float x) {
  Vec r;
  CAPSTAN_LANES r.lane[i] = x;
  return r;
}
inline Vec vec_zero() {
  return vec_set(0);
}
// Loads and stores use memcpy, because the same bytes are also accessed as integers.
inline Vec vec_load(const float* p) {
  Vec r;
  __builtin_memcpy(r.lane, p, sizeof r.lane);
  return r;
}
inline void vec_store(float* p, Vec a) {
  __builtin_memcpy(p, a.lane, sizeof a.lane);
}
inline Vec vec_add(Vec a, Vec b) {
  CAPSTAN_LANES a.lane[i] += b.lane[i];
  return a;
}
inline Vec vec_sub(Vec a, Vec b) {
  CAPSTAN_LANES a.lane[i] -= b.lane[i];
  return a;
}
inline Vec vec_mul(Vec a, Vec b) {
  CAPSTAN_LANES a.lane[i] *= b.lane[i];
  return a;
}
inline Vec vec_div(Vec a, Vec b) {
  CAPSTAN_LANES a.lane[i] /= b.lane[i];
  return a;
}
inline Vec vec_fma(Vec a, Vec b, Vec c) {
  CAPSTAN_LANES c.lane[i] = __builtin_fmaf(a.lane[i], b.lane[i], c.lane[i]);
  return c;
}
// a > b ? a : b, so the result is b when either is NaN.
inline Vec vec_max(Vec a, Vec b) {
  CAPSTAN_LANES b.lane[i] = a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i];
  return b;
}

inline Vec vec_load_bf16(const uint16_t* p) {
  uint16_t h[16];
  __builtin_memcpy(h, p, sizeof h);
  Vec r;
  CAPSTAN_LANES r.lane[i] = capstan::bf16_to_float(h[i]);
  return r;
}
inline Vec vec_load_f16(const uint16_t* p) {
  uint16_t h[16];
  __builtin_memcpy(h, p, sizeof h);
  Vec r;
  CAPSTAN_LANES r.lane[i] = capstan::f16_to_float(h[i]);
  return r;
}
// 16 unsigned or signed bytes, 16 powers of two 2^(byte - 128), and 16 numbers in e4m3 without a sign.
inline Vec vec_load_uint8(const uint8_t* p) {
  Vec r;
  CAPSTAN_LANES r.lane[i] = static_cast<float>(p[i]);
  return r;
}
inline Vec vec_load_int8(const uint8_t* p) {
  Vec r;
  CAPSTAN_LANES r.lane[i] = static_cast<float>(static_cast<int8_t>(p[i]));
  return r;
}
inline Vec vec_load_e8m0(const uint8_t* p) {
  Vec r;
  CAPSTAN_LANES r.lane[i] = p[i] == 0 ? 0x1p-128f : capstan::bits_float(uint32_t{p[i]} << 23) * 0.5f;
  return r;
}
inline Vec vec_load_e4m3(const uint8_t* p) {
  Vec r;
  CAPSTAN_LANES r.lane[i] = capstan::f16_to_float(static_cast<uint16_t>(p[i] << 7)) * 256.0f;
  return r;
}
// 16 pairs of bf16: the first of each pair (the low half) into `even`, the second into `odd`.
inline void vec_load_bf16_pairs(const uint32_t* p, Vec& even, Vec& odd) {
  CAPSTAN_LANES {
    even.lane[i] = capstan::bits_float(p[i] << 16);
    odd.lane[i] = capstan::bits_float(p[i] & 0xffff0000u);
  }
}
inline void vec_store_bf16(uint16_t* p, Vec a) {
  uint16_t h[16];
  CAPSTAN_LANES h[i] = capstan::float_to_bf16(a.lane[i]);
  __builtin_memcpy(p, h, sizeof h);
}
inline Vec vec_round_bf16(Vec a) {
  CAPSTAN_LANES a.lane[i] = capstan::bf16_to_float(capstan::float_to_bf16(a.lane[i]));
  return a;
}
inline void vec_store_f16(uint16_t* p, Vec a) {
  uint16_t h[16];
  CAPSTAN_LANES h[i] = capstan::float_to_f16(a.lane[i]);
  __builtin_memcpy(p, h, sizeof h);
}

// Lanes in [begin, end) of a, `other` elsewhere; 0 <= begin, end <= 16.
inline Vec vec_select_range(Vec a, int begin, int end, Vec other) {
  CAPSTAN_LANES a.lane[i] = i >= begin && i < end ? a.lane[i] : other.lane[i];
  return a;
}
// 2^n for t = n + 1.5 · 2^23, whose low mantissa bits hold n. n is in [-127, 127]; -127 gives 0.
inline Vec vec_pow2_of_magic(Vec t) {
  CAPSTAN_LANES t.lane[i] = capstan::bits_float((capstan::float_bits(t.lane[i]) << 23) + 0x3f800000u);
  return t;
}

// The low halves of a and b, or the high ones; a first.
inline Vec vec_low_halves(Vec a, Vec b) {
  for (int i = 0; i < 8; ++i)
    a.lane[8 + i] = b.lane[i];
  return a;
}
inline Vec vec_high_halves(Vec a, Vec b) {
  for (int i = 0; i < 8; ++i)
    b.lane[i] = a.lane[8 + i];
  return b;
}

// Adds the upper half to the lower half until one lane is left, as the SIMD versions do.
inline float vec_reduce_add(Vec a) {
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; ++i)
      a.lane[i] += a.lane[i + half];
  return a.lane[0];
}
inline float vec_reduce_max(Vec a) {
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; ++i)
      a.lane[i] = a.lane[i] > a.lane[i + half] ? a.lane[i] : a.lane[i + half];
  return a.lane[0];
}

// 16 lanes of 32 bits: sums, or four codes in bytes.
struct IntVec {
  uint32_t lane[16];
};

inline IntVec ivec_set(int32_t x) {
  IntVec r;
  CAPSTAN_LANES r.lane[i] = static_cast<uint32_t>(x);
  return r;
}
inline IntVec ivec_load(const void* p) {
  IntVec r;
  __builtin_memcpy(r.lane, p, sizeof r.lane);
  return r;
}
inline IntVec ivec_add(IntVec a, IntVec b) {
  CAPSTAN_LANES a.lane[i] += b.lane[i];
  return a;
}
inline IntVec ivec_low_nibbles(IntVec a) {
  CAPSTAN_LANES a.lane[i] &= 0x0f0f0f0fu;
  return a;
}
inline IntVec ivec_high_nibbles(IntVec a) {
  CAPSTAN_LANES a.lane[i] = a.lane[i] >> 4 & 0x0f0f0f0fu;
  return a;
}
// Adds bits 4 and 5 (kCount = 2) or bit 4 (1) of the codes of word `index` of a pair, whose high bits are at p.
template <int kCount, int index>
inline IntVec ivec_add_high_bits(IntVec a, const void* p) {
  constexpr int kLanesPerField = 4 * kCount;  // that find their bits in the same places of the words at p
  CAPSTAN_LANES {
    uint32_t bits;
    __builtin_memcpy(&bits, static_cast<const char*>(p) + i % kLanesPerField * 4, sizeof bits);
    const int field = 16 / kLanesPerField * index + i / kLanesPerField;
    a.lane[i] |= (kCount == 2 ? bits >> 2 * field & 0x03030303u : bits >> field & 0x01010101u) << 4;
  }
  return a;
}
// Replaces each byte, 0 to 15, by the entry of the table.
inline IntVec ivec_look_up(IntVec a, const uint8_t* table) {
  CAPSTAN_LANES {
    uint32_t word = 0;
    for (int byte = 0; byte < 32; byte += 8)
      word |= static_cast<uint32_t>(table[a.lane[i] >> byte & 15u]) << byte;
    a.lane[i] = word;
  }
  return a;
}
// Byte `index` of each lane, as a float.
inline Vec ivec_byte(IntVec a, int index) {
  Vec r;
  CAPSTAN_LANES r.lane[i] = static_cast<float>(a.lane[i] >> (8 * index) & 255u);
  return r;
}
inline Vec ivec_float(IntVec a) {
  Vec r;
  CAPSTAN_LANES r.lane[i] = static_cast<float>(static_cast<int32_t>(a.lane[i]));
  return r;
}
// What ivec_dot subtracts from the codes.
template <bool kIsWide>
constexpr int kDotShift = 0;
// acc + the products of four unsigned codes in each lane with the four signed codes of `word`. Exact.
template <bool kIsWide>
inline IntVec ivec_dot(IntVec acc, IntVec codes, uint32_t word) {
  for (int byte = 0; byte < 32; byte += 8) {
    const int32_t x = static_cast<int8_t>(word >> byte & 255u);
    CAPSTAN_LANES acc.lane[i] += static_cast<uint32_t>(static_cast<int32_t>(codes.lane[i] >> byte & 255u) * x);
  }
  return acc;
}
// Stores whole numbers from -128 to 127 as bytes.
inline void vec_store_int8(int8_t* p, Vec a) {
  CAPSTAN_LANES p[i] = a.lane[i] == a.lane[i] ? static_cast<int8_t>(a.lane[i]) : int8_t{0};
}

// Bytes 0 and 2 of each lane, or 1 and 3, as signed words in 16 bits.
inline uint32_t words_of_bytes(uint32_t low, uint32_t high) {
  const uint32_t low_word = static_cast<uint16_t>(static_cast<int8_t>(low & 255u));
  return low_word | static_cast<uint32_t>(static_cast<uint16_t>(static_cast<int8_t>(high & 255u))) << 16;
}
inline IntVec ivec_even_words(IntVec a) {
  CAPSTAN_LANES a.lane[i] = words_of_bytes(a.lane[i], a.lane[i] >> 16);
  return a;
}
inline IntVec ivec_odd_words(IntVec a) {
  CAPSTAN_LANES a.lane[i] = words_of_bytes(a.lane[i] >> 8, a.lane[i] >> 24);
  return a;
}
// acc + the products of the two words in each lane with the two of `pair`. Exact.
inline IntVec ivec_dot_words(IntVec acc, IntVec words, uint32_t pair) {
  for (int shift = 0; shift < 32; shift += 16) {
    const int32_t x = static_cast<int16_t>(pair >> shift & 0xffffu);
    CAPSTAN_LANES {
      const int32_t word = static_cast<int16_t>(words.lane[i] >> shift & 0xffffu);
      acc.lane[i] += static_cast<uint32_t>(word * x);
    }
  }
  return acc;
}
// Stores values from -32767 to 32767, rounded to whole numbers, ties to even. NaN gives any number.
inline void vec_round_int16(int16_t* p, Vec a) {
  CAPSTAN_LANES {
    const float magic = 12582912.0f, rounded = a.lane[i] + magic - magic;
    p[i] = rounded == rounded ? static_cast<int16_t>(rounded) : int16_t{0};
  }
}

// NOTE: always_inline, because GCC removes calls of it that it does not inline early.
[[gnu::always_inline]] inline void prefetch(const void* p) {
  __builtin_prefetch(p);
}

// For panels that several rows multiply.
[[gnu::always_inline]] inline void prefetch_panel(const void* p) {
  __builtin_prefetch(p);
}

// ---- lane masks (bit i is lane i) and 32-bit integers ----

// a < b ? a : b, so the result is b when either is NaN.
inline Vec vec_min(Vec a, Vec b) {
  CAPSTAN_LANES b.lane[i] = a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i];
  return b;
}
inline uint32_t vec_gt(const Vec& a, const Vec& b) {
  uint32_t mask = 0;
  CAPSTAN_LANES mask |= static_cast<uint32_t>(a.lane[i] > b.lane[i]) << i;
  return mask;
}
inline uint32_t vec_ge(const Vec& a, const Vec& b) {
  uint32_t mask = 0;
  CAPSTAN_LANES mask |= static_cast<uint32_t>(a.lane[i] >= b.lane[i]) << i;
  return mask;
}
inline uint32_t vec_eq(const Vec& a, const Vec& b) {
  uint32_t mask = 0;
  CAPSTAN_LANES mask |= static_cast<uint32_t>(a.lane[i] == b.lane[i]) << i;
  return mask;
}
// a where the mask has a 1, b elsewhere.
inline Vec vec_select(uint32_t mask, Vec a, Vec b) {
  CAPSTAN_LANES b.lane[i] = (mask >> i & 1) != 0 ? a.lane[i] : b.lane[i];
  return b;
}

struct VecI {
  uint32_t lane[16];
};

inline VecI int_set(uint32_t x) {
  VecI r;
  CAPSTAN_LANES r.lane[i] = x;
  return r;
}
inline VecI int_load(const uint32_t* p) {
  VecI r;
  __builtin_memcpy(r.lane, p, sizeof r.lane);
  return r;
}
inline void int_store(uint32_t* p, VecI a) {
  __builtin_memcpy(p, a.lane, sizeof a.lane);
}
inline VecI int_sub(VecI a, VecI b) {
  CAPSTAN_LANES a.lane[i] -= b.lane[i];
  return a;
}
// The smaller one as unsigned integers.
inline VecI int_min(VecI a, VecI b) {
  CAPSTAN_LANES a.lane[i] = a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i];
  return a;
}
inline VecI int_shift_right(VecI a, int count) {
  CAPSTAN_LANES a.lane[i] >>= count;
  return a;
}
// Lanes must be below 2^31.
inline Vec int_to_float(VecI a) {
  Vec r;
  CAPSTAN_LANES r.lane[i] = static_cast<float>(static_cast<int32_t>(a.lane[i]));
  return r;
}
// Unsigned integers in the order of the floats. -0 and +0 give the same one.
inline VecI int_order(Vec a) {
  VecI r;
  CAPSTAN_LANES {
    const uint32_t bits = capstan::float_bits(a.lane[i] + 0.0f);
    r.lane[i] = bits ^ ((bits >> 31 != 0 ? 0xffffffffu : 0) | 0x80000000u);
  }
  return r;
}
// Lanes of a that are at least b, as unsigned integers.
inline uint32_t int_ge(const VecI& a, const VecI& b) {
  uint32_t mask = 0;
  CAPSTAN_LANES mask |= static_cast<uint32_t>(a.lane[i] >= b.lane[i]) << i;
  return mask;
}

// 8 unsigned 64-bit integers.
struct VecL {
  uint64_t lane[8];
};

#define CAPSTAN_LONG_LANES for (int i = 0; i < 8; ++i)

inline VecL long_set(uint64_t x) {
  VecL r;
  CAPSTAN_LONG_LANES r.lane[i] = x;
  return r;
}
inline VecL long_load(const uint64_t* p) {
  VecL r;
  __builtin_memcpy(r.lane, p, sizeof r.lane);
  return r;
}
inline VecL long_add(VecL a, VecL b) {
  CAPSTAN_LONG_LANES a.lane[i] += b.lane[i];
  return a;
}
inline VecL long_xor(VecL a, VecL b) {
  CAPSTAN_LONG_LANES a.lane[i] ^= b.lane[i];
  return a;
}
inline VecL long_high_half(VecL a) {
  CAPSTAN_LONG_LANES a.lane[i] >>= 32;
  return a;
}
// The products of the low halves.
inline VecL long_mul_low(VecL a, VecL b) {
  CAPSTAN_LONG_LANES a.lane[i] = (a.lane[i] & 0xffffffffu) * (b.lane[i] & 0xffffffffu);
  return a;
}
// The low halves of lanes 0, 2, 4 and 6 of a, b, c and d, lane by lane: a0 b0 c0 d0 a2 … d6. Then those of the odd
// lanes.
inline void long_join(VecL a, VecL b, VecL c, VecL d, VecI& even, VecI& odd) {
  const VecL* const from[4] = {&a, &b, &c, &d};
  CAPSTAN_LANES {
    even.lane[i] = static_cast<uint32_t>(from[i % 4]->lane[i / 4 * 2]);
    odd.lane[i] = static_cast<uint32_t>(from[i % 4]->lane[i / 4 * 2 + 1]);
  }
}
// Truncates 16 lanes from 0 to 2^51.
inline void vec_store_int64(int64_t* p, Vec a) {
  CAPSTAN_LANES p[i] = static_cast<int64_t>(a.lane[i]);
}

}  // namespace
