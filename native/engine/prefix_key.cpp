#include "native/engine/prefix_key.h"

#include "native/base/random.h"

namespace capstan {
namespace {

const Hash128& secret() {
  static const Hash128 words{draw_seed(), draw_seed()};
  return words;
}

}  // namespace

PrefixKey root_key(std::string_view salt, uint64_t adapter_id) {
  const PrefixKey key = sip_hash_128(secret(), std::as_bytes(std::span(salt)));
  // A block has more than two tokens, so no prefix has this key.
  return adapter_id == 0 ? key : sip_hash_128(key, std::as_bytes(std::span(&adapter_id, 1)));
}

PrefixKey extend_key(const PrefixKey& parent, std::span<const int32_t> token_ids) {
  // The parent takes the place of the secret: it is one, because it depends on it.
  return sip_hash_128(parent, std::as_bytes(token_ids));
}

}  // namespace capstan
