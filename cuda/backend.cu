#include "cuda/backend.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <utility>
#include <vector>

#include "cuda/cuda_backend.h"
#include "native/backend/quant_groups.h"

namespace capstan::cuda {
namespace {

// CUDA graphs, and code loaded while they are captured, may take at most this much device memory.
constexpr int64_t kGraphBytes = int64_t{512} << 20;

std::vector<std::pair<std::string, bool*>> switches_of(Features& features) {
  return {{"graphs", &features.graphs},
          {"early", &features.early},
          {"gemv", &features.gemv},
          {"fused_heads", &features.fused_heads},
          {"k_splits", &features.k_splits},
          {"wgmma", &features.wgmma},
          {"wgmma_attention", &features.wgmma_attention},
          {"codes", &features.codes},
          {"one_shot", &features.one_shot}};
}

// All but those that CAPSTAN_CUDA_WITHOUT lists.
Features enabled_features() {
  Features features;
  const char* without = std::getenv("CAPSTAN_CUDA_WITHOUT");
  std::istringstream names(without == nullptr ? "" : without);
  const auto switches = switches_of(features);
  for (std::string name; std::getline(names, name, ',');) {
    const auto found = std::ranges::find(switches, name, &std::pair<std::string, bool*>::first);
    if (found == switches.end()) {
      std::string known;
      for (const auto& [one, value] : switches)
        known += (known.empty() ? "" : ", ") + one;
      throw Error(ErrorCode::kInvalidArgument,
                  "CAPSTAN_CUDA_WITHOUT: expected a comma-separated list of " + known + "; got " + name);
    }
    *found->second = false;
  }
  return features;
}

}  // namespace

CudaBackend::CudaBackend(const CudaBackendOptions& options, std::unique_ptr<Comm> comm)
    : device_(options.device),
      num_sharing_(options.num_sharing),
      dtype_(options.weight_dtype),
      features_(enabled_features()),
      quantize_group_(options.quantize_group) {
  if (dtype_ == DType::kF32) throw Error(ErrorCode::kInvalidArgument, "dtype: expected bf16 or f16 on CUDA, got f32");
  ranks_ = std::make_unique<Ranks>(std::move(comm), device_, options.links);
  graph_budget_ = std::min(kGraphBytes, memory().total / 64);
  resources_ = {attribute_of(device_, cudaDevAttrMultiProcessorCount),
                static_cast<size_t>(attribute_of(device_, cudaDevAttrMaxSharedMemoryPerBlockOptin))};
  // With several ranks, events lie between the kernels.
  uses_pdl_ = features_.early && world_size() == 1 && supports_pdl();
  has_wgmma_ = features_.wgmma && !options.is_deterministic && supports_gemm_wgmma() && supports_attention_wgmma();
  info_.name = "cuda";
  info_.isa = has_wgmma_ ? "wgmma" : "mma";
  info_.depth = 2;
  info_.preferred_block_size = info_.block_size_multiple = kBlockSize;
  info_.compute_dtype = dtype_;
  info_.has_fp8_cache = true;
  info_.has_quantized_weights = true;
  info_.has_adapters = true;
  info_.keeps_fp8_weights = features_.codes;
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream");
  if (world_size() == 1) begin_timeline(stream_);
}

CudaBackend::~CudaBackend() {
  if (is_device_lost()) return;
  try {
    check(cudaSetDevice(device_), "selecting the device");
    wait_for(stream_);
    if (world_size() == 1) end_timeline(stream_);
  } catch (const Error&) {
    return;  // the device was lost just now
  }
  graphs_.clear();
  cudaStreamDestroy(stream_);
  if (adapter_stream_ != nullptr) cudaStreamDestroy(adapter_stream_);
}

std::unique_ptr<Matrix> CudaBackend::load_matrix(const MatrixSource& source, const LoadProgress& progress) {
  return guarded([&] {
    if (uploader_ == nullptr) uploader_ = std::make_unique<Uploader>(stream_);
    auto matrix = upload_matrix(source, {dtype_, features_.codes, quantize_group_}, *uploader_, progress);
    const bool has_codes = matrix->device.codes.kind != CodeKind::kNone;
    const auto& groups = source.slices[0].tensor->groups;
    const bool is_fp8 = groups != nullptr && groups->layout == CodeLayout::kFp8;
    const bool could_be_kept = is_fp8 || file_groups(source.slices[0]).type.bits > 0;
    if (features_.codes && source.format == WeightFormat::kFile && could_be_kept && !has_codes) ++num_decoded_;
    return matrix;
  });
}

std::unique_ptr<Vector> CudaBackend::load_vector(const TensorSlice& slice, float offset, const LoadProgress& progress) {
  return guarded([&] { return upload_vector(slice, offset, stream_, progress); });
}

std::unique_ptr<Vector> CudaBackend::load_layer_norm(const TensorSlice& weight, const TensorSlice* bias,
                                                     const LoadProgress& progress) {
  return guarded([&] { return upload_layer_norm(weight, bias, stream_, progress); });
}

std::unique_ptr<Backend> make_cuda_backend(const CudaBackendOptions& options, std::unique_ptr<Comm> comm) {
  throw_if_device_lost();
  const int major = attribute_of(options.device, cudaDevAttrComputeCapabilityMajor),
            minor = attribute_of(options.device, cudaDevAttrComputeCapabilityMinor);
  if (major < 8)
    throw Error(ErrorCode::kInvalidArgument, "device: expected compute capability 8.0 or newer, device " +
                                                 std::to_string(options.device) + " has " + std::to_string(major) +
                                                 "." + std::to_string(minor));
  // NOTE: the constructor's events, streams and buffers belong to the current device.
  check(cudaSetDevice(options.device), "selecting the device");
  return std::make_unique<CudaBackend>(options, std::move(comm));
}

}  // namespace capstan::cuda
