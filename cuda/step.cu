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
constexpr size_t kArrayWords = 4 * 12;  // padding between up to 12 arrays that are aligned to 16 bytes
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

// Tiles of 16 rows.
int64_t max_tiles(const DeviceModel& model, const DeviceLimits& limits) {
  return int64_t{limits.max_num_tokens} * (model.num_heads / model.num_kv_heads) / 16 + limits.max_num_seqs;
}

size_t max_step_words(const DeviceModel& model, const DeviceLimits& limits) {
  const auto tokens = static_cast<size_t>(limits.max_num_tokens), seqs = static_cast<size_t>(limits.max_num_seqs);
  const auto blocks =
      static_cast<size_t>(blocks_of(power_of_two(chunks_of(model.max_model_len)), limits.block_size)) + 1;
  const auto tiles = static_cast<size_t>(max_tiles(model, limits));
  const size_t state_words = model.has_recurrent_layers() ? tokens * 2 + seqs : 0;
  return state_words + tokens * 3 + seqs * (3 + blocks + kSampleWords) + 1 + tiles * 2 + kArrayWords;
}

}  // namespace

int64_t max_attention_splits(const DeviceModel& model, const DeviceLimits& limits) {
  return std::min<int64_t>(
      kMaxSplits, max_tiles(model, limits) * model.num_kv_heads * power_of_two(chunks_of(model.max_model_len)));
}

StepArrays::StepArrays(const DeviceModel& model, const DeviceLimits& limits)
    : has_states_(model.has_recurrent_layers()),
      num_kv_heads_(model.num_kv_heads),
      group_(model.num_heads / model.num_kv_heads),
      wide_rows_(wide_rows(key_dim(model.head_dim) / 32)),
      block_size_(limits.block_size),
      max_num_seqs_(limits.max_num_seqs),
      max_words_(max_step_words(model, limits)) {
  for (int slot = 0; slot < 2; ++slot)
    begin(max_words_);
}

void StepArrays::begin(size_t num_words) {
  CAPSTAN_CHECK(num_words <= max_words_);
  staging_.begin(max_words_ * sizeof(int32_t));
}

DeviceStep StepArrays::send(const StepInput& step, int multiprocessors, cudaStream_t stream) {
  const KvGroupInput& kv = step.kv_groups[0];
  plan_attention(step.cu_seqlens_q, step.context_lens, group_, num_kv_heads_, {multiprocessors, wide_rows_},
                 attention_);
  const auto &tiles = attention_.tiles, &wide_tiles = attention_.wide_tiles;
  DeviceStep device;
  device.num_tokens = static_cast<int>(step.input_ids.size());
  device.num_seqs = static_cast<int>(step.context_lens.size());
  device.max_blocks_per_seq = step.max_blocks_per_seq;
  device.num_tiles = static_cast<int>(tiles.size());
  device.num_wide_tiles = static_cast<int>(wide_tiles.size());
  device.num_chunks = attention_splits(device.num_tiles, num_kv_heads_, chunks_of(attention_.longest));

  begin(step.input_ids.size() * 3 + step.state_writes.size() * 2 + step.state_reads.size() + step.cu_seqlens_q.size() +
        step.context_lens.size() + kv.block_tables.size() + (tiles.size() + wide_tiles.size()) * 2 + kArrayWords);
  device.ids = staging_.add(step.input_ids.data(), step.input_ids.size());
  device.positions = staging_.add(step.positions.data(), step.positions.size());
  device.slots = staging_.add(kv.slot_mapping.data(), kv.slot_mapping.size());
  device.cu_seqlens = staging_.add(step.cu_seqlens_q.data(), step.cu_seqlens_q.size());
  device.context_lens = staging_.add(step.context_lens.data(), step.context_lens.size());
  device.block_tables = staging_.add(kv.block_tables.data(), kv.block_tables.size());
  device.tiles = staging_.add(tiles.data(), tiles.size());
  device.wide_tiles = staging_.add(wide_tiles.data(), wide_tiles.size());
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
  const KvGroupInput& kv = step.kv_groups[0];
  const int count = static_cast<int>(step.input_ids.size()), tiles_per_seq = (group_ + 15) / 16;
  const auto rows = static_cast<size_t>(plan.rows), blocks = static_cast<size_t>(blocks_of(plan.chunks, block_size_));
  DeviceStep device;
  device.num_tokens = device.num_seqs = plan.rows;
  device.num_tiles = plan.rows * tiles_per_seq;
  device.num_chunks = attention_splits(device.num_tiles, num_kv_heads_, plan.chunks);
  device.max_blocks_per_seq = static_cast<int>(blocks);

  begin(rows * ((has_states_ ? 9 : 6) + blocks + 2 * static_cast<size_t>(tiles_per_seq) + kSampleWords) + 1 +
        kArrayWords);
  const auto padded = [&](std::span<const int32_t> from, int32_t filler, const int32_t*& place) {
    int32_t* to = staging_.reserve(rows, place);
    std::fill(std::ranges::copy(from, to).out, to + rows, filler);
  };
  padded(step.input_ids, kNoToken, device.ids);
  padded(step.positions, 0, device.positions);
  padded(kv.slot_mapping, -1, device.slots);
  padded(step.context_lens, 0, device.context_lens);
  int32_t* cu_seqlens = staging_.reserve(rows + 1, device.cu_seqlens);
  std::iota(cu_seqlens, cu_seqlens + rows + 1, 0);
  if (has_states_) {
    padded(step.state_reads, -1, device.state_reads);
    padded(step.state_writes, -1, device.state_writes);
    int32_t* token_seqs = staging_.reserve(rows, device.token_seqs);
    std::iota(token_seqs, token_seqs + rows, 0);
  }
  AttentionTile* tiles = staging_.reserve(rows * static_cast<size_t>(tiles_per_seq), device.tiles);
  for (int row = 0; row < plan.rows; ++row)
    for (int tile = 0; tile < tiles_per_seq; ++tile)
      tiles[row * tiles_per_seq + tile] = {row < count ? row : -1, tile * 16};
  int32_t* tables = staging_.reserve(rows * blocks, device.block_tables);
  std::fill(tables, tables + rows * blocks, -1);
  const auto given = static_cast<size_t>(step.max_blocks_per_seq);
  for (size_t row = 0; row < static_cast<size_t>(count); ++row)
    std::ranges::copy(kv.block_tables.subspan(row * given, std::min(given, blocks)), tables + row * blocks);
  head_rows_ = {staging_.reserve(rows, device_head_rows_), rows};
  std::ranges::fill(head_rows_, 0);
  samples_ = {staging_.reserve(rows, device_samples_), rows};
  SampleItem none;
  none.logits_row = -1;
  std::ranges::fill(samples_, none);
  return device;
}

}  // namespace capstan::cuda
