#pragma once
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace capstan {

// Counts one more occurrence of a token. `counts`: (token id, count), ascending by id.
inline void count_token(std::vector<std::pair<int32_t, int32_t>>& counts, int32_t token_id) {
  const auto at = std::ranges::lower_bound(counts, token_id, {}, &std::pair<int32_t, int32_t>::first);
  if (at != counts.end() && at->first == token_id)
    ++at->second;
  else
    counts.insert(at, {token_id, 1});
}

}  // namespace capstan
