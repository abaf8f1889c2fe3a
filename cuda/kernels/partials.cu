// Adds partial sums to the hidden states, alone or together with the norm that follows.
#include "cuda/kernels/epilogue.h"
#include "cuda/kernels/rows.h"
#include "cuda/launch.h"
#include "native/base/check.h"

namespace capstan::cuda {
namespace {

constexpr int kThreads = kNormThreads;

// Feature k of a token, without the old hidden state. `at` indexes the partials.
__device__ __forceinline__ float sum_partials(const AddPartialsArgs& args, int64_t at, int64_t k) {
  float parts[8];
#pragma unroll
  for (int rank = 0; rank < 8; ++rank)
    parts[rank] = rank < args.world_size ? args.partials[rank][at] : 0.0f;
  float value = tree_sum(parts, 1, args.world_size);
  if (args.bias != nullptr) value += args.bias[k];
  return value;
}
// The new hidden state.
__device__ __forceinline__ float add_sum(const AddPartialsArgs& args, float sum, const float* before) {
  return args.replaces ? sum : args.factor * fmaf(sum, args.scale, *before);
}

__global__ void __launch_bounds__(kThreads) add_partials_kernel(AddPartialsArgs args) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < args.num_tokens * args.hidden_size)
    args.hidden[i] = add_sum(args, sum_partials(args, i, i % args.hidden_size), args.hidden + i);
}

// One block per row. The sums stay in shared memory; each thread reads only what it wrote.
template <class T>
__global__ void __launch_bounds__(kThreads) add_norm_kernel(AddNormArgs args) {
  griddepcontrol_launch_dependents();
  griddepcontrol_wait();
  const NormArgs& norm = args.norm;
  const int64_t size = norm.hidden_size, row = blockIdx.x;
  const int64_t token = norm.rows == nullptr ? row : norm.rows[row];
  const float* before = norm.rows == nullptr ? args.sum.hidden : args.owners[token / args.tokens_per_owner];
  float* of_norms = reinterpret_cast<float*>(shared_memory());
  float* sums = of_norms + 2 * kRowNormFloats;
  const bool has_norm = args.sum.norm != nullptr;
#pragma unroll 4
  for (int64_t k = threadIdx.x; k < size; k += kThreads) {
    const float sum = sum_partials(args.sum, token * size + k, k);
    sums[k] = has_norm ? sum : add_sum(args.sum, sum, before + token * size + k);
  }
  if (has_norm) {
    const float scale = row_norm(sums, size, args.sum.eps, false, of_norms + kRowNormFloats).scale;
    for (int64_t k = threadIdx.x; k < size; k += kThreads)
      sums[k] = add_sum(args.sum, sums[k] * scale * args.sum.norm[k], before + token * size + k);
  }
  const RowNorm of_row = row_norm(sums, size, norm.eps, norm.bias != nullptr, of_norms);
  for (int64_t k = threadIdx.x; k < size; k += kThreads) {
    if (norm.rows == nullptr) args.sum.hidden[token * size + k] = sums[k];
    norm.acts[act_index(norm.is_row_major, row, norm.split.place(k), norm.split.padded())] =
        to_bits<T>(normed(norm, of_row, sums[k], k));
  }
}

void check_sum(const AddPartialsArgs& args) {
  CAPSTAN_CHECK(args.num_tokens > 0 && args.hidden_size > 0);
  CAPSTAN_CHECK(args.world_size == 1 || args.world_size == 2 || args.world_size == 4 || args.world_size == 8);
}

}  // namespace

void launch_add_partials(const AddPartialsArgs& args, cudaStream_t stream) {
  check_sum(args);
  CAPSTAN_CHECK(args.norm == nullptr);
  const int64_t count = args.num_tokens * args.hidden_size;
  launch(add_partials_kernel, dim3(static_cast<unsigned>((count + kThreads - 1) / kThreads)), dim3(kThreads), 0, stream,
         args);
}

void launch_add_norm(const AddNormArgs& args, cudaStream_t stream) {
  check_sum(args.sum);
  const NormArgs& norm = args.norm;
  CAPSTAN_CHECK(norm.num_rows > 0 && norm.hidden_size == args.sum.hidden_size &&
                norm.split.parts * norm.split.part_cols == norm.hidden_size);
  CAPSTAN_CHECK(args.sum.norm == nullptr || !args.sum.replaces);
  CAPSTAN_CHECK(norm.rows == nullptr ? norm.num_rows == args.sum.num_tokens && norm.hidden == args.sum.hidden
                                     : args.tokens_per_owner > 0);
  launch_pdl(norm.uses_pdl, norm.type == FloatType::kBf16 ? add_norm_kernel<Bf16> : add_norm_kernel<F16>,
             dim3(static_cast<unsigned>(norm.num_rows)), dim3(kThreads),
             (2 * kRowNormFloats + static_cast<size_t>(norm.hidden_size)) * sizeof(float), stream, args);
}

}  // namespace capstan::cuda
