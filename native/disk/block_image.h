#pragma once
// The file of one KV block: a header, the token ids of the block, and what the device keeps of
// them. All files of a KV group have the same size.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "native/base/sip_hash.h"

namespace capstan::disk {

// A block within the prefix that it continues. The key depends on all tokens up to the end of the block, `parent` on
// those before it.
struct BlockId {
  Hash128 key{}, parent{};
  int group = 0;  // KV group
};

// What the files of a store have in common.
struct ImageShape {
  Hash128 secret{};                   // key of the checksums
  int block_size = 0;                 // tokens
  std::vector<size_t> payload_bytes;  // by KV group

  size_t payload_at() const;
  size_t file_bytes(int group) const { return payload_at() + payload_bytes[static_cast<size_t>(group)]; }
  size_t max_file_bytes() const;
};

enum class ImageState : uint8_t {
  kGood,
  kOther,    // an intact block with other tokens
  kDamaged,  // truncated, changed, or written by another version
};

using Image = std::unique_ptr<std::byte[]>;

// Fills in everything except the payload.
void seal_image(const ImageShape& shape, const BlockId& id, std::span<const int32_t> tokens,
                std::span<std::byte> image);
// Compares an image with the block that is wanted. Accepts any bytes.
ImageState check_image(const ImageShape& shape, const BlockId& wanted, std::span<const int32_t> tokens,
                       std::span<const std::byte> image);

}  // namespace capstan::disk
