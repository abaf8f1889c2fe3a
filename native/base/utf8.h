#pragma once
// UTF-8 decoding: a state machine over bytes, and a reader of one character on top of it. Both reject overlong forms,
// surrogates and values above U+10FFFF.
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace capstan {

// The position inside a character: at a boundary, before one to three unrestricted continuation bytes, or before the
// restricted second byte that follows E0, ED, F0 or F4. kInvalid: the bytes are not UTF-8.
enum class Utf8State : int8_t {
  kInvalid = -1,
  kBoundary,
  kOneLeft,
  kTwoLeft,
  kThreeLeft,
  kAfterE0,
  kAfterED,
  kAfterF0,
  kAfterF4,
};
constexpr int kNumUtf8States = 8;  // without kInvalid

constexpr Utf8State first_utf8_byte(uint8_t byte) {
  if (byte < 0x80) return Utf8State::kBoundary;
  if (byte < 0xC2 || byte > 0xF4) return Utf8State::kInvalid;
  if (byte < 0xE0) return Utf8State::kOneLeft;
  switch (byte) {
    case 0xE0:
      return Utf8State::kAfterE0;
    case 0xED:
      return Utf8State::kAfterED;
    case 0xF0:
      return Utf8State::kAfterF0;
    case 0xF4:
      return Utf8State::kAfterF4;
    default:
      return byte < 0xF0 ? Utf8State::kTwoLeft : Utf8State::kThreeLeft;
  }
}

constexpr Utf8State next_utf8_state(Utf8State state, uint8_t byte) {
  const auto within = [byte](uint8_t first, uint8_t last, Utf8State next) {
    return first <= byte && byte <= last ? next : Utf8State::kInvalid;
  };
  switch (state) {
    case Utf8State::kBoundary:
      return first_utf8_byte(byte);
    case Utf8State::kOneLeft:
      return within(0x80, 0xBF, Utf8State::kBoundary);
    case Utf8State::kTwoLeft:
      return within(0x80, 0xBF, Utf8State::kOneLeft);
    case Utf8State::kThreeLeft:
      return within(0x80, 0xBF, Utf8State::kTwoLeft);
    case Utf8State::kAfterE0:
      return within(0xA0, 0xBF, Utf8State::kOneLeft);
    case Utf8State::kAfterED:
      return within(0x80, 0x9F, Utf8State::kOneLeft);
    case Utf8State::kAfterF0:
      return within(0x90, 0xBF, Utf8State::kTwoLeft);
    case Utf8State::kAfterF4:
      return within(0x80, 0x8F, Utf8State::kTwoLeft);
    case Utf8State::kInvalid:
      break;
  }
  return Utf8State::kInvalid;
}

enum class Utf8Status : uint8_t {
  kCharacter,   // a complete character
  kIncomplete,  // the beginning of a character, cut off by the end of the text
  kInvalid,     // not UTF-8
};

struct Utf8Head {
  Utf8Status status = Utf8Status::kInvalid;
  // Bytes to consume. For kInvalid: the longest prefix that could have begun a character, at least 1, which Unicode
  // recommends to replace by one U+FFFD.
  size_t length = 0;
  uint32_t code_point = 0;  // of kCharacter
};

// Decodes the first character of `bytes`, which must not be empty.
constexpr Utf8Head read_utf8_head(std::string_view bytes) {
  const auto first = static_cast<uint8_t>(bytes[0]);
  Utf8State state = first_utf8_byte(first);
  if (state == Utf8State::kInvalid) return {Utf8Status::kInvalid, 1, 0};
  if (state == Utf8State::kBoundary) return {Utf8Status::kCharacter, 1, first};
  uint32_t code_point = first & (first < 0xE0 ? 0x1Fu : first < 0xF0 ? 0x0Fu : 0x07u);
  size_t length = 1;
  for (; state != Utf8State::kBoundary; ++length) {
    if (length == bytes.size()) return {Utf8Status::kIncomplete, length, 0};
    const auto byte = static_cast<uint8_t>(bytes[length]);
    state = next_utf8_state(state, byte);
    if (state == Utf8State::kInvalid) return {Utf8Status::kInvalid, length, 0};
    code_point = code_point << 6 | (byte & 0x3Fu);
  }
  return {Utf8Status::kCharacter, length, code_point};
}

}  // namespace capstan
