#include "native/engine/load.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <iterator>
#include <mutex>
#include <thread>

#include "native/base/error.h"
#include "native/base/machine.h"
#include "native/engine/memory_plan.h"
#include "native/engine/model_runner.h"
#include "native/model/rope.h"

namespace capstan {
namespace {

// The checkpoint's files, open while they are packed.
class OpenFiles {
 public:
  explicit OpenFiles(const std::vector<std::string>& paths) {
    for (const std::string& path : paths) {
      const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
      if (fd < 0) throw Error(ErrorCode::kIo, path + ": cannot be opened: " + std::strerror(errno));
      fds_.push_back(fd);
      struct stat status{};
      sizes_.push_back(::fstat(fd, &status) == 0 ? status.st_size : 0);
    }
  }
  ~OpenFiles() {
    for (const int fd : fds_)
      ::close(fd);
  }
  OpenFiles(const OpenFiles&) = delete;
  OpenFiles& operator=(const OpenFiles&) = delete;

  int fd(size_t idx) const { return fds_.at(idx); }
  uint64_t size(size_t idx) const { return static_cast<uint64_t>(sizes_.at(idx)); }

 private:
  std::vector<int> fds_;
  std::vector<int64_t> sizes_;
};

TensorTable make_tensor_table(const LoadRequest& request, const OpenFiles& files) {
  TensorTable table;
  for (const TensorEntry& entry : request.tensors) {
    if (entry.shape.empty() || entry.shape.size() > 2 ||
        std::ranges::any_of(entry.shape, [](int64_t size) { return size <= 0; }))
      throw Error(ErrorCode::kInvalidModel, "tensor " + entry.name + ": expected one or two dimensions, each positive");
    if (entry.file_idx < 0 || static_cast<size_t>(entry.file_idx) >= request.files.size())
      throw Error(ErrorCode::kInvalidModel,
                  "tensor " + entry.name + ": no file has index " + std::to_string(entry.file_idx));
    const auto file_idx = static_cast<size_t>(entry.file_idx);
    FileTensor tensor{
        entry.name,        files.fd(file_idx), entry.offset, entry.dtype, entry.shape.size() == 2 ? entry.shape[0] : 1,
        entry.shape.back()};
    const unsigned __int128 end = entry.offset + static_cast<unsigned __int128>(tensor.rows) *
                                                     static_cast<uint64_t>(tensor.cols) * dtype_size(entry.dtype);
    if (end > files.size(file_idx))
      throw Error(ErrorCode::kInvalidModel, "tensor " + entry.name + ": ends beyond the end of " +
                                                request.files[file_idx] + " (" + std::to_string(files.size(file_idx)) +
                                                " bytes)");
    if (!table.emplace(entry.name, tensor).second)
      throw Error(ErrorCode::kInvalidModel, "tensor " + entry.name + ": given twice");
  }
  return table;
}

int64_t num_elements(const TensorTable& tensors) {
  int64_t total = 0;
  for (const auto& [name, tensor] : tensors)
    total += tensor.rows * tensor.cols;
  return total;
}

int64_t num_file_bytes(const TensorTable& tensors) {
  int64_t total = 0;
  for (const auto& [name, tensor] : tensors)
    total += tensor.rows * tensor.cols * static_cast<int64_t>(dtype_size(tensor.dtype));
  return total;
}

// Says so where a checkpoint's numbers are kept in fewer bits.
std::vector<std::string> narrowing_notes(const TensorTable& tensors, DType dtype) {
  const bool is_wide = num_file_bytes(tensors) > num_elements(tensors) * 3;  // f32, all but a few
  if (!is_wide || dtype == DType::kF32) return {};
  return {std::string("the weights are f32 in the checkpoint and are kept as ") + dtype_name(dtype)};
}

// Refuses before the first byte is read what would make the system run out of memory half way.
void check_weights_fit(const TensorTable& tensors, DType dtype) {
  const int64_t needed = num_elements(tensors) * static_cast<int64_t>(dtype_size(dtype)),
                available = available_memory_bytes();
  if (needed > available)
    throw Error(ErrorCode::kOutOfMemory, "the weights need " + std::to_string(needed >> 20) + " MiB as " +
                                             dtype_name(dtype) + " and " + std::to_string(available >> 20) +
                                             " MiB of memory are left");
}

// Runs `work(rank)` for all ranks, one thread each, and rethrows the first error.
template <typename Work>
void for_each_rank(size_t world_size, const Work& work) {
  std::mutex mutex;
  std::exception_ptr error;
  const auto guarded = [&](size_t rank) {
    try {
      work(rank);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  for (size_t rank = 1; rank < world_size; ++rank)
    threads.emplace_back(guarded, rank);
  guarded(0);
  for (std::thread& thread : threads)
    thread.join();
  if (error) std::rethrow_exception(error);
}

int choose_block_size(int asked, const BackendInfo& backend) {
  if (asked == 0) return backend.preferred_block_size;
  constexpr int kMaxBlockSize = 1024;
  if (asked < 0 || asked % backend.block_size_multiple != 0 || asked > kMaxBlockSize)
    throw Error(ErrorCode::kInvalidArgument, "blockSize: expected a multiple of " +
                                                 std::to_string(backend.block_size_multiple) + " up to " +
                                                 std::to_string(kMaxBlockSize) + ", got " + std::to_string(asked));
  return asked;
}

void check_limits(const LoadRequest& request) {
  if (request.max_num_seqs < 1 || request.max_num_seqs > 4096)
    throw Error(ErrorCode::kInvalidArgument,
                "maxNumSeqs: expected 1 to 4096, got " + std::to_string(request.max_num_seqs));
  if (request.max_num_batched_tokens < request.max_num_seqs || request.max_num_batched_tokens > 65536)
    throw Error(ErrorCode::kInvalidArgument, "maxNumBatchedTokens: expected maxNumSeqs (" +
                                                 std::to_string(request.max_num_seqs) + ") to 65536, got " +
                                                 std::to_string(request.max_num_batched_tokens));
  if (request.max_queued_requests < 1)
    throw Error(ErrorCode::kInvalidArgument,
                "maxQueuedRequests: expected 1 or more, got " + std::to_string(request.max_queued_requests));
  const int longest = max_context_length(request.spec);
  if (request.max_model_len > longest)
    throw Error(ErrorCode::kInvalidArgument, "maxModelLen: expected at most the model's context length " +
                                                 std::to_string(longest) + ", got " +
                                                 std::to_string(request.max_model_len));
}

// A layer of fewer hidden dimensions takes microseconds either way, and rounding its activations costs it most of the
// tolerance of its number type.
constexpr int64_t kNarrowHiddenSize = 512;

bool computes_in_f32(const LoadRequest& request) {
  const bool is_bf16 = request.device.weight_dtype == DType::kBf16;
  if (request.compute == ComputeChoice::kBf16 && !is_bf16)
    throw Error(ErrorCode::kInvalidArgument, std::string("computeDtype: bf16 goes with bf16 weights; these are ") +
                                                 dtype_name(request.device.weight_dtype));
  return request.compute == ComputeChoice::kF32 ||
         (request.compute == ComputeChoice::kAuto && request.spec.hidden_size < kNarrowHiddenSize);
}

// Where dynamic NTK would start to scale, the default context ends (architecture, contract 12).
int default_context_length(const ModelSpec& spec) {
  return spec.rope.type == RopeType::kDynamic ? spec.rope.original_max_positions : spec.max_position_embeddings;
}

// What devices with memory of their own need beside the KV cache, found out by steps as large as any.
std::unique_ptr<ModelRunner> reserve_all(const LoadRequest& request, const std::vector<ShardPlan>& plans,
                                         std::vector<Rank> ranks, std::unique_ptr<Comm> control,
                                         const DeviceLimits& limits) {
  const int max_model_len = request.max_model_len > 0 ? request.max_model_len : default_context_length(request.spec);
  for_each_rank(ranks.size(), [&](size_t rank) {
    ranks[rank].backend->reserve(
        make_device_model(request.spec, plans[rank], request.vocabulary->num_ids(), max_model_len), limits);
  });
  auto runner = std::make_unique<ModelRunner>(std::move(ranks), std::move(control), request.max_num_seqs);
  runner->warm_up_prefill(limits, max_model_len);
  runner->warm_up_decode(limits);
  return runner;
}

// The blocks that every rank's device has room for, or -1 where no rank has a device of its own.
int64_t fewest_blocks(const LoadRequest& request, const std::vector<Rank>& ranks,
                      const std::vector<int64_t>& block_bytes) {
  int64_t fewest = -1;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const int64_t budget = ranks[rank].backend->kv_budget_bytes(request.gpu_memory_utilization);
    if (budget == 0) return -1;
    const int64_t num_blocks = std::max<int64_t>(budget, 0) / block_bytes[rank];
    if (fewest < 0 || num_blocks < fewest) fewest = num_blocks;
  }
  return fewest;
}

}  // namespace

LoadedEngine load_engine(const LoadRequest& request, const LoadObserver& observer, EventSink sink) {
  check_spec(request.spec);
  check_limits(request);
  const OpenFiles files(request.files);
  const TensorTable tensors = make_tensor_table(request, files);
  check_tensors(request.spec, tensors);
  const auto world_size = static_cast<size_t>(request.device.world_size);
  std::vector<ShardPlan> plans;
  for (size_t rank = 0; rank < world_size; ++rank)
    plans.push_back(make_shard_plan(request.spec, static_cast<int>(rank), static_cast<int>(world_size)));
  if (!request.device.device.starts_with("cuda")) check_weights_fit(tensors, request.device.weight_dtype);

  DeviceOptions device = request.device;
  device.compute_f32 = computes_in_f32(request);
  DeviceGroup group = make_device_group(device);
  const BackendInfo& backend_info = group.backends[0]->info();
  const int block_size = choose_block_size(request.block_size, backend_info);
  const DType kv_cache_dtype = request.is_kv_dtype_given ? request.kv_cache_dtype : backend_info.compute_dtype;
  if (kv_cache_dtype == DType::kFp8E4m3 && !backend_info.has_fp8_cache)
    throw Error(ErrorCode::kInvalidArgument,
                "kvCacheDtype: expected auto, f32, f16 or bf16 on " + backend_info.name + ", got fp8");

  if (request.compute == ComputeChoice::kF32 && backend_info.compute_dtype != DType::kF32)
    throw Error(ErrorCode::kInvalidArgument, "computeDtype: expected auto on " + backend_info.name +
                                                 ", which computes in " + dtype_name(backend_info.compute_dtype) +
                                                 " here, got f32");
  const int64_t weight_bytes = num_elements(tensors) * static_cast<int64_t>(dtype_size(request.device.weight_dtype)) /
                               request.device.world_size;  // of a rank, at least
  for (size_t rank = 0; rank < world_size; ++rank)
    group.backends[rank]->check_model(make_device_model(request.spec, plans[rank], request.vocabulary->num_ids(), 0),
                                      weight_bytes);

  // Some is read by several ranks: all is done when they are.
  std::mutex progress_mutex;
  int64_t done = 0;
  const int64_t total = num_file_bytes(tensors);
  const LoadProgress progress = [&](int64_t bytes) {
    const std::lock_guard lock(progress_mutex);
    done = std::min(total - 1, done + bytes);
    observer(done, total);
  };
  std::vector<Rank> ranks(world_size);
  for_each_rank(world_size, [&](size_t rank) {
    ranks[rank].backend = std::move(group.backends[rank]);
    ranks[rank].weights = load_weights(request.spec, plans[rank], tensors, *ranks[rank].backend, progress);
  });
  observer(total, total);

  MemoryRequest memory;
  std::vector<int64_t> block_bytes;  // by rank
  for (size_t rank = 0; rank < world_size; ++rank) {
    const DeviceModel model = make_device_model(request.spec, plans[rank], request.vocabulary->num_ids(), 0);
    memory.block_bytes +=
        block_bytes.emplace_back(ranks[rank].backend->kv_block_bytes(model, block_size, kv_cache_dtype));
  }
  memory.block_size = block_size;
  memory.available_bytes = ranks[0].backend->available_bytes();
  DeviceLimits limits{request.max_num_batched_tokens, request.max_num_seqs, block_size, 0, kv_cache_dtype};
  std::unique_ptr<ModelRunner> runner = reserve_all(request, plans, std::move(ranks), std::move(group.control), limits);
  if (const int64_t num_blocks = fewest_blocks(request, runner->ranks(), block_bytes); num_blocks >= 0) {
    memory.available_bytes = num_blocks * memory.block_bytes;
    memory.is_budget = true;
  }
  memory.kv_cache_bytes = request.kv_cache_bytes;
  memory.max_model_len = request.max_model_len;
  memory.trained_length = default_context_length(request.spec);
  memory.max_num_seqs = request.max_num_seqs;
  const MemoryPlan plan = plan_memory(memory);

  limits.num_blocks = plan.num_blocks;
  const std::vector<float> rope_table = make_rope_table(request.spec.rope, plan.max_model_len);
  for_each_rank(world_size, [&](size_t rank) {
    DeviceModel model = make_device_model(request.spec, plans[rank], request.vocabulary->num_ids(), plan.max_model_len);
    model.rope_table = rope_table;
    runner->ranks()[rank].backend->prepare(model, limits);
  });
  runner->warm_up_decode(limits);  // recorded, now that the cache has its place
  for (const Rank& rank : runner->ranks())
    rank.backend->begin_serving();

  LoadedEngine loaded;
  EngineInfo& info = loaded.info;
  info.backend = backend_info.name;
  info.isa = backend_info.isa;
  info.num_threads = group.num_threads;
  info.world_size = static_cast<int>(world_size);
  info.weight_dtype = request.device.weight_dtype;
  info.compute_dtype = backend_info.compute_dtype;
  info.kv_cache_dtype = kv_cache_dtype;
  info.block_size = block_size;
  info.num_blocks = plan.num_blocks;
  info.kv_cache_bytes = plan.num_blocks * memory.block_bytes;
  for (const Rank& rank : runner->ranks())
    info.weight_bytes += rank.weights.bytes;
  info.max_model_len = plan.max_model_len;
  info.notes = group.notes;
  std::ranges::copy(plan.notes, std::back_inserter(info.notes));
  std::ranges::copy(runner->ranks()[0].backend->notes(), std::back_inserter(info.notes));
  std::ranges::copy(narrowing_notes(tensors, request.device.weight_dtype), std::back_inserter(info.notes));

  EngineOptions options;
  options.limits = {request.max_num_seqs, request.max_num_batched_tokens, plan.max_model_len};
  options.max_queued_requests = request.max_queued_requests;
  options.eos_token_ids = request.eos_token_ids;
  options.vocab_size = request.spec.vocab_size;
  loaded.engine =
      std::make_unique<Engine>(std::move(options), BlockManager(plan.num_blocks, block_size, request.has_prefix_cache),
                               std::move(runner), request.vocabulary, std::move(sink));
  return loaded;
}

}  // namespace capstan
