#include "native/disk/block_image.h"

#include <algorithm>
#include <cstring>

#include "native/base/check.h"
#include "native/base/checksum.h"

namespace capstan::disk {
namespace {

constexpr uint64_t kMagic = 0x0A31564B50414303;  // "\x03CAPKV1\n"
constexpr uint32_t kVersion = 1;
constexpr size_t kAlignment = 64;

// The numbers are little-endian, like those of the payload.
struct Header {
  uint64_t magic;
  Hash128 checksum;  // of everything after it
  uint32_t version;
  uint32_t group;
  Hash128 key, parent;
  uint32_t num_tokens;
  uint32_t reserved;
  uint64_t payload_bytes;
};
static_assert(sizeof(Header) == 80);

constexpr size_t kCheckedAt = offsetof(Header, version);

}  // namespace

size_t ImageShape::payload_at() const {
  const size_t end = sizeof(Header) + static_cast<size_t>(block_size) * sizeof(int32_t);
  return (end + kAlignment - 1) / kAlignment * kAlignment;
}

size_t ImageShape::max_file_bytes() const {
  return payload_at() + *std::ranges::max_element(payload_bytes);
}

void seal_image(const ImageShape& shape, const BlockId& id, std::span<const int32_t> tokens,
                std::span<std::byte> image) {
  CAPSTAN_CHECK(image.size() == shape.file_bytes(id.group));
  CAPSTAN_CHECK(tokens.size() == static_cast<size_t>(shape.block_size));
  std::memset(image.data(), 0, shape.payload_at());
  Header header{};
  header.magic = kMagic;
  header.version = kVersion;
  header.group = static_cast<uint32_t>(id.group);
  header.key = id.key;
  header.parent = id.parent;
  header.num_tokens = static_cast<uint32_t>(tokens.size());
  header.payload_bytes = shape.payload_bytes[static_cast<size_t>(id.group)];
  std::memcpy(image.data() + sizeof(Header), tokens.data(), tokens.size_bytes());
  std::memcpy(image.data(), &header, sizeof(Header));
  header.checksum = checksum_128(shape.secret, image.subspan(kCheckedAt));
  std::memcpy(image.data(), &header, sizeof(Header));
}

ImageState check_image(const ImageShape& shape, const BlockId& wanted, std::span<const int32_t> tokens,
                       std::span<const std::byte> image) {
  CAPSTAN_CHECK(tokens.size() == static_cast<size_t>(shape.block_size));
  if (image.size() != shape.file_bytes(wanted.group)) return ImageState::kDamaged;
  Header header;
  std::memcpy(&header, image.data(), sizeof(Header));
  const bool is_intact = header.magic == kMagic && header.version == kVersion &&
                         header.group == static_cast<uint32_t>(wanted.group) && header.num_tokens == tokens.size() &&
                         header.payload_bytes == shape.payload_bytes[static_cast<size_t>(wanted.group)] &&
                         header.checksum == checksum_128(shape.secret, image.subspan(kCheckedAt));
  if (!is_intact) return ImageState::kDamaged;
  const bool is_wanted = header.key == wanted.key && header.parent == wanted.parent &&
                         std::memcmp(image.data() + sizeof(Header), tokens.data(), tokens.size_bytes()) == 0;
  return is_wanted ? ImageState::kGood : ImageState::kOther;
}

}  // namespace capstan::disk
