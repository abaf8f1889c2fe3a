// Kernels that process one token or one head at a time.
#include "benchmarks/gpu/case_parts.h"

namespace capstan::benchmarks {
namespace {

struct Rows {
  DeviceBuffer hidden, weight, acts, partials, table, ids;
};

// The heads of tokens, each at position 5 of a separate block of the KV cache.
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
    const auto rows = std::make_shared<Rows>();
    const int64_t cols = is_tiny ? 64 : 1536;
    const DepthSplit split = split_depth(cols, cols, row_parallel_parts(cols));
    rows->table =
        filled_bf16(round_up(heads->rows(), kTileRows) * split.padded(), bf16_pattern(kWeights, 0.015625f), stream);
    rows->hidden = floats(cols, stream, kHidden);
    rows->weight = floats(cols, stream, kNorm);
    GemvArgs args;
    args.product.weights = {rows->table.as<uint16_t>(), nullptr, heads->rows(), split};
    args.product.num_tokens = 1;
    args.product.out = heads->qkv.as<float>();
    args.product.out_stride = heads->rows();
    args.product.uses_pdl = supports_pdl();
    args.is_normed = true;
    args.norm.hidden = rows->hidden.as<float>();
    args.norm.num_rows = 1;
    args.norm.hidden_size = cols;
    args.norm.weight = rows->weight.as<float>();
    args.norm.eps = 1e-6f;
    args.norm.split = split;
    args.has_heads = true;
    args.heads = heads->args;
    args.rows_done = heads->rows_done.as<int32_t>();
    args.max_blocks = 2 * device_resources().multiprocessors;
    return PreparedCase{[=, keep = rows](int) { launch_gemv(args, stream), static_cast<void>(heads); },
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

KernelCase head_squares_case(int tokens) {
  KernelCase made;
  made.name = "head squares x" + std::to_string(tokens);
  made.kernel = "head_squares_kernel";
  made.prepare = [=](cudaStream_t stream) {
    const std::shared_ptr<Heads> heads = make_heads(tokens, stream);
    const auto squares =
        std::make_shared<DeviceBuffer>(zeros(int64_t{tokens} * (heads->heads + heads->kv_heads), stream));
    return PreparedCase{[=](int) { launch_head_squares(heads->args, squares->as<float>(), stream); },
                        {output_of(*squares)}};
  };
  return made;
}

// The logits of Gemma 2: each launch scales what the previous one has written.
KernelCase logits_case(int num_rows) {
  const int64_t num_ids = is_tiny ? 500 : 256000;
  KernelCase made;
  made.name = "logits x" + std::to_string(num_rows);
  made.kernel = "scale_logits_kernel";
  made.bytes = static_cast<double>(num_rows * num_ids) * 2 * sizeof(float);
  made.prepare = [=](cudaStream_t stream) {
    const auto logits = std::make_shared<DeviceBuffer>(floats(num_rows * num_ids, stream, kHidden));
    LogitsArgs args;
    args.logits = logits->as<float>();
    args.num_rows = num_rows;
    args.num_ids = args.stride = num_ids;
    args.soft_cap = 30;
    return PreparedCase{[=](int) { launch_logits(args, stream), static_cast<void>(logits); }, {output_of(*logits)}};
  };
  return made;
}

// Each launch adds the table to what the previous one has written.
KernelCase layer_inputs_case(int tokens) {
  const int num_layers = is_tiny ? 3 : 35;
  const int64_t size = is_tiny ? 40 : 256, width = num_layers * size, num_rows = is_tiny ? 37 : 16384;
  const DepthSplit split = split_depth(width, width, row_parallel_parts(width));
  KernelCase made;
  made.name = "layer inputs x" + std::to_string(tokens);
  made.kernel = "layer_inputs_kernel";
  made.bytes = static_cast<double>(tokens * width) * (2 * sizeof(float) + sizeof(uint16_t));
  made.prepare = [=](cudaStream_t stream) {
    const auto rows = std::make_shared<Rows>();
    rows->table = filled_bf16(round_up(num_rows, kTileRows) * split.padded(), bf16_pattern(kWeights, 1), stream);
    rows->hidden = floats(tokens * width, stream, kHidden);
    rows->weight = floats(size, stream, kNorm);
    std::vector<int32_t> values;
    for (int token = 0; token < tokens; ++token)
      values.push_back(static_cast<int32_t>(int64_t{token} * 7919 % num_rows));
    rows->ids = ids(values, stream);
    LayerInputArgs args;
    args.table = {rows->table.as<uint16_t>(), nullptr, num_rows, split};
    args.ids = args.drawn_ids = rows->ids.as<int32_t>();
    args.num_tokens = tokens;
    args.num_layers = num_layers;
    args.size = size;
    args.norm = rows->weight.as<float>();
    args.eps = 1e-6f;
    args.inputs = rows->hidden.as<float>();
    return PreparedCase{[=](int) { launch_layer_inputs(args, stream), static_cast<void>(rows); },
                        {output_of(rows->hidden)}};
  };
  return made;
}

namespace {

// The norm of row `token`, whose values are `at(k)`.
template <class At>
Sample norm_sample(int64_t token, int64_t column, int64_t size, const DepthSplit& split, bool is_row_major,
                   const At& at) {
  double square = 0;
  for (int64_t k = 0; k < size; ++k)
    square += at(k) * at(k);
  const double value =
      at(column) / std::sqrt(square / static_cast<double>(size) + 1e-6) * float_at(float_pattern(kNorm), column);
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

}  // namespace capstan::benchmarks
