#pragma once
// From files on disk to an engine that answers.
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "native/backend/registry.h"
#include "native/engine/engine.h"
#include "native/model/weights.h"

namespace capstan {

// A tensor of the checkpoint: where it lies and under which canonical name.
struct TensorEntry {
  std::string name;
  int file_idx = 0;
  uint64_t offset = 0;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // one or two dimensions
};

// What bf16 weights are multiplied with. kAuto: bf16 activations, but f32 for narrow models, which gain no speed from
// them worth their rounding.
enum class ComputeChoice : uint8_t { kAuto, kF32, kBf16 };

struct LoadRequest {
  std::vector<std::string> files;
  std::vector<TensorEntry> tensors;
  ModelSpec spec;
  std::shared_ptr<Vocabulary> vocabulary;
  DeviceOptions device;  // compute_f32 follows from `compute`
  ComputeChoice compute = ComputeChoice::kAuto;
  // Otherwise the type that the backend computes in: an f16 cache would cost f16 weights, computed in f32, most of
  // their tolerance.
  bool is_kv_dtype_given = false;
  DType kv_cache_dtype = DType::kBf16;
  int block_size = 0;                   // 0 = the backend's choice
  int64_t kv_cache_bytes = 0;           // 0 = default
  double gpu_memory_utilization = 0.9;  // of a device with memory of its own: the share of it that this process uses
  int max_model_len = 0;                // 0 = default
  int max_num_seqs = 64;
  int max_num_batched_tokens = 512;
  int max_queued_requests = 1024;
  bool has_prefix_cache = true;
  std::vector<int32_t> eos_token_ids;
};

// What the options came to.
struct EngineInfo {
  std::string backend, isa;
  int num_threads = 0, world_size = 1;
  DType weight_dtype = DType::kF32, compute_dtype = DType::kF32, kv_cache_dtype = DType::kF32;
  int block_size = 0, num_blocks = 0;
  int64_t kv_cache_bytes = 0, weight_bytes = 0;
  int max_model_len = 0;
  std::vector<std::string> notes;
};

struct LoadedEngine {
  std::unique_ptr<Engine> engine;
  EngineInfo info;
};

// Called from loading threads with the bytes read so far and in all; throws to cancel.
using LoadObserver = std::function<void(int64_t done, int64_t total)>;

// Throws kInvalidModel, kInvalidArgument, kIo, kOutOfMemory, or what `observer` throws.
LoadedEngine load_engine(const LoadRequest& request, const LoadObserver& observer, EventSink sink);

}  // namespace capstan
