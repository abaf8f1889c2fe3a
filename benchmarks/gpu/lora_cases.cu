// The updates of an adapter to a product and to an embedding, and the gates of updated products.
#include "benchmarks/gpu/case_parts.h"
#include "cuda/lora.h"

namespace capstan::benchmarks {
namespace {

struct Lora {
  DeviceBuffer a, b, scales, ranges, lora, loras, tokens, adapters, acts, t, out;
  LoraValuesArgs values;
  LoraUpdateArgs update;
};

// All tokens have the same adapter.
std::shared_ptr<Lora> make_lora(int num_tokens, int64_t size, cudaStream_t stream) {
  const auto made = std::make_shared<Lora>();
  Lora& all = *made;
  all.a = filled_bf16(kRank * size, bf16_pattern(kWeights, 0.015625f), stream);
  all.b = filled_bf16(kRank * size, bf16_pattern(kBefore, 0.015625f), stream);
  all.scales = floats(kRank, stream, kNorm);
  all.ranges = uploaded(std::vector<LoraRange>(static_cast<size_t>(size), {0, kRank}), stream);
  DeviceLora lora;
  lora.a = all.a.as<uint16_t>();
  lora.b = all.b.as<uint16_t>();
  lora.scales = all.scales.as<float>();
  lora.ranges = all.ranges.as<LoraRange>();
  lora.num_values = kRank;
  lora.rows = lora.cols = size;
  all.lora = uploaded(std::vector<DeviceLora>{lora}, stream);
  all.loras = uploaded(std::vector<const DeviceLora*>{all.lora.as<DeviceLora>()}, stream);
  std::vector<int32_t> tokens(static_cast<size_t>(num_tokens));
  for (int token = 0; token < num_tokens; ++token)
    tokens[static_cast<size_t>(token)] = token;
  all.tokens = ids(tokens, stream);
  all.adapters = zeros(num_tokens, stream);
  all.t = zeros(int64_t{num_tokens} * kRank, stream);
  all.out = zeros(num_tokens * size, stream);
  LoraValuesArgs& values = all.values;
  values.rows = {all.tokens.as<int32_t>(), all.adapters.as<int32_t>(), all.loras.as<const DeviceLora*>(), num_tokens};
  values.split = split_depth(size, size, row_parallel_parts(size));
  all.acts = filled_bf16(round_up(num_tokens, 64) * values.split.padded(), bf16_pattern(kActs, 1), stream);
  values.acts = all.acts.as<uint16_t>();
  values.t = all.t.as<float>();
  values.t_stride = kRank;
  LoraUpdateArgs& update = all.update;
  update.rows = values.rows;
  update.t[0] = values.t;
  update.t_stride = kRank;
  update.end_token = num_tokens;
  update.out = all.out.as<float>();
  update.out_stride = update.num_features = size;
  return made;
}

// The rows of a table that tokens add, and the gates of an MLP.
struct LoraEmbed {
  DeviceBuffer table, ids, lora, loras, tokens, adapters, t;
  LoraEmbedArgs args;
};
struct Gates {
  DeviceBuffer outputs, gated;
  GateArgs args;
};

std::shared_ptr<LoraEmbed> make_lora_embed(int num_tokens, cudaStream_t stream) {
  const auto made = std::make_shared<LoraEmbed>();
  LoraEmbed& all = *made;
  const int64_t vocab_size = is_tiny ? 500 : 151936;
  all.table = filled_bf16(vocab_size * kRank, bf16_pattern(kWeights, 1), stream);
  std::vector<int32_t> tokens, values;
  for (int token = 0; token < num_tokens; ++token) {
    tokens.push_back(token);
    values.push_back(static_cast<int32_t>(int64_t{token} * 7919 % vocab_size));
  }
  all.ids = ids(values, stream);
  all.tokens = ids(tokens, stream);
  all.adapters = zeros(num_tokens, stream);
  DeviceLora lora;
  lora.a = all.table.as<uint16_t>();
  lora.num_values = kRank;
  all.lora = uploaded(std::vector<DeviceLora>{lora}, stream);
  all.loras = uploaded(std::vector<const DeviceLora*>{all.lora.as<DeviceLora>()}, stream);
  all.t = zeros(int64_t{num_tokens} * kRank, stream);
  LoraEmbedArgs& args = all.args;
  args.rows = {all.tokens.as<int32_t>(), all.adapters.as<int32_t>(), all.loras.as<const DeviceLora*>(), num_tokens};
  args.ids = args.drawn_ids = all.ids.as<int32_t>();
  args.t = all.t.as<float>();
  args.t_stride = kRank;
  return made;
}

std::shared_ptr<Gates> make_gates(int num_tokens, cudaStream_t stream) {
  const auto made = std::make_shared<Gates>();
  const int64_t size = is_tiny ? 64 : 8960;
  const DepthSplit split = split_depth(size, size, row_parallel_parts(size));
  made->outputs = floats(num_tokens * 2 * size, stream, kHidden);
  made->gated = zeros(round_up(num_tokens, 64) * split.padded() / 2, stream);
  GateArgs& args = made->args;
  args.from = made->outputs.as<float>();
  args.stride = 2 * size;
  args.num_tokens = num_tokens;
  args.gated = made->gated.as<uint16_t>();
  args.gated_split = split;
  return made;
}

KernelCase lora_embed_case(int num_tokens) {
  KernelCase made;
  made.name = "lora embed x" + std::to_string(num_tokens);
  made.kernel = "lora_embed_kernel";
  made.prepare = [=](cudaStream_t stream) {
    const std::shared_ptr<LoraEmbed> all = make_lora_embed(num_tokens, stream);
    return PreparedCase{[=](int) { launch_lora_embed(all->args, stream); }, {output_of(all->t)}};
  };
  return made;
}

KernelCase gate_case(int num_tokens) {
  KernelCase made;
  made.name = "gates x" + std::to_string(num_tokens);
  made.kernel = "gate_kernel";
  made.bytes = 8960.0 * num_tokens * (2 * sizeof(float) + sizeof(uint16_t));
  made.element = Element::kBf16;
  made.prepare = [=](cudaStream_t stream) {
    const std::shared_ptr<Gates> all = make_gates(num_tokens, stream);
    return PreparedCase{[=](int) { launch_gate(all->args, stream); }, {output_of(all->gated)}};
  };
  return made;
}

KernelCase update_case(int num_seqs) {
  const int64_t size = is_tiny ? 64 : 1536;
  KernelCase made;
  made.name = "lora x" + std::to_string(num_seqs);
  made.kernel = "lora_update_kernel";
  made.bytes = 2.0 * kRank * static_cast<double>(size) * 2;
  made.flops = 4.0 * num_seqs * kRank * static_cast<double>(size);
  made.prepare = [=](cudaStream_t stream) {
    const std::shared_ptr<Lora> all = make_lora(num_seqs, size, stream);
    return PreparedCase{[=](int) {
                          check(cudaMemsetAsync(all->out.as<void>(), 0, all->out.bytes(), stream), "outputs");
                          launch_lora_values(all->values, stream);
                          launch_lora_update(all->update, stream);
                        },
                        {output_of(all->out), output_of(all->t)}};
  };
  return made;
}

}  // namespace

std::vector<KernelCase> lora_cases(int num_tokens) {
  return {update_case(num_tokens), lora_embed_case(num_tokens), gate_case(num_tokens)};
}

}  // namespace capstan::benchmarks
