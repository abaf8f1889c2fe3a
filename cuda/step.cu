#include "cuda/step.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "cuda/attention_layout.h"
#include "native/base/check.h"

namespace capstan::cuda {
namespace {

// Decode batches are padded to a multiple of this, large ones to a multiple of four times this.
constexpr int kRowStep = 8;
constexpr size_t kPaddingWords = 4;  // at most, before an array that is aligned to 16 bytes
// Arrays of a step, and those of each KV group.
constexpr size_t kArrays = 10, kGroupArrays = 4;
constexpr size_t kSampleWords = sizeof(SampleItem) / sizeof(int32_t);

// Rows of the graph that serves `count` sequences.
int padded_rows(int count) {
  if (count <= 2) return count;
  if (count <= 4) return 4;
  return static_cast<int>(round_up(count, count <= 64 ? kRowStep : 4 * kRowStep));
}

int chunks_of(int num_tokens) {
  return (num_tokens + kChunk - 1) / kChunk;
}
int power_of_two(int count) {
  return static_cast<int>(std::bit_ceil(static_cast<unsigned>(count)));
}
int blocks_of(int chunks, int block_size) {
  return (chunks * kChunk + block_size - 1) / block_size;
}

size_t padding_words(size_t num_groups) {
  return kPaddingWords * (kArrays + kGroupArrays * num_groups);
}

// Tiles of 16 rows.
int64_t max_tiles(const DeviceModel& model, int kv_group, const DeviceLimits& limits) {
  const int heads = model.num_heads / model.kv_shape(kv_group).num_kv_heads;
  return int64_t{limits.max_num_tokens} * heads / 16 + limits.max_num_seqs;
}

size_t max_step_words(const DeviceModel& model, const DeviceLimits& limits) {
  const auto tokens = static_cast<size_t>(limits.max_num_tokens), seqs = static_cast<size_t>(limits.max_num_seqs);
  const auto blocks =
      static_cast<size_t>(blocks_of(power_of_two(chunks_of(model.max_model_len)), limits.block_size)) + 1;
  const size_t num_groups = model.kv_groups.size();
  size_t words = tokens * 2 + seqs * (3 + kSampleWords) + 1 + padding_words(num_groups);
  for (size_t group = 0; group < num_groups; ++group)
    words += tokens + seqs * blocks + static_cast<size_t>(max_tiles(model, static_cast<int>(group), limits)) * 2;
  return words + (model.has_recurrent_layers() ? tokens * 2 + seqs : 0) +
         (model.embedding.num_token_types > 0 ? tokens : 0);
}

}  // namespace

int64_t max_attention_splits(const DeviceModel& model, int kv_group, const DeviceLimits& limits) {
  return std::min<int64_t>(kMaxSplits, max_tiles(model, kv_group, limits) * model.kv_shape(kv_group).num_kv_heads *
                                           power_of_two(chunks_of(model.max_model_len)));
}

StepArrays::StepArrays(const DeviceModel& model, const DeviceLimits& limits)
    : has_states_(model.has_recurrent_layers()),
      block_size_(limits.block_size),
      max_num_seqs_(limits.max_num_seqs),
      max_words_(max_step_words(model, limits)) {
  for (size_t i = 0; i < model.kv_groups.size(); ++i) {
    const KvShape shape = model.kv_shape(static_cast<int>(i));
    groups_.push_back({shape.num_kv_heads,
                       model.num_heads / shape.num_kv_heads,
                       shape.head_dim <= kMaxWideHeadDim ? wide_rows(key_dim(shape.head_dim) / 32) : 0,
                       {}});
  }
  device_groups_.resize(groups_.size());
  for (int slot = 0; slot < 2; ++slot)
    begin(max_words_);
}

void StepArrays::begin(size_t num_words) {
  CAPSTAN_CHECK(num_words <= max_words_);
  staging_.begin(max_words_ * sizeof(int32_t));
}

DeviceStep StepArrays::send(const StepInput& step, int multiprocessors, cudaStream_t stream) {
  DeviceStep device;
  device.num_tokens = static_cast<int>(step.input_ids.size());
  device.num_seqs = static_cast<int>(step.context_lens.size());
  device.max_blocks_per_seq = step.max_blocks_per_seq;
  device.kv_groups = device_groups_;
  size_t words = step.input_ids.size() * 2 + step.token_types.size() + step.state_writes.size() * 2 +
                 step.state_reads.size() + step.cu_seqlens_q.size() + step.context_lens.size() +
                 padding_words(groups_.size());
  for (size_t i = 0; i < groups_.size(); ++i) {
    Group& group = groups_[i];
    plan_attention(step.cu_seqlens_q, step.context_lens, group.heads, group.num_kv_heads,
                   {group.wide_rows > 0 ? multiprocessors : 0, group.wide_rows}, group.plan);
    DeviceKvGroup& to = device_groups_[i];
    to.num_tiles = static_cast<int>(group.plan.tiles.size());
    to.num_wide_tiles = static_cast<int>(group.plan.wide_tiles.size());
    to.num_chunks = attention_splits(to.num_tiles, group.num_kv_heads, chunks_of(group.plan.longest));
    words += step.kv_groups[i].slot_mapping.size() + step.kv_groups[i].block_tables.size() +
             (group.plan.tiles.size() + group.plan.wide_tiles.size()) * 2;
  }

  begin(words);
  device.ids = staging_.add(step.input_ids.data(), step.input_ids.size());
  device.positions = staging_.add(step.positions.data(), step.positions.size());
  device.cu_seqlens = staging_.add(step.cu_seqlens_q.data(), step.cu_seqlens_q.size());
  device.context_lens = staging_.add(step.context_lens.data(), step.context_lens.size());
  device.token_types = staging_.add(step.token_types.data(), step.token_types.size());
  for (size_t i = 0; i < groups_.size(); ++i) {
    const KvGroupInput& from = step.kv_groups[i];
    const AttentionPlan& plan = groups_[i].plan;
    DeviceKvGroup& to = device_groups_[i];
    to.slots = staging_.add(from.slot_mapping.data(), from.slot_mapping.size());
    to.block_tables = staging_.add(from.block_tables.data(), from.block_tables.size());
    to.tiles = staging_.add(plan.tiles.data(), plan.tiles.size());
    to.wide_tiles = staging_.add(plan.wide_tiles.data(), plan.wide_tiles.size());
  }
  if (has_states_) {
    device.state_reads = staging_.add(step.state_reads.data(), step.state_reads.size());
    device.state_writes = staging_.add(step.state_writes.data(), step.state_writes.size());
    int32_t* token_seqs = staging_.reserve(step.input_ids.size(), device.token_seqs);
    for (int32_t seq = 0; seq < device.num_seqs; ++seq)
      std::fill(token_seqs + step.cu_seqlens_q[seq], token_seqs + step.cu_seqlens_q[seq + 1], seq);
  }
  staging_.send(stream);
  return device;
}

DecodePlan StepArrays::plan(const StepInput& step) const {
  const int count = static_cast<int>(step.input_ids.size());
  return {std::max(count, std::min(padded_rows(count), max_num_seqs_)),
          power_of_two(chunks_of(*std::ranges::max_element(step.context_lens)))};
}

DeviceStep StepArrays::place(const StepInput& step, const DecodePlan& plan) {
  const int count = static_cast<int>(step.input_ids.size());
  const auto rows = static_cast<size_t>(plan.rows), blocks = static_cast<size_t>(blocks_of(plan.chunks, block_size_));
  const auto tiles_per_seq = [](const Group& group) { return static_cast<size_t>(group.heads + 15) / 16; };
  DeviceStep device;
  device.kv_groups = device_groups_;
  device.num_tokens = device.num_seqs = plan.rows;
  device.max_blocks_per_seq = static_cast<int>(blocks);
  size_t words = rows * ((has_states_ ? 8 : 5) + kSampleWords) + 1 + padding_words(groups_.size());
  for (const Group& group : groups_)
    words += rows * (1 + blocks + 2 * tiles_per_seq(group));

  begin(words);
  const auto padded = [&](std::span<const int32_t> from, int32_t filler, const int32_t*& place) {
    int32_t* to = staging_.reserve(rows, place);
    std::fill(std::ranges::copy(from, to).out, to + rows, filler);
  };
  padded(step.input_ids, kNoToken, device.ids);
  padded(step.positions, 0, device.positions);
  padded(step.context_lens, 0, device.context_lens);
  int32_t* cu_seqlens = staging_.reserve(rows + 1, device.cu_seqlens);
  std::iota(cu_seqlens, cu_seqlens + rows + 1, 0);
  if (has_states_) {
    padded(step.state_reads, -1, device.state_reads);
    padded(step.state_writes, -1, device.state_writes);
    int32_t* token_seqs = staging_.reserve(rows, device.token_seqs);
    std::iota(token_seqs, token_seqs + rows, 0);
  }
  for (size_t i = 0; i < groups_.size(); ++i) {
    const KvGroupInput& from = step.kv_groups[i];
    const size_t per_seq = tiles_per_seq(groups_[i]);
    DeviceKvGroup& to = device_groups_[i] = {};
    to.num_tiles = plan.rows * static_cast<int>(per_seq);
    to.num_chunks = attention_splits(to.num_tiles, groups_[i].num_kv_heads, plan.chunks);
    padded(from.slot_mapping, -1, to.slots);
    AttentionTile* tiles = staging_.reserve(rows * per_seq, to.tiles);
    for (size_t row = 0; row < rows; ++row)
      for (size_t tile = 0; tile < per_seq; ++tile)
        *tiles++ = {static_cast<int>(row) < count ? static_cast<int32_t>(row) : -1, static_cast<int32_t>(tile * 16)};
    int32_t* tables = staging_.reserve(rows * blocks, to.block_tables);
    std::fill(tables, tables + rows * blocks, -1);
    const auto given = static_cast<size_t>(step.max_blocks_per_seq);
    for (size_t row = 0; row < static_cast<size_t>(count); ++row)
      std::ranges::copy(from.block_tables.subspan(row * given, std::min(given, blocks)), tables + row * blocks);
  }
  head_rows_ = {staging_.reserve(rows, device_head_rows_), rows};
  std::ranges::fill(head_rows_, 0);
  samples_ = {staging_.reserve(rows, device_samples_), rows};
  SampleItem none;
  none.logits_row = -1;
  std::ranges::fill(samples_, none);
  return device;
}

}  // namespace capstan::cuda
