// Attention and sampling.
#include <algorithm>
#include <cmath>
#include <utility>

#include "benchmarks/gpu/case_parts.h"
#include "cuda/attention_layout.h"
#include "cuda/attention_plan.h"
#include "cuda/sampling.h"

namespace capstan::benchmarks {
namespace {

struct Attention {
  DeviceBuffer q, cache, acts, scratch;
  Staging staging{"a batch"};
  AttentionArgs args;
};

int64_t block_of(int seq, int block, int num_seqs) {
  // Neighboring blocks of a sequence are not neighbors in memory.
  return int64_t{block} * num_seqs + (seq * 7 + block) % num_seqs;
}

}  // namespace

KernelCase attention_case(const AttentionShape& shape) {
  const auto [num_seqs, context, count, is_wgmma, is_fp8, real_head_dim] = shape;
  const int heads = is_tiny ? 4 : 12, kv_heads = 2, group = heads / kv_heads,
            head_dim = is_tiny && real_head_dim == 128 ? 32 : real_head_dim;
  const KvLayout layout = make_kv_layout(64, kv_heads, head_dim, is_fp8);
  const int blocks = (context + 63) / 64;
  const DepthSplit split =
      split_depth(int64_t{heads} * head_dim, int64_t{heads} * head_dim, row_parallel_parts(int64_t{heads} * head_dim));
  std::vector<AttentionTile> tiles;
  for (int seq = 0; seq < num_seqs; ++seq)
    for (int row = 0; row < count * group; row += is_wgmma ? wide_rows(layout.k_dim / 32) : 16)
      tiles.push_back({seq, row});
  if (is_wgmma) std::ranges::reverse(tiles);  // most keys first
  const int num_tiles = static_cast<int>(tiles.size());
  const int chunks = attention_splits(num_tiles, kv_heads, (context + kChunk - 1) / kChunk);
  const bool is_warp_per_tile = prefers_warp_per_tile(num_tiles, kv_heads, chunks);
  KernelCase made;
  made.name = std::string(is_wgmma ? "wgmma attention "
                          : is_fp8 ? "fp8 attention "
                                   : "attention ") +
              std::to_string(num_seqs) + "x" + std::to_string(context) + (count == 1 ? " decode" : " prefill") +
              (real_head_dim == 128 ? "" : ", heads of " + std::to_string(real_head_dim));
  made.kernel = is_wgmma           ? "attention_wgmma_kernel"
                : is_warp_per_tile ? "attention_per_warp_kernel"
                                   : "attention_kernel";
  made.element = Element::kBf16;
  made.bytes = static_cast<double>(num_seqs) * context * kv_heads * head_dim * (is_fp8 ? 2 : 4);
  made.flops = num_seqs * (static_cast<double>(count) * context - 0.5 * count * (count - 1)) * heads * head_dim * 4;
  const Pattern keys = bf16_pattern(kCache, 0.5f), queries = bf16_pattern(kQueries, 1);
  if (!is_fp8)
    made.sample = [=, num_seqs = num_seqs, context = context, count = count, is_wgmma = is_wgmma](int n) {
      const int64_t token = draw(n, 11, int64_t{num_seqs} * count);
      const int seq = static_cast<int>(token / count), head = static_cast<int>(draw(n, 12, heads)),
                dim = static_cast<int>(draw(n, 13, head_dim));
      const int seen = context - count + static_cast<int>(token % count) + 1;
      const auto slot = [&](int key) { return block_of(seq, key / 64, num_seqs) * 64 + key % 64; };
      std::vector<double> scores;
      double most = -1e30, sum = 0, value = 0, spread = 0;
      for (int key = 0; key < seen; ++key) {
        double dot = 0;
        for (int d = 0; d < head_dim; ++d)
          dot += double{bf16_at(queries, (token * heads + head) * layout.k_dim + d)} *
                 bf16_at(keys, layout.key(slot(key), head / group, d));
        scores.push_back(dot / std::sqrt(static_cast<double>(head_dim)));
        most = std::max(most, scores.back());
      }
      for (double& score : scores)
        sum += score = std::exp(score - most);
      for (int key = 0; key < seen; ++key) {
        const double term =
            scores[static_cast<size_t>(key)] / sum * bf16_at(keys, layout.value(slot(key), head / group, dim));
        value += term, spread += term * term;
      }
      // The kernels round the weights of the values to bf16, too.
      return Sample{act_index(is_wgmma, token, split.place(int64_t{head} * head_dim + dim), split.padded()), value,
                    0.004 * std::abs(value) + 0.02 * std::sqrt(spread)};
    };
  made.prepare = [=, num_seqs = num_seqs, context = context, count = count, is_wgmma = is_wgmma,
                  is_fp8 = is_fp8](cudaStream_t stream) {
    const auto attention = std::make_shared<Attention>();
    const int64_t layer_bytes = int64_t{num_seqs} * blocks * layout.block_bytes(), copies = num_copies(layer_bytes);
    const int64_t tokens = int64_t{num_seqs} * count;
    // The bytes are 1 to 7: as e4m3 2^-9 to 7 * 2^-9, as exponents of the scales 2 to 128.
    attention->cache =
        filled_words(layer_bytes * copies / 4, is_fp8 ? Pattern{kCache, 0x01010101u, 0x07070707u} : keys, stream);
    attention->q = filled_bf16(tokens * heads * layout.k_dim, queries, stream);
    attention->acts = filled_bf16(round_up(tokens, 64) * split.padded(), bf16_pattern(kActs, 1), stream);
    attention->scratch = DeviceBuffer(static_cast<size_t>(attention_scratch_floats(kMaxSplits, layout)) * 4, "scratch");
    std::vector<int32_t> tables, cu_seqlens{0}, context_lens;
    for (int seq = 0; seq < num_seqs; ++seq) {
      for (int block = 0; block < blocks; ++block)
        tables.push_back(static_cast<int32_t>(block_of(seq, block, num_seqs)));
      cu_seqlens.push_back((seq + 1) * count);
      context_lens.push_back(context);
    }
    Staging& staging = attention->staging;
    staging.begin((tables.size() + cu_seqlens.size() + context_lens.size() + tiles.size() * 2) * 4 + 64);
    AttentionArgs& args = attention->args;
    args.block_tables = staging.add(tables.data(), tables.size());
    args.cu_seqlens_q = staging.add(cu_seqlens.data(), cu_seqlens.size());
    args.context_lens = staging.add(context_lens.data(), context_lens.size());
    args.tiles = staging.add(tiles.data(), tiles.size());
    staging.send(stream);
    args.q = attention->q.as<uint16_t>();
    args.num_heads = heads;
    args.layout = layout;
    args.num_tiles = num_tiles;
    args.max_blocks_per_seq = blocks;
    args.scale = 1 / std::sqrt(static_cast<float>(head_dim));
    args.split = split;
    args.is_row_major = is_wgmma;
    args.num_chunks = chunks;
    args.is_warp_per_tile = is_warp_per_tile;
    args.scratch = attention->scratch.as<float>();
    args.acts = attention->acts.as<uint16_t>();
    args.uses_pdl = !is_warp_per_tile && !is_wgmma && supports_pdl();
    return PreparedCase{[=](int i) {
                          AttentionArgs run = attention->args;
                          run.cache = attention->cache.as<char>() + i % copies * layer_bytes;
                          is_wgmma ? launch_attention_wgmma(run, stream) : launch_attention(run, stream);
                        },
                        {output_of(attention->acts)}};
  };
  return made;
}

namespace {

struct Sampling {
  DeviceBuffer logits, items;
  std::unique_ptr<DeviceSampler> sampler;
};

}  // namespace

KernelCase sampling_case(int rows, const char* name, const SampleRow& like) {
  const int64_t vocab_size = is_tiny ? 1000 : 151936;
  KernelCase made;
  made.name = std::string("sample ") + name + " x" + std::to_string(rows);
  made.kernel = "sample_kernel";
  made.bytes = static_cast<double>(rows * vocab_size * 4);
  made.element = Element::kId;
  if (like.temperature == 0)
    made.sample = [=](int n) {
      const int64_t row = draw(n, 11, rows);
      int64_t best = 0;
      for (int64_t id = 1; id < vocab_size; ++id)
        if (logit_at(row * vocab_size + id, rows * vocab_size) > logit_at(row * vocab_size + best, rows * vocab_size))
          best = id;
      return Sample{row, static_cast<double>(best), 0};
    };
  made.prepare = [=](cudaStream_t stream) {
    const auto sampling = std::make_shared<Sampling>();
    sampling->logits = filled_logits(rows * vocab_size, stream);
    sampling->sampler = std::make_unique<DeviceSampler>(vocab_size, vocab_size, vocab_size, rows, rows, stream);
    std::vector<SampleRow> items(static_cast<size_t>(rows), like);
    for (int row = 0; row < rows; ++row)
      items[static_cast<size_t>(row)].logits_row = row;
    std::vector<SampleItem> placed(items.size());
    sampling->sampler->place(items, placed, stream);
    sampling->items = DeviceBuffer(placed.size() * sizeof(SampleItem), "the rows");
    check(cudaMemcpyAsync(sampling->items.as<void>(), placed.data(), sampling->items.bytes(), cudaMemcpyHostToDevice,
                          stream),
          "the rows");
    check(cudaStreamSynchronize(stream), "the rows");
    Output drawn{const_cast<int32_t*>(sampling->sampler->drawn_ids()), static_cast<size_t>(rows) * 4};
    return PreparedCase{[=](int) {
                          sampling->sampler->draw(sampling->logits.as<float>(), sampling->items.as<SampleItem>(), rows,
                                                  stream);
                        },
                        {drawn}};
  };
  return made;
}

}  // namespace capstan::benchmarks
