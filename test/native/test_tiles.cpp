// The tile instructions of AMX: the twin against the definition of each instruction, and the instructions against the
// twin, bit for bit. Processors without AMX run the instructions in an emulator.
#include <cmath>
#include <cstring>
#include <random>

#include "native/base/number.h"
#include "test/native/amx/amx_scope.h"
#include "test/native/amx/tile_ops.h"
#include "test/native/testing.h"

namespace capstan::testing {
namespace {

// The operands of one product. `sums` is also the input that the product is added to.
struct Operands {
  int rows, words, n;
  std::vector<uint32_t> a, b, sums;

  Operands(int num_rows, int num_words, int num_cols) : rows(num_rows), words(num_words), n(num_cols) {
    a.resize(static_cast<size_t>(rows) * words);
    b.resize(static_cast<size_t>(words) * n);
    sums.resize(static_cast<size_t>(rows) * n);
  }
  std::vector<uint32_t> multiply(void (*dot)(const TileProduct&)) const {
    std::vector<uint32_t> result = sums;
    dot({rows, words, n, a.data(), b.data(), result.data()});
    return result;
  }
};

// Values of all magnitudes: normal ones, cancelling ones, denormals, and values whose products are denormal.
Operands bf16_operands(int rows, int words, int n, uint64_t seed) {
  Operands operands(rows, words, n);
  std::mt19937_64 random(seed);
  const auto bf16 = [&] {
    const int exponent = random() % 4 == 0 ? static_cast<int>(random() % 140) : 120 + static_cast<int>(random() % 16);
    return static_cast<uint32_t>((random() & 0x807f) | static_cast<uint64_t>(exponent) << 7);
  };
  for (uint32_t& word : operands.a)
    word = bf16() | bf16() << 16;
  for (uint32_t& word : operands.b)
    word = bf16() | bf16() << 16;
  for (uint32_t& word : operands.sums)
    word = bf16() << 16 | static_cast<uint32_t>(random() & 0xffff);
  return operands;
}

float flushed(float value) {
  return std::abs(value) < 0x1p-126f ? std::copysign(0.0f, value) : value;
}

// TDPBF16PS as the Intel SDM defines it.
std::vector<uint32_t> expected_bf16(const Operands& operands) {
  std::vector<uint32_t> result = operands.sums;
  const auto element = [](uint32_t word, int i) {
    return flushed(bf16_to_float(static_cast<uint16_t>(word >> (16 * i))));
  };
  for (int row = 0; row < operands.rows; ++row)
    for (int col = 0; col < operands.n; ++col) {
      float chains[2] = {0, 0};
      for (int word = 0; word < operands.words; ++word)
        for (int i = 0; i < 2; ++i)
          chains[i] = flushed(std::fma(element(operands.a[row * operands.words + word], i),
                                       element(operands.b[word * operands.n + col], i), chains[i]));
      uint32_t& sum = result[static_cast<size_t>(row) * operands.n + col];
      sum = float_bits(flushed(flushed(bits_float(sum)) + flushed(chains[0] + chains[1])));
    }
  return result;
}

// TDPBSUD: signed bytes of a, unsigned bytes of b.
std::vector<uint32_t> expected_int8(const Operands& operands) {
  std::vector<uint32_t> result = operands.sums;
  for (int row = 0; row < operands.rows; ++row)
    for (int col = 0; col < operands.n; ++col)
      for (int word = 0; word < operands.words; ++word)
        for (int i = 0; i < 4; ++i) {
          const auto x = static_cast<int8_t>(operands.a[row * operands.words + word] >> (8 * i));
          const auto y = static_cast<uint8_t>(operands.b[word * operands.n + col] >> (8 * i));
          result[static_cast<size_t>(row) * operands.n + col] += static_cast<uint32_t>(x * y);
        }
  return result;
}

Operands int8_operands(int rows, int words, int n, uint64_t seed) {
  Operands operands(rows, words, n);
  std::mt19937 random(static_cast<uint32_t>(seed));
  for (std::vector<uint32_t>* array : {&operands.a, &operands.b, &operands.sums})
    for (uint32_t& word : *array)
      word = static_cast<uint32_t>(random());
  return operands;
}

// Calls check(rows, words, n, seed) for several shapes.
template <class Check>
void for_each_shape(Check check) {
  uint64_t seed = 1;
  for (const int rows : {1, 2, 7, 16})
    for (const int words : {1, 3, 16})
      for (const int n : {1, 5, 16})
        check(rows, words, n, seed++);
}

TEST(tile_twin_computes_what_the_instructions_are_defined_to) {
  if (!has_isa(CpuIsa::kAmxTwin)) return;
  for_each_shape([](int rows, int words, int n, uint64_t seed) {
    const Operands bf16 = bf16_operands(rows, words, n, seed), int8 = int8_operands(rows, words, n, seed);
    EXPECT(bf16.multiply(kTwinTileOps.dot_bf16) == expected_bf16(bf16));
    EXPECT(int8.multiply(kTwinTileOps.dot_int8) == expected_int8(int8));
  });
}

TEST(tile_instructions_give_the_bits_of_their_twin) {
  if (!has_isa(CpuIsa::kAmxTwin)) return;
  const AmxScope amx;
  for_each_shape([](int rows, int words, int n, uint64_t seed) {
    const Operands bf16 = bf16_operands(rows, words, n, seed), int8 = int8_operands(rows, words, n, seed);
    EXPECT(bf16.multiply(kAmxTileOps.dot_bf16) == bf16.multiply(kTwinTileOps.dot_bf16));
    EXPECT(int8.multiply(kAmxTileOps.dot_int8) == int8.multiply(kTwinTileOps.dot_int8));
  });
}

}  // namespace
}  // namespace capstan::testing
