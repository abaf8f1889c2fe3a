#include "native/engine/disk_load.h"

#include <algorithm>

#include "native/base/error.h"

namespace capstan {
namespace {

[[noreturn]] void refuse(const std::string& expected, const std::string& received) {
  throw Error(ErrorCode::kInvalidArgument, "prefixCacheDir: expected " + expected + ", got " + received);
}

}  // namespace

void check_disk_cache(const LoadRequest& request, const BackendInfo& backend, const DeviceModel& model) {
  if (!backend.has_kv_copies) refuse("none on " + backend.name, request.disk_cache.path);
  if (!request.has_prefix_cache) refuse("none without the prefix cache (prefixCache: false)", request.disk_cache.path);
  if (request.spec.pooling != Pooling::kNone || !request.spec.is_causal)
    refuse("none for a model that does not generate text", request.disk_cache.path);
  if (model.has_recurrent_layers()) refuse("a model without recurrent layers", "one that has some");
  if (model.has_mtp) refuse("no drafts by an MTP head", "speculative.method mtp");
  if (request.draft) refuse("no drafts by a draft model", "speculative.model");
  const auto has_window = [](const KvGroup& group) { return group.window > 0; };
  if (std::ranges::any_of(model.kv_groups, has_window))
    refuse("a model whose layers all see the whole context", "one with sliding windows");
  if (model.kv_groups.size() != 1)
    refuse("a model whose layers have keys and values of one shape", "one with several shapes");
}

DiskCacheOptions make_disk_cache_options(const ModelRunner& runner, int64_t max_bytes) {
  DiskCacheOptions options;
  options.store.max_bytes = max_bytes;
  // A block consists of the parts of all ranks, which have one size.
  const std::vector<Rank>& ranks = runner.ranks();
  options.read_block = [&ranks](int group, int32_t block_id, std::span<std::byte> to) {
    const size_t size = to.size() / ranks.size();
    for (size_t rank = 0; rank < ranks.size(); ++rank)
      ranks[rank].backend->read_kv_block(group, block_id, to.subspan(rank * size, size));
  };
  options.write_block = [&ranks](int group, int32_t block_id, std::span<const std::byte> from) {
    const size_t size = from.size() / ranks.size();
    for (size_t rank = 0; rank < ranks.size(); ++rank)
      ranks[rank].backend->write_kv_block(group, block_id, from.subspan(rank * size, size));
  };
  return options;
}

}  // namespace capstan
