#pragma once
// Identifies the beginning of a sequence in the prefix cache: a chained hash of the salt and the token ids. Its secret
// key is drawn per process, or belongs to the store of blocks on disk, so a client cannot construct a prompt whose key
// is that of another prompt.
#include <span>
#include <string_view>

#include "native/base/sip_hash.h"

namespace capstan {

using PrefixKey = Hash128;

struct PrefixKeyHash {
  size_t operator()(const PrefixKey& key) const { return static_cast<size_t>(key[0]); }
};

// Returns the secret of this process.
const Hash128& process_secret();
// Identifies an adapter; zeros = none.
using AdapterKey = Hash128;
// Returns the key of the empty prefix with this salt. Keys and values depend on the adapter.
PrefixKey root_key(std::string_view salt, const AdapterKey& adapter = {}, const Hash128& secret = process_secret());
// Returns the key of the prefix that consists of the prefix `parent` and `token_ids`.
PrefixKey extend_key(const PrefixKey& parent, std::span<const int32_t> token_ids);

}  // namespace capstan
