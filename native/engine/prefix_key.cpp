#include "native/engine/prefix_key.h"

#include <array>

#include "native/base/random.h"

namespace capstan {

const Hash128& process_secret() {
  static const Hash128 words{draw_seed(), draw_seed()};
  return words;
}

PrefixKey root_key(std::string_view salt, const AdapterKey& adapter, const Hash128& secret) {
  const PrefixKey key = sip_hash_128(secret, std::as_bytes(std::span(salt)));
  if (adapter == AdapterKey{}) return key;
  // The message has 17 bytes, which is not a whole number of tokens, so no prefix has this key.
  std::array<uint64_t, 3> message{adapter[0], adapter[1], 1};
  return sip_hash_128(key, std::as_bytes(std::span(message)).first(17));
}

PrefixKey extend_key(const PrefixKey& parent, std::span<const int32_t> token_ids) {
  // The parent takes the place of the secret: it is one, because it depends on it.
  return sip_hash_128(parent, std::as_bytes(token_ids));
}

}  // namespace capstan
