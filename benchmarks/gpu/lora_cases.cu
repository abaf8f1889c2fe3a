// The update of an adapter to a product.
#include "benchmarks/gpu/case_parts.h"
#include "cuda/lora.h"

namespace capstan::benchmarks {
namespace {

struct Lora {
  DeviceBuffer a, b, scales, ranges, lora, loras, tokens, adapters, acts, t, out;
  LoraValuesArgs values;
  LoraUpdateArgs update;
};

template <class T>
DeviceBuffer uploaded(const std::vector<T>& from, cudaStream_t stream) {
  DeviceBuffer buffer(from.size() * sizeof(T), "a list");
  check(cudaMemcpyAsync(buffer.as<void>(), from.data(), buffer.bytes(), cudaMemcpyHostToDevice, stream), "a list");
  check(cudaStreamSynchronize(stream), "a list");
  return buffer;
}

constexpr int kRank = 16;

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

}  // namespace

KernelCase lora_case(int num_seqs) {
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

}  // namespace capstan::benchmarks
