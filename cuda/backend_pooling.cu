// What encoders and models that pool have besides the ops of decoders: embeddings of positions, biases of distances,
// norms of sums, the sums over the rows of a sequence, and the layers that turn these into the result. Their steps are
// never captured, because each ends with the results on the host.
#include <algorithm>
#include <cstring>
#include <vector>

#include "cuda/cuda_backend.h"
#include "native/base/check.h"

namespace capstan::cuda {

void CudaBackend::allocate_pooling(int64_t num_seqs) {
  const int64_t widest = std::max(model_.hidden_size, model_.max_head_size());
  pool_.sums = device_floats(num_seqs * model_.hidden_size, "the sums of sequences");
  for (DeviceBuffer& rows : pool_.rows)
    rows = device_floats(num_seqs * widest, "the rows of the pooling head");
  pool_.host = PinnedBuffer(static_cast<size_t>(num_seqs * (model_.hidden_size + widest)) * sizeof(float),
                            "the results of a step");
  for (const int64_t size : model_.head_sizes)
    if (size != model_.hidden_size && !pool_.acts.contains(size))
      pool_.acts[size] =
          make_acts(num_seqs, split_depth(size, size, row_parallel_parts(size)), "the activations of the pooling head");
  rows_staging_.ensure_capacity(static_cast<size_t>(num_seqs) *
                                    (sizeof(PoolItem) + static_cast<size_t>(model_.hidden_size) * sizeof(float)) +
                                32);
}

void CudaBackend::allocate_distances() {
  std::vector<int32_t> rows;
  for (int distance = -model_.max_model_len; distance <= model_.max_model_len; ++distance)
    rows.push_back(distance_row(distance, model_.embedding.num_distances));
  distances_.rows = DeviceBuffer(rows.size() * sizeof(int32_t), "the biases of distances");
  distances_.biases = device_floats(model_.num_heads * std::ssize(rows), "the biases of distances");
  check(cudaMemcpyAsync(distances_.rows.as<void>(), rows.data(), distances_.rows.bytes(), cudaMemcpyHostToDevice,
                        stream_),
        "the biases of distances");
  wait_for(stream_);
}

void CudaBackend::add_embeddings(const EmbeddingWeights& weights) {
  enqueue([this, &weights] {
    finish_sum();
    AddEmbeddingsArgs args;
    args.hidden = hidden_.as<float>();
    args.num_tokens = step_.num_tokens;
    args.hidden_size = model_.hidden_size;
    args.token_type_table = device_vector(weights.token_types);
    args.token_types = step_.token_types;
    args.position_table = device_vector(weights.positions);
    args.positions = step_.positions;
    args.position_offset = model_.embedding.position_offset;
    launch_add_embeddings(args, stream_);
    if (weights.norm != nullptr) norm_hidden(device_vector(weights.norm));
    if (weights.distances == nullptr) return;
    BiasesArgs biases;
    biases.table = device_vector(weights.distances);
    biases.rows = distances_.rows.as<int32_t>();
    biases.num_distances = num_distances();
    biases.num_heads = model_.num_heads;
    biases.head_begin = model_.head_begin;
    biases.total_heads = model_.total_heads;
    biases.biases = distances_.biases.as<float>();
    launch_biases(biases, stream_);
  });
}

RowNormArgs CudaBackend::row_norm_args(float* rows, int num_rows, int64_t size, const float* weight) const {
  RowNormArgs args;
  args.rows = rows;
  args.num_rows = num_rows;
  args.size = size;
  args.weight = weight;
  if (weight != nullptr && model_.norm_kind == NormKind::kLayer) args.bias = weight + size;
  args.eps = model_.rms_norm_eps;
  return args;
}

void CudaBackend::norm_hidden(const float* weight) {
  launch_row_norm(row_norm_args(hidden_.as<float>(), step_.num_tokens, model_.hidden_size, weight), stream_);
}

// Returns the results of the head for the first `num_rows` of pool_.rows.
const float* CudaBackend::run_head(std::span<const HeadLayer> head, int num_rows) {
  float *x = pool_.rows[0].as<float>(), *y = pool_.rows[1].as<float>();
  for (const HeadLayer& layer : head) {
    const int64_t size = layer.matrix->rows, inputs = layer.matrix->cols;
    const Acts& acts = inputs == model_.hidden_size ? norm_acts_ : pool_.acts.at(inputs);
    NormArgs operands = norm_args(nullptr, nullptr, num_rows);
    operands.hidden = x;
    operands.hidden_size = inputs;
    operands.split = acts.split;
    operands.acts = acts.data(operands.is_row_major);
    GemmArgs product = gemm_args(*layer.matrix, acts, num_rows);
    product.out = y;
    product.out_stride = size;
    project(product, &operands);
    RowNormArgs norm = row_norm_args(y, num_rows, size, device_vector(layer.norm));
    norm.activation = layer.activation;
    launch_row_norm(norm, stream_);
    std::swap(x, y);
  }
  return x;
}

void CudaBackend::pool(const Vector* norm, std::span<const HeadLayer> head, std::span<const PoolRow> rows) {
  guarded([&] {
    finish_sum();
    if (rows.empty()) return;
    const auto count = rows.size(), size = static_cast<size_t>(model_.hidden_size), sum_bytes = size * sizeof(float);
    CAPSTAN_CHECK(count <= static_cast<size_t>(limits_.max_num_seqs));
    rows_staging_.begin(count * (sizeof(PoolItem) + sum_bytes) + 32);
    PoolArgs args;
    PoolItem* const items = rows_staging_.reserve(count, args.items);
    float* const before = rows_staging_.reserve(count * size, args.before);
    int num_results = 0;
    for (size_t i = 0; i < count; ++i) {
      const PoolRow& row = rows[i];
      CAPSTAN_CHECK(row.first_row >= 0 && row.first_row + row.num_rows <= step_.num_tokens && row.divisor > 0);
      items[i] = {row.first_row, row.num_rows, row.first_weight, row.result.empty() ? -1 : num_results++, row.divisor};
      std::memcpy(before + i * size, row.sum.data(), sum_bytes);
    }
    rows_staging_.send(stream_);
    if (norm != nullptr) norm_hidden(static_cast<const CudaVector&>(*norm).device());
    args.pooling = model_.pooling;
    args.hidden = hidden_.as<float>();
    args.hidden_size = model_.hidden_size;
    args.num_items = static_cast<int>(count);
    args.sums = pool_.sums.as<float>();
    args.results = pool_.rows[0].as<float>();
    launch_pool(args, stream_);

    const auto fetch = [&](float* to, const float* from, size_t floats) {
      check(cudaMemcpyAsync(to, from, floats * sizeof(float), cudaMemcpyDeviceToHost, stream_), "copying results");
    };
    float* const sums = pool_.host.as<float>();
    float* result = sums + count * size;
    fetch(sums, args.sums, count * size);
    const auto result_size = head.empty() ? size : static_cast<size_t>(head.back().matrix->rows);
    if (num_results > 0) fetch(result, run_head(head, num_results), static_cast<size_t>(num_results) * result_size);
    wait_for(stream_);
    for (size_t i = 0; i < count; ++i) {
      std::memcpy(rows[i].sum.data(), sums + i * size, sum_bytes);
      if (rows[i].result.empty()) continue;
      CAPSTAN_CHECK(rows[i].result.size() == result_size);
      std::memcpy(rows[i].result.data(), result, result_size * sizeof(float));
      result += result_size;
    }
  });
}

}  // namespace capstan::cuda
