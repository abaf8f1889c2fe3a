// Kernels of encoders and of models that pool.
#include "cuda/pooling.h"

#include "cuda/kernels/epilogue.h"
#include "cuda/kernels/rows.h"
#include "cuda/launch.h"
#include "native/base/check.h"

namespace capstan::cuda {
namespace {

constexpr int kThreads = kNormThreads;

// One block per token.
__global__ void __launch_bounds__(kThreads) add_embeddings_kernel(AddEmbeddingsArgs args) {
  const int64_t token = blockIdx.x, size = args.hidden_size;
  float* const hidden = args.hidden + token * size;
  const float* const of_type =
      args.token_type_table == nullptr ? nullptr : args.token_type_table + args.token_types[token] * size;
  const float* const of_position = args.position_table == nullptr
                                       ? nullptr
                                       : args.position_table + (args.positions[token] + args.position_offset) * size;
  for (int64_t k = threadIdx.x; k < size; k += kThreads) {
    float sum = hidden[k];
    if (of_type != nullptr) sum += of_type[k];
    if (of_position != nullptr) sum += of_position[k];
    hidden[k] = sum;
  }
}

// Grid: (blocks of distances, heads).
__global__ void __launch_bounds__(kThreads) biases_kernel(BiasesArgs args) {
  const int distance = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (distance >= args.num_distances) return;
  args.biases[int64_t{blockIdx.y} * args.num_distances + distance] =
      args.table[int64_t{args.rows[distance]} * args.total_heads + args.head_begin + blockIdx.y];
}

// One block per row. Each thread reads only what it wrote.
__global__ void __launch_bounds__(kThreads) row_norm_kernel(RowNormArgs args) {
  float* const row = args.rows + int64_t{blockIdx.x} * args.size;
  for (int64_t k = threadIdx.x; k < args.size; k += kThreads)
    row[k] = activate(args.activation, row[k]);
  if (args.weight == nullptr) return;
  NormArgs norm;
  norm.weight = args.weight;
  norm.bias = args.bias;
  const RowNorm of_row =
      row_norm(row, args.size, args.eps, args.bias != nullptr, reinterpret_cast<float*>(shared_memory()));
  for (int64_t k = threadIdx.x; k < args.size; k += kThreads)
    row[k] = normed(norm, of_row, row[k], k);
}

// Grid: (blocks of features, items). A thread adds one feature, so that the order of a sum depends on nothing.
__global__ void __launch_bounds__(kThreads) pool_kernel(PoolArgs args) {
  const int64_t k = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (k >= args.hidden_size) return;
  const PoolItem item = args.items[blockIdx.y];
  const int64_t at = blockIdx.y * args.hidden_size + k;
  const float* const rows = args.hidden + item.first_row * args.hidden_size + k;
  float sum = args.before[at];
#pragma unroll 8
  for (int row = 0; row < item.num_rows; ++row) {
    const float value = rows[row * args.hidden_size];
    if (args.pooling == Pooling::kMax)
      sum = value > sum || value != value ? value : sum;  // keeps NaN
    else
      sum =
          fmaf(args.pooling == Pooling::kWeightedMean ? static_cast<float>(item.first_weight + row) : 1.0f, value, sum);
  }
  args.sums[at] = sum;
  if (item.result >= 0) args.results[item.result * args.hidden_size + k] = sum / item.divisor;
}

}  // namespace

void launch_add_embeddings(const AddEmbeddingsArgs& args, cudaStream_t stream) {
  CAPSTAN_CHECK(args.num_tokens > 0 && args.hidden_size > 0 && args.hidden != nullptr);
  CAPSTAN_CHECK((args.token_type_table == nullptr || args.token_types != nullptr) &&
                (args.position_table == nullptr || args.positions != nullptr));
  launch(add_embeddings_kernel, dim3(static_cast<unsigned>(args.num_tokens)), dim3(kThreads), 0, stream, args);
}

void launch_biases(const BiasesArgs& args, cudaStream_t stream) {
  CAPSTAN_CHECK(args.num_distances > 0 && args.num_heads > 0 && args.num_heads < 65536 &&
                args.head_begin + args.num_heads <= args.total_heads);
  CAPSTAN_CHECK(args.table != nullptr && args.rows != nullptr && args.biases != nullptr);
  launch(biases_kernel,
         dim3(static_cast<unsigned>((args.num_distances + kThreads - 1) / kThreads),
              static_cast<unsigned>(args.num_heads)),
         dim3(kThreads), 0, stream, args);
}

void launch_row_norm(const RowNormArgs& args, cudaStream_t stream) {
  CAPSTAN_CHECK(args.num_rows > 0 && args.size > 0 && args.rows != nullptr);
  CAPSTAN_CHECK(args.weight != nullptr || args.bias == nullptr);
  launch(row_norm_kernel, dim3(static_cast<unsigned>(args.num_rows)), dim3(kThreads), kRowNormFloats * sizeof(float),
         stream, args);
}

void launch_pool(const PoolArgs& args, cudaStream_t stream) {
  CAPSTAN_CHECK(args.num_items > 0 && args.num_items < 65536 && args.hidden_size > 0 && args.hidden != nullptr);
  CAPSTAN_CHECK(args.pooling != Pooling::kNone && args.items != nullptr && args.before != nullptr &&
                args.sums != nullptr && args.results != nullptr);
  launch(
      pool_kernel,
      dim3(static_cast<unsigned>((args.hidden_size + kThreads - 1) / kThreads), static_cast<unsigned>(args.num_items)),
      dim3(kThreads), 0, stream, args);
}

}  // namespace capstan::cuda
