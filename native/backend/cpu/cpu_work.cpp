// What the ops of the CPU backend take, for the profile of its steps, and where it waits for other ranks.
#include <algorithm>

#include "native/backend/cpu/cpu_backend_class.h"

namespace capstan {
namespace {

// kBf16Rounded is multiplied as f32.
MathKind math_of(ActFormat format) {
  switch (format) {
    case ActFormat::kInt8:
    case ActFormat::kInt8Blocks:
      return MathKind::kInt8;
    case ActFormat::kBf16Pairs:
    case ActFormat::kBf16Blocks:
      return MathKind::kBf16;
    case ActFormat::kF32:
    case ActFormat::kBf16Rounded:
      break;
  }
  return MathKind::kF32;
}

}  // namespace

void CpuBackend::count_product(const ActTiles& acts, const CpuMatrix& matrix) {
  const double bytes = static_cast<double>(matrix.num_panels * panel_bytes(matrix));
  const double ops = 2.0 * static_cast<double>(acts.rows) * static_cast<double>(matrix.rows * matrix.cols);
  profile_->add_work({bytes, math_of(acts.format), ops});
}

void CpuBackend::count_experts(const HugeBuffer& acts, const MoeWeights& moe,
                               std::unique_ptr<Matrix> ExpertWeights::* matrix) {
  for (int expert = 0; expert <= model_.moe.num_experts; ++expert) {
    if (expert_plan_.num_pairs(expert) == 0) continue;
    const bool is_shared = expert == static_cast<int>(moe.experts.size());
    const ExpertWeights& weights = is_shared ? moe.shared : moe.experts[static_cast<size_t>(expert)];
    const CpuMatrix& product = matrix_of(weights.*matrix);
    count_product(expert_tiles(acts, expert, product), product);
  }
}

// The keys and values that the sequences see are read once, and each query is multiplied with its keys and values.
void CpuBackend::count_attention(int layer) {
  const KvLayout& layout = kv_layouts_[kv_group(layer)];
  const int window = model_.window(layer), first_key = model_.layer(layer).first_key;
  int64_t num_keys = 0, num_products = 0;
  for (size_t seq = 0; seq < step_.context_lens.size(); ++seq) {
    const int begin = step_.cu_seqlens_q[seq], end = step_.cu_seqlens_q[seq + 1], context = step_.context_lens[seq];
    const auto first_of = [&](int row) { return std::max(first_visible_key(step_.positions[row], window), first_key); };
    num_keys += std::max(context - first_of(begin), 0);
    const int all_keys = model_.is_causal ? 0 : context;
    for (int row = begin; row < end; ++row)
      num_products += std::max(end_visible_key(step_.positions[row], window, all_keys) - first_of(row), 0);
  }
  const int64_t slot_bytes = (k_block_bytes(layout) + v_block_bytes(layout)) / layout.block_size;
  const double ops = 4.0 * static_cast<double>(num_products * model_.num_heads * layout.head_dim);
  profile_->add_work(
      {static_cast<double>(num_keys * slot_bytes), has_bf16_acts_ ? MathKind::kBf16 : MathKind::kF32, ops});
}

void* const* CpuBackend::exchange(void* const& own) {
  if (world_size() == 1) return &own;
  const WaitScope wait(profile_);
  return comm_->exchange(own);
}

void CpuBackend::meet_ranks() {
  if (world_size() == 1) return;
  const WaitScope wait(profile_);
  comm_->barrier();
}

}  // namespace capstan
