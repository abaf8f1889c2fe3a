#pragma once
// Loads a model from its files and starts an engine.
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "native/backend/registry.h"
#include "native/engine/engine.h"
#include "native/model/checkpoint_files.h"
#include "native/model/spec.h"

namespace capstan {

// The type of the activations that bf16 weights are multiplied with. kAuto: bf16, but f32 for narrow models, where bf16
// saves too little time to be worth its rounding.
enum class ComputeChoice : uint8_t { kAuto, kF32, kBf16 };

// Weights that are quantized at load. kInt4: the embedding and the LM head have 8 bits, because their errors reach
// every token.
enum class Quantization : uint8_t { kNone, kInt8, kInt4 };

// The prefix cache on disk.
struct DiskCacheRequest {
  std::string path;           // empty = none
  int64_t max_bytes = 0;      // of the folder
  std::string model_digest;   // depends on the spec and the tensors, but not on where the files are
  bool always_loads = false;  // also what takes longer than its computation, for tests
};

// The draft model of speculative decoding. Its ids are those of the model.
struct DraftRequest {
  std::vector<std::string> files;
  std::vector<TensorEntry> tensors;
  ModelSpec spec;
  DType weight_dtype = DType::kBf16;
  Quantization quantization = Quantization::kNone;
  bool is_free = false;  // the engine always drafts, as if drafts took no time, for tests
};

// What an engine takes from a tokenizer.
struct TokenizerTables {
  std::shared_ptr<Vocabulary> vocabulary;
  std::vector<int32_t> eos_token_ids;
};

struct LoadRequest {
  std::vector<std::string> files;
  std::vector<TensorEntry> tensors;
  ModelSpec spec;
  TokenizerTables tokenizer;  // with a draft model, `vocabulary` is not null
  DeviceOptions device;       // compute_f32 and has_int8_acts are ignored: they follow from `compute`
  ComputeChoice compute = ComputeChoice::kAuto;  // kF32 with quantized weights: their activations are f32, not 8 bits
  Quantization quantization = Quantization::kNone;
  // When false, the cache has the type that the backend computes in. With f16 weights that is f32: an f16 cache would
  // use up most of their tolerance.
  bool is_kv_dtype_given = false;
  DType kv_cache_dtype = DType::kBf16;
  int block_size = 0;                   // tokens; 0 = the backend's preference
  int64_t kv_cache_bytes = 0;           // 0 = default
  double gpu_memory_utilization = 0.9;  // share of a device's own memory that this process uses
  int max_model_len = 0;                // 0 = default
  int max_num_seqs = 64;
  SpeculationOptions speculation;  // max_step_tokens is ignored: it follows from the device
  std::optional<DraftRequest> draft;
  int max_num_batched_tokens = 512;
  int max_queued_requests = 1024;
  double max_step_ms = 100;  // 0 = no limit
  int64_t grammar_cache_bytes = int64_t{64} << 20;
  bool has_prefix_cache = true;
  DiskCacheRequest disk_cache;
  bool has_adapters = false;  // the next two are used only if this is true
  int max_loras = 64;         // adapters in memory; any of them may be in one step
  int max_lora_rank = 64;
  bool has_profile = false;  // records where the time of the steps goes
};

// The options in effect.
struct EngineInfo {
  std::string backend, isa;
  int num_threads = 0, world_size = 1;
  Quantization quantization = Quantization::kNone;
  DType weight_dtype = DType::kF32, compute_dtype = DType::kF32, kv_cache_dtype = DType::kF32;
  int block_size = 0;
  int num_blocks = 0;       // of the KV group that sees the most tokens
  int num_state_slots = 0;  // 0 for a model without recurrent layers
  // Those of the draft model included. kv_cache_bytes: of blocks and state slots.
  int64_t kv_cache_bytes = 0, weight_bytes = 0;
  int max_model_len = 0;
  std::vector<std::string> notes;
};

constexpr const char* quantization_name(Quantization quantization) {
  return quantization == Quantization::kNone ? "none" : quantization == Quantization::kInt8 ? "int8" : "int4";
}

struct LoadedEngine {
  std::unique_ptr<Engine> engine;
  EngineInfo info;
};

// Called on loading threads with the bytes read so far and in total. Throws to cancel.
using LoadObserver = std::function<void(int64_t done, int64_t total)>;

// Waits for the tokenizer, which may be loaded at the same time as the weights. Throws to cancel.
using TokenizerSource = std::function<TokenizerTables()>;

// `tokenizer` is called once the weights are loaded, if the request has no vocabulary. Throws kInvalidModel,
// kInvalidArgument, kIo, kOutOfMemory, or what `observer` or `tokenizer` throws.
LoadedEngine load_engine(LoadRequest request, const LoadObserver& observer, EventSink sink,
                         const TokenizerSource& tokenizer = {});

}  // namespace capstan
