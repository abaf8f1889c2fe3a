// The updates of the CPU backend by adapters. Before a product, the rows with an adapter are stored a second time, in
// the order of their adapters, and multiplied with A. The product then adds B · t to its sums. The pairs of experts
// stay in the order of the plan.
#include <algorithm>

#include "native/backend/cpu/cpu_backend_class.h"
#include "native/base/check.h"

namespace capstan {

std::unique_ptr<LoraMatrix> CpuBackend::load_lora(const LoraSource& source, const Matrix& matrix) const {
  const auto& own = static_cast<const CpuMatrix&>(matrix);
  const DType dtype = is_quantized(own) ? weight_dtype_ : own.dtype;
  auto lora = pack_lora(source, own, dtype, kernels_);
  CAPSTAN_CHECK(static_cast<int64_t>(lora->scales.size()) <= lora_t_stride_);
  return lora;
}

LoraBuffers CpuBackend::make_lora_buffers(int64_t num_rows, int64_t num_runs, int64_t widest) {
  const auto floats = [&](int64_t stride, const char* purpose) {
    return HugeBuffer(static_cast<size_t>(num_rows * stride) * sizeof(float), purpose);
  };
  LoraBuffers buffers;
  // The layout with the most words pads each part of K to whole blocks.
  buffers.act_words = round_up(widest, kBlockK) + 8 * kBlockK;
  buffers.acts = floats(buffers.act_words, "the inputs of adapters");
  buffers.lanes = floats(lora_lane_stride_, "the products of adapters");
  buffers.rows.resize(static_cast<size_t>(num_rows));
  buffers.runs.reserve(static_cast<size_t>(num_runs));
  lora_panels_.reserve(buffers.runs.capacity());
  return buffers;
}

void CpuBackend::allocate_lora(int64_t q_size) {
  const int64_t widest = std::max({model_.hidden_size, model_.intermediate_size, q_size, model_.recurrent.output_size(),
                                   model_.per_layer_input_size});
  const bool has_delta_nets =
      std::ranges::any_of(model_.layers, [](const DeviceLayer& layer) { return layer.mixer == Mixer::kDeltaNet; });
  lora_t_stride_ = max_lora_values(limits_.max_lora_rank, has_delta_nets);
  lora_lane_stride_ = max_lora_lanes(limits_.max_lora_rank);
  const int max_rows = std::max(limits_.max_num_tokens, limits_.max_num_seqs);
  lora_ = make_lora_buffers(max_rows, limits_.max_num_seqs, widest);
  lora_of_group_.resize(static_cast<size_t>(limits_.max_num_seqs));
  lora_plan_.reserve(limits_.max_num_tokens, limits_.max_num_seqs);
  head_plan_.reserve(limits_.max_num_seqs, limits_.max_num_seqs);
}

void CpuBackend::allocate_expert_lora(int64_t num_pairs, int64_t widest) {
  expert_lora_ = make_lora_buffers(num_pairs, num_pairs, widest);
}

void CpuBackend::begin_layer_update(std::unique_ptr<LoraMatrix> LayerAdapter::* matrix) {
  begin_update(
      [&](const AdapterWeights& adapter) { return (adapter.layers[static_cast<size_t>(layer_)].*matrix).get(); });
}

const CpuLora* CpuBackend::lora_of_row(int64_t row) const {
  const int32_t group = row_plan_->group_of[static_cast<size_t>(row)];
  return group < 0 ? nullptr : lora_of_group_[static_cast<size_t>(group)];
}

ActTiles CpuBackend::lora_tiles(const LoraBuffers& buffers, const LoraRun& run) const {
  return act_tiles(buffers.acts.as<uint32_t>() + run.first * buffers.act_words, run.count, *run.lora->a);
}

void CpuBackend::store_lora_row(const float* x, const Vector* norm, int64_t k, int64_t row) const {
  const CpuLora* lora = lora_of_row(row);
  if (lora == nullptr) return;
  const auto group = static_cast<size_t>(row_plan_->group_of[static_cast<size_t>(row)]);
  const LoraPlan::Group& rows = row_plan_->groups[group];
  const int32_t place = row_plan_->place_of[static_cast<size_t>(row)];
  store_run_row(lora_, {lora, rows.first, rows.count}, x, norm, k, place - rows.first);
}

void CpuBackend::store_run_row(const LoraBuffers& buffers, const LoraRun& run, const float* x, const Vector* norm,
                               int64_t k, int64_t i) const {
  store_row(x, norm, k, lora_tiles(buffers, run), i);
  const CpuLora& lora = *run.lora;
  // The values of the shorter factor end earlier, and B is zero there. The kernel reads an even number of values.
  if (lora.is_gated() && (lora.gate.count != lora.up.count || lora.gate.count % 2 != 0)) {
    float* lanes = lora_lanes(buffers, run.first + i);
    std::fill(lanes, lanes + lora_lane_stride_, 0.0f);
  }
}

void CpuBackend::multiply_a(bool is_partial) {
  if (!has_update_) return;
  lora_.runs.clear();
  for (size_t i = 0; i < row_plan_->groups.size(); ++i) {
    const LoraPlan::Group& rows = row_plan_->groups[i];
    if (lora_of_group_[i] != nullptr && rows.count > 0)
      lora_.runs.push_back({lora_of_group_[i], rows.first, rows.count});
  }
  multiply_runs(lora_, is_partial);
}

void CpuBackend::multiply_runs(const LoraBuffers& buffers, bool is_partial) {
  const PartScope part(profile_, StepPart::kAdapters);
  int64_t total = 0;
  lora_panels_.clear();
  for (const LoraRun& run : buffers.runs) {
    lora_panels_.push_back(total);
    total += run.lora->a->num_panels;
  }
  team_.for_pieces(total, 1, [&](int thread, int64_t begin, int64_t end) {
    for (; begin < end; ++begin) {
      const auto run = static_cast<size_t>(std::ranges::upper_bound(lora_panels_, begin) - 1 - lora_panels_.begin());
      multiply_panel(buffers, buffers.runs[run], begin - lora_panels_[run], thread, is_partial);
    }
  });
}

void CpuBackend::multiply_panel(const LoraBuffers& buffers, const LoraRun& run, int64_t panel, int thread,
                                bool is_partial) {
  const CpuLora& lora = *run.lora;
  GemmArgs gemm;
  gemm.acts = lora_tiles(buffers, run);
  gemm.num_features = lora.a->num_panels * kPanelFeatures;
  gemm.out = lora_t(buffers, run.first);
  gemm.out_stride = lora_t_stride_;
  run_panels(gemm, *lora.a, thread, panel, panel + 1);
  if (is_partial) return;
  for (int64_t place = run.first; place < run.first + run.count; ++place) {
    float* t = lora_t(buffers, place);
    const auto begin = static_cast<int>(panel * kPanelFeatures);
    for (int i = begin; i < begin + kPanelFeatures; ++i)
      t[i] *= lora.scales[static_cast<size_t>(i)];
    if (lora.is_gated()) spread_to_lanes(lora, t, begin, lora_lanes(buffers, place));
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

LoraRow CpuBackend::lora_row(const LoraBuffers& buffers, const CpuLora& lora, size_t part, int64_t place) const {
  return {&lora.parts[part].view, lora.is_gated() ? lora_lanes(buffers, place) : lora_t(buffers, place)};
}

const LoraRow* CpuBackend::update_rows(size_t part) {
  if (!has_update_) return nullptr;
  for (size_t row = 0; row < row_plan_->group_of.size(); ++row) {
    const CpuLora* lora = lora_of_row(static_cast<int64_t>(row));
    lora_.rows[row] = lora == nullptr ? LoraRow{} : lora_row(lora_, *lora, part, row_plan_->place_of[row]);
  }
  return lora_.rows.data();
}

const float* CpuBackend::summed_update(int64_t row, void* const* published) {
  if (!has_update_) return nullptr;
  const CpuLora* lora = lora_of_row(row);
  if (lora == nullptr) return nullptr;
  const int32_t place = row_plan_->place_of[static_cast<size_t>(row)];
  return sum_update(lora_, *lora, place, lora_.t - partial_.as<float>(), published);
}

const float* CpuBackend::sum_update(const LoraBuffers& buffers, const CpuLora& lora, int64_t place, int64_t t_at,
                                    void* const* published) {
  const int64_t at = t_at + place * lora_t_stride_;
  float t[kMaxLoraRank];
  CAPSTAN_CHECK(lora.scales.size() <= std::size(t));
  for (size_t i = 0; i < lora.scales.size(); ++i) {
    float part[8];
    for (int rank = 0; rank < world_size(); ++rank)
      part[rank] = static_cast<const float*>(published[rank])[at + static_cast<int64_t>(i)];
    for (int width = world_size(); width > 1; width /= 2)
      for (int p = 0; p < width / 2; ++p)
        part[p] = part[2 * p] + part[2 * p + 1];
    t[i] = part[0] * lora.scales[i];
  }
  // The product with A is done, so the rows are free.
  float* out = buffers.acts.as<float>() + place * buffers.act_words;
  kernels_.lora_update({&lora.parts[0].view, t}, hidden_stride_ / kPanelFeatures, out);
  return out;
}

void CpuBackend::update_embeddings() {
  begin_update([](const AdapterWeights& adapter) { return adapter.embed_tokens.get(); });
  if (!has_update_) return;
  const PartScope part(profile_, StepPart::kAdapters);
  team_.for_ranges(num_tokens(), kSerialRows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const CpuLora* lora = lora_of_row(row);
      if (lora == nullptr) continue;
      float t[kMaxLoraRank] = {};
      gather_row(*lora->a, step_.input_ids[row], t);
      for (int64_t i = 0; i < lora->a->cols; ++i)
        t[i] *= lora->scales[static_cast<size_t>(i)] * model_.embedding_scale;
      float* update = lora_.acts.as<float>() + row * lora_.act_words;
      kernels_.lora_update({&lora->parts[0].view, t}, hidden_stride_ / kPanelFeatures, update);
      kernels_.add_row(hidden_row(row), update, model_.hidden_size);
    }
  });
  end_update();
}

const CpuLora* CpuBackend::lora_of_pair(int expert, int64_t pair,
                                        std::unique_ptr<LoraMatrix> ExpertAdapter::* matrix) const {
  const int32_t row = expert_plan_.tokens[static_cast<size_t>(pair)];
  const int32_t group = lora_plan_.group_of[static_cast<size_t>(row)];
  if (group < 0) return nullptr;
  const LayerAdapter& layer =
      lora_plan_.groups[static_cast<size_t>(group)].adapter->layers[static_cast<size_t>(layer_)];
  if (layer.experts.empty()) return nullptr;
  return static_cast<const CpuLora*>((layer.experts[static_cast<size_t>(expert)].*matrix).get());
}

bool CpuBackend::has_expert_update(std::unique_ptr<LoraMatrix> ExpertAdapter::* matrix) const {
  return std::ranges::any_of(lora_plan_.groups, [&](const LoraPlan::Group& group) {
    return std::ranges::any_of(group.adapter->layers[static_cast<size_t>(layer_)].experts,
                               [&](const ExpertAdapter& expert) { return expert.*matrix != nullptr; });
  });
}

void CpuBackend::plan_expert_update(std::unique_ptr<LoraMatrix> ExpertAdapter::* matrix) {
  std::vector<LoraRun>& runs = expert_lora_.runs;
  runs.clear();
  if (!has_expert_update(matrix)) return;
  for (int expert = 0; expert <= model_.moe.num_experts; ++expert) {
    int64_t pair = expert_plan_.first_pair[static_cast<size_t>(expert)];
    const int64_t end = pair + expert_plan_.num_pairs(expert);
    for (const CpuLora* before = nullptr; pair < end; ++pair) {
      const CpuLora* lora = lora_of_pair(expert, pair, matrix);
      if (lora != nullptr && lora == before)
        ++runs.back().count;
      else if (lora != nullptr)
        runs.push_back({lora, pair, 1, expert});
      before = lora;
    }
  }
}

const LoraRow* CpuBackend::multiply_expert_a(bool is_partial) {
  if (expert_lora_.runs.empty()) return nullptr;
  multiply_runs(expert_lora_, is_partial);
  std::fill_n(expert_lora_.rows.begin(), expert_plan_.tokens.size(), LoraRow{});
  for (const LoraRun& run : expert_lora_.runs)
    for (int64_t pair = run.first; pair < run.first + run.count; ++pair)
      expert_lora_.rows[static_cast<size_t>(pair)] = lora_row(expert_lora_, *run.lora, 0, pair);
  return expert_lora_.rows.data();
}

}  // namespace capstan
