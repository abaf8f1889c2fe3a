#include "native/engine/load.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <iterator>
#include <mutex>
#include <optional>
#include <thread>

#include "native/base/error.h"
#include "native/base/thread.h"
#include "native/engine/disk_load.h"
#include "native/engine/draft_loader.h"
#include "native/engine/memory_plan.h"
#include "native/engine/model_runner.h"
#include "native/engine/weight_formats.h"

namespace capstan {
namespace {

constexpr int kMaxBlockSize = 1024;
constexpr int kMaxStepTokens = 65536;

constexpr int kMaxDrafts = 64;
constexpr int kMaxNgram = 64;
constexpr int kMaxLoras = 4096;
// Up to this many tokens a step takes hardly longer than with one.
constexpr int kCheapStepTokens = 8;

[[noreturn]] void refuse_argument(const std::string& name, const std::string& expected, const std::string& received) {
  throw Error(ErrorCode::kInvalidArgument, name + ": expected " + expected + ", got " + received);
}

void check_speculation(const SpeculationOptions& options) {
  if (options.num_tokens < 0 || options.num_tokens > kMaxDrafts)
    refuse_argument("speculative.numSpeculativeTokens", "1 to " + std::to_string(kMaxDrafts),
                    std::to_string(options.num_tokens));
  if (options.max_ngram < 1 || options.max_ngram > kMaxNgram)
    refuse_argument("speculative.promptLookupMax", "1 to " + std::to_string(kMaxNgram),
                    std::to_string(options.max_ngram));
  if (options.min_ngram < 1 || options.min_ngram > options.max_ngram)
    refuse_argument("speculative.promptLookupMin", "1 to promptLookupMax (" + std::to_string(options.max_ngram) + ")",
                    std::to_string(options.min_ngram));
}

void check_limits(const LoadRequest& request) {
  if (request.max_num_seqs < 1 || request.max_num_seqs > 4096)
    refuse_argument("maxNumSeqs", "1 to 4096", std::to_string(request.max_num_seqs));
  if (request.max_num_batched_tokens < request.max_num_seqs || request.max_num_batched_tokens > kMaxStepTokens)
    refuse_argument("maxNumBatchedTokens",
                    "maxNumSeqs (" + std::to_string(request.max_num_seqs) + ") to " + std::to_string(kMaxStepTokens),
                    std::to_string(request.max_num_batched_tokens));
  if (!(request.max_step_ms >= 0)) refuse_argument("maxStepMs", "0 or more", std::to_string(request.max_step_ms));
  if (request.max_queued_requests < 0)
    refuse_argument("maxQueuedRequests", "0 or more", std::to_string(request.max_queued_requests));
  if (request.grammar_cache_bytes < 1)
    refuse_argument("grammarCacheBytes", "1 or more", std::to_string(request.grammar_cache_bytes));
  check_speculation(request.speculation);
  if (request.spec.pooling != Pooling::kNone && request.speculation.num_tokens > 0)
    refuse_argument("speculative", "none for a model that does not generate text", "speculative decoding");
  if (request.spec.has_mtp && request.speculation.num_tokens == 0)
    refuse_argument("speculative", "drafts by the MTP head", "none");
  if (request.compute == ComputeChoice::kBf16 && request.device.weight_dtype != DType::kBf16)
    refuse_argument("computeDtype",
                    "auto or f32 with " + std::string(dtype_name(request.device.weight_dtype)) + " weights", "bf16");
  if (request.spec.pooling != Pooling::kNone && request.has_adapters)
    refuse_argument("enableLora", "false for a model that does not generate text", "true");
  if (request.max_loras < 1 || request.max_loras > kMaxLoras)
    refuse_argument("maxLoras", "1 to " + std::to_string(kMaxLoras), std::to_string(request.max_loras));
  if (request.max_lora_rank < 1 || request.max_lora_rank > kMaxLoraRank)
    refuse_argument("maxLoraRank", "1 to " + std::to_string(kMaxLoraRank), std::to_string(request.max_lora_rank));
  const int longest = max_context_length(request.spec);
  if (request.max_model_len > longest)
    refuse_argument("maxModelLen", "at most the model's context length " + std::to_string(longest),
                    std::to_string(request.max_model_len));
}

int choose_block_size(int requested, const BackendInfo& backend) {
  if (requested == 0) return backend.preferred_block_size;
  if (requested < 0 || requested % backend.block_size_multiple != 0 || requested > kMaxBlockSize)
    refuse_argument(
        "blockSize",
        "a multiple of " + std::to_string(backend.block_size_multiple) + " up to " + std::to_string(kMaxBlockSize),
        std::to_string(requested));
  return requested;
}

DType choose_kv_cache_dtype(const LoadRequest& request, const BackendInfo& backend) {
  const DType dtype = request.is_kv_dtype_given ? request.kv_cache_dtype : backend.compute_dtype;
  const bool has_dtype =
      dtype == DType::kFp8E4m3 ? backend.has_fp8_cache : dtype != DType::kInt8 || backend.has_int8_cache;
  if (!has_dtype)
    refuse_argument("kvCacheDtype",
                    (backend.has_fp8_cache ? "auto or fp8 on " : "auto, f32, f16, bf16 or int8 on ") + backend.name,
                    dtype_name(dtype));
  return dtype;
}

// Dynamic NTK starts to scale above the trained length, so the default context ends there (architecture, contract 12).
int default_context_length(const ModelSpec& spec) {
  int length = spec.default_length > 0 ? spec.default_length : spec.max_position_embeddings;
  for (const RopeSpec& rope : spec.ropes)
    if (rope.type == RopeType::kDynamic) length = rope.original_max_positions;
  return length;
}

int wanted_context_length(const LoadRequest& request) {
  return request.max_model_len > 0 ? request.max_model_len : default_context_length(request.spec);
}

// A sequence of an encoder runs whole in one step.
int max_step_tokens(const LoadRequest& request) {
  if (request.spec.is_causal) return request.max_num_batched_tokens;
  const int length = wanted_context_length(request);
  if (length > kMaxStepTokens)
    refuse_argument("maxModelLen", "at most " + std::to_string(kMaxStepTokens) + " for an encoder",
                    std::to_string(length));
  return std::max(request.max_num_batched_tokens, length);
}

// Takes the backends of all ranks through their life cycle. The steps run once each, in the order of declaration.
class EngineLoader {
 public:
  explicit EngineLoader(LoadRequest request)
      : request_(std::move(request)),
        world_size_(static_cast<size_t>(request_.device.world_size)),
        profile_(request_.has_profile ? std::make_shared<StepProfile>() : nullptr) {}

  // Checks everything that does not depend on a device, and opens the files.
  void check_model();
  // Creates the backends and checks what depends on them.
  void open_devices();
  // Opens the folder of the prefix cache on disk and identifies the model's files.
  void open_disk_cache(const LoadObserver& observer);
  std::vector<disk::OpenFile> open_files() const;
  void check_files_unchanged() const;
  void load_weights(const LoadObserver& observer);
  void await_tokenizer(const TokenizerSource& tokenizer);
  // Devices with separate memory allocate everything except the KV cache.
  void reserve();
  // Runs steps of the largest sizes, so that the memory they take is known.
  void warm_up();
  // Sizes and allocates the KV cache.
  void prepare_kv_cache();
  void begin_serving();
  LoadedEngine make_engine(EventSink sink);

 private:
  DeviceModel device_model(size_t rank, int max_model_len) const {
    const Vocabulary* vocabulary = request_.tokenizer.vocabulary.get();
    const int64_t num_ids = vocabulary == nullptr ? request_.spec.vocab_size : vocabulary->num_ids();
    return make_device_model(request_.spec, plans_[rank], num_ids, max_model_len);
  }
  void for_each_rank(const std::function<void(size_t rank)>& work) const;
  Backend& backend(size_t rank) const { return *runner_->ranks()[rank].backend; }
  int warm_up_context_length() const { return wanted_context_length(request_); }
  // An encoder keeps nothing of a sequence after its step.
  bool has_prefix_cache() const { return request_.has_prefix_cache && request_.spec.is_causal; }
  std::optional<int64_t> device_budget() const;
  int64_t weight_bytes() const;
  EngineInfo make_info() const;
  PooledModel pooled_model() const {
    const ModelSpec& spec = request_.spec;
    return {spec.pooling, spec.hidden_size, result_size(spec), spec.embedding.num_token_types};
  }

  LoadRequest request_;
  const size_t world_size_;
  const std::shared_ptr<StepProfile> profile_;
  std::optional<CheckpointFiles> files_;
  TensorTable tensors_;
  std::vector<ShardPlan> plans_;  // by rank
  DeviceGroup group_;
  Comm* control_ = nullptr;  // of group_, or of runner_ later
  BackendInfo backend_info_;
  std::vector<Rank> ranks_;  // until the runner owns them
  DeviceLimits limits_;
  SpeculationOptions speculation_;
  std::vector<KvGroupMemory> kv_groups_;  // over all ranks; those of the draft model come last
  int64_t state_slot_bytes_ = 0;          // over all ranks
  int64_t available_bytes_ = 0;           // of the host, after the weights are loaded
  std::unique_ptr<ModelRunner> runner_;
  std::optional<DraftLoader> draft_;
  MemoryPlan memory_;
  std::shared_ptr<const disk::CacheRoot> disk_root_;  // null = no prefix cache on disk
  std::string disk_problem_;                          // why there is none although one is wanted
  std::vector<Hash128> file_digests_;
  std::vector<std::string> file_states_;  // when the digests were computed
};

// Runs `work(rank)` for all ranks, one thread each, and rethrows the first error. Ranks wait for each other, so none
// begins before all threads exist, and one that fails wakes the others.
void EngineLoader::for_each_rank(const std::function<void(size_t rank)>& work) const {
  std::mutex mutex;
  std::exception_ptr error;
  const auto guarded = [&](size_t rank) {
    try {
      work(rank);
    } catch (...) {
      {
        const std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
      }
      if (control_ != nullptr) control_->abandon();
    }
  };
  enum class Start : uint8_t { kWait, kRun, kGiveUp };
  std::atomic<Start> start{Start::kWait};
  std::vector<std::thread> threads;
  threads.reserve(world_size_);
  try {
    for (size_t rank = 1; rank < world_size_; ++rank)
      threads.push_back(start_thread([&, rank] {
        start.wait(Start::kWait);
        if (start.load() == Start::kRun) guarded(rank);
      }));
    start.store(Start::kRun);
  } catch (...) {
    error = std::current_exception();
    start.store(Start::kGiveUp);
  }
  start.notify_all();
  if (start.load() == Start::kRun) guarded(0);
  for (std::thread& thread : threads)
    thread.join();
  if (error) std::rethrow_exception(error);
}

void EngineLoader::check_model() {
  check_spec(request_.spec);
  check_limits(request_);
  files_.emplace(request_.files);
  tensors_ = files_->make_table(request_.tensors);
  check_tensors(request_.spec, tensors_);
  for (size_t rank = 0; rank < world_size_; ++rank)
    plans_.push_back(make_shard_plan(request_.spec, static_cast<int>(rank), request_.device.world_size));
  if (!request_.draft) return;
  draft_.emplace(request_);
  draft_->check_model();
}

void EngineLoader::open_devices() {
  DeviceOptions options = request_.device;
  options.profile = profile_.get();
  options.compute_f32 = computes_in_f32(request_);
  options.has_int8_acts = request_.compute != ComputeChoice::kF32;
  group_ = make_device_group(options);
  control_ = group_.control.get();
  backend_info_ = group_.backends[0]->info();
  if (request_.quantization != Quantization::kNone && !backend_info_.has_quantized_weights)
    refuse_argument("quantization", "none on " + backend_info_.name, quantization_name(request_.quantization));
  if (request_.has_adapters && !backend_info_.has_adapters)
    refuse_argument("enableLora", "false on " + backend_info_.name, "true");
  if (request_.has_adapters) limits_.max_lora_rank = request_.max_lora_rank;
  if (request_.spec.has_mtp && !backend_info_.has_mtp)
    refuse_argument("speculative.method", "ngram on " + backend_info_.name, "mtp");
  if (draft_ && backend_info_.depth > 1)
    refuse_argument("speculative.method", "ngram on " + backend_info_.name, "draft_model");
  limits_.max_num_tokens = max_step_tokens(request_);
  speculation_ = request_.speculation;
  speculation_.max_step_tokens = std::max(kCheapStepTokens, 1 + speculation_.num_tokens);
  limits_.max_num_seqs = request_.max_num_seqs;
  // The tokens of all verified rows come from one call of lm_head.
  if (speculation_.num_tokens > 0)
    limits_.max_num_seqs =
        std::max(limits_.max_num_seqs, std::min(speculation_.max_step_tokens, limits_.max_num_tokens));
  limits_.block_size = choose_block_size(request_.block_size, backend_info_);
  limits_.kv_cache_dtype = choose_kv_cache_dtype(request_, backend_info_);
  if (request_.compute == ComputeChoice::kF32 && backend_info_.compute_dtype != DType::kF32)
    refuse_argument("computeDtype",
                    "auto on " + backend_info_.name + ", which computes in " + dtype_name(backend_info_.compute_dtype),
                    "f32");
  const int64_t weight_bytes = expected_weight_bytes(request_, tensors_, backend_info_);
  for (size_t rank = 0; rank < world_size_; ++rank)
    group_.backends[rank]->check_model(device_model(rank, 0), weight_bytes / options.world_size);
  if (draft_) draft_->open_device(limits_, speculation_.max_step_tokens, weight_bytes);
}

void EngineLoader::open_disk_cache(const LoadObserver& observer) {
  if (request_.disk_cache.path.empty()) return;
  check_disk_cache(request_, backend_info_, device_model(0, 0));
  try {
    disk_root_ = std::make_shared<const disk::CacheRoot>(request_.disk_cache.path);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kIo) throw;
    disk_problem_ = error.what();
    return;
  }
  const int64_t total = num_file_bytes(tensors_);
  // The weights are read through the same descriptors, so a file that replaces one of these changes nothing.
  const std::vector<disk::OpenFile> files = open_files();
  file_states_ = disk::content_states(files);
  file_digests_ = disk::digests_of(*disk_root_, files, [&] { observer(0, total); });
}

std::vector<disk::OpenFile> EngineLoader::open_files() const {
  std::vector<disk::OpenFile> files;
  for (const CheckpointFiles::File& file : files_->files())
    files.push_back({file.path, file.fd});
  return files;
}

// With a prefix cache on disk, the digests must be those of the weights that were read.
void EngineLoader::check_files_unchanged() const {
  if (disk_root_) disk::check_unchanged(open_files(), file_states_, "model");
}

void EngineLoader::load_weights(const LoadObserver& observer) {
  // Several ranks read some tensors more than once, so `total` is not reported before all of them are done.
  std::mutex mutex;
  int64_t done = 0;
  const int64_t total = num_file_bytes(tensors_) + (draft_ ? draft_->num_file_bytes() : 0);
  const LoadProgress progress = [&](int64_t bytes) {
    const std::lock_guard lock(mutex);
    done = std::min(total - 1, done + bytes);
    observer(done, total);
  };
  ranks_.resize(world_size_);
  for_each_rank([&](size_t rank) {
    ranks_[rank].backend = std::move(group_.backends[rank]);
    ranks_[rank].weights =
        capstan::load_weights(request_.spec, plans_[rank], tensors_, weight_formats(request_, backend_info_),
                              *ranks_[rank].backend, progress);
  });
  check_files_unchanged();
  if (draft_) draft_->load_weights(progress);
  observer(total, total);
}

void EngineLoader::await_tokenizer(const TokenizerSource& tokenizer) {
  if (request_.tokenizer.vocabulary == nullptr) request_.tokenizer = tokenizer();
}

void EngineLoader::reserve() {
  for (const KvGroup& group : device_model(0, 0).kv_groups)
    kv_groups_.push_back({0, group.window});
  limits_.num_blocks.assign(kv_groups_.size(), 1);
  for (size_t rank = 0; rank < world_size_; ++rank)
    for (size_t group = 0; group < kv_groups_.size(); ++group)
      kv_groups_[group].block_bytes += ranks_[rank].backend->kv_block_bytes(
          device_model(rank, 0), static_cast<int>(group), limits_.block_size, limits_.kv_cache_dtype);
  if (draft_) std::ranges::copy(draft_->kv_groups(), std::back_inserter(kv_groups_));
  for (size_t rank = 0; rank < world_size_; ++rank)
    state_slot_bytes_ += ranks_[rank].backend->state_slot_bytes(device_model(rank, 0));
  limits_.num_state_slots = state_slot_bytes_ > 0 ? 1 : 0;
  available_bytes_ = ranks_[0].backend->available_bytes();
  for_each_rank(
      [&](size_t rank) { ranks_[rank].backend->reserve(device_model(rank, warm_up_context_length()), limits_); });
}

void EngineLoader::warm_up() {
  runner_ =
      std::make_unique<ModelRunner>(std::move(ranks_), std::move(group_.control), limits_.max_num_seqs, pooled_model());
  runner_->warm_up_prefill(limits_, warm_up_context_length());
  runner_->warm_up_decode(limits_);
}

// Returns the bytes that the devices of all ranks have for the cache, or nothing when it lies in the host's memory. The
// blocks of all ranks have one size, so the device with the least memory decides.
std::optional<int64_t> EngineLoader::device_budget() const {
  std::optional<int64_t> least;
  for (size_t rank = 0; rank < world_size_; ++rank) {
    const int64_t budget = backend(rank).kv_budget_bytes(request_.gpu_memory_utilization);
    if (budget == 0) return std::nullopt;
    least = std::min(least.value_or(budget), budget);
  }
  return *least * static_cast<int64_t>(world_size_);
}

void EngineLoader::prepare_kv_cache() {
  MemoryRequest memory;
  memory.groups = kv_groups_;
  memory.has_draft_model = draft_.has_value();
  memory.state_slot_bytes = state_slot_bytes_;
  memory.snapshot_interval = kSnapshotInterval;
  memory.has_prefix_cache = has_prefix_cache();
  if (speculation_.num_tokens > 0) memory.max_num_drafts = speculation_.max_step_tokens;
  memory.block_size = limits_.block_size;
  const std::optional<int64_t> budget = device_budget();
  memory.available_bytes = budget.value_or(available_bytes_);
  memory.is_budget = budget.has_value();
  memory.kv_cache_bytes = request_.kv_cache_bytes;
  memory.max_model_len = request_.max_model_len;
  memory.trained_length = default_context_length(request_.spec);
  memory.max_num_seqs = request_.max_num_seqs;
  memory.max_num_batched_tokens = limits_.max_num_tokens;
  memory.is_kept = request_.spec.is_causal;
  memory_ = plan_memory(memory);

  const size_t num_groups = limits_.num_blocks.size();  // of the target
  const std::span<const int> num_blocks(memory_.num_blocks);
  std::ranges::copy(num_blocks.first(num_groups), limits_.num_blocks.begin());
  limits_.num_state_slots = memory_.num_state_slots;
  std::vector<RopeTable> rope_tables = device_model(0, memory_.max_model_len).rope_tables;
  fill_rope_tables(request_.spec, memory_.max_model_len, rope_tables);
  for_each_rank([&](size_t rank) {
    DeviceModel model = device_model(rank, memory_.max_model_len);
    model.rope_tables = rope_tables;
    backend(rank).prepare(model, limits_);
  });
  if (draft_) draft_->prepare(num_blocks.subspan(num_groups), memory_.max_model_len);
}

void EngineLoader::begin_serving() {
  // What a backend records of a step refers to the KV cache, so it is recorded again now that the cache is in place.
  runner_->warm_up_decode(limits_);
  for (size_t rank = 0; rank < world_size_; ++rank)
    backend(rank).begin_serving();
}

// Without those of the draft model.
int64_t EngineLoader::weight_bytes() const {
  int64_t bytes = 0;
  for (const Rank& rank : runner_->ranks())
    bytes += rank.weights.bytes;
  return bytes;
}

EngineInfo EngineLoader::make_info() const {
  EngineInfo info;
  info.backend = backend_info_.name;
  info.isa = backend(0).info().isa;  // the weights may have changed it
  info.num_threads = group_.num_threads;
  info.world_size = request_.device.world_size;
  info.quantization = request_.quantization;
  info.weight_dtype = request_.device.weight_dtype;
  info.compute_dtype = backend_info_.compute_dtype;
  info.kv_cache_dtype = limits_.kv_cache_dtype;
  info.block_size = limits_.block_size;
  // The group that sees the most tokens has the most blocks.
  for (const int num_blocks : memory_.num_blocks)
    info.num_blocks = std::max(info.num_blocks, num_blocks);
  info.num_state_slots = memory_.num_state_slots;
  info.kv_cache_bytes = memory_.kv_cache_bytes;
  info.weight_bytes = weight_bytes() + (draft_ ? draft_->weight_bytes() : 0);
  info.max_model_len = memory_.max_model_len;
  info.notes = group_.notes;
  std::ranges::copy(memory_.notes, std::back_inserter(info.notes));
  std::ranges::copy(backend(0).notes(), std::back_inserter(info.notes));
  std::ranges::copy(decoding_notes(tensors_, backend_info_, request_), std::back_inserter(info.notes));
  if (draft_) info.notes.push_back(draft_->note());
  std::ranges::copy(narrowing_notes(tensors_, request_.device.weight_dtype), std::back_inserter(info.notes));
  return info;
}

LoadedEngine EngineLoader::make_engine(EventSink sink) {
  LoadedEngine loaded;
  loaded.info = make_info();
  EngineOptions options;
  const ModelSpec& spec = request_.spec;
  options.limits = {request_.max_num_seqs,          limits_.max_num_tokens, memory_.max_model_len, request_.max_step_ms,
                    attention_work_by_window(spec), speculation_,           !spec.is_causal,       draft_.has_value()};
  options.pooled = pooled_model();
  options.max_queued_requests = request_.max_queued_requests;
  options.grammar_cache_bytes = static_cast<size_t>(request_.grammar_cache_bytes);
  options.eos_token_ids = request_.tokenizer.eos_token_ids;
  options.profile = profile_;
  options.vocab_size = request_.spec.vocab_size;
  std::vector<KvGroupBlocks> groups;
  for (size_t group = 0; group < kv_groups_.size(); ++group)
    groups.push_back({memory_.num_blocks[group], kv_groups_[group].window});
  if (draft_) options.draft_model = draft_->options(weight_work(spec, tensors_, weight_bytes()));
  options.state_slot_bytes = state_slot_bytes_;
  if (spec.has_mtp) options.mtp_kv_group = device_model(0, 0).layers.back().kv_group;
  if (request_.has_adapters) {
    options.max_adapters = request_.max_loras;
    options.load_adapter = make_adapter_loader(request_.spec, plans_, *runner_, request_.max_lora_rank,
                                               group_.num_sharing, disk_root_ != nullptr);
  }
  options.disk_problem = disk_problem_;
  if (disk_root_) {
    options.disk_cache = make_disk_cache_options(*runner_, request_.disk_cache.max_bytes);
    options.disk_cache->store.root = disk_root_;
    options.disk_cache->always_loads = request_.disk_cache.always_loads;
    options.disk_cache->store.identity =
        disk_cache_identity(request_, backend_info_, limits_, memory_.max_model_len, file_digests_);
    options.disk_cache->store.block_size = limits_.block_size;
    options.disk_cache->store.payload_bytes = {static_cast<size_t>(kv_groups_[0].block_bytes)};
  }
  BlockManager blocks(groups, limits_.block_size, has_prefix_cache(), memory_.num_state_slots);
  loaded.engine = std::make_unique<Engine>(std::move(options), std::move(blocks), std::move(runner_),
                                           request_.tokenizer.vocabulary, std::move(sink));
  return loaded;
}

}  // namespace

LoadedEngine load_engine(LoadRequest request, const LoadObserver& observer, EventSink sink,
                         const TokenizerSource& tokenizer) {
  EngineLoader loader(std::move(request));
  loader.check_model();
  loader.open_devices();
  loader.open_disk_cache(observer);
  loader.load_weights(observer);
  loader.await_tokenizer(tokenizer);
  loader.reserve();
  loader.warm_up();
  loader.prepare_kv_cache();
  loader.begin_serving();
  return loader.make_engine(std::move(sink));
}

}  // namespace capstan
