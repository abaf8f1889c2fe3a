// What encoders and models that pool have besides the ops of decoders: embeddings of positions, layer norms, the sums
// over the rows of a sequence, and the layers that turn these into the result.
#include <algorithm>
#include <cmath>

#include "native/backend/cpu/cpu_backend_class.h"
#include "native/base/check.h"

namespace capstan {

void CpuBackend::norm_row(const float* x, const Vector* norm, int64_t n, float* out) const {
  const float* weight = values_of(norm);
  if (norm == nullptr) {
    std::copy_n(x, n, out);
  } else if (model_.norm_kind == NormKind::kLayer) {
    kernels_.layer_norm({x, weight, weight + round_up(n, 16), out, n, model_.rms_norm_eps});
  } else {
    ActTiles row;
    row.data = reinterpret_cast<uint32_t*>(out);
    row.rows = 1;
    row.words = round_up(n, 2);
    kernels_.rms_norm(x, weight, n, model_.rms_norm_eps, row, 0);
  }
}

void CpuBackend::norm_hidden(const Vector& norm) {
  const PartScope part(profile_, StepPart::kNorms);
  team_.for_ranges(num_tokens(), kSerialRows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      norm_row(hidden_row(row), &norm, model_.hidden_size, hidden_row(row));
  });
}

void CpuBackend::spread_biases(const Vector& table) {
  if (biases_of_ == &table) return;
  const int64_t stride = bias_stride(), length = model_.max_model_len;
  for (int head = 0; head < model_.num_heads; ++head)
    for (int64_t i = 0; i < stride; ++i) {
      const int64_t row = distance_row(std::min(i, 2 * length) - length, model_.embedding.num_distances);
      biases_.as<float>()[head * stride + i] =
          kLog2E * values_of(&table)[row * model_.total_heads + model_.head_begin + head];
    }
  biases_of_ = &table;
}

void CpuBackend::add_embeddings(const EmbeddingWeights& weights) {
  const PartScope part(profile_, StepPart::kEmbedding);
  if (weights.distances != nullptr) spread_biases(*weights.distances);
  const int64_t size = model_.hidden_size;
  const float* positions = values_of(weights.positions.get());
  const float* types = values_of(weights.token_types.get());
  team_.for_ranges(num_tokens(), kSerialRows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* hidden = hidden_row(row);
      if (types != nullptr) kernels_.add_row(hidden, types + step_.token_types[row] * size, size);
      if (positions != nullptr)
        kernels_.add_row(hidden, positions + (step_.positions[row] + model_.embedding.position_offset) * size, size);
      if (weights.norm != nullptr) norm_row(hidden, weights.norm.get(), size, hidden);
    }
  });
}

void CpuBackend::run_head(std::span<const HeadLayer> head, int64_t num_rows) {
  float* x = pooled_.as<float>();
  float* y = x + limits_.max_num_seqs * pooled_stride_;
  for (const HeadLayer& layer : head) {
    const auto& matrix = static_cast<const CpuMatrix&>(*layer.matrix);
    const ActTiles acts = act_tiles(acts_.as<uint32_t>(), num_rows, matrix);
    for (int64_t row = 0; row < num_rows; ++row)
      store_row(x + row * pooled_stride_, nullptr, matrix.cols, acts, row);
    GemmArgs gemm;
    gemm.acts = acts;
    gemm.num_features = matrix.rows;
    gemm.bias = matrix.bias.empty() ? nullptr : matrix.bias.data();
    gemm.out = y;
    gemm.out_stride = pooled_stride_;
    run_gemm(gemm, matrix);
    for (int64_t row = 0; row < num_rows; ++row) {
      float* to = x + row * pooled_stride_;
      kernels_.activate(y + row * pooled_stride_, matrix.rows, layer.activation);
      norm_row(y + row * pooled_stride_, layer.norm.get(), matrix.rows, to);
    }
  }
}

void CpuBackend::add_to_pool(const float* row, int weight, std::span<float> sum) const {
  if (model_.pooling == Pooling::kMax) {
    for (size_t k = 0; k < sum.size(); ++k)
      sum[k] = row[k] > sum[k] || std::isnan(row[k]) ? row[k] : sum[k];
    return;
  }
  const float factor = model_.pooling == Pooling::kWeightedMean ? static_cast<float>(weight) : 1.0f;
  for (size_t k = 0; k < sum.size(); ++k)
    sum[k] += factor * row[k];
}

void CpuBackend::pool(const Vector* norm, std::span<const HeadLayer> head, std::span<const PoolRow> rows) {
  const PartScope part(profile_, StepPart::kPooling);
  const int64_t size = model_.hidden_size;
  CAPSTAN_CHECK(static_cast<int64_t>(rows.size()) <= limits_.max_num_seqs);
  team_.for_ranges(static_cast<int64_t>(rows.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const PoolRow& pooled = rows[static_cast<size_t>(i)];
      CAPSTAN_CHECK(pooled.first_row >= 0 && pooled.first_row + pooled.num_rows <= num_tokens());
      for (int64_t row = pooled.first_row; row < pooled.first_row + pooled.num_rows; ++row) {
        // The memory of the row itself, because others belong to other threads.
        float* normed = partial_.as<float>() + row * hidden_stride_;
        norm_row(hidden_row(row), norm, size, normed);
        add_to_pool(normed, pooled.first_weight + static_cast<int>(row - pooled.first_row), pooled.sum);
      }
    }
  });
  int64_t num_results = 0;
  for (const PoolRow& pooled : rows) {
    if (pooled.result.empty()) continue;
    CAPSTAN_CHECK(pooled.divisor > 0);
    float* to = pooled_.as<float>() + num_results++ * pooled_stride_;
    for (int64_t k = 0; k < size; ++k)
      to[k] = pooled.sum[static_cast<size_t>(k)] / pooled.divisor;
  }
  if (num_results == 0) return;
  run_head(head, num_results);
  const float* from = pooled_.as<float>();
  for (const PoolRow& pooled : rows) {
    if (pooled.result.empty()) continue;
    std::copy_n(from, pooled.result.size(), pooled.result.begin());
    from += pooled_stride_;
  }
}

}  // namespace capstan
