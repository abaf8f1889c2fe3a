#include "cuda/backend.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "cuda/cuda_backend.h"

namespace capstan::cuda {
namespace {

// CUDA graphs, and code loaded while they are captured, may take at most this much device memory.
constexpr int64_t kGraphBytes = int64_t{512} << 20;

// Features that CAPSTAN_CUDA_WITHOUT can switch off, so that a fault on a device can be traced to one of them.
struct Features {
  bool graphs = true, early = true, wgmma = true, one_shot = true;
};

bool* find_feature(Features& features, const std::string& name) {
  if (name == "graphs") return &features.graphs;
  if (name == "early") return &features.early;
  if (name == "wgmma") return &features.wgmma;
  if (name == "one_shot") return &features.one_shot;
  return nullptr;
}

Features enabled_features() {
  Features features;
  const char* without = std::getenv("CAPSTAN_CUDA_WITHOUT");
  std::istringstream names(without == nullptr ? "" : without);
  for (std::string name; std::getline(names, name, ',');) {
    bool* const feature = find_feature(features, name);
    if (feature == nullptr)
      throw Error(
          ErrorCode::kInvalidArgument,
          "CAPSTAN_CUDA_WITHOUT: expected a comma-separated list of graphs, early, wgmma and one_shot, got " + name);
    *feature = false;
  }
  return features;
}

}  // namespace

CudaBackend::CudaBackend(const CudaBackendOptions& options, std::unique_ptr<Comm> comm)
    : device_(options.device), num_sharing_(options.num_sharing), dtype_(options.weight_dtype) {
  if (dtype_ == DType::kF32) throw Error(ErrorCode::kInvalidArgument, "dtype: expected bf16 or f16 on CUDA, got f32");
  const Features features = enabled_features();
  ranks_ = std::make_unique<Ranks>(std::move(comm), device_, options.links);
  graph_budget_ = std::min(kGraphBytes, memory().total / 64);
  resources_ = {attribute_of(device_, cudaDevAttrMultiProcessorCount),
                static_cast<size_t>(attribute_of(device_, cudaDevAttrMaxSharedMemoryPerBlockOptin))};
  has_graphs_ = features.graphs;
  has_one_shot_ = features.one_shot;
  // With several ranks, events lie between the kernels.
  uses_pdl_ = features.early && world_size() == 1 && supports_pdl();
  has_wgmma_ = features.wgmma && !options.is_deterministic && supports_gemm_wgmma() && supports_attention_wgmma();
  info_.name = "cuda";
  info_.isa = has_wgmma_ ? "wgmma" : "mma";
  info_.depth = 2;
  info_.preferred_block_size = info_.block_size_multiple = kBlockSize;
  info_.compute_dtype = dtype_;
  info_.has_fp8_cache = true;
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream");
}

CudaBackend::~CudaBackend() {
  if (is_device_lost()) return;
  try {
    check(cudaSetDevice(device_), "selecting the device");
    wait_for(stream_);
  } catch (const Error&) {
    return;  // the device was lost just now
  }
  graphs_.clear();
  cudaStreamDestroy(stream_);
}

std::unique_ptr<Matrix> CudaBackend::load_matrix(const MatrixSource& source, const LoadProgress& progress) {
  return guarded([&] {
    if (uploader_ == nullptr) uploader_ = std::make_unique<Uploader>(stream_);
    return upload_matrix(source, dtype_, *uploader_, progress);
  });
}

std::unique_ptr<Vector> CudaBackend::load_vector(const TensorSlice& slice, float offset, const LoadProgress& progress) {
  return guarded([&] { return upload_vector(slice, offset, stream_, progress); });
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
