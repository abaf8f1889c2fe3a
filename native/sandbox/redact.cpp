#include "native/sandbox/redact.h"

#include <cstdint>

namespace {

constexpr size_t kPrefixLength = sizeof kKeyPrefix - 1;
constexpr size_t kIdEnd = kPrefixLength + 12;
constexpr size_t kChecksumLength = 6;
constexpr char kDigits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

bool is_base62(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

uint32_t crc32(const char* bytes, size_t length) {
  uint32_t crc = ~0u;
  for (size_t i = 0; i < length; i++) {
    crc ^= static_cast<unsigned char>(bytes[i]);
    for (int bit = 0; bit < 8; bit++)
      crc = (crc >> 1) ^ (0xEDB88320u & (0u - (crc & 1u)));
  }
  return ~crc;
}

bool is_key(const std::string& line, size_t at) {
  if (at + kKeyLength > line.size() || line[at + kIdEnd] != '_') return false;
  for (size_t i = kPrefixLength; i < kKeyLength; i++) {
    if (i != kIdEnd && !is_base62(line[at + i])) return false;
  }
  uint32_t checksum = crc32(line.data() + at, kKeyLength - kChecksumLength);
  for (size_t i = 0; i < kChecksumLength; i++, checksum /= 62) {
    if (line[at + kKeyLength - 1 - i] != kDigits[checksum % 62]) return false;
  }
  return true;
}

}  // namespace

void redact_keys(std::string& line) {
  for (size_t at = line.find(kKeyPrefix); at != std::string::npos; at = line.find(kKeyPrefix, at + 1)) {
    if (is_key(line, at)) line.replace(at + kIdEnd + 1, kKeyLength - kIdEnd - 1 - 4, "…");
  }
}
