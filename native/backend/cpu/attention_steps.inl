// The products of attention, by number type of the KV cache and of the products. One step multiplies one item of the
// chain (a dimension of the keys, or a slot of the values), or a pair of items, of 16 lanes.
namespace {

using namespace capstan;

// add: acc[p][r] += the items of row r · the 16 lanes at from[p] + offset. Word w of row r is at
// a[r * kRowStride + w * kWordStride].
struct F32Step {
  static constexpr int kItems = 1, kBytes = 64, kWords = 1;
  static constexpr bool kIsBf16 = false, kIsCodes = false;
  static constexpr ActFormat kRowFormat = ActFormat::kF32;
  template <int R, int P, int kRowStride, int kWordStride>
  [[gnu::always_inline]] static void add(const uint32_t* a, const char* const (&from)[P], int64_t offset,
                                         Vec (&acc)[P][R]) {
    Vec lanes[P];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p)
      lanes[p] = vec_load(reinterpret_cast<const float*>(from[p] + offset));
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Vec x = vec_set(bits_float(a[r * kRowStride]));
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p)
        acc[p][r] = vec_fma(x, lanes[p], acc[p][r]);
    }
  }
};

struct F16Step {
  static constexpr int kItems = 1, kBytes = 32, kWords = 1;
  static constexpr bool kIsBf16 = false, kIsCodes = false;
  static constexpr ActFormat kRowFormat = ActFormat::kF32;
  template <int R, int P, int kRowStride, int kWordStride>
  [[gnu::always_inline]] static void add(const uint32_t* a, const char* const (&from)[P], int64_t offset,
                                         Vec (&acc)[P][R]) {
    Vec lanes[P];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p)
      lanes[p] = vec_load_f16(reinterpret_cast<const uint16_t*>(from[p] + offset));
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Vec x = vec_set(bits_float(a[r * kRowStride]));
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p)
        acc[p][r] = vec_fma(x, lanes[p], acc[p][r]);
    }
  }
};

// Pairs of bf16 in the cache, products in f32 with one float per item: in order for float rows, in the order of
// `vdpbf16ps` for rows rounded to bf16.
template <bool kIsRounded>
struct Bf16Step {
  static constexpr int kItems = 2, kBytes = 64, kWords = 2;
  static constexpr bool kIsBf16 = kIsRounded, kIsCodes = false;
  static constexpr ActFormat kRowFormat = kIsRounded ? ActFormat::kBf16Rounded : ActFormat::kF32;
  template <int R, int P, int kRowStride, int kWordStride>
  [[gnu::always_inline]] static void add(const uint32_t* a, const char* const (&from)[P], int64_t offset,
                                         Vec (&acc)[P][R]) {
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const int item = kIsRounded ? 1 - i : i;
      Vec lanes[P];
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        Vec even, odd;
        vec_load_bf16_pairs(reinterpret_cast<const uint32_t*>(from[p] + offset), even, odd);
        lanes[p] = item == 0 ? even : odd;
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const Vec x = vec_set(bits_float(a[r * kRowStride + item * kWordStride]));
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p)
          acc[p][r] = vec_fma(x, lanes[p], acc[p][r]);
      }
      // As in gemm.inl: with one panel there are registers for one half, so the compiler has to load the pairs again.
      if constexpr (kTilePanels == 1) asm("" : "+r"(offset));
    }
  }
};

#ifdef CAPSTAN_BF16_DOT
// Rows of pairs of bf16.
struct Bf16DotStep {
  static constexpr int kItems = 2, kBytes = 64, kWords = 1;
  static constexpr bool kIsBf16 = true, kIsCodes = false;
  static constexpr ActFormat kRowFormat = ActFormat::kBf16Pairs;
  template <int R, int P, int kRowStride, int kWordStride>
  [[gnu::always_inline]] static void add(const uint32_t* a, const char* const (&from)[P], int64_t offset,
                                         Vec (&acc)[P][R]) {
    IntVec lanes[P];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p)
      lanes[p] = ivec_load(from[p] + offset);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p)
        acc[p][r] = vec_dot_bf16(acc[p][r], a[r * kRowStride], lanes[p]);
  }
};
using Bf16ProductStep = Bf16DotStep;
#else
using Bf16ProductStep = Bf16Step<true>;
#endif

// Returns 2^x with a relative error below 8e-5, for weights that are rounded. 0 below -126.5, correct up to
// 127. NaN stays NaN.
inline Vec vec_exp2_for_bf16(Vec x) {
  x = vec_max(vec_set(-127.0f), x);
  const Vec magic = vec_set(12582912.0f);  // as in vec_exp2
  const Vec t = vec_add(x, magic);
  const Vec f = vec_sub(x, vec_sub(t, magic));
  Vec p = vec_set(5.517166914e-2f);  // minimax polynomial of 2^f on [-0.5, 0.5]
  p = vec_fma(p, f, vec_set(2.426111229e-1f));
  p = vec_fma(p, f, vec_set(6.932609855e-1f));
  p = vec_fma(p, f, vec_set(9.999280735e-1f));
  return vec_mul(p, vec_pow2_of_magic(t));
}

}  // namespace
