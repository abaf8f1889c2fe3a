// Both attention kernels against double precision, over a cache with NaN in unwritten slots: odd lengths, boundaries of
// tiles, blocks and chunks, cached prefixes, groups of heads, windows.
#include <algorithm>
#include <memory>
#include <random>

#include "cuda/attention_layout.h"
#include "cuda/fp8.h"
#include "test/native/gpu/kernel_testing.h"

namespace capstan::testing {
namespace {

struct AttendedSequence {
  int context, count;  // all keys, and the queries of the step (the last ones)
};
struct AttentionShape {
  int num_heads, num_kv_heads, head_dim, window, block_size;
  bool is_fp8 = false;
  float soft_cap = 0;
  bool has_sinks = false;
  bool is_causal = true, has_biases = false;

  int reach() const { return is_causal ? 0 : window > 0 ? window - 1 : 10000; }
  int group() const { return num_heads / num_kv_heads; }
};

// Random sequences on the device, with a copy on the host.
class Attention {
 public:
  Attention(FloatType type, const AttentionShape& shape, const std::vector<AttendedSequence>& seqs);

  int longest() const { return std::ranges::max_element(seqs_, {}, &AttendedSequence::context)->context; }
  // Runs launch_attention with this number of chunks, or launch_attention_wgmma. Returns the outputs in memory order:
  // operand layout or row-major.
  std::vector<uint16_t> run(int num_chunks, bool is_warp_per_tile = false) const;
  std::vector<uint16_t> run_wgmma() const;
  // The outputs (num_tokens, heads, head_dim). Checks that padding tokens were not written.
  std::vector<uint16_t> values_of(const std::vector<uint16_t>& acts, bool is_row_major) const;
  void expect_near_doubles(const std::vector<uint16_t>& values, const std::string& what) const;

 private:
  AttentionArgs args(const OnDevice<AttentionTile>& tiles, size_t num_tiles, const OnDevice<uint16_t>& acts) const;
  std::vector<AttentionTile> tiles_of(int num_rows) const;
  OnDevice<uint16_t> unwritten_acts() const {
    return OnDevice<uint16_t>(static_cast<size_t>(round_up(num_tokens_, 8) * split_.padded()));
  }

  const FloatType type_;
  const AttentionShape shape_;
  const std::vector<AttendedSequence> seqs_;
  const KvLayout layout_;
  const DepthSplit split_;
  const float scale_;
  int max_blocks_ = 0, num_tokens_ = 0;
  std::vector<int32_t> cu_seqlens_{0};
  std::vector<std::vector<float>> keys_, values_, queries_;  // per sequence
  std::unique_ptr<OnDevice<uint8_t>> cache_;
  std::unique_ptr<OnDevice<uint16_t>> q_;
  std::vector<float> sinks_, biases_;  // biases (num_heads, distances from -longest() to longest())
  std::unique_ptr<OnDevice<float>> device_sinks_, device_biases_;
  std::unique_ptr<OnDevice<int32_t>> device_seqlens_, device_contexts_, device_tables_;
};

DepthSplit split_of(const AttentionShape& shape) {
  const int64_t q_size = int64_t{shape.num_heads} * shape.head_dim;
  return split_depth(q_size, q_size, row_parallel_parts(q_size));
}

Attention::Attention(FloatType type, const AttentionShape& shape, const std::vector<AttendedSequence>& seqs)
    : type_(type),
      shape_(shape),
      seqs_(seqs),
      layout_(make_kv_layout(shape.block_size, shape.num_kv_heads, shape.head_dim, shape.is_fp8)),
      split_(split_of(shape)),
      scale_(1 / std::sqrt(static_cast<float>(shape.head_dim))),
      sinks_(noise(17, shape.num_heads, 3)),
      biases_(noise(19, shape.num_heads * (2 * longest() + 1), 2)),
      device_sinks_(std::make_unique<OnDevice<float>>(sinks_)),
      device_biases_(std::make_unique<OnDevice<float>>(biases_)) {
  const int block_size = shape.block_size, num_kv_heads = shape.num_kv_heads, num_heads = shape.num_heads,
            head_dim = shape.head_dim;
  const KvLayout& layout = layout_;
  int num_blocks = 0;
  for (const auto& [context, count] : seqs) {
    max_blocks_ = std::max(max_blocks_, (context + block_size - 1) / block_size);
    num_blocks += (context + block_size - 1) / block_size;
    num_tokens_ += count;
  }
  std::vector<int32_t> free_blocks(static_cast<size_t>(num_blocks)), tables, context_lens;
  for (size_t i = 0; i < free_blocks.size(); ++i)
    free_blocks[i] = static_cast<int32_t>(i);
  std::shuffle(free_blocks.begin(), free_blocks.end(), std::mt19937(7));
  // Unwritten slots are NaN.
  std::vector<uint8_t> cache(static_cast<size_t>(num_blocks * layout.block_bytes()), 0xff);
  std::vector<uint16_t> q(static_cast<size_t>(int64_t{num_tokens_} * num_heads * layout.k_dim), 0);
  size_t next_block = 0;
  for (size_t s = 0; s < seqs.size(); ++s) {
    const auto [context, count] = seqs[s];
    const size_t first_entry = tables.size();
    for (int b = 0; b < max_blocks_; ++b)
      tables.push_back(b < (context + block_size - 1) / block_size ? free_blocks[next_block++] : -1);
    keys_.push_back(rounded(type, noise(s * 3 + 1, int64_t{context} * num_kv_heads * head_dim, 1)));
    values_.push_back(rounded(type, noise(s * 3 + 2, int64_t{context} * num_kv_heads * head_dim, 1)));
    const std::vector<float> asked = rounded(type, noise(s * 3 + 3, int64_t{context} * num_heads * head_dim, 1));
    queries_.emplace_back(asked.end() - count * num_heads * head_dim, asked.end());
    for (int position = 0; position < context; ++position)
      for (int head = 0; head < num_kv_heads; ++head) {
        const int64_t slot = int64_t{tables[first_entry + static_cast<size_t>(position / block_size)]} * block_size +
                             position % block_size;
        for (const bool is_value : {false, true}) {
          float* const row = (is_value ? values_[s] : keys_[s]).data() + (position * num_kv_heads + head) * head_dim;
          // Each 8-bit head gets an arbitrary scale. The expected values are those after rounding.
          const int exponent = position % 5 - 9;
          if (shape.is_fp8)
            cache[static_cast<size_t>(layout.exponent(slot, head, is_value))] = static_cast<uint8_t>(exponent);
          for (int d = 0; d < (is_value ? head_dim : layout.k_dim); ++d) {
            const auto place = static_cast<size_t>(is_value ? layout.value(slot, head, d) : layout.key(slot, head, d));
            const float value = d < head_dim ? row[d] : 0;
            if (shape.is_fp8) {
              cache[place] = to_fp8(value * power_of_two(-exponent));
              if (d < head_dim) row[d] = fp8_value(cache[place]) * power_of_two(exponent);
            } else {
              const uint16_t bits = bits_of(type, value);
              std::memcpy(&cache[place * 2], &bits, sizeof bits);
            }
          }
        }
      }
    for (int token = 0; token < count; ++token)
      for (int head = 0; head < num_heads; ++head)
        for (int d = 0; d < head_dim; ++d)
          q[static_cast<size_t>((int64_t{cu_seqlens_.back() + token} * num_heads + head) * layout.k_dim + d)] =
              bits_of(type, queries_[s][static_cast<size_t>((token * num_heads + head) * head_dim + d)]);
    cu_seqlens_.push_back(cu_seqlens_.back() + count);
    context_lens.push_back(context);
  }
  cache_ = std::make_unique<OnDevice<uint8_t>>(cache);
  q_ = std::make_unique<OnDevice<uint16_t>>(q);
  device_seqlens_ = std::make_unique<OnDevice<int32_t>>(cu_seqlens_);
  device_contexts_ = std::make_unique<OnDevice<int32_t>>(context_lens);
  device_tables_ = std::make_unique<OnDevice<int32_t>>(tables);
}

std::vector<AttentionTile> Attention::tiles_of(int num_rows) const {
  std::vector<AttentionTile> tiles;
  for (size_t s = 0; s < seqs_.size(); ++s)
    for (int row = 0; row < seqs_[s].count * shape_.group(); row += num_rows)
      tiles.push_back({static_cast<int32_t>(s), row});
  return tiles;
}

AttentionArgs Attention::args(const OnDevice<AttentionTile>& tiles, size_t num_tiles,
                              const OnDevice<uint16_t>& acts) const {
  AttentionArgs args;
  args.type = type_;
  args.q = q_->get();
  args.num_heads = shape_.num_heads;
  args.layout = layout_;
  args.cache = cache_->get();
  args.tiles = tiles.get();
  args.num_tiles = static_cast<int>(num_tiles);
  args.cu_seqlens_q = device_seqlens_->get();
  args.context_lens = device_contexts_->get();
  args.block_tables = device_tables_->get();
  args.max_blocks_per_seq = max_blocks_;
  args.window = shape_.window;
  args.reach = shape_.reach();
  if (shape_.has_biases) args.biases = device_biases_->get() + longest(), args.bias_stride = 2 * longest() + 1;
  args.scale = scale_;
  args.soft_cap = shape_.soft_cap;
  if (shape_.has_sinks) args.sinks = device_sinks_->get();
  args.split = split_;
  args.acts = acts.get();
  return args;
}

std::vector<uint16_t> Attention::run(int num_chunks, bool is_warp_per_tile) const {
  std::vector<AttentionTile> tiles = tiles_of(16);
  tiles.push_back({-1, 0});  // as in a padded batch
  const OnDevice<AttentionTile> device_tiles(tiles);
  const OnDevice<uint16_t> acts = unwritten_acts();
  AttentionArgs attention_args = args(device_tiles, tiles.size(), acts);
  attention_args.num_chunks = num_chunks;
  attention_args.is_warp_per_tile = is_warp_per_tile;
  attention_args.uses_pdl = supports_pdl();
  const OnDevice<float> scratch(static_cast<size_t>(
      attention_scratch_floats(int64_t{attention_args.num_tiles} * layout_.num_kv_heads * num_chunks, layout_)));
  attention_args.scratch = scratch.get();
  launch_attention(attention_args, stream());
  return acts.read();
}

std::vector<uint16_t> Attention::run_wgmma() const {
  const std::vector<AttentionTile> tiles = tiles_of(wide_rows(layout_.k_dim / 32));
  const OnDevice<AttentionTile> device_tiles(tiles);
  const OnDevice<uint16_t> acts = unwritten_acts();
  AttentionArgs attention_args = args(device_tiles, tiles.size(), acts);
  attention_args.is_row_major = true;
  launch_attention_wgmma(attention_args, stream());
  return acts.read();
}

std::vector<uint16_t> Attention::values_of(const std::vector<uint16_t>& acts, bool is_row_major) const {
  const int64_t q_size = int64_t{shape_.num_heads} * shape_.head_dim;
  const auto at = [&](int64_t token, int64_t k) {
    return acts[static_cast<size_t>(act_index(is_row_major, token, split_.place(k), split_.padded()))];
  };
  for (int64_t token = num_tokens_; token < round_up(num_tokens_, 8); ++token)
    for (int64_t k = 0; k < q_size; ++k)
      EXPECT_EQ(at(token, k), kUnwritten);
  std::vector<uint16_t> values;
  for (int64_t token = 0; token < num_tokens_; ++token)
    for (int64_t k = 0; k < q_size; ++k)
      values.push_back(at(token, k));
  return values;
}

void Attention::expect_near_doubles(const std::vector<uint16_t>& got, const std::string& what) const {
  const int num_heads = shape_.num_heads, num_kv_heads = shape_.num_kv_heads, head_dim = shape_.head_dim,
            window = shape_.window;
  const std::string where = what + ", head_dim " + std::to_string(head_dim) + ", group " +
                            std::to_string(shape_.group()) + ", window " + std::to_string(window) +
                            (shape_.is_causal ? "" : ", keys on both sides");
  // For long prompts only some heads of every token are compared, because the reference is slow.
  int64_t work = 0;
  for (const auto& [context, count] : seqs_)
    work += int64_t{context} * count * num_heads * head_dim;
  const int64_t step = std::max<int64_t>(1, work >> 26);
  for (const uint16_t bits : got)
    EXPECT(!std::isnan(value_of(type_, bits)));
  for (size_t s = 0; s < seqs_.size(); ++s)
    for (int token = 0; token < seqs_[s].count; ++token)
      for (int head = 0; head < num_heads; ++head) {
        if ((token + head) % step != 0) continue;
        const int position = seqs_[s].context - seqs_[s].count + token, kv_head = head / shape_.group();
        const int first = window > 0 ? std::max(0, position - window + 1) : 0,
                  last = std::min(position + shape_.reach(), seqs_[s].context - 1);
        const float* const biases = biases_.data() + head * (2 * longest() + 1) + longest() - position;
        std::vector<double> weights;
        double top = -1e300, sum = 0;
        for (int key = first; key <= last; ++key) {
          double score = 0;
          for (int d = 0; d < head_dim; ++d)
            score += static_cast<double>(queries_[s][static_cast<size_t>((token * num_heads + head) * head_dim + d)]) *
                     keys_[s][static_cast<size_t>((key * num_kv_heads + kv_head) * head_dim + d)];
          score *= static_cast<double>(scale_);
          const double cap = shape_.soft_cap;
          if (shape_.has_biases) score += static_cast<double>(biases[key]);
          weights.push_back(cap > 0 ? cap * std::tanh(score / cap) : score);
          top = std::max(top, weights.back());
        }
        for (double& weight : weights)
          sum += weight = std::exp(weight - top);
        if (shape_.has_sinks) sum += std::exp(static_cast<double>(sinks_[static_cast<size_t>(head)]) - top);
        for (int d = 0; d < head_dim; ++d) {
          double wanted = 0;
          for (int key = first; key <= last; ++key)
            wanted += weights[static_cast<size_t>(key - first)] / sum *
                      values_[s][static_cast<size_t>((key * num_kv_heads + kv_head) * head_dim + d)];
          const uint16_t bits =
              got[static_cast<size_t>((int64_t{cu_seqlens_[s] + token} * num_heads + head) * head_dim + d)];
          // Weights are rounded to 16 bits each. Their errors average out.
          expect_close(value_of(type_, bits), wanted, rounding_of(type_) * (std::abs(wanted) + 1), where, token,
                       int64_t{head} * 1000 + d);
        }
      }
}

// Without splitting, per block and per warp, and split into chunks, also into more than exist.
void check_attention(FloatType type, const AttentionShape& shape, const std::vector<AttendedSequence>& seqs) {
  const Attention attention(type, shape, seqs);
  const int chunks = (attention.longest() + kChunk - 1) / kChunk;
  const std::vector<uint16_t> whole = attention.run(1);
  EXPECT(whole == attention.run(1, true) && whole == attention.run(chunks) && whole == attention.run(chunks + 3));
  attention.expect_near_doubles(attention.values_of(whole, false), "attention");
}

TEST(kernel_attention_over_the_shapes) {
  const std::vector<AttendedSequence> small = {{1, 1}, {65, 1}, {64, 64}, {130, 3}, {900, 1}};
  for (const FloatType type : kTypes) {
    check_attention(type, {4, 2, 32, 0, 64}, small);
    check_attention(type, {7, 1, 24, 37, 128}, small);
    check_attention(type, {3, 3, 128, 0, 64}, {{300, 1}, {20, 20}});
    check_attention(type, {4, 2, 32, 37, 64, true}, small);
    check_attention(type, {3, 1, 80, 0, 128, true}, {{300, 1}, {70, 70}});
    // Large heads, with a size of keys that is padded.
    check_attention(type, {3, 1, 136, 0, 128, true}, {{300, 1}, {70, 70}});
    check_attention(type, {2, 1, 256, 37, 64}, {{600, 1}, {64, 64}});
    check_attention(type, {4, 2, 256, 0, 64}, {{900, 1}, {5, 5}});
    // Values in two parts.
    check_attention(type, {2, 1, 512, 37, 64}, {{600, 1}, {20, 20}});
    check_attention(type, {2, 2, 300, 0, 64}, {{300, 1}, {5, 5}});
    check_attention(type, {2, 1, 512, 0, 64, true, 0.7f, true}, {{300, 1}, {5, 5}});
    // Soft caps that most scores reach, and sinks above and below the other scores.
    check_attention(type, {4, 2, 32, 0, 64, false, 0.4f}, small);
    check_attention(type, {4, 2, 32, 37, 64, false, 0, true}, small);
    check_attention(type, {6, 2, 256, 0, 64, true, 0.7f, true}, {{900, 1}, {64, 64}});
    // Keys on both sides, in a window or all, and biases.
    for (const bool has_biases : {false, true}) {
      const auto encoder = [&](int num_heads, int num_kv_heads, int head_dim, int window, bool is_fp8 = false) {
        return AttentionShape{num_heads, num_kv_heads, head_dim, window, 64, is_fp8, 0, false, false, has_biases};
      };
      check_attention(type, encoder(4, 2, 32, 0), {{1, 1}, {64, 64}, {70, 70}, {300, 3}});
      check_attention(type, encoder(3, 3, 24, 37), {{130, 130}, {20, 20}});
      check_attention(type, encoder(2, 1, has_biases ? 64 : 256, 70, true), {{90, 90}, {330, 20}});
    }
    if (!is_full()) continue;
    std::vector<AttendedSequence> decodes, prefills = {{300, 300}, {513, 257}, {1025, 100}, {63, 63}, {2048, 1}};
    for (const int context : {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1000, 4097})
      decodes.push_back({context, 1});
    for (const auto& [heads, kv_heads] :
         std::vector<std::pair<int, int>>{{12, 2}, {28, 4}, {32, 8}, {16, 16}, {8, 1}, {40, 2}})
      for (const int head_dim : {64, 80, 96, 128, 160, 192, 256, 512})
        for (const int window : {0, 100}) {
          check_attention(type, {heads, kv_heads, head_dim, window, 64}, decodes);
          if (heads == 12) check_attention(type, {heads, kv_heads, head_dim, window, 64}, prefills);
          if (heads == 12) check_attention(type, {heads, kv_heads, head_dim, window, 64, true}, decodes);
        }
  }
}

// ---- many rows, by wgmma

void check_attention_wgmma(FloatType type, const AttentionShape& shape, const std::vector<AttendedSequence>& seqs) {
  const Attention attention(type, shape, seqs);
  attention.expect_near_doubles(attention.values_of(attention.run_wgmma(), true), "attention by wgmma");
}

TEST(kernel_attention_wgmma_over_the_shapes) {
  if (!has_wgmma()) return;
  for (const FloatType type : kTypes) {
    // One and two warpgroups of rows; one tile of keys, and more than the ring has stages; blocks that end within a
    // tile; sequences that end at a tile; a sequence that is not chunked.
    check_attention_wgmma(type, {4, 2, 32, 0, 64}, {{1, 1}, {64, 64}, {130, 33}, {400, 65}});
    check_attention_wgmma(type, {3, 3, 24, 37, 128}, {{130, 130}, {257, 66}, {63, 63}});
    check_attention_wgmma(type, {2, 1, 64, 0, 64}, {{129, 129}, {320, 7}});
    check_attention_wgmma(type, {3, 1, 80, 100, 128}, {{300, 50}, {90, 90}});
    check_attention_wgmma(type, {6, 1, 128, 0, 64}, {{345, 25}, {20, 20}});
    // Both warpgroups have the same rows.
    check_attention_wgmma(type, {3, 1, 136, 0, 128}, {{300, 50}, {65, 65}});
    check_attention_wgmma(type, {2, 1, 256, 70, 64}, {{330, 40}, {64, 64}, {7, 3}});
    check_attention_wgmma(type, {4, 2, 64, 0, 64, false, 0.4f}, {{1, 1}, {130, 130}, {400, 65}});
    check_attention_wgmma(type, {4, 2, 128, 70, 64, false, 0, true}, {{1, 1}, {130, 130}});
    check_attention_wgmma(type, {4, 2, 256, 0, 64, false, 0.7f, true}, {{330, 40}, {64, 64}});
    // Keys on both sides, in a window or all.
    check_attention_wgmma(type, {4, 2, 64, 0, 64, false, 0, false, false}, {{1, 1}, {130, 130}, {65, 65}, {300, 20}});
    check_attention_wgmma(type, {3, 3, 32, 37, 128, false, 0, false, false}, {{300, 300}, {63, 63}});
    check_attention_wgmma(type, {2, 1, 256, 70, 64, false, 0, false, false}, {{200, 200}, {330, 40}});
    if (!is_full()) continue;
    for (const auto& [heads, kv_heads] :
         std::vector<std::pair<int, int>>{{12, 2}, {28, 4}, {32, 8}, {16, 16}, {8, 1}, {40, 2}})
      for (const int head_dim : {64, 80, 96, 128, 160, 192, 256})
        for (const int window : {0, 100})
          check_attention_wgmma(type, {heads, kv_heads, head_dim, window, 64},
                                {{300, 300},
                                 {513, 257},
                                 {1025, 100},
                                 {63, 63},
                                 {64, 64},
                                 {65, 65},
                                 {127, 127},
                                 {128, 128},
                                 {129, 129},
                                 {256, 100},
                                 {257, 100},
                                 {2048, 30},
                                 {700, 1}});
  }
}

// Neither the prefill chunks nor other sequences change a bit of a row.
TEST(kernel_attention_wgmma_bits_do_not_depend_on_the_batch) {
  if (!has_wgmma()) return;
  for (const int window : {0, 70}) {
    const AttentionShape shape{6, 2, 64, window, 64};
    const auto run = [&](const std::vector<AttendedSequence>& seqs) {
      const Attention attention(FloatType::kBf16, shape, seqs);
      return attention.values_of(attention.run_wgmma(), true);
    };
    const std::vector<uint16_t> wanted = run({{200, 200}});
    for (const int count : {1, 37, 90}) {
      const std::vector<uint16_t> got = run({{200, count}, {70, 30}});
      EXPECT(std::equal(wanted.end() - count * 6 * 64, wanted.end(), got.begin()));
    }
  }
}

}  // namespace
}  // namespace capstan::testing
