// Copies of KV blocks, for the prefix cache on disk.
#include <cstring>

#include "native/backend/cpu/cpu_backend_class.h"
#include "native/base/check.h"

namespace capstan {

// Calls visit(bytes of the block, count) for the keys and the values of each layer of the group.
template <typename Visit>
void CpuBackend::for_block_parts(int kv_group, int32_t block_id, Visit visit) const {
  const auto group = static_cast<size_t>(kv_group);
  const KvLayout& layout = kv_layouts_[group];
  CAPSTAN_CHECK(block_id >= 0 && block_id < limits_.num_blocks[group]);
  char* at = kv_[group].as<char>();
  for (int layer = 0; layer < model_.kv_groups[group].num_layers; ++layer)
    for (const int64_t bytes : {k_block_bytes(layout), v_block_bytes(layout)}) {
      visit(at + block_id * bytes, static_cast<size_t>(bytes));
      at += limits_.num_blocks[group] * bytes;
    }
}

void CpuBackend::read_kv_block(int kv_group, int32_t block_id, std::span<std::byte> to) const {
  size_t at = 0;
  for_block_parts(kv_group, block_id, [&](const char* part, size_t bytes) {
    std::memcpy(to.subspan(at, bytes).data(), part, bytes);
    at += bytes;
  });
  CAPSTAN_CHECK(at == to.size());
}

void CpuBackend::write_kv_block(int kv_group, int32_t block_id, std::span<const std::byte> from) {
  size_t at = 0;
  for_block_parts(kv_group, block_id, [&](char* part, size_t bytes) {
    std::memcpy(part, from.subspan(at, bytes).data(), bytes);
    at += bytes;
  });
  CAPSTAN_CHECK(at == from.size());
}

}  // namespace capstan
