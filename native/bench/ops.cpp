#include "native/bench/ops.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "native/backend/cpu/kernels.h"
#include "native/base/error.h"
#include "native/base/step_profile.h"

namespace capstan::benchmarks {
namespace {

constexpr int64_t kHidden = 896, kInner = 4864;
constexpr int kHeads = 14, kKvHeads = 2, kHeadDim = 64;

DeviceModel device_model(const OpsOptions& options) {
  DeviceModel model;
  model.hidden_size = kHidden;
  model.intermediate_size = kInner;
  model.num_heads = kHeads;
  model.num_kv_heads = kKvHeads;
  model.head_dim = kHeadDim;
  model.vocab_size = model.vocab_end = model.num_token_ids = options.vocab_size;
  model.attention_scale = 0.125f;
  model.max_model_len = std::max(options.context, options.prefill_context) + kMaxOpsRows;
  model.kv_groups = {{0, options.layers}};
  for (int layer = 0; layer < options.layers; ++layer)
    model.layers.push_back({Mixer::kAttention, 0, layer});
  RopeTable& rope = model.rope_tables.emplace_back();
  rope.rotary_dim = kHeadDim;
  for (int position = 0; position < model.max_model_len; ++position)
    for (int i = 0; i < kHeadDim; ++i) {
      const double angle = position * std::pow(1e6, -2.0 * (i % (kHeadDim / 2)) / kHeadDim);
      rope.values.push_back(static_cast<float>(i < kHeadDim / 2 ? std::cos(angle) : std::sin(angle)));
    }
  return model;
}

// Returns a file of small random bf16 values that all matrices are loaded from. Each has a separate packed copy.
int random_file(int64_t bytes) {
#if defined(__linux__)
  const int fd = memfd_create("weights", 0);
#else
  const int fd = dup(fileno(std::tmpfile()));
#endif
  std::vector<uint16_t> chunk(1 << 20);
  uint64_t state = 1;
  for (uint16_t& value : chunk) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    value = static_cast<uint16_t>(((state >> 63) << 15) | (0x3c00u + ((state >> 40) & 0xffu)));  // ± 0.008 … 0.03
  }
  for (int64_t written = 0; written < bytes; written += static_cast<int64_t>(chunk.size() * 2))
    if (write(fd, chunk.data(), chunk.size() * 2) < 0) {
      close(fd);
      throw Error(ErrorCode::kOutOfMemory, "cannot write random weights of " + std::to_string(bytes) + " bytes");
    }
  return fd;
}

}  // namespace

struct OpsBench::Model {
  std::unique_ptr<Matrix> embedding;
  std::unique_ptr<Vector> norm;
  std::vector<LayerWeights> layers;
};

namespace {

template <class Model>
Model load(Backend& backend, int fd, const OpsOptions& options) {
  WeightFormat format = options.format == WeightFormat::kInt4 ? WeightFormat::kInt8 : options.format;
  const auto matrix = [&](std::vector<int64_t> heights, int64_t cols, MatrixKind kind, bool is_gated) {
    std::vector<FileTensor> tensors;
    for (const int64_t height : heights)
      tensors.push_back({"random", fd, 0, DType::kBf16, height, cols, nullptr, nullptr});
    MatrixSource source;
    for (const FileTensor& tensor : tensors)
      source.slices.push_back({&tensor, 0, tensor.rows, 0, tensor.cols});
    source.kind = kind;
    source.total_cols = cols;
    source.interleave_pairs = is_gated;
    source.format = format;
    return backend.load_matrix(source, {});
  };
  const FileTensor norm{"norm", fd, 0, DType::kBf16, 1, kHidden, nullptr, nullptr};
  const auto vector = [&] { return backend.load_vector({&norm, 0, 1, 0, kHidden}, 0.0f, {}); };
  Model model;
  model.embedding = matrix({options.vocab_size}, kHidden, MatrixKind::kColumn, false);
  model.norm = vector();
  format = options.format;
  for (int layer = 0; layer < options.layers; ++layer) {
    LayerWeights weights;
    weights.input_norm = vector();
    weights.mlp_norm = vector();
    weights.qkv_proj =
        matrix({kHeads * kHeadDim, kKvHeads * kHeadDim, kKvHeads * kHeadDim}, kHidden, MatrixKind::kColumn, false);
    weights.o_proj = matrix({kHidden}, kHeads * kHeadDim, MatrixKind::kRow, false);
    weights.gate_up_proj = matrix({kInner, kInner}, kHidden, MatrixKind::kColumn, true);
    weights.down_proj = matrix({kHidden}, kInner, MatrixKind::kRow, false);
    model.layers.push_back(std::move(weights));
  }
  return model;
}

enum Op { kEmbed, kQkv, kAttention, kOutput, kGateUp, kDown, kHead, kNumOps };
const char* const kOpNames[] = {"embed",        "norm_qkv",      "attention", "output_residual",
                                "norm_gate_up", "down_residual", "lm_head"};

// The sequences of a step with `rows` rows: up to 64 rows, decodes at full context; above, one prefill.
struct Batch {
  std::vector<int32_t> ids, positions, slots, cu_seqlens{0}, context_lens, block_tables;
  KvGroupInput kv;
  int blocks_per_seq = 0;
  int num_logit_rows = 0;
  double keys_seen = 0;  // sum over the rows

  Batch(const OpsOptions& options, int rows) {
    const bool is_prefill = rows > 64;
    const int num_seqs = is_prefill ? 1 : rows;
    const int context = is_prefill ? std::max(rows, options.prefill_context) : options.context;
    blocks_per_seq = (context + 15) / 16;
    for (int seq = 0; seq < num_seqs; ++seq) {
      for (int block = 0; block < blocks_per_seq; ++block)
        block_tables.push_back(seq * blocks_per_seq + block);
      for (int position = context - (is_prefill ? rows : 1); position < context; ++position) {
        ids.push_back(static_cast<int32_t>((seq * 7919 + int64_t{position} * 104729) % options.vocab_size));
        positions.push_back(position);
        slots.push_back(block_tables[seq * blocks_per_seq + position / 16] * 16 + position % 16);
        keys_seen += position + 1;
      }
      cu_seqlens.push_back(static_cast<int32_t>(ids.size()));
      context_lens.push_back(context);
    }
    num_logit_rows = num_seqs;
    kv = {slots, block_tables};
  }
  StepInput step() const { return {ids, positions, cu_seqlens, context_lens, {&kv, 1}, blocks_per_seq}; }
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Runs one step. Returns the seconds of each op, over all layers.
template <class Model>
std::vector<double> run_step(Backend& backend, const Model& model, const Batch& batch) {
  std::vector<double> seconds(kNumOps);
  const auto timed = [&](Op op, const std::function<void()>& call) {
    const double start = now_seconds();
    call();
    seconds[op] += now_seconds() - start;
  };
  const StepInput step = batch.step();
  timed(kEmbed, [&] {
    backend.begin_step(step);
    backend.embed(*model.embedding);
  });
  for (size_t l = 0; l < model.layers.size(); ++l) {
    const LayerWeights& layer = model.layers[l];
    timed(kQkv, [&] { backend.norm_qkv(static_cast<int>(l), layer); });
    timed(kAttention, [&] { backend.attention(static_cast<int>(l), layer); });
    timed(kOutput, [&] { backend.output_residual(layer); });
    timed(kGateUp, [&] { backend.norm_gate_up(layer); });
    timed(kDown, [&] { backend.down_residual(layer); });
  }
  std::vector<int32_t> rows;
  for (int seq = 0; seq < batch.num_logit_rows; ++seq)
    rows.push_back(batch.cu_seqlens[seq + 1] - 1);
  timed(kHead, [&] { backend.lm_head(*model.norm, *model.embedding, rows); });
  return seconds;
}

// What the products of an op multiply (StepWork): the activations of quantized weights have 8 bits.
MathKind product_math(const OpsOptions& options) {
  if (options.format != WeightFormat::kDType) return MathKind::kInt8;
  return options.dtype == DType::kBf16 ? MathKind::kBf16 : MathKind::kF32;
}

DType kv_cache_dtype(const OpsOptions& options) {
  return options.has_int8_cache ? DType::kInt8 : options.dtype;
}

template <class Model>
StepWork work_of(Op op, const OpsOptions& options, const Model& model, const Batch& batch) {
  const double rows = static_cast<double>(batch.ids.size()), layers = options.layers;
  const auto matrix = [&](const std::unique_ptr<Matrix>& weights, double r, double times) {
    return StepWork(static_cast<double>(weights->bytes) * times, product_math(options),
                    2 * static_cast<double>(weights->rows * weights->cols) * r * times);
  };
  const LayerWeights& layer = model.layers[0];
  switch (op) {
    case kQkv:
      return matrix(layer.qkv_proj, rows, layers);
    case kOutput:
      return matrix(layer.o_proj, rows, layers);
    case kGateUp:
      return matrix(layer.gate_up_proj, rows, layers);
    case kDown:
      return matrix(layer.down_proj, rows, layers);
    case kHead:
      return matrix(model.embedding, batch.num_logit_rows, 1);
    case kAttention: {
      double keys = 0;
      for (const int32_t context : batch.context_lens)
        keys += context;
      const double bytes =
          keys * kKvHeads * 2 * static_cast<double>(slot_bytes(kv_cache_dtype(options), kHeadDim)) * layers;
      const double ops = batch.keys_seen * kHeads * kHeadDim * 4 * layers;
      return {bytes, options.dtype == DType::kBf16 ? MathKind::kBf16 : MathKind::kF32, ops};
    }
    default:
      return {};
  }
}

DeviceLimits device_limits(const OpsOptions& options) {
  DeviceLimits limits;
  limits.max_num_tokens = kMaxOpsRows;
  limits.max_num_seqs = 64;
  limits.block_size = 16;
  limits.num_blocks = {std::max(options.max_decode_rows * ((options.context + 15) / 16),
                                (std::max(kMaxOpsRows, options.prefill_context) + 15) / 16) +
                       kMaxOpsRows / 16};
  limits.kv_cache_dtype = kv_cache_dtype(options);
  return limits;
}

std::unique_ptr<Backend> make_backend(const OpsOptions& options) {
  CpuBackendOptions backend_options;
  backend_options.isa = options.isa;
  backend_options.weight_dtype = options.dtype;
  backend_options.cpus = options.cpus;
  return make_cpu_backend(backend_options, nullptr);
}

double all_ops(const StepWork& work) {
  return std::accumulate(work.ops.begin(), work.ops.end(), 0.0);
}

// Rates per second. The limit of each is the fastest that the run has shown, by a test of the machine or by an op: an
// op that reads faster than the tests proves that the machine can. So no op exceeds its limit.
class Limits {
 public:
  void include_tests(LimitMeter& meter, CpuIsa isa) {
    const bool has_tiles = isa == CpuIsa::kAmx;
    const auto raise = [](double& rate, double giga) { rate = std::max(rate, giga * 1e9); };
    raise(rates_.bytes, meter.read_gb_per_s());
    raise(of(MathKind::kF32), meter.f32_gflop_per_s());
    // Products of bf16 are those of f32 where that is faster, or where there is no other instruction.
    raise(of(MathKind::kBf16), of(MathKind::kF32) / 1e9);
    raise(of(MathKind::kBf16), has_tiles ? meter.amx_bf16_gflop_per_s() : meter.bf16_gflop_per_s());
    raise(of(MathKind::kInt8), has_tiles ? meter.amx_int8_gop_per_s() : meter.int8_gop_per_s());
  }
  void include(const StepWork& work, double seconds) {
    rates_.bytes = std::max(rates_.bytes, work.bytes / seconds);
    for (size_t math = 0; math < work.ops.size(); ++math)
      rates_.ops[math] = std::max(rates_.ops[math], work.ops[math] / seconds);
  }
  double seconds_of(const StepWork& work) const {
    double compute = 0;
    for (size_t math = 0; math < work.ops.size(); ++math)
      if (work.ops[math] > 0) compute += work.ops[math] / rates_.ops[math];
    return std::max(work.bytes > 0 ? work.bytes / rates_.bytes : 0, compute);
  }
  double bytes() const { return rates_.bytes; }
  double& of(MathKind math) { return rates_.ops[static_cast<size_t>(math)]; }

 private:
  StepWork rates_;
};

}  // namespace

OpsBench::OpsBench(const OpsOptions& options)
    : options_(options), team_(options.cpus, true), meter_(team_, options.read_bytes), backend_(make_backend(options)) {
  const int fd = random_file(std::max(options.vocab_size, kInner) * kHidden * 2);
  const double start = now_seconds();
  try {
    model_ = std::make_unique<Model>(load<Model>(*backend_, fd, options));
  } catch (...) {
    close(fd);
    throw;
  }
  load_seconds_ = now_seconds() - start;
  close(fd);
  backend_->prepare(device_model(options), device_limits(options));
}

OpsBench::~OpsBench() = default;

double OpsBench::packed_bytes() const {
  double bytes = static_cast<double>(model_->embedding->bytes);
  for (const LayerWeights& layer : model_->layers)
    for (const Matrix* matrix :
         {layer.qkv_proj.get(), layer.o_proj.get(), layer.gate_up_proj.get(), layer.down_proj.get()})
      bytes += static_cast<double>(matrix->bytes);
  return bytes;
}

// Writes the first blocks of the KV cache. Memory that was never written would be read from the processor's cache,
// because all its pages are one page of zeros.
void OpsBench::fill_cache(int64_t num_blocks) {
  for (; num_filled_blocks_ < num_blocks; num_filled_blocks_ += kMaxOpsRows / 16) {
    std::vector<int32_t> ids, positions, slots, blocks;
    for (int i = 0; i < kMaxOpsRows; ++i) {
      ids.push_back(static_cast<int32_t>((num_filled_blocks_ * 7919 + int64_t{i} * 104729) % options_.vocab_size));
      positions.push_back(i);
      slots.push_back(static_cast<int32_t>(num_filled_blocks_ * 16 + i));
    }
    for (int i = 0; i < kMaxOpsRows / 16; ++i)
      blocks.push_back(static_cast<int32_t>(num_filled_blocks_ + i));
    const std::vector<int32_t> cu_seqlens{0, kMaxOpsRows}, context_lens{kMaxOpsRows};
    const KvGroupInput kv{slots, blocks};
    backend_->begin_step({ids, positions, cu_seqlens, context_lens, {&kv, 1}, kMaxOpsRows / 16});
    backend_->embed(*model_->embedding);
    for (size_t layer = 0; layer < model_->layers.size(); ++layer)
      backend_->norm_qkv(static_cast<int>(layer), model_->layers[layer]);
  }
}

OpsResult OpsBench::measure(int rows) {
  const Batch batch(options_, rows);
  fill_cache(static_cast<int64_t>(batch.block_tables.size()));
  std::vector<std::vector<double>> seconds(kNumOps);
  Limits limits;
  run_step(*backend_, *model_, batch);
  for (int repeat = 0; repeat < options_.repeats; ++repeat) {
    limits.include_tests(meter_, options_.isa);
    const std::vector<double> ops = run_step(*backend_, *model_, batch);
    for (int op = 0; op < kNumOps; ++op)
      seconds[op].push_back(ops[op]);
  }

  std::vector<double> times;
  for (int op = 0; op < kNumOps; ++op) {
    times.push_back(median(seconds[op]));
    limits.include(work_of(static_cast<Op>(op), options_, *model_, batch), times[op]);
  }
  OpsResult result{rows, limits.bytes() / 1e9, limits.of(product_math(options_)) / 1e9, {}};
  double total = 0, least = 0;
  for (int op = 0; op < kNumOps; ++op) {
    const StepWork work = work_of(static_cast<Op>(op), options_, *model_, batch);
    const double time = times[op], limit = limits.seconds_of(work);
    total += time;
    least += limit;
    result.ops.push_back(
        {kOpNames[op], time * 1e3, work.bytes / time / 1e9, all_ops(work) / time / 1e9, std::min(limit / time, 1.0)});
  }
  result.ops.push_back({"step", total * 1e3, 0, 0, least / total});
  return result;
}

}  // namespace capstan::benchmarks
