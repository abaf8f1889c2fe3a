#include "native/backend/cpu/lora.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "native/backend/panel_reader.h"
#include "native/backend/weight_faults.h"
#include "native/base/check.h"
#include "native/base/error.h"
#include "native/base/number.h"

namespace capstan {
namespace {

constexpr int kPairs = kPanelFeatures / 2;  // gates of a panel, and their ups

// The row of B of an output feature; null without an update.
struct FeatureRow {
  const float* b = nullptr;
  int first = 0, count = 0;  // the values of t that it is multiplied with
};

// Packs B, panel by panel.
class PanelsOfB {
 public:
  PanelsOfB(const LoraSource& source, const CpuMatrix& matrix, DType dtype) : dtype_(dtype) {
    int64_t num_features = 0;
    for (const CpuMatrix* part = &matrix; part != nullptr; part = part->rest.get())
      num_features += part->rows;
    rows_.resize(static_cast<size_t>(num_features));
    int first = 0;
    for (const LoraFactors& factors : source.factors) {
      const int count = static_cast<int>(source.is_of_table ? factors.a.num_cols : factors.a.num_rows);
      for (const LoraFactors::Output& output : factors.outputs)
        add_output(output, first, count);
      first += count;
    }
  }

  // Packs the features of a matrix, whose first one is `first_feature`.
  CpuLora::Part pack(const CpuMatrix& matrix, int64_t first_feature, HugePool& pool) const {
    CpuLora::Part part;
    const size_t row_bytes = kPanelFeatures * dtype_size(dtype_);
    int64_t bytes = 0;
    for (int64_t panel = 0; panel < matrix.num_panels; ++panel) {
      LoraPanel& to = part.panels.emplace_back(range_of(matrix, first_feature, panel));
      to.offset = bytes;
      bytes += to.count * static_cast<int64_t>(row_bytes);
    }
    part.weights = pool.allocate(static_cast<size_t>(bytes), "an adapter");
    char* weights = part.weights.as<char>();
    for (int64_t panel = 0; panel < matrix.num_panels; ++panel)
      for (int lane = 0; lane < kPanelFeatures; ++lane)
        pack_lane(feature_row(matrix, first_feature, panel, lane), matrix.is_gated,
                  part.panels[static_cast<size_t>(panel)], weights, lane);
    part.view = {weights, dtype_, part.panels.data(), matrix.is_gated};
    return part;
  }

 private:
  void add_output(const LoraFactors::Output& output, int first, int count) {
    const auto& values = values_.emplace_back(read_floats(output.b));
    CAPSTAN_CHECK(output.b.num_cols == count && output.first_feature >= 0 &&
                  output.first_feature + output.b.num_rows <= static_cast<int64_t>(rows_.size()));
    check_range(output.b, values);
    for (int64_t i = 0; i < output.b.num_rows; ++i)
      rows_[static_cast<size_t>(output.first_feature + i)] = {values.data() + i * count, first, count};
  }

  void check_range(const TensorSlice& slice, const std::vector<float>& values) const {
    const auto fits = [&](float value) { return std::isfinite(rounded(value)); };
    if (!std::ranges::all_of(values, fits)) refuse_too_large(slice.tensor->name, dtype_);
  }

  float rounded(float value) const {
    if (dtype_ == DType::kF32) return value;
    return dtype_ == DType::kF16 ? f16_to_float(float_to_f16(value)) : bf16_to_float(float_to_bf16(value));
  }

  FeatureRow feature_row(const CpuMatrix& matrix, int64_t first_feature, int64_t panel, int lane) const {
    int64_t feature = panel * kPanelFeatures + lane;
    if (matrix.is_gated) {
      const int64_t pair = panel * kPairs + lane % kPairs, num_pairs = matrix.rows / 2;
      feature = pair >= num_pairs ? matrix.rows : lane < kPairs ? pair : num_pairs + pair;
    }
    return feature < matrix.rows ? rows_[static_cast<size_t>(first_feature + feature)] : FeatureRow{};
  }

  // Begins and ends at even values, because B is read in pairs of rows.
  LoraPanel range_of(const CpuMatrix& matrix, int64_t first_feature, int64_t panel) const {
    int begin = 0, end = 0;
    for (int lane = 0; lane < kPanelFeatures; ++lane) {
      const FeatureRow row = feature_row(matrix, first_feature, panel, lane);
      if (row.b == nullptr) continue;
      const int first = matrix.is_gated ? 0 : row.first;
      begin = end == 0 ? first : std::min(begin, first);
      end = std::max(end, first + row.count);
    }
    begin &= ~1;
    return {begin, static_cast<int>(round_up(end - begin, 2)), 0};
  }

  void pack_lane(const FeatureRow& row, bool is_gated, const LoraPanel& to, char* weights, int lane) const {
    if (row.b == nullptr) return;
    char* data = weights + to.offset;
    for (int i = 0; i < row.count; ++i) {
      const int k = (is_gated ? i : row.first + i) - to.first;
      if (dtype_ == DType::kF32)
        reinterpret_cast<float*>(data)[k * kPanelFeatures + lane] = row.b[i];
      else if (dtype_ == DType::kF16)
        reinterpret_cast<uint16_t*>(data)[k * kPanelFeatures + lane] = float_to_f16(row.b[i]);
      else
        reinterpret_cast<uint16_t*>(data)[(k / 2 * kPanelFeatures + lane) * 2 + k % 2] = float_to_bf16(row.b[i]);
    }
  }

  const DType dtype_;
  std::vector<std::vector<float>> values_;  // of all outputs
  std::vector<FeatureRow> rows_;            // by output feature
};

}  // namespace

std::unique_ptr<CpuLora> pack_lora(const LoraSource& source, const CpuMatrix& matrix, DType dtype,
                                   const CpuKernels& kernels) {
  CpuMatrix columns;  // of a table, as output features
  columns.rows = matrix.cols;
  columns.num_panels = (matrix.cols + kPanelFeatures - 1) / kPanelFeatures;
  const CpuMatrix& outputs = source.is_of_table ? columns : matrix;
  auto lora = std::make_unique<CpuLora>();
  MatrixSource a;
  a.kind = source.kind;
  a.total_cols = source.total_cols;
  int first = 0;
  for (const LoraFactors& factors : source.factors) {
    CAPSTAN_CHECK(source.is_of_table || factors.a.num_cols == matrix.cols);
    a.slices.push_back(factors.a);
    const CpuLora::Range range{first, static_cast<int>(source.is_of_table ? factors.a.num_cols : factors.a.num_rows)};
    lora->scales.insert(lora->scales.end(), static_cast<size_t>(range.count), factors.scale);
    first += range.count;
    if (!outputs.is_gated) continue;
    for (const LoraFactors::Output& output : factors.outputs)
      (output.first_feature == 0 ? lora->gate : lora->up) = range;
  }
  Team team({-1}, false);  // the team of the backend may be running a step
  CAPSTAN_CHECK(source.memory != nullptr);
  if (*source.memory == nullptr) *source.memory = std::make_shared<CpuLoraMemory>();
  HugePool& pool = static_cast<CpuLoraMemory&>(**source.memory).pool;
  lora->a = pack_matrix(a, dtype, kernels, team, pool, nullptr);
  lora->scales.resize(static_cast<size_t>(round_up(first, kPanelFeatures)), 1.0f);
  const PanelsOfB panels(source, outputs, dtype);
  lora->bytes = lora->a->bytes;
  int64_t first_feature = 0;
  for (const CpuMatrix* part = &outputs; part != nullptr; part = part->rest.get()) {
    lora->parts.push_back(panels.pack(*part, first_feature, pool));
    for (const LoraPanel& panel : lora->parts.back().panels)
      lora->bytes += panel.count * kPanelFeatures * static_cast<int64_t>(dtype_size(dtype));
    first_feature += part->rows;
  }
  return lora;
}

void LoraPlan::reserve(int max_num_rows, int max_num_seqs) {
  groups.reserve(static_cast<size_t>(max_num_seqs));
  group_of.reserve(static_cast<size_t>(max_num_rows));
  place_of.reserve(static_cast<size_t>(max_num_rows));
}

void LoraPlan::begin_step(const StepInput& step) {
  groups.clear();
  if (step.adapters.empty()) return;
  for (const AdapterWeights* adapter : step.adapters)
    groups.push_back({adapter, 0, 0});
  group_of.assign(step.input_ids.size(), -1);
  for (size_t seq = 0; seq < step.adapter_indices.size(); ++seq)
    std::fill(group_of.begin() + step.cu_seqlens_q[seq], group_of.begin() + step.cu_seqlens_q[seq + 1],
              step.adapter_indices[seq]);
  place_rows();
}

void LoraPlan::select(const LoraPlan& all, std::span<const int32_t> rows) {
  groups = all.groups;
  if (groups.empty()) return;
  group_of.clear();
  for (const int32_t row : rows)
    group_of.push_back(all.group_of[static_cast<size_t>(row)]);
  place_rows();
}

void LoraPlan::place_rows() {
  for (Group& group : groups)
    group.count = 0;
  for (const int32_t group : group_of)
    if (group >= 0) ++groups[static_cast<size_t>(group)].count;
  int first = 0;
  for (Group& group : groups) {
    group.first = first;
    first += group.count;
    group.count = 0;
  }
  place_of.assign(group_of.size(), -1);
  for (size_t row = 0; row < group_of.size(); ++row) {
    if (group_of[row] < 0) continue;
    Group& group = groups[static_cast<size_t>(group_of[row])];
    place_of[row] = group.first + group.count++;
  }
}

}  // namespace capstan
