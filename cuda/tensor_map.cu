#include "cuda/tensor_map.h"

#include "cuda/wgmma_layout.h"

namespace capstan::cuda {
namespace {

#if defined(__CUDACC__)
using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                            const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                            CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// Obtained through the runtime, so that the library does not link to the driver.
Encode find_encode() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult state = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &state);
#else
  const cudaError_t error = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &state);
#endif
  return error == cudaSuccess && state == cudaDriverEntryPointSuccess ? reinterpret_cast<Encode>(found) : nullptr;
}

Encode encoder() {
  static const Encode encode = find_encode();
  return encode;
}
#endif

}  // namespace

bool supports_tensor_maps() {
#if defined(__CUDACC__)
  return encoder() != nullptr;
#else
  return cuda_host::supports_tensor_maps();
#endif
}

bool make_tensor_map(TensorMap& map, const void* data, int64_t rows, int64_t columns, int box_rows) {
#if defined(__CUDACC__)
  if (!supports_tensor_maps()) return false;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)},
                   strides[] = {static_cast<cuuint64_t>(columns) * 2};
  const cuuint32_t box[] = {kStageDepth, static_cast<cuuint32_t>(box_rows)}, steps[] = {1, 1};
  // The elements are copied as bits; only their size matters.
  return encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, const_cast<void*>(data), sizes, strides, box, steps,
                   CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
#else
  return cuda_host::encode_tensor_map(map, data, rows, columns, box_rows, kStageDepth);
#endif
}

}  // namespace capstan::cuda
