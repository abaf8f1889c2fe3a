#include "native/backend/backend.h"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "native/backend/adapter.h"
#include "native/base/check.h"
#include "native/base/error.h"

namespace capstan {

int row_parallel_parts(int64_t total_cols) {
  for (const int unit : {16, 4, 2})
    for (int parts = 8; parts >= 1; parts /= 2)
      if (total_cols % (int64_t{unit} * parts) == 0) return parts;
  return 1;
}

// In double precision, where C libraries differ only in bits that the result does not have.
static float softplus(float x) {
  return x > 20 ? x : static_cast<float>(std::log1p(std::exp(static_cast<double>(x))));
}

Xielu make_xielu(float alpha_p, float alpha_n, float beta) {
  return {softplus(alpha_p), beta, beta + softplus(alpha_n)};
}

int64_t file_bytes(const FileTensor& tensor, int64_t count) {
  if (tensor.groups != nullptr) return count * tensor.groups->bits / 8;
  if (tensor.format == nullptr) return count * static_cast<int64_t>(dtype_size(tensor.dtype));
  return (count + tensor.format->block_size - 1) / tensor.format->block_size * tensor.format->block_bytes;
}

void read_fully(const std::string& tensor, int fd, uint64_t offset, void* to, size_t bytes) {
  char* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got = pread(fd, at, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw Error(ErrorCode::kIo, "cannot read tensor " + tensor + ": " + std::strerror(errno));
    if (got == 0)
      throw Error(ErrorCode::kInvalidModel,
                  "tensor " + tensor + ": the file is truncated, " + std::to_string(bytes) + " bytes are missing");
    at += got;
    offset += static_cast<uint64_t>(got);
    bytes -= static_cast<size_t>(got);
  }
}

namespace {

[[noreturn]] void refuse(const Backend& backend, const char* feature) {
  throw Error(ErrorCode::kUnsupportedModel,
              std::string(feature) + " run on the CPU only, got the device " + backend.info().name);
}

void check_kv_group(const StepInput& step, const KvGroupInput& group, int window, int num_blocks, int block_size) {
  CAPSTAN_CHECK(group.slot_mapping.size() == step.input_ids.size());
  CAPSTAN_CHECK(static_cast<int64_t>(group.block_tables.size()) >=
                static_cast<int64_t>(step.context_lens.size()) * step.max_blocks_per_seq);
  for (const int32_t slot : group.slot_mapping)
    CAPSTAN_CHECK(slot >= 0 && slot < int64_t{num_blocks} * block_size);
  for (size_t seq = 0; seq < step.context_lens.size(); ++seq) {
    const int32_t end_block = (step.context_lens[seq] + block_size - 1) / block_size;
    CAPSTAN_CHECK(end_block <= step.max_blocks_per_seq);
    const int32_t* table = group.block_tables.data() + seq * static_cast<size_t>(step.max_blocks_per_seq);
    const int32_t first = first_visible_key(step.positions[step.cu_seqlens_q[seq]], window);
    for (int32_t i = first / block_size; i < end_block; ++i)
      CAPSTAN_CHECK(table[i] >= 0 && table[i] < num_blocks);
  }
}

void check_states(const StepInput& step, int num_slots) {
  const size_t num_seqs = num_slots > 0 ? step.context_lens.size() : 0,
               rows = num_slots > 0 ? step.input_ids.size() : 0;
  CAPSTAN_CHECK(step.state_reads.size() == num_seqs && step.state_writes.size() == rows);
  std::vector<bool> is_written(static_cast<size_t>(num_slots));
  for (const int32_t slot : step.state_writes) {
    CAPSTAN_CHECK(slot >= -1 && slot < num_slots);
    if (slot < 0) continue;
    CAPSTAN_CHECK(!is_written[static_cast<size_t>(slot)]);
    is_written[static_cast<size_t>(slot)] = true;
  }
  for (size_t seq = 0; seq < num_seqs; ++seq) {
    const int32_t slot = step.state_reads[seq];
    CAPSTAN_CHECK(slot >= -1 && slot < num_slots);
    CAPSTAN_CHECK((slot < 0) == (step.positions[step.cu_seqlens_q[seq]] == 0));
    if (slot < 0 || !is_written[static_cast<size_t>(slot)]) continue;
    // Only the sequence itself may write to the slot that it reads.
    const auto own =
        step.state_writes.subspan(step.cu_seqlens_q[seq], step.cu_seqlens_q[seq + 1] - step.cu_seqlens_q[seq]);
    CAPSTAN_CHECK(std::ranges::find(own, slot) != own.end());
  }
}

}  // namespace

int distance_row(int64_t distance, int num_rows) {
  constexpr float kFurthest = 128;
  const int half = num_rows / 2, exact = half / 2;
  const int first = distance > 0 ? half : 0;
  const auto size = static_cast<float>(std::abs(distance)), start = static_cast<float>(exact);
  if (size < start) return first + static_cast<int>(size);
  const float share = std::log(size / start) / static_cast<float>(std::log(double{kFurthest} / exact));
  return first + std::min(half - 1, exact + static_cast<int>(share * static_cast<float>(half - exact)));
}

std::unique_ptr<Vector> Backend::load_convolution(const MatrixSource&, const LoadProgress&) {
  refuse(*this, "recurrent layers");
}

void Backend::per_layer_inputs(const PerLayerInputWeights& /*weights*/) {
  refuse(*this, "inputs per layer");
}

void Backend::end_layer(int /*layer*/, const LayerWeights& /*weights*/) {
  refuse(*this, "inputs per layer");
}

void Backend::keep_hidden(const Vector& /*norm*/) {
  refuse(*this, "MTP heads");
}

void Backend::store_hidden(std::span<const StoredHidden> /*rows*/) {
  refuse(*this, "MTP heads");
}

void Backend::mtp_input(const MtpWeights& /*weights*/, std::span<const int32_t> /*hidden_before*/) {
  refuse(*this, "MTP heads");
}

void Backend::recurrent(int, const LayerWeights&) {
  refuse(*this, "recurrent layers");
}

std::unique_ptr<Vector> Backend::load_layer_norm(const TensorSlice&, const TensorSlice*, const LoadProgress&) {
  refuse(*this, "layer norms");
}

void Backend::add_embeddings(const EmbeddingWeights&) {
  refuse(*this, "embeddings of positions");
}

void Backend::pool(const Vector*, std::span<const HeadLayer>, std::span<const PoolRow>) {
  refuse(*this, "models that pool");
}

std::unique_ptr<LoraMatrix> Backend::load_lora(const LoraSource&, const Matrix&) const {
  throw Error(ErrorCode::kUnsupportedModel, "adapters run on the CPU only, got the device " + info().name);
}

void Backend::read_kv_block(int, int32_t, std::span<std::byte>) const {
  refuse(*this, "copies of KV blocks");
}

void Backend::write_kv_block(int, int32_t, std::span<const std::byte>) {
  refuse(*this, "copies of KV blocks");
}

void check_step(const StepInput& step, const DeviceModel& model, const DeviceLimits& limits) {
  const int64_t rows = static_cast<int64_t>(step.input_ids.size());
  CAPSTAN_CHECK(rows > 0 && rows <= limits.max_num_tokens);
  CAPSTAN_CHECK(step.positions.size() == step.input_ids.size());
  CAPSTAN_CHECK(step.cu_seqlens_q.size() == step.context_lens.size() + 1 && step.cu_seqlens_q.back() == rows);
  for (const int32_t position : step.positions)
    CAPSTAN_CHECK(position >= 0 && position < model.max_model_len);
  for (size_t seq = 0; seq < step.context_lens.size(); ++seq) {
    const int32_t begin = step.cu_seqlens_q[seq], end = step.cu_seqlens_q[seq + 1], context = step.context_lens[seq];
    CAPSTAN_CHECK(begin < end && step.positions[begin] == context - (end - begin));
    CAPSTAN_CHECK(model.is_causal || begin + context == end);
    for (int32_t row = begin + 1; row < end; ++row)
      CAPSTAN_CHECK(step.positions[row] == step.positions[row - 1] + 1);
  }
  CAPSTAN_CHECK(step.kv_groups.size() == model.kv_groups.size() && limits.num_blocks.size() == model.kv_groups.size());
  for (size_t i = 0; i < step.kv_groups.size(); ++i)
    check_kv_group(step, step.kv_groups[i], model.kv_groups[i].window, limits.num_blocks[i], limits.block_size);
  check_states(step, limits.num_state_slots);
  CAPSTAN_CHECK(step.token_types.size() == (model.embedding.num_token_types > 0 ? step.input_ids.size() : 0));
  for (const int32_t type : step.token_types)
    CAPSTAN_CHECK(type >= 0 && type < model.embedding.num_token_types);
  if (step.adapters.empty()) return;
  CAPSTAN_CHECK(limits.max_lora_rank > 0 && step.adapter_indices.size() == step.context_lens.size());
  for (const int32_t index : step.adapter_indices)
    CAPSTAN_CHECK(index >= -1 && index < static_cast<int32_t>(step.adapters.size()));
}

}  // namespace capstan
