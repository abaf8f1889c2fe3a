#include "native/engine/draft_loader.h"

#include <algorithm>

#include "native/base/error.h"
#include "native/engine/weight_formats.h"

namespace capstan {
namespace {

[[noreturn]] void refuse(const std::string& expected, const std::string& received) {
  throw Error(ErrorCode::kInvalidArgument, "speculative.model: expected " + expected + ", got " + received);
}

std::string mebibytes(int64_t bytes) {
  return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB";
}

LoadRequest make_request(const LoadRequest& target) {
  const DraftRequest& draft = *target.draft;
  LoadRequest request;
  request.spec = draft.spec;
  request.quantization = draft.quantization;
  request.compute = target.compute;
  request.device = target.device;
  request.device.world_size = 1;
  request.device.weight_dtype = draft.weight_dtype;
  return request;
}

}  // namespace

DraftLoader::DraftLoader(const LoadRequest& target)
    : target_(target), draft_(*target.draft), request_(make_request(target)) {}

void DraftLoader::check_model() {
  const ModelSpec& spec = draft_.spec;
  if (spec.pooling != Pooling::kNone || !spec.is_causal) refuse("a model that generates text", "one that does not");
  if (spec.recurrent.conv_taps > 0) refuse("a model without recurrent layers", "one that has some");
  const int64_t num_ids = target_.tokenizer.vocabulary->num_ids();
  if (spec.vocab_size < num_ids)
    refuse("an embedding of at least " + std::to_string(num_ids) + " tokens, those of the model",
           std::to_string(spec.vocab_size));
  check_spec(spec);
  files_.emplace(draft_.files);
  tensors_ = files_->make_table(draft_.tensors);
  check_tensors(spec, tensors_);
  plan_ = make_shard_plan(spec, 0, 1);
}

DeviceModel DraftLoader::device_model(int max_model_len) const {
  return make_device_model(draft_.spec, plan_, target_.tokenizer.vocabulary->num_ids(), max_model_len);
}

void DraftLoader::open_device(const DeviceLimits& limits, int max_step_tokens, int64_t target_weight_bytes) {
  DeviceOptions options = request_.device;
  options.compute_f32 = computes_in_f32(request_);
  options.has_int8_acts = request_.compute != ComputeChoice::kF32;
  rank_.backend = std::move(make_device_group(options).backends[0]);
  backend_info_ = rank_.backend->info();
  limits_ = limits;
  limits_.max_lora_rank = 0;
  // The first step of a proposal has the tokens that the model is behind.
  limits_.max_num_tokens = std::max(limits.max_num_tokens, max_step_tokens * (kMaxFollowLag + 1));
  if (!target_.is_kv_dtype_given) limits_.kv_cache_dtype = backend_info_.compute_dtype;
  const int64_t weight_bytes = expected_weight_bytes(request_, tensors_, backend_info_);
  check_weights_fit(target_weight_bytes, weight_bytes, rank_.backend->available_bytes());
  rank_.backend->check_model(device_model(0), weight_bytes);
}

void DraftLoader::load_weights(const LoadProgress& progress) {
  rank_.weights = capstan::load_weights(draft_.spec, plan_, tensors_, weight_formats(request_, backend_info_),
                                        *rank_.backend, progress);
  weight_bytes_ = rank_.weights.bytes;
}

std::vector<KvGroupMemory> DraftLoader::kv_groups() const {
  const DeviceModel model = device_model(0);
  std::vector<KvGroupMemory> groups;
  for (size_t group = 0; group < model.kv_groups.size(); ++group)
    groups.push_back(
        {rank_.backend->kv_block_bytes(model, static_cast<int>(group), limits_.block_size, limits_.kv_cache_dtype),
         model.kv_groups[group].window});
  return groups;
}

void DraftLoader::prepare(std::span<const int> num_blocks, int max_model_len) {
  limits_.num_blocks.assign(num_blocks.begin(), num_blocks.end());
  limits_.num_state_slots = 0;
  max_model_len_ = std::min(max_model_len, max_context_length(draft_.spec));
  DeviceModel model = device_model(max_model_len_);
  fill_rope_tables(draft_.spec, max_model_len_, model.rope_tables);
  rank_.backend->prepare(model, limits_);
  rank_.backend->begin_serving();
}

int64_t DraftLoader::kv_cache_bytes() const {
  int64_t bytes = 0;
  const std::vector<KvGroupMemory> groups = kv_groups();
  for (size_t group = 0; group < groups.size(); ++group)
    bytes += groups[group].block_bytes * limits_.num_blocks[group];
  return bytes;
}

std::string DraftLoader::note() const {
  return "the draft model takes " + mebibytes(weight_bytes_) + " of weights and " + mebibytes(kv_cache_bytes()) +
         " of the KV cache";
}

DraftModelOptions DraftLoader::options(double target_work) {
  DraftModelOptions options;
  options.num_kv_groups = limits_.num_blocks.size();
  options.vocab_size = draft_.spec.vocab_size;
  options.max_model_len = max_model_len_;
  options.max_num_tokens = limits_.max_num_tokens;
  options.max_num_seqs = limits_.max_num_seqs;
  options.draft_cost = kRowCost + weight_work(draft_.spec, tensors_, weight_bytes_) / target_work;
  if (draft_.is_free) options.draft_cost = 0;
  std::vector<Rank> ranks;
  ranks.push_back(std::move(rank_));
  options.runner = std::make_shared<ModelRunner>(std::move(ranks), nullptr, limits_.max_num_seqs);
  return options;
}

void check_weights_fit(int64_t target_bytes, int64_t draft_bytes, int64_t available_bytes) {
  if (draft_bytes <= available_bytes - target_bytes) return;
  throw Error(
      ErrorCode::kOutOfMemory,
      "speculative.model: expected a draft model whose weights fit into memory beside those of the model, got " +
          mebibytes(draft_bytes) + " beside " + mebibytes(target_bytes) + ", and " + mebibytes(available_bytes) +
          " are available. Choose a smaller draft model, or quantize one of them");
}

double weight_work(const ModelSpec& spec, const TensorTable& tensors, int64_t weight_bytes) {
  const double bytes_per_weight =
      static_cast<double>(weight_bytes) / static_cast<double>(std::max<int64_t>(1, num_elements(tensors)));
  return weights_per_token(spec) * bytes_per_weight;
}

}  // namespace capstan
