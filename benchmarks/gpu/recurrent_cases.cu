// A gated delta net at the shapes of Qwen3.5-9B: 32 heads of 128 in 16 groups, with states of 128 by 128.
#include "benchmarks/gpu/case_parts.h"
#include "cuda/recurrent.h"

namespace capstan::benchmarks {
namespace {

struct Recurrent {
  DeviceBuffer cu_seqlens, token_seqs, reads, writes;
  DeviceBuffer conv, a_log, dt_bias, norm, projections, mixed, gates, states, acts;
  RecurrentArgs args;
};

RecurrentShape delta_net() {
  RecurrentShape shape;
  shape.num_heads = is_tiny ? 4 : 32, shape.num_groups = is_tiny ? 2 : 16;
  shape.head_dim = shape.state_size = is_tiny ? 16 : 128;
  shape.conv_taps = 4;
  shape.conv_channels = shape.output_size() + 2 * int64_t{shape.num_groups} * shape.state_size;
  return shape;
}

// Each sequence reads one slot and writes another, so that every run has the same inputs.
std::shared_ptr<Recurrent> make_recurrent(int num_seqs, int tokens_per_seq, cudaStream_t stream) {
  const auto made = std::make_shared<Recurrent>();
  Recurrent& all = *made;
  const RecurrentShape shape = delta_net();
  const int num_tokens = num_seqs * tokens_per_seq;
  std::vector<int32_t> cu_seqlens{0}, token_seqs, reads, writes(static_cast<size_t>(num_tokens), -1);
  for (int seq = 0; seq < num_seqs; ++seq) {
    cu_seqlens.push_back((seq + 1) * tokens_per_seq);
    token_seqs.insert(token_seqs.end(), static_cast<size_t>(tokens_per_seq), seq);
    reads.push_back(2 * seq);
    writes[static_cast<size_t>(cu_seqlens.back() - 1)] = 2 * seq + 1;
  }
  const int64_t stride = num_projections(Mixer::kDeltaNet, shape), size = shape.output_size();
  all.cu_seqlens = ids(cu_seqlens, stream);
  all.token_seqs = ids(token_seqs, stream);
  all.reads = ids(reads, stream);
  all.writes = ids(writes, stream);
  all.conv = floats((shape.conv_taps + 1) * shape.conv_channels, stream, kWeights);
  all.a_log = floats(shape.num_heads, stream, kBefore);
  all.dt_bias = floats(shape.num_heads, stream, kPartials);
  all.norm = floats(shape.head_dim, stream, kNorm);
  all.projections = floats(num_tokens * stride, stream, kHidden);
  all.mixed = zeros(num_tokens * shape.conv_channels, stream);
  all.gates = zeros(num_tokens * 2 * int64_t{shape.num_heads}, stream);
  all.states = floats(2 * num_seqs * layer_state_floats(shape), stream, kCache);
  RecurrentArgs& args = all.args;
  args.shape = shape;
  args.eps = 1e-6f;
  args.num_tokens = num_tokens;
  args.num_seqs = num_seqs;
  args.cu_seqlens = all.cu_seqlens.as<int32_t>();
  args.token_seqs = all.token_seqs.as<int32_t>();
  args.state_reads = all.reads.as<int32_t>();
  args.state_writes = all.writes.as<int32_t>();
  args.conv = all.conv.as<float>();
  args.conv_stride = shape.conv_channels;
  args.a_log = all.a_log.as<float>();
  args.dt_bias = all.dt_bias.as<float>();
  args.norm = all.norm.as<float>();
  args.projections = all.projections.as<float>();
  args.projection_stride = stride;
  args.mixed = all.mixed.as<float>();
  args.gates = all.gates.as<float>();
  args.states = all.states.as<float>();
  args.slot_stride = layer_state_floats(shape);
  args.split = split_depth(size, size, row_parallel_parts(size));
  all.acts = zeros(round_up(num_tokens, 64) * args.split.padded() / 2, stream);
  args.acts = all.acts.as<uint16_t>();
  return made;
}

}  // namespace

KernelCase recurrent_case(int num_seqs, int tokens_per_seq) {
  const RecurrentShape shape = delta_net();
  KernelCase made;
  made.name = "delta net " + std::to_string(num_seqs) + " x " + std::to_string(tokens_per_seq);
  made.kernel = "recurrence_kernel";
  made.element = Element::kBf16;
  const double state = 1.0 * shape.num_heads * shape.head_dim * shape.state_size;
  const double tokens = 1.0 * num_seqs * tokens_per_seq;
  made.bytes = num_seqs * 2 * state * 4 + tokens * static_cast<double>(num_projections(Mixer::kDeltaNet, shape)) * 4;
  made.flops = tokens * state * 7;
  made.prepare = [=](cudaStream_t stream) {
    const std::shared_ptr<Recurrent> all = make_recurrent(num_seqs, tokens_per_seq, stream);
    return PreparedCase{[=](int) { launch_recurrent(all->args, stream); },
                        {output_of(all->acts), output_of(all->states)}};
  };
  return made;
}

}  // namespace capstan::benchmarks
