// The updates of the CPU backend by adapters. Before a product, the rows with an adapter are stored a second time, in
// the order of their adapters, and multiplied with A. The product then adds B · t to its sums.
#include <algorithm>

#include "native/backend/cpu/cpu_backend_class.h"
#include "native/base/check.h"

namespace capstan {

std::unique_ptr<LoraMatrix> CpuBackend::load_lora(const LoraSource& source, const Matrix& matrix) const {
  auto lora = pack_lora(source, static_cast<const CpuMatrix&>(matrix), weight_dtype_, kernels_);
  CAPSTAN_CHECK(lora->a->num_panels * kPanelFeatures <= lora_t_stride_);
  return lora;
}

void CpuBackend::allocate_lora(int64_t q_size) {
  const int64_t rows = limits_.max_num_tokens;
  const int64_t widest =
      std::max({model_.hidden_size, model_.intermediate_size, q_size, model_.recurrent.output_size()});
  // The layout with the most words pads each part of K to whole blocks.
  lora_act_words_ = round_up(widest, kBlockK) + 8 * kBlockK;
  const bool has_delta_nets =
      std::ranges::any_of(model_.layers, [](const DeviceLayer& layer) { return layer.mixer == Mixer::kDeltaNet; });
  lora_t_stride_ = max_lora_values(limits_.max_lora_rank, has_delta_nets);
  lora_lane_stride_ = max_lora_lanes(limits_.max_lora_rank);
  lora_acts_ = HugeBuffer(static_cast<size_t>(rows * lora_act_words_) * sizeof(uint32_t), "the inputs of adapters");
  lora_lanes_ = HugeBuffer(static_cast<size_t>(rows * lora_lane_stride_) * sizeof(float), "the products of adapters");
  lora_rows_.resize(static_cast<size_t>(rows));
  lora_of_group_.resize(static_cast<size_t>(limits_.max_num_seqs));
  lora_panels_.resize(static_cast<size_t>(limits_.max_num_seqs) + 1);
  lora_plan_.reserve(limits_.max_num_tokens, limits_.max_num_seqs);
}

void CpuBackend::begin_update(std::unique_ptr<LoraMatrix> LayerAdapter::* matrix) {
  has_update_ = false;
  for (size_t i = 0; i < lora_plan_.groups.size(); ++i) {
    const LayerAdapter& layer = lora_plan_.groups[i].adapter->layers[static_cast<size_t>(layer_)];
    lora_of_group_[i] = static_cast<const CpuLora*>((layer.*matrix).get());
    has_update_ = has_update_ || lora_of_group_[i] != nullptr;
  }
}

const CpuLora* CpuBackend::lora_of_row(int64_t row) const {
  const int32_t group = lora_plan_.group_of[static_cast<size_t>(row)];
  return group < 0 ? nullptr : lora_of_group_[static_cast<size_t>(group)];
}

ActTiles CpuBackend::lora_tiles(size_t group) const {
  const LoraPlan::Group& rows = lora_plan_.groups[group];
  return act_tiles(lora_acts_.as<uint32_t>() + rows.first * lora_act_words_, rows.count, *lora_of_group_[group]->a);
}

float* CpuBackend::lora_t(int64_t place) const {
  return partial_.as<float>() + limits_.max_num_tokens * hidden_stride_ + place * lora_t_stride_;
}

float* CpuBackend::lora_lanes(int64_t place) const {
  return lora_lanes_.as<float>() + place * lora_lane_stride_;
}

void CpuBackend::store_lora_row(const float* x, const Vector* norm, int64_t k, int64_t row) const {
  const CpuLora* lora = lora_of_row(row);
  if (lora == nullptr) return;
  const auto group = static_cast<size_t>(lora_plan_.group_of[static_cast<size_t>(row)]);
  const int32_t place = lora_plan_.place_of[static_cast<size_t>(row)];
  store_row(x, norm, k, lora_tiles(group), place - lora_plan_.groups[group].first);
  // The values of the shorter factor end earlier, and B is zero there. The kernel reads an even number of values.
  if (lora->is_gated() && (lora->gate.count != lora->up.count || lora->gate.count % 2 != 0))
    std::fill(lora_lanes(place), lora_lanes(place) + lora_lane_stride_, 0.0f);
}

void CpuBackend::multiply_a(bool is_partial) {
  if (!has_update_) return;
  const PartScope part(profile_, StepPart::kAdapters);
  const size_t num_groups = lora_plan_.groups.size();
  int64_t total = 0;
  for (size_t i = 0; i < num_groups; ++i) {
    lora_panels_[i] = total;
    if (lora_of_group_[i] != nullptr) total += lora_of_group_[i]->a->num_panels;
  }
  lora_panels_[num_groups] = total;
  team_.for_pieces(total, 1, [&](int thread, int64_t begin, int64_t end) {
    for (; begin < end; ++begin) {
      const auto last = lora_panels_.begin() + static_cast<std::ptrdiff_t>(num_groups) + 1;
      const auto group =
          static_cast<size_t>(std::upper_bound(lora_panels_.begin(), last, begin) - 1 - lora_panels_.begin());
      multiply_a_panel(group, begin - lora_panels_[group], thread, is_partial);
    }
  });
}

void CpuBackend::multiply_a_panel(size_t group, int64_t panel, int thread, bool is_partial) {
  const CpuLora& lora = *lora_of_group_[group];
  const LoraPlan::Group& rows = lora_plan_.groups[group];
  GemmArgs gemm;
  gemm.acts = lora_tiles(group);
  gemm.num_features = lora.a->num_panels * kPanelFeatures;
  gemm.out = lora_t(rows.first);
  gemm.out_stride = lora_t_stride_;
  run_panels(gemm, *lora.a, thread, panel, panel + 1);
  if (is_partial) return;
  for (int64_t place = rows.first; place < rows.first + rows.count; ++place) {
    float* t = lora_t(place);
    const auto begin = static_cast<int>(panel * kPanelFeatures);
    for (int i = begin; i < begin + kPanelFeatures; ++i)
      t[i] *= lora.scales[static_cast<size_t>(i)];
    if (lora.is_gated()) spread_to_lanes(lora, t, begin, lora_lanes(place));
  }
}

void CpuBackend::spread_to_lanes(const CpuLora& lora, const float* t, int begin, float* lanes) {
  constexpr int kHalf = kPanelFeatures / 2;
  const auto spread = [&](CpuLora::Range range, float* to) {
    const int first = std::max(begin, range.begin);
    const int last = std::min(begin + kPanelFeatures, range.begin + range.count);
    for (int i = first; i < last; ++i)
      std::fill_n(to + (i - range.begin) * kPanelFeatures, kHalf, t[i]);
  };
  spread(lora.gate, lanes);
  spread(lora.up, lanes + kHalf);
}

const LoraRow* CpuBackend::update_rows(size_t part) {
  if (!has_update_) return nullptr;
  for (int64_t row = 0; row < num_tokens(); ++row) {
    LoraRow& to = lora_rows_[static_cast<size_t>(row)];
    to = {};
    const CpuLora* lora = lora_of_row(row);
    if (lora == nullptr) continue;
    const int32_t place = lora_plan_.place_of[static_cast<size_t>(row)];
    to = {&lora->parts[part].view, lora->is_gated() ? lora_lanes(place) : lora_t(place)};
  }
  return lora_rows_.data();
}

const float* CpuBackend::summed_update(int64_t row, void* const* published) {
  if (!has_update_) return nullptr;
  const CpuLora* lora = lora_of_row(row);
  if (lora == nullptr) return nullptr;
  const int32_t place = lora_plan_.place_of[static_cast<size_t>(row)];
  const int64_t at = lora_t(place) - partial_.as<float>();
  float t[kMaxLoraRank];
  const auto num_values = static_cast<size_t>(lora->a->num_panels * kPanelFeatures);
  CAPSTAN_CHECK(num_values <= std::size(t));
  for (size_t i = 0; i < num_values; ++i) {
    float part[8];
    for (int rank = 0; rank < world_size(); ++rank)
      part[rank] = static_cast<const float*>(published[rank])[at + static_cast<int64_t>(i)];
    for (int width = world_size(); width > 1; width /= 2)
      for (int p = 0; p < width / 2; ++p)
        part[p] = part[2 * p] + part[2 * p + 1];
    t[i] = part[0] * lora->scales[i];
  }
  // The product with A is done, so the rows are free.
  float* out = lora_acts_.as<float>() + place * lora_act_words_;
  kernels_.lora_update({&lora->parts[0].view, t}, hidden_stride_ / kPanelFeatures, out);
  return out;
}

}  // namespace capstan
