#include "benchmarks/gpu/kernel_cases.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "cuda/attention_layout.h"
#include "cuda/attention_plan.h"
#include "cuda/sampling.h"

namespace capstan::benchmarks {
namespace {

// All copies of the weights together exceed any cache.
constexpr int64_t kRotatedBytes = int64_t{400} << 20;

int64_t num_copies(int64_t bytes) {
  return is_tiny ? 1 : std::max<int64_t>(1, kRotatedBytes / bytes);
}

// The n-th draw below `count`.
int64_t draw(int n, uint32_t seed, int64_t count) {
  return static_cast<int64_t>(scrambled(n, seed) % static_cast<uint64_t>(count));
}

Output output_of(const DeviceBuffer& buffer) {
  return {buffer.as<void>(), buffer.bytes()};
}

DeviceBuffer floats(int64_t count, cudaStream_t stream, uint32_t seed) {
  return filled_words(count, float_pattern(seed), stream);
}
DeviceBuffer ids(const std::vector<int32_t>& values, cudaStream_t stream) {
  DeviceBuffer buffer(values.size() * 4, "ids");
  check(cudaMemcpyAsync(buffer.as<void>(), values.data(), buffer.bytes(), cudaMemcpyHostToDevice, stream), "ids");
  check(cudaStreamSynchronize(stream), "ids");
  return buffer;
}
DeviceBuffer zeros(int64_t words, cudaStream_t stream) {
  DeviceBuffer buffer(static_cast<size_t>(words) * 4, "zeros");
  check(cudaMemsetAsync(buffer.as<void>(), 0, buffer.bytes(), stream), "zeros");
  return buffer;
}

const char* kernel_name(GemmKernel kernel) {
  return kernel == GemmKernel::kGemm ? "gemm" : kernel == GemmKernel::kGemv ? "gemv" : "wgmma";
}

// Seeds of the inputs.
enum : uint32_t { kWeights = 1, kActs, kHidden, kNorm, kBefore, kPartials, kCache, kQueries, kRope };

double silu(double x) {
  return x / (1 + std::exp(-x));
}

// Half a unit in the last place of bf16, plus some error of f32 sums.
double bf16_tolerance(double value) {
  return 0.004 * (std::abs(value) + 0.01);
}

// Buffers of a product, which live as long as the case.
struct Product {
  int64_t rows, cols, tokens;
  DepthSplit split, gated_split;
  int64_t elements, copies;
  DeviceBuffer weights, acts, out, gated, hidden, norm, flags;
  ActMaps maps;
};

struct GemmInputs {
  Pattern weights = bf16_pattern(kWeights, 0.015625f), acts = bf16_pattern(kActs, 1), hidden = float_pattern(kHidden),
          norm = float_pattern(kNorm), before = float_pattern(kBefore);
};

// The inputs of a product for one token, in memory order of K, as doubles.
std::vector<double> product_acts(const GemmInputs& in, int64_t token, int64_t cols, const DepthSplit& split,
                                 bool is_row_major, bool is_normed) {
  std::vector<double> acts(static_cast<size_t>(split.padded()), 0.0);
  if (!is_normed) {
    for (int64_t k = 0; k < split.padded(); ++k)
      acts[static_cast<size_t>(k)] = bf16_at(in.acts, act_index(is_row_major, token, k, split.padded()));
    return acts;
  }
  double square = 0;
  for (int64_t k = 0; k < cols; ++k) {
    const double value = float_at(in.hidden, token * cols + k);
    square += value * value;
  }
  const double scale = 1 / std::sqrt(square / static_cast<double>(cols) + 1e-6);
  for (int64_t k = 0; k < cols; ++k)
    acts[static_cast<size_t>(split.place(k))] = bf16_to_float(float_to_bf16(
        static_cast<float>(float_at(in.hidden, token * cols + k) * scale * float_at(in.norm, k))));
  return acts;
}

// The sum over the given range of K, and the sum of magnitudes.
std::pair<double, double> product_sum(const GemmInputs& in, const std::vector<double>& acts, int64_t row,
                                      const DepthSplit& split, int64_t begin, int64_t end) {
  double sum = 0, size = 1;
  for (int64_t k = begin; k < end; ++k) {
    const double term =
        acts[static_cast<size_t>(k)] * bf16_at(in.weights, weight_index(row, k, split.padded()));
    sum += term, size += std::abs(term);
  }
  return {sum, size};
}

}  // namespace

const std::vector<Layer>& layers() {
  static const std::vector<Layer> all = {{"qkv", 2048, 1536, GemmOutput::kStore, true},
                                         {"output", 1536, 1536, GemmOutput::kResidual, true},
                                         {"gate_up", 17920, 1536, GemmOutput::kGated, false},
                                         {"down", 1536, 8960, GemmOutput::kResidual, true},
                                         {"head", 151936, 1536, GemmOutput::kStore, false}};
  return all;
}

bool has_wgmma() {
  return supports_gemm_wgmma() && supports_attention_wgmma();
}

DeviceResources device_resources() {
  return {attribute_of(0, cudaDevAttrMultiProcessorCount),
          static_cast<size_t>(attribute_of(0, cudaDevAttrMaxSharedMemoryPerBlockOptin))};
}

KernelCase gemm_case(const Layer& layer, int tokens, GemmKernel kernel) {
  const int64_t rows = is_tiny ? 64 : layer.rows, cols = is_tiny ? 64 : layer.cols;
  const DepthSplit split = split_depth(cols, cols, row_parallel_parts(cols));
  const DepthSplit gated_split = split_depth(rows / 2, rows / 2, row_parallel_parts(rows / 2));
  const GemmOutput output = kernel == GemmKernel::kGemm && layer.uses_parts && tokens <= 64 ? GemmOutput::kParts
                                                                                            : layer.output;
  const bool is_row_major = kernel == GemmKernel::kWgmma;
  const bool is_normed = kernel == GemmKernel::kGemv && layer.output != GemmOutput::kResidual;
  KernelCase made;
  made.name = std::string(kernel_name(kernel)) + " " + layer.name + " x" + std::to_string(tokens);
  made.kernel = kernel == GemmKernel::kGemm ? "gemm_kernel" : kernel == GemmKernel::kGemv ? "gemv_kernel"
                                                                                          : "gemm_wgmma_kernel";
  made.bytes = static_cast<double>(rows * cols * 2);
  made.flops = 2.0 * static_cast<double>(rows * cols) * tokens;
  made.element = output == GemmOutput::kGated ? Element::kBf16 : Element::kFloat;
  made.sample = [=](int n) {
    const GemmInputs in;
    const int64_t token = draw(n, 11, tokens);
    const std::vector<double> acts = product_acts(in, token, cols, split, is_row_major, is_normed);
    if (output == GemmOutput::kGated) {
      const int64_t feature = draw(n, 12, rows / 2), row = feature / 8 * 16 + feature % 8;
      const double value = silu(product_sum(in, acts, row, split, 0, split.padded()).first) *
                           product_sum(in, acts, row + 8, split, 0, split.padded()).first;
      return Sample{act_index(is_row_major, token, gated_split.place(feature), gated_split.padded()), value,
                    bf16_tolerance(value)};
    }
    const int64_t row = draw(n, 12, rows), part = output == GemmOutput::kParts ? draw(n, 13, split.parts) : 0;
    const int64_t element = (part * tokens + token) * rows + row;
    const auto [sum, size] = output == GemmOutput::kParts
                                 ? product_sum(in, acts, row, split, part * split.padded_part,
                                               (part + 1) * split.padded_part)
                                 : product_sum(in, acts, row, split, 0, split.padded());
    return Sample{element, sum + (output == GemmOutput::kResidual ? float_at(in.before, element) : 0.0), 1e-5 * size};
  };
  made.prepare = [=](cudaStream_t stream) {
    const GemmInputs in;
    const auto made_buffers = std::make_shared<Product>();
    Product& product = *made_buffers;
    product.elements = round_up(rows, kTileRows) * split.padded();
    product.copies = num_copies(product.elements * 2);
    product.weights = filled_bf16(product.elements * product.copies, in.weights, stream);
    product.acts = filled_bf16(round_up(tokens, 64) * split.padded(), in.acts, stream);
    product.out = filled_words((output == GemmOutput::kParts ? split.parts : 1) * tokens * rows, in.before, stream);
    product.gated = filled_bf16(round_up(tokens, 64) * gated_split.padded(), in.acts, stream);
    product.hidden = filled_words(tokens * cols, in.hidden, stream);
    product.norm = filled_words(cols, in.norm, stream);
    product.flags = zeros(num_tile_flags(rows, tokens), stream);
    if (kernel == GemmKernel::kWgmma &&
        !make_act_maps(product.maps, product.acts.as<uint16_t>(), round_up(tokens, 64), split.padded()))
      throw Error(ErrorCode::kInternal, "cannot create tensor maps of the activations");
    GemvArgs fused;
    GemmArgs& args = fused.product;
    args.output = output;
    if (output == GemmOutput::kResidual) args.tile_flags = product.flags.as<int32_t>();
    args.acts = product.acts.as<uint16_t>();
    args.num_tokens = tokens;
    args.out = product.out.as<float>();
    args.out_stride = rows;
    args.gated = product.gated.as<uint16_t>();
    args.gated_split = gated_split;
    args.act_maps = &product.maps;
    args.uses_pdl = kernel != GemmKernel::kWgmma && tokens <= 64 && supports_pdl();
    fused.is_normed = is_normed;
    fused.norm.hidden = product.hidden.as<float>();
    fused.norm.num_rows = tokens;
    fused.norm.hidden_size = cols;
    fused.norm.weight = product.norm.as<float>();
    fused.norm.eps = 1e-6f;
    fused.norm.split = split;
    fused.max_blocks = 2 * device_resources().multiprocessors;
    PreparedCase prepared;
    prepared.outputs = {output_of(output == GemmOutput::kGated ? product.gated : product.out)};
    prepared.run = [=](int i) {
      GemvArgs run = fused;
      run.product.weights = {made_buffers->weights.as<uint16_t>() + i % made_buffers->copies * made_buffers->elements,
                             nullptr, rows, split};
      if (kernel == GemmKernel::kGemm) return launch_gemm(run.product, device_resources(), stream);
      if (kernel == GemmKernel::kWgmma)
        return launch_gemm_wgmma(run.product, device_resources().multiprocessors, stream);
      launch_gemv(run, stream);
    };
    return prepared;
  };
  return made;
}

namespace {

// One token's heads at position 5 of a KV cache of one block, or of 256 tokens in as many blocks.
struct Heads {
  int heads, kv_heads, head_dim;
  KvLayout layout;
  QkvArgs args;
  DeviceBuffer qkv, rope, positions, slots, cache, q, rows_done;
  int64_t rows() const { return int64_t{heads + 2 * kv_heads} * head_dim; }
};

std::shared_ptr<Heads> make_heads(int tokens, cudaStream_t stream) {
  const auto made = std::make_shared<Heads>();
  made->heads = is_tiny ? 4 : 12, made->kv_heads = 2, made->head_dim = is_tiny ? 32 : 128;
  made->layout = make_kv_layout(64, made->kv_heads, made->head_dim);
  std::vector<int32_t> places(static_cast<size_t>(tokens));
  for (int token = 0; token < tokens; ++token)
    places[static_cast<size_t>(token)] = token * 64 + 5;
  made->qkv = floats(tokens * made->rows() * kMaxParts, stream, kPartials);
  made->rope = floats((int64_t{tokens} * 64 + 64) * made->head_dim, stream, kRope);
  made->positions = ids(places, stream);
  made->slots = ids(places, stream);
  made->cache = zeros(tokens * made->layout.block_elements() / 2, stream);
  made->q = zeros(int64_t{tokens} * made->heads * made->layout.k_dim / 2, stream);
  made->rows_done = zeros(made->heads + 2 * made->kv_heads, stream);
  QkvArgs& args = made->args;
  args.qkv = made->qkv.as<float>();
  args.qkv_stride = made->rows();
  args.num_tokens = tokens;
  args.num_heads = made->heads;
  args.eps = 1e-6f;
  args.rope = made->rope.as<float>();
  args.rotary_dim = made->head_dim;
  args.positions = made->positions.as<int32_t>();
  args.slots = made->slots.as<int32_t>();
  args.layout = made->layout;
  args.cache = made->cache.as<void>();
  args.q = made->q.as<uint16_t>();
  args.uses_pdl = supports_pdl();
  return made;
}

}  // namespace

KernelCase heads_case() {
  KernelCase made;
  made.name = "gemv heads x1";
  made.kernel = "gemv_kernel";
  made.prepare = [](cudaStream_t stream) {
    const std::shared_ptr<Heads> heads = make_heads(1, stream);
    const auto product = std::make_shared<Product>();
    const int64_t cols = is_tiny ? 64 : 1536;
    const DepthSplit split = split_depth(cols, cols, row_parallel_parts(cols));
    product->weights = filled_bf16(round_up(heads->rows(), kTileRows) * split.padded(),
                                   bf16_pattern(kWeights, 0.015625f), stream);
    product->hidden = floats(cols, stream, kHidden);
    product->norm = floats(cols, stream, kNorm);
    GemvArgs args;
    args.product.weights = {product->weights.as<uint16_t>(), nullptr, heads->rows(), split};
    args.product.num_tokens = 1;
    args.product.out = heads->qkv.as<float>();
    args.product.out_stride = heads->rows();
    args.product.uses_pdl = supports_pdl();
    args.is_normed = true;
    args.norm.hidden = product->hidden.as<float>();
    args.norm.num_rows = 1;
    args.norm.hidden_size = cols;
    args.norm.weight = product->norm.as<float>();
    args.norm.eps = 1e-6f;
    args.norm.split = split;
    args.has_heads = true;
    args.heads = heads->args;
    args.rows_done = heads->rows_done.as<int32_t>();
    args.max_blocks = 2 * device_resources().multiprocessors;
    return PreparedCase{[=, keep = product](int) { launch_gemv(args, stream), static_cast<void>(heads); },
                        {output_of(heads->q), output_of(heads->cache)}};
  };
  return made;
}

KernelCase qkv_case(int tokens) {
  KernelCase made;
  made.name = "qkv x" + std::to_string(tokens);
  made.kernel = "qkv_kernel";
  made.prepare = [=](cudaStream_t stream) {
    const std::shared_ptr<Heads> heads = make_heads(tokens, stream);
    heads->args.parts = kMaxParts;
    return PreparedCase{[=](int) { launch_qkv(heads->args, stream); }, {output_of(heads->q), output_of(heads->cache)}};
  };
  return made;
}

namespace {

struct Rows {
  DeviceBuffer hidden, weight, acts, partials, table, ids;
};

// The norm of row `token`, whose values are `at(k)`.
template <class At>
Sample norm_sample(int64_t token, int64_t column, int64_t size, const DepthSplit& split, bool is_row_major,
                   const At& at) {
  double square = 0;
  for (int64_t k = 0; k < size; ++k)
    square += at(k) * at(k);
  const double value = at(column) / std::sqrt(square / static_cast<double>(size) + 1e-6) *
                       float_at(float_pattern(kNorm), column);
  return {act_index(is_row_major, token, split.place(column), split.padded()), value, bf16_tolerance(value)};
}

}  // namespace

KernelCase embed_case(int tokens) {
  const int64_t size = is_tiny ? 64 : 1536, vocab_size = is_tiny ? 500 : 151936;
  const DepthSplit split = split_depth(size, size, row_parallel_parts(size));
  KernelCase made;
  made.name = "embed x" + std::to_string(tokens);
  made.kernel = "embed_kernel";
  const auto id_of = [=](int64_t token) { return static_cast<int32_t>(token * 7919 % vocab_size); };
  made.sample = [=](int n) {
    const int64_t token = draw(n, 11, tokens), k = draw(n, 12, size);
    return Sample{token * size + k,
                  bf16_at(bf16_pattern(kWeights, 1), weight_index(id_of(token), split.place(k), split.padded())), 0};
  };
  made.prepare = [=](cudaStream_t stream) {
    const auto rows = std::make_shared<Rows>();
    rows->table = filled_bf16(round_up(vocab_size, kTileRows) * split.padded(), bf16_pattern(kWeights, 1), stream);
    rows->hidden = floats(tokens * size, stream, kHidden);
    std::vector<int32_t> values;
    for (int token = 0; token < tokens; ++token)
      values.push_back(id_of(token));
    rows->ids = ids(values, stream);
    EmbedArgs args;
    args.table = {rows->table.as<uint16_t>(), nullptr, vocab_size, split};
    args.ids = args.drawn_ids = rows->ids.as<int32_t>();
    args.num_tokens = tokens;
    args.hidden_size = size;
    args.hidden = rows->hidden.as<float>();
    return PreparedCase{[=](int) { launch_embed(args, stream), static_cast<void>(rows); }, {output_of(rows->hidden)}};
  };
  return made;
}

KernelCase norm_case(int tokens, bool is_row_major) {
  const int64_t size = is_tiny ? 64 : 1536;
  const DepthSplit split = split_depth(size, size, row_parallel_parts(size));
  KernelCase made;
  made.name = "norm x" + std::to_string(tokens);
  made.kernel = "norm_kernel";
  made.element = Element::kBf16;
  made.sample = [=](int n) {
    const int64_t token = draw(n, 11, tokens);
    return norm_sample(token, draw(n, 12, size), size, split, is_row_major,
                       [&](int64_t k) { return double{float_at(float_pattern(kHidden), token * size + k)}; });
  };
  made.prepare = [=](cudaStream_t stream) {
    const auto rows = std::make_shared<Rows>();
    rows->hidden = floats(tokens * size, stream, kHidden);
    rows->weight = floats(size, stream, kNorm);
    rows->acts = zeros(round_up(tokens, 64) * split.padded() / 2, stream);
    NormArgs args;
    args.hidden = rows->hidden.as<float>();
    args.num_rows = tokens;
    args.hidden_size = size;
    args.weight = rows->weight.as<float>();
    args.eps = 1e-6f;
    args.split = split;
    args.acts = rows->acts.as<uint16_t>();
    args.is_row_major = is_row_major;
    args.uses_pdl = supports_pdl();
    return PreparedCase{[=](int) { launch_norm(args, stream), static_cast<void>(rows); }, {output_of(rows->acts)}};
  };
  return made;
}

KernelCase add_norm_case(int tokens) {
  const int64_t size = is_tiny ? 64 : 1536;
  const DepthSplit split = split_depth(size, size, row_parallel_parts(size));
  const int parts = split.parts;
  KernelCase made;
  made.name = "add_norm x" + std::to_string(tokens);
  made.kernel = "add_norm_kernel";
  made.element = Element::kBf16;
  made.sample = [=](int n) {
    const int64_t token = draw(n, 11, tokens);
    return norm_sample(token, draw(n, 12, size), size, split, false, [&](int64_t k) {
      double sum = float_at(float_pattern(kHidden), token * size + k);
      for (int part = 0; part < parts; ++part)
        sum += float_at(float_pattern(kPartials), (int64_t{part} * tokens + token) * size + k);
      return sum;
    });
  };
  made.prepare = [=](cudaStream_t stream) {
    const auto rows = std::make_shared<Rows>();
    rows->hidden = floats(tokens * size, stream, kHidden);
    rows->partials = floats(int64_t{parts} * tokens * size, stream, kPartials);
    rows->weight = floats(size, stream, kNorm);
    rows->acts = zeros(round_up(tokens, 64) * split.padded() / 2, stream);
    AddNormArgs args;
    for (int part = 0; part < parts; ++part)
      args.sum.partials[part] = rows->partials.as<float>() + int64_t{part} * tokens * size;
    args.sum.world_size = parts;
    args.sum.hidden = rows->hidden.as<float>();
    args.sum.num_tokens = args.norm.num_rows = tokens;
    args.sum.hidden_size = args.norm.hidden_size = size;
    args.norm.hidden = rows->hidden.as<float>();
    args.norm.weight = rows->weight.as<float>();
    args.norm.eps = 1e-6f;
    args.norm.split = split;
    args.norm.acts = rows->acts.as<uint16_t>();
    args.norm.uses_pdl = supports_pdl();
    return PreparedCase{[=](int) { launch_add_norm(args, stream), static_cast<void>(rows); },
                        {output_of(rows->acts), output_of(rows->hidden)}};
  };
  return made;
}

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
  const auto [num_seqs, context, count, is_wgmma, is_fp8] = shape;
  const int heads = is_tiny ? 4 : 12, kv_heads = 2, head_dim = is_tiny ? 32 : 128, group = heads / kv_heads;
  const KvLayout layout = make_kv_layout(64, kv_heads, head_dim, is_fp8);
  const int blocks = (context + 63) / 64;
  const DepthSplit split =
      split_depth(int64_t{heads} * head_dim, int64_t{heads} * head_dim, row_parallel_parts(int64_t{heads} * head_dim));
  std::vector<AttentionTile> tiles;
  for (int seq = 0; seq < num_seqs; ++seq)
    for (int row = 0; row < count * group; row += is_wgmma ? kWideRows : 16)
      tiles.push_back({seq, row});
  if (is_wgmma) std::ranges::reverse(tiles);  // most keys first
  const int num_tiles = static_cast<int>(tiles.size());
  const int chunks = attention_splits(num_tiles, kv_heads, (context + kChunk - 1) / kChunk);
  const bool is_warp_per_tile = prefers_warp_per_tile(num_tiles, kv_heads, chunks);
  KernelCase made;
  made.name = std::string(is_wgmma ? "wgmma attention " : is_fp8 ? "fp8 attention " : "attention ") +
              std::to_string(num_seqs) + "x" + std::to_string(context) + (count == 1 ? " decode" : " prefill");
  made.kernel = is_wgmma ? "attention_wgmma_kernel" : is_warp_per_tile ? "attention_per_warp_kernel" : "attention_kernel";
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
    attention->cache = filled_words(layer_bytes * copies / 4, is_fp8 ? Pattern{kCache, 0x01010101u, 0x07070707u} : keys,
                                    stream);
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

std::vector<KernelCase> repeated_cases() {
  const auto layer = [](const char* name) {
    return *std::ranges::find_if(layers(), [&](const Layer& one) { return std::string(one.name) == name; });
  };
  const auto size = [](int real, int tiny) { return is_tiny ? tiny : real; };
  std::vector<KernelCase> cases = {
      embed_case(size(256, 3)),
      norm_case(size(64, 3), false),
      norm_case(size(1024, 5), true),
      add_norm_case(size(64, 3)),
      qkv_case(size(64, 3)),
      heads_case(),
      gemm_case(layer("qkv"), 1, GemmKernel::kGemv),
      gemm_case(layer("output"), 1, GemmKernel::kGemv),
      gemm_case(layer("gate_up"), 1, GemmKernel::kGemv),
      gemm_case(layer("down"), 1, GemmKernel::kGemv),
      gemm_case(layer("head"), 1, GemmKernel::kGemv),
      gemm_case(layer("qkv"), 8, GemmKernel::kGemm),
      gemm_case(layer("gate_up"), 8, GemmKernel::kGemm),
      gemm_case(layer("down"), size(64, 17), GemmKernel::kGemm),
      gemm_case(layer("gate_up"), size(64, 17), GemmKernel::kGemm),
      gemm_case(layer("head"), size(64, 17), GemmKernel::kGemm),
      attention_case({1, size(1024, 270)}),
      attention_case({size(64, 3), size(1024, 70)}),
      attention_case({size(2048, 1030), size(200, 5)}),
      attention_case({1, size(1024, 70), size(1024, 70)}),
      attention_case({size(64, 3), size(1024, 70), 1, false, true}),
  };
  if (has_wgmma()) {
    for (const auto& [name, tokens, tiny_tokens] :
         std::vector<std::tuple<const char*, int, int>>{{"qkv", 65, 65}, {"down", 256, 66}, {"gate_up", 1024, 67}})
      cases.push_back(gemm_case(layer(name), size(tokens, tiny_tokens), GemmKernel::kWgmma));
    cases.push_back(attention_case({1, size(1024, 70), size(1024, 70), true}));
  }
  SampleRow greedy, drawn, top_p, top_k;
  greedy.temperature = 0;
  drawn.temperature = top_p.temperature = top_k.temperature = 0.8f;
  top_p.top_p = 0.9f, top_k.top_k = 40;
  const int rows = size(64, 2);
  cases.push_back(sampling_case(rows, "greedy", greedy));
  cases.push_back(sampling_case(rows, "temperature", drawn));
  cases.push_back(sampling_case(rows, "top_p", top_p));
  cases.push_back(sampling_case(rows, "top_k", top_k));
  return cases;
}

}  // namespace capstan::benchmarks
