#include "native/binding/records.h"

#include <algorithm>
#include <cmath>

#include "native/binding/grammar_binding.h"
#include "native/binding/profile_record.h"
#include "native/binding/record_fields.h"
#include "native/binding/spec_record.h"

namespace capstan {
namespace {

DType to_dtype(const Napi::Object& object, const char* name) {
  return one_of<DType>(object, name, {{"f32", DType::kF32}, {"f16", DType::kF16}, {"bf16", DType::kBf16}});
}

uint64_t offset_of(const Napi::Object& object) {
  const int64_t offset = integer(object, "offset");
  if (offset < 0) refuse(object, "offset", "0 or more");
  return static_cast<uint64_t>(offset);
}

ArrayType to_array_type(const Napi::Object& object, const char* name) {
  return one_of<ArrayType>(object, name,
                           {{"f32", ArrayType::kF32},
                            {"f16", ArrayType::kF16},
                            {"bf16", ArrayType::kBf16},
                            {"e8m0", ArrayType::kE8m0},
                            {"e4m3", ArrayType::kE4m3},
                            {"i32", ArrayType::kInt32},
                            {"i8", ArrayType::kInt8},
                            {"u8", ArrayType::kUint8}});
}

ArrayEntry to_array(const Napi::Object& object) {
  return {int32(object, "file"), offset_of(object), to_array_type(object, "dtype")};
}

GroupsEntry to_groups(const Napi::Object& object, CodeLayout layout) {
  GroupsEntry entry;
  entry.layout = layout;
  entry.bits = int32(object, "bits");
  entry.group_rows = integer(object, "groupRows");
  entry.group_cols = integer(object, "groupCols");
  entry.scales = to_array(record(object, "scales"));
  if (!object.Get("zeros").IsUndefined()) entry.zeros = to_array(record(object, "zeros"));
  if (!object.Get("groupIndex").IsUndefined()) entry.group_index = to_array(record(object, "groupIndex"));
  if (!object.Get("table").IsUndefined()) entry.table = to_array(record(object, "table"));
  if (!object.Get("scaleCodes").IsUndefined()) {
    const Napi::Object codes = record(object, "scaleCodes");
    entry.scale_codes = {to_array(record(codes, "table")), to_array(record(codes, "factors")), integer(codes, "run"),
                         static_cast<float>(number(codes, "offset"))};
  }
  return entry;
}

TensorEntry to_tensor(const Napi::Object& object) {
  TensorEntry tensor;
  tensor.name = text(object, "name");
  tensor.file_idx = int32(object, "file");
  tensor.offset = offset_of(object);
  const std::string type = text(object, "dtype");
  tensor.format = find_block_format(type);
  if (const std::optional<CodeLayout> layout = find_code_layout(type))
    tensor.groups = to_groups(record(object, "groups"), *layout);
  else if (tensor.format == nullptr)
    tensor.dtype = to_dtype(object, "dtype");
  if (!object.Get("scaleFactor").IsUndefined()) tensor.factor = to_array(record(object, "scaleFactor"));
  if (!object.Get("scaleDivisor").IsUndefined()) tensor.divisor = to_array(record(object, "scaleDivisor"));
  if (!object.Get("interleavedHeadDim").IsUndefined()) tensor.paired_head_dim = int32(object, "interleavedHeadDim");
  if (!object.Get("isTransposed").IsUndefined()) tensor.is_transposed = boolean(object, "isTransposed");
  if (!object.Get("isNegatedExp").IsUndefined()) tensor.is_negated_exp = boolean(object, "isNegatedExp");
  if (!object.Get("interleavedRows").IsUndefined()) tensor.paired_rows = int32(object, "interleavedRows");
  const Napi::Array shape = array(object, "shape");
  for (uint32_t i = 0; i < shape.Length(); ++i) {
    const Napi::Value size = shape[i];
    // Other values fail the shape check later, with the tensor's name.
    tensor.shape.push_back(size.IsNumber() ? size.As<Napi::Number>().Int64Value() : 0);
  }
  return tensor;
}

std::shared_ptr<Vocabulary> to_vocabulary(const Napi::Object& object) {
  auto vocabulary = std::make_shared<Vocabulary>();
  const auto bytes = elements<uint8_t>(object, "bytes", napi_uint8_array, "a Uint8Array");
  vocabulary->bytes.assign(bytes.begin(), bytes.end());
  vocabulary->offsets = elements<uint32_t>(object, "offsets", napi_uint32_array, "a Uint32Array");
  vocabulary->is_special = elements<uint8_t>(object, "special", napi_uint8_array, "a Uint8Array");
  if (vocabulary->is_special.empty() || vocabulary->offsets.size() != vocabulary->is_special.size() + 1)
    refuse(object, "offsets", "one entry more than `special`, which has at least one");
  for (size_t i = 0; i + 1 < vocabulary->offsets.size(); ++i)
    if (vocabulary->offsets[i] > vocabulary->offsets[i + 1]) refuse(object, "offsets", "ascending numbers");
  if (vocabulary->offsets.back() > vocabulary->bytes.size()) refuse(object, "offsets", "numbers within `bytes`");
  return vocabulary;
}

SpeculationOptions to_speculation(const Napi::Object& object) {
  SpeculationOptions options;
  options.num_tokens = int32(object, "numSpeculativeTokens");
  options.max_ngram = int32(object, "promptLookupMax");
  options.min_ngram = int32(object, "promptLookupMin");
  options.from_grammar = boolean(object, "fromGrammar");
  return options;
}

Quantization to_quantization(const Napi::Object& object) {
  return one_of<Quantization>(
      object, "quantization",
      {{"none", Quantization::kNone}, {"int8", Quantization::kInt8}, {"int4", Quantization::kInt4}});
}

std::vector<TensorEntry> to_tensors(const Napi::Object& object) {
  std::vector<TensorEntry> tensors;
  for (const Napi::Object& tensor : objects(object, "tensors"))
    tensors.push_back(to_tensor(tensor));
  return tensors;
}

DraftRequest to_draft(const Napi::Object& object) {
  DraftRequest draft;
  draft.files = texts(object, "files");
  draft.tensors = to_tensors(object);
  draft.spec = to_spec(record(object, "spec"));
  draft.weight_dtype = to_dtype(object, "weightDtype");
  draft.quantization = to_quantization(object);
  return draft;
}

DiskCacheRequest to_disk_cache(const Napi::Object& object) {
  DiskCacheRequest request;
  if (object.Get("prefixCacheDir").IsNull()) return request;
  request.path = text(object, "prefixCacheDir");
  if (request.path.empty()) refuse(object, "prefixCacheDir", "null (none) or a path");
  request.max_bytes = integer(object, "prefixCacheDiskBytes");
  if (request.max_bytes < 1) refuse(object, "prefixCacheDiskBytes", "1 or more");
  request.model_digest = text(object, "modelDigest");
  return request;
}

void read_options(const Napi::Object& object, LoadRequest& request) {
  DeviceOptions& device = request.device;
  device.device = text(object, "device");
  device.isa = text(object, "isa");
  device.world_size = int32(object, "tensorParallelSize");
  if (device.world_size < 1 || device.world_size > 64) refuse(object, "tensorParallelSize", "1 to 64");
  device.num_threads = int32(object, "threads");
  if (device.num_threads < 0 || device.num_threads > 1024) refuse(object, "threads", "0 (default) to 1024");
  device.is_pinned = boolean(object, "pinThreads");
  device.is_deterministic = boolean(object, "deterministic");
  device.weight_dtype = to_dtype(object, "weightDtype");
  request.compute = one_of<ComputeChoice>(
      object, "computeDtype",
      {{"auto", ComputeChoice::kAuto}, {"f32", ComputeChoice::kF32}, {"bf16", ComputeChoice::kBf16}});
  request.quantization = to_quantization(object);
  request.is_kv_dtype_given = text(object, "kvCacheDtype") != "auto";
  if (request.is_kv_dtype_given)
    request.kv_cache_dtype = one_of<DType>(object, "kvCacheDtype",
                                           {{"f32", DType::kF32},
                                            {"f16", DType::kF16},
                                            {"bf16", DType::kBf16},
                                            {"fp8", DType::kFp8E4m3},
                                            {"int8", DType::kInt8}});
  request.block_size = int32(object, "blockSize");
  request.kv_cache_bytes = integer(object, "kvCacheBytes");
  if (request.kv_cache_bytes < 0) refuse(object, "kvCacheBytes", "0 (default) or more");
  request.gpu_memory_utilization = number(object, "gpuMemoryUtilization");
  if (!(request.gpu_memory_utilization > 0 && request.gpu_memory_utilization <= 1))
    refuse(object, "gpuMemoryUtilization", "a number above 0, at most 1");
  request.max_model_len = int32(object, "maxModelLen");
  if (request.max_model_len < 0) refuse(object, "maxModelLen", "0 (default) or more");
  request.max_num_seqs = int32(object, "maxNumSeqs");
  if (!object.Get("speculative").IsNull()) request.speculation = to_speculation(record(object, "speculative"));
  request.max_num_batched_tokens = int32(object, "maxNumBatchedTokens");
  request.max_queued_requests = int32(object, "maxQueuedRequests");
  request.max_step_ms = number(object, "maxStepMs");
  request.grammar_cache_bytes = integer(object, "grammarCacheBytes");
  request.has_prefix_cache = boolean(object, "prefixCache");
  request.disk_cache = to_disk_cache(object);
  request.has_adapters = boolean(object, "enableLora");
  request.max_loras = int32(object, "maxLoras");
  request.max_lora_rank = int32(object, "maxLoraRank");
  request.has_profile = boolean(object, "profile");
}

ThinkingParams to_thinking(const Napi::Object& object) {
  ThinkingParams thinking;
  thinking.budget = int32(object, "budget");
  thinking.open_ids = ids(object, "openIds");
  thinking.close_ids = ids(object, "closeIds");
  thinking.is_inside = boolean(object, "isInside");
  return thinking;
}

SamplingParams to_sampling(const Napi::Object& object) {
  SamplingParams sampling;
  sampling.temperature = static_cast<float>(number(object, "temperature"));
  sampling.top_k = int32(object, "topK");
  sampling.top_p = static_cast<float>(number(object, "topP"));
  sampling.min_p = static_cast<float>(number(object, "minP"));
  sampling.presence_penalty = static_cast<float>(number(object, "presencePenalty"));
  sampling.frequency_penalty = static_cast<float>(number(object, "frequencyPenalty"));
  sampling.repetition_penalty = static_cast<float>(number(object, "repetitionPenalty"));
  if (const Napi::Value seed = object.Get("seed"); !seed.IsNull()) {
    if (!seed.IsBigInt()) refuse(object, "seed", "a bigint or null");
    bool is_lossless = false;
    sampling.seed = seed.As<Napi::BigInt>().Uint64Value(&is_lossless);  // negative values wrap
  }
  sampling.max_tokens = int32(object, "maxTokens");
  sampling.min_tokens = int32(object, "minTokens");
  sampling.is_eos_ignored = boolean(object, "ignoreEos");
  sampling.stop_token_ids = ids(object, "stopTokenIds");
  sampling.stop_strings = texts(object, "stop");
  sampling.includes_stop_in_output = boolean(object, "includeStopInOutput");
  sampling.skips_special_tokens = boolean(object, "skipSpecialTokens");
  const std::vector<int32_t> bias_ids = ids(object, "logitBiasIds");
  const auto biases = elements<float>(object, "logitBiasValues", napi_float32_array, "a Float32Array");
  if (bias_ids.size() != biases.size()) refuse(object, "logitBiasValues", "as many values as ids");
  for (size_t i = 0; i < biases.size(); ++i)
    sampling.logit_bias.emplace_back(bias_ids[i], biases[i]);
  if (!object.Get("allowedTokenIds").IsNull()) sampling.allowed_token_ids = ids(object, "allowedTokenIds");
  sampling.num_logprobs = int32(object, "logprobs");
  sampling.num_prompt_logprobs = int32(object, "promptLogprobs");
  const Napi::Array bad_words = array(object, "badWords");
  for (uint32_t i = 0; i < bad_words.Length(); ++i)
    sampling.bad_words.push_back(
        elements_of<int32_t>(bad_words[i], object, "badWords", napi_int32_array, "an array of Int32Arrays"));
  if (!object.Get("thinkingBudget").IsNull()) sampling.thinking = to_thinking(record(object, "thinkingBudget"));
  return sampling;
}

const char* reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      return "abort";
    case FinishReason::kError:
      return "error";
  }
  return "error";
}

Napi::Object from_logprobs(Napi::Env env, const TokenLogprobs& logprobs) {
  Napi::Object object = Napi::Object::New(env);
  object.Set("tokenId", logprobs.token_id);
  object.Set("logprob", logprobs.logprob);
  object.Set("rank", logprobs.rank);
  Napi::Array top = Napi::Array::New(env, logprobs.top.size());
  for (uint32_t i = 0; i < logprobs.top.size(); ++i) {
    Napi::Object entry = Napi::Object::New(env);
    entry.Set("tokenId", logprobs.top[i].first);
    entry.Set("logprob", logprobs.top[i].second);
    top.Set(i, entry);
  }
  object.Set("top", top);
  return object;
}

Napi::Value from_stop_reason(Napi::Env env, const Finish& finish) {
  if (!finish.stop_string.empty()) return Napi::String::New(env, finish.stop_string);
  if (finish.stop_token_id >= 0) return Napi::Number::New(env, finish.stop_token_id);
  return env.Null();
}

Napi::Object from_finish(Napi::Env env, const Finish& finish) {
  Napi::Object object = Napi::Object::New(env);
  const bool is_error = finish.reason == FinishReason::kError;
  object.Set("reason", reason_name(finish.reason));
  object.Set("stopReason", from_stop_reason(env, finish));
  object.Set("errorCode", is_error ? Napi::String::New(env, error_code_name(finish.error_code)) : env.Null());
  object.Set("errorMessage", is_error ? Napi::String::New(env, finish.error_message) : env.Null());
  object.Set("promptTokens", finish.num_prompt_tokens);
  object.Set("completionTokens", finish.num_completion_tokens);
  object.Set("cachedTokens", finish.num_cached_tokens);
  object.Set("queueMs", finish.queue_ms);
  object.Set("prefillMs", finish.prefill_ms);
  object.Set("decodeMs", finish.decode_ms);
  object.Set("numPreemptions", finish.num_preemptions);
  return object;
}

}  // namespace

TokenizerTables to_tokenizer_tables(const Napi::Object& tokenizer) {
  return {to_vocabulary(record(tokenizer, "vocab")), ids(tokenizer, "eosTokenIds")};
}

LoadRequest to_load_request(const Napi::Object& load) {
  LoadRequest request;
  request.files = texts(load, "files");
  request.tensors = to_tensors(load);
  request.spec = to_spec(record(load, "spec"));
  if (!load.Get("tokenizer").IsNull()) request.tokenizer = to_tokenizer_tables(record(load, "tokenizer"));
  read_options(record(load, "options"), request);
  if (!load.Get("draft").IsNull()) {
    if (request.tokenizer.vocabulary == nullptr)
      refuse(load, "tokenizer", "a tokenizer, because there is a draft model");
    request.draft = to_draft(record(load, "draft"));
  }
  return request;
}

Request to_request(const Napi::Object& object) {
  Request request;
  request.prompt_token_ids = ids(object, "promptTokenIds");
  request.num_choices = int32(object, "numChoices");
  request.sampling = to_sampling(record(object, "sampling"));
  request.cache_salt = text(object, "cacheSalt");
  const int64_t adapter_id = integer(object, "adapterId");
  if (adapter_id < 0) refuse(object, "adapterId", "0 or more");
  request.adapter_id = static_cast<uint64_t>(adapter_id);
  request.priority = int32(object, "priority");
  request.strips_leading_space = boolean(object, "stripLeadingSpace");
  request.grammar = to_compiled_grammar(object.Get("grammar"));
  return request;
}

AdapterSource to_adapter_source(const Napi::Object& object) {
  AdapterSource source;
  source.files = texts(object, "files");
  for (const Napi::Object& module : objects(object, "modules"))
    source.modules.push_back({int32(module, "layer"), text(module, "projection"), to_tensor(record(module, "a")),
                              to_tensor(record(module, "b")), static_cast<float>(number(module, "scale"))});
  return source;
}

Request to_pooled_request(const Napi::Object& object) {
  Request request;
  request.prompt_token_ids = ids(object, "promptTokenIds");
  request.sampling.max_tokens = 0;
  request.cache_salt = text(object, "cacheSalt");
  request.priority = int32(object, "priority");
  request.is_pooled = true;
  if (!object.Get("tokenTypes").IsUndefined()) request.token_types = ids(object, "tokenTypes");
  return request;
}

Napi::Object from_info(Napi::Env env, const EngineInfo& info) {
  Napi::Object object = Napi::Object::New(env);
  object.Set("backend", info.backend);
  object.Set("isa", info.isa);
  object.Set("threads", info.num_threads);
  object.Set("tensorParallelSize", info.world_size);
  object.Set("weightDtype", dtype_name(info.weight_dtype));
  object.Set("quantization", quantization_name(info.quantization));
  object.Set("computeDtype", dtype_name(info.compute_dtype));
  object.Set("kvCacheDtype", dtype_name(info.kv_cache_dtype));
  object.Set("blockSize", info.block_size);
  object.Set("numBlocks", info.num_blocks);
  object.Set("numStateSlots", info.num_state_slots);
  object.Set("kvCacheBytes", static_cast<double>(info.kv_cache_bytes));
  object.Set("weightBytes", static_cast<double>(info.weight_bytes));
  object.Set("maxModelLen", info.max_model_len);
  Napi::Array notes = Napi::Array::New(env, info.notes.size());
  for (uint32_t i = 0; i < info.notes.size(); ++i)
    notes.Set(i, info.notes[i]);
  object.Set("notes", notes);
  return object;
}

static Napi::Object from_step(Napi::Env env, const StepStats& step) {
  Napi::Object object = Napi::Object::New(env);
  object.Set("numTokens", static_cast<double>(step.num_tokens));
  object.Set("numSeqs", static_cast<double>(step.num_seqs));
  object.Set("scheduleUs", step.schedule_us);
  object.Set("forwardUs", step.forward_us);
  object.Set("settleUs", step.settle_us);
  return object;
}

static void set_disk_cache(Napi::Object& object, const DiskCacheStats& stats) {
  const disk::StoreStats& store = stats.store;
  const auto set = [&](const char* name, int64_t value) { object.Set(name, static_cast<double>(value)); };
  set("numDiskBlocks", store.num_blocks);
  set("diskBytes", store.bytes);
  set("numDiskHits", stats.num_hits);
  set("numDiskDeclined", stats.num_declined);
  set("diskCachedTokens", stats.num_loaded_tokens);
  set("diskBytesRead", store.bytes_read);
  set("diskBytesWritten", store.bytes_written);
  set("numDiskEvictions", store.num_evicted);
  set("numDiskSkipped", store.num_skipped);
  set("numDiskDamaged", store.num_damaged);
  object.Set("diskProblem",
             store.problem.empty() ? object.Env().Null() : Napi::String::New(object.Env(), store.problem));
}

Napi::Object from_stats(Napi::Env env, const EngineStats& stats) {
  Napi::Object object = Napi::Object::New(env);
  object.Set("numWaiting", stats.num_waiting);
  object.Set("numRunning", stats.num_running);
  object.Set("numBackground", stats.num_background);
  object.Set("queuedPromptTokens", static_cast<double>(stats.queued_prompt_tokens));
  object.Set("queuedBackgroundTokens", static_cast<double>(stats.queued_background_tokens));
  object.Set("numBlocks", stats.num_blocks);
  object.Set("numFreeBlocks", stats.num_free_blocks);
  object.Set("numCachedBlocks", stats.num_cached_blocks);
  object.Set("snapshotBytes", static_cast<double>(stats.snapshot_bytes));
  object.Set("numSnapshotHits", static_cast<double>(stats.num_snapshot_hits));
  object.Set("grammarCacheBytes", static_cast<double>(stats.grammar_cache_bytes));
  object.Set("numEvictions", static_cast<double>(stats.num_evictions));
  object.Set("numPreemptions", static_cast<double>(stats.num_preemptions));
  object.Set("numSteps", static_cast<double>(stats.num_steps));
  object.Set("msSinceLastStep", stats.ms_since_last_step);
  object.Set("promptTokens", static_cast<double>(stats.prompt_tokens));
  object.Set("cachedTokens", static_cast<double>(stats.cached_tokens));
  object.Set("completionTokens", static_cast<double>(stats.completion_tokens));
  Napi::Object finished = Napi::Object::New(env);
  for (const FinishReason reason :
       {FinishReason::kStop, FinishReason::kLength, FinishReason::kAbort, FinishReason::kError})
    finished.Set(reason_name(reason), static_cast<double>(stats.num_finished[static_cast<size_t>(reason)]));
  object.Set("numFinished", finished);
  object.Set("lastStep", from_step(env, stats.last_step));
  object.Set("allSteps", from_step(env, stats.all_steps));
  object.Set("numDrafts", static_cast<double>(stats.num_speculations));
  object.Set("numDraftTokens", static_cast<double>(stats.num_draft_tokens));
  Napi::Array accepted = Napi::Array::New(env, stats.num_accepted_tokens.size());
  for (uint32_t i = 0; i < stats.num_accepted_tokens.size(); ++i)
    accepted.Set(i, static_cast<double>(stats.num_accepted_tokens[i]));
  object.Set("numAcceptedTokens", accepted);
  set_disk_cache(object, stats.disk_cache.value_or(DiskCacheStats{}));
  object.Set("profile", stats.profile ? from_profile(env, *stats.profile) : env.Null());
  object.Set("failure", stats.failure.empty() ? env.Null() : Napi::String::New(env, stats.failure));
  return object;
}

Napi::Object from_event_details(Napi::Env env, const Event& event) {
  Napi::Object object = Napi::Object::New(env);
  Napi::Value logprobs = env.Null();
  if (!event.logprobs.empty()) {
    Napi::Array entries = Napi::Array::New(env, event.logprobs.size());
    for (uint32_t i = 0; i < event.logprobs.size(); ++i)
      entries.Set(i, from_logprobs(env, event.logprobs[i]));
    logprobs = entries;
  }
  object.Set("logprobs", logprobs);
  Napi::Value prompt_logprobs = env.Null();
  if (!event.prompt_logprobs.empty()) {
    Napi::Array entries = Napi::Array::New(env, event.prompt_logprobs.size());
    for (uint32_t i = 0; i < event.prompt_logprobs.size(); ++i)
      entries.Set(i, event.prompt_logprobs[i] ? from_logprobs(env, *event.prompt_logprobs[i]) : env.Null());
    prompt_logprobs = entries;
  }
  object.Set("promptLogprobs", prompt_logprobs);
  Napi::Value pooled = env.Null();
  if (!event.pooled.empty()) {
    Napi::Float32Array values = Napi::Float32Array::New(env, event.pooled.size());
    std::ranges::copy(event.pooled, values.Data());
    pooled = values;
  }
  object.Set("pooled", pooled);
  object.Set("finish", event.finish ? from_finish(env, *event.finish) : env.Null());
  return object;
}

Napi::Error make_error(Napi::Env env, ErrorCode code, const std::string& message) {
  Napi::Error error = Napi::Error::New(env, message);
  error.Set("code", Napi::String::New(env, error_code_name(code)));
  return error;
}

Napi::Error to_js_error(Napi::Env env, const std::exception_ptr& error) {
  const auto [code, message] = describe(error);
  return make_error(env, code, message);
}

}  // namespace capstan
