// Measures every op of the CPU backend on the Qwen2.5-0.5B shape with random weights. The share is the limit over the
// time. The limit, measured in the same run, is the larger of the weight (and KV) bytes over the read bandwidth and the
// operations over the peak.
//   ops [--rows 1,8,512] [--dtype bf16] [--isa avx512bf16] [--threads 2] [--context 512] [--repeats 5] [--layers 24]
//   [--quantization none|int8|int4] [--clock wall|cpu] [--json FILE] [--limits 1]
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "benchmarks/limits.h"
#include "native/backend/cpu/cpu_backend.h"

namespace capstan::benchmarks {
namespace {

struct Options {
  std::vector<int> rows = {1, 2, 4, 8, 16, 32, 64, 128, 512};
  DType dtype = DType::kBf16;
  CpuIsa isa = available_cpu_isas()[0];
  int threads = 2;
  int context = 512;  // tokens in the KV cache of each decoded sequence
  int repeats = 5;
  int layers = 24;
  WeightFormat format = WeightFormat::kDType;  // of all matrices but the LM head, which has 8 bits when they have 4
  bool limits_only = false;
  std::string json;
};

constexpr int64_t kHidden = 896, kInner = 4864, kVocab = 151936;
constexpr int kHeads = 14, kKvHeads = 2, kHeadDim = 64;
constexpr int kMaxRows = 512;

DeviceModel device_model(const Options& options) {
  DeviceModel model;
  model.hidden_size = kHidden;
  model.intermediate_size = kInner;
  model.num_layers = options.layers;
  model.num_heads = kHeads;
  model.num_kv_heads = kKvHeads;
  model.head_dim = model.rotary_dim = kHeadDim;
  model.vocab_size = model.vocab_end = model.num_token_ids = kVocab;
  model.attention_scale = 0.125f;
  model.max_model_len = options.context + kMaxRows;
  model.sliding_windows.assign(static_cast<size_t>(options.layers), 0);
  for (int position = 0; position < model.max_model_len; ++position)
    for (int i = 0; i < kHeadDim; ++i) {
      const double angle = position * std::pow(1e6, -2.0 * (i % (kHeadDim / 2)) / kHeadDim);
      model.rope_table.push_back(static_cast<float>(i < kHeadDim / 2 ? std::cos(angle) : std::sin(angle)));
    }
  return model;
}

// Returns a file of small random bf16 values that all matrices are loaded from. Each has a separate packed copy.
int random_file() {
  const int fd = memfd_create("weights", 0);
  std::vector<uint16_t> chunk(1 << 20);
  uint64_t state = 1;
  for (uint16_t& value : chunk) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    value = static_cast<uint16_t>(((state >> 63) << 15) | (0x3c00u + ((state >> 40) & 0xffu)));  // ± 0.008 … 0.03
  }
  for (int64_t written = 0; written < kVocab * kHidden * 2; written += static_cast<int64_t>(chunk.size() * 2))
    if (write(fd, chunk.data(), chunk.size() * 2) < 0) std::abort();
  return fd;
}

struct Model {
  std::unique_ptr<Matrix> embedding;
  std::unique_ptr<Vector> norm;
  std::vector<LayerWeights> layers;
};

Model load(Backend& backend, int fd, const Options& options) {
  WeightFormat format = options.format == WeightFormat::kInt4 ? WeightFormat::kInt8 : options.format;
  const auto matrix = [&](std::vector<int64_t> heights, int64_t cols, MatrixKind kind, bool is_gated) {
    std::vector<FileTensor> tensors;
    for (const int64_t height : heights)
      tensors.push_back({"random", fd, 0, DType::kBf16, height, cols});
    MatrixSource source;
    for (const FileTensor& tensor : tensors)
      source.slices.push_back({&tensor, 0, tensor.rows, 0, tensor.cols});
    source.kind = kind;
    source.total_cols = cols;
    source.interleave_pairs = is_gated;
    source.format = format;
    return backend.load_matrix(source, {});
  };
  const FileTensor norm{"norm", fd, 0, DType::kBf16, 1, kHidden};
  const auto vector = [&] { return backend.load_vector({&norm, 0, 1, 0, kHidden}, {}); };
  Model model;
  model.embedding = matrix({kVocab}, kHidden, MatrixKind::kColumn, false);
  model.norm = vector();
  format = options.format;
  for (int layer = 0; layer < options.layers; ++layer) {
    LayerWeights weights;
    weights.input_norm = vector();
    weights.post_attention_norm = vector();
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
  int blocks_per_seq = 0;
  int num_logit_rows = 0;
  double keys_seen = 0;  // sum over the rows

  Batch(const Options& options, int rows) {
    const bool is_prefill = rows > 64;
    const int num_seqs = is_prefill ? 1 : rows;
    const int context = is_prefill ? rows : options.context;
    blocks_per_seq = (context + 15) / 16;
    for (int seq = 0; seq < num_seqs; ++seq) {
      for (int block = 0; block < blocks_per_seq; ++block)
        block_tables.push_back(seq * blocks_per_seq + block);
      for (int position = is_prefill ? 0 : context - 1; position < context; ++position) {
        ids.push_back((seq * 7919 + position * 104729) % kVocab);
        positions.push_back(position);
        slots.push_back(block_tables[seq * blocks_per_seq + position / 16] * 16 + position % 16);
        keys_seen += position + 1;
      }
      cu_seqlens.push_back(static_cast<int32_t>(ids.size()));
      context_lens.push_back(context);
    }
    num_logit_rows = num_seqs;
  }
  StepInput step() const { return {ids, positions, slots, cu_seqlens, context_lens, block_tables, blocks_per_seq}; }
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Runs one step. Returns the seconds of each op, over all layers.
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
    timed(kAttention, [&] { backend.attention(static_cast<int>(l)); });
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

// The bytes that an op must read, and its operations in the compute type and in f32.
struct Work {
  double bytes = 0, flops = 0, f32_flops = 0;
};

Work work_of(Op op, const Options& options, const Model& model, const Batch& batch) {
  const double rows = static_cast<double>(batch.ids.size()), item = static_cast<double>(dtype_size(options.dtype)),
               layers = options.layers;
  const auto matrix = [&](const std::unique_ptr<Matrix>& weights, double r, double times) {
    return Work{static_cast<double>(weights->bytes) * times,
                2 * static_cast<double>(weights->rows * weights->cols) * r * times, 0};
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
      return {keys * kKvHeads * kHeadDim * 2 * item * layers, 0, batch.keys_seen * kHeads * kHeadDim * 4 * layers};
    }
    default:
      return {};
  }
}

std::vector<int> parse_list(const char* text) {
  std::vector<int> list;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');)
    list.push_back(std::atoi(part.c_str()));
  return list;
}

DType parse_dtype(const std::string& name) {
  if (name == "f32") return DType::kF32;
  return name == "f16" ? DType::kF16 : DType::kBf16;
}

WeightFormat parse_format(const std::string& name) {
  if (name == "int8") return WeightFormat::kInt8;
  return name == "int4" ? WeightFormat::kInt4 : WeightFormat::kDType;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--rows") options.rows = parse_list(value.c_str());
    if (name == "--dtype") options.dtype = parse_dtype(value);
    if (name == "--quantization") options.format = parse_format(value);
    if (name == "--threads") options.threads = std::atoi(value.c_str());
    if (name == "--context") options.context = std::atoi(value.c_str());
    if (name == "--repeats") options.repeats = std::atoi(value.c_str());
    if (name == "--clock" && value == "cpu") count_cpu_time();
    if (name == "--limits") options.limits_only = value != "0";
    if (name == "--layers") options.layers = std::atoi(value.c_str());
    if (name == "--json") options.json = value;
    if (name == "--isa")
      for (const CpuIsa isa : available_cpu_isas())
        if (value == cpu_isa_name(isa)) options.isa = isa;
  }
  return options;
}

// Prints only the limits of the machine, as JSON.
void print_limits(const Options& options) {
  std::vector<int> cpus;
  for (int thread = 0; thread < options.threads; ++thread)
    cpus.push_back(thread);
  Team team(cpus, true);
  LimitMeter meter(team);
  std::vector<double> bandwidths, bf16_peaks, int8_peaks;
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    bandwidths.push_back(meter.read_gb_per_s());
    bf16_peaks.push_back(meter.bf16_gflop_per_s());
    int8_peaks.push_back(meter.int8_gop_per_s());
  }
  std::printf("{\"machine\":\"%s\",\"read_gb_per_s\":%.2f,\"bf16_gflop_per_s\":%.1f,\"int8_gop_per_s\":%.1f}\n",
              machine_description().c_str(), median(bandwidths), median(bf16_peaks), median(int8_peaks));
}

double packed_bytes(const Model& model) {
  double bytes = static_cast<double>(model.embedding->bytes);
  for (const LayerWeights& layer : model.layers)
    for (const Matrix* matrix :
         {layer.qkv_proj.get(), layer.o_proj.get(), layer.gate_up_proj.get(), layer.down_proj.get()})
      bytes += static_cast<double>(matrix->bytes);
  return bytes;
}

DeviceLimits device_limits(const Options& options) {
  DeviceLimits limits;
  limits.max_num_tokens = kMaxRows;
  limits.max_num_seqs = 64;
  limits.block_size = 16;
  limits.num_blocks = 64 * ((options.context + 15) / 16) + kMaxRows / 16;
  limits.kv_cache_dtype = options.dtype;
  return limits;
}

// Medians over the repeats. The last entry of `seconds` is the complete step.
struct Measurement {
  std::vector<double> seconds;                          // (kNumOps + 1)
  double bandwidth = 0;                                 // bytes per second
  double flop_per_second = 0, f32_flop_per_second = 0;  // at least 1e9
};

// Returns the peak of the instructions that the products use.
double peak_gflop_per_s(LimitMeter& meter, const Options& options, double f32_peak) {
  if (options.format != WeightFormat::kDType) return meter.int8_gop_per_s();
  return options.dtype == DType::kBf16 ? meter.bf16_gflop_per_s() : f32_peak;
}

Measurement measure(Backend& backend, const Model& model, const Batch& batch, LimitMeter& meter,
                    const Options& options) {
  std::vector<std::vector<double>> seconds(kNumOps + 1);
  std::vector<double> bandwidths, peaks, f32_peaks;
  run_step(backend, model, batch);
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    bandwidths.push_back(meter.read_gb_per_s());
    f32_peaks.push_back(meter.f32_gflop_per_s());
    peaks.push_back(peak_gflop_per_s(meter, options, f32_peaks.back()));
    const std::vector<double> ops = run_step(backend, model, batch);
    double total = 0;
    for (int op = 0; op < kNumOps; ++op) {
      seconds[op].push_back(ops[op]);
      total += ops[op];
    }
    seconds[kNumOps].push_back(total);
  }

  Measurement result;
  for (const std::vector<double>& times : seconds)
    result.seconds.push_back(median(times));
  result.bandwidth = median(bandwidths) * 1e9;
  result.flop_per_second = std::max(median(peaks), 1.0) * 1e9;
  result.f32_flop_per_second = std::max(median(f32_peaks), 1.0) * 1e9;
  return result;
}

// Prints a table of one batch and appends its JSON objects, separated by commas.
void report(int rows, const Measurement& measured, const Model& model, const Batch& batch, const Options& options,
            std::string& json) {
  std::printf("\n%d rows; limits %.1f GB/s, %.0f GFLOP/s\n%-16s %10s %8s %9s %7s\n", rows, measured.bandwidth / 1e9,
              measured.flop_per_second / 1e9, "op", "ms", "GB/s", "GFLOP/s", "share");
  double limit_total = 0;
  for (int op = 0; op <= kNumOps; ++op) {
    const bool is_step = op == kNumOps;
    const char* const name = is_step ? "step" : kOpNames[op];
    const Work work = is_step ? Work{} : work_of(static_cast<Op>(op), options, model, batch);
    const double compute = work.flops / measured.flop_per_second + work.f32_flops / measured.f32_flop_per_second;
    const double limit = is_step ? limit_total : std::max(work.bytes / measured.bandwidth, compute);
    if (!is_step) limit_total += limit;
    const double time = measured.seconds[op], flops = work.flops + work.f32_flops;
    std::printf("%-16s %10.3f %8.1f %9.1f %6.0f%%\n", name, time * 1e3, work.bytes / time / 1e9, flops / time / 1e9,
                100 * limit / time);

    std::ostringstream entry;
    entry << (json.empty() ? "" : ",") << "\n{\"rows\":" << rows << ",\"op\":\"" << name << "\",\"ms\":" << time * 1e3
          << ",\"gb_per_s\":" << work.bytes / time / 1e9 << ",\"gflop_per_s\":" << flops / time / 1e9
          << ",\"limit_share\":" << limit / time << ",\"read_gb_per_s\":" << measured.bandwidth / 1e9
          << ",\"peak_gflop_per_s\":" << measured.flop_per_second / 1e9 << "}";
    json += entry.str();
  }
  std::fflush(stdout);
}

void run(const Options& options) {
  CpuBackendOptions backend_options;
  backend_options.isa = options.isa;
  backend_options.weight_dtype = options.dtype;
  for (int thread = 0; thread < options.threads; ++thread)
    backend_options.cpus.push_back(thread);
  const std::unique_ptr<Backend> backend = make_cpu_backend(backend_options, nullptr);
  const int fd = random_file();
  const double load_start = now_seconds();
  const Model model = load(*backend, fd, options);
  const double load_seconds = now_seconds() - load_start;
  close(fd);
  backend->prepare(device_model(options), device_limits(options));

  Team team(backend_options.cpus, true);
  LimitMeter meter(team);
  const std::string machine = machine_description();
  const double bytes = packed_bytes(model);
  std::printf("%s, %s, %s, %d threads\n", machine.c_str(), cpu_isa_name(options.isa), dtype_name(options.dtype),
              options.threads);
  std::printf("load: %.2f GB packed in %.2f s\n", bytes / 1e9, load_seconds);
  std::string ops_json;
  for (const int rows : options.rows) {
    const Batch batch(options, rows);
    report(rows, measure(*backend, model, batch, meter, options), model, batch, options, ops_json);
  }
  if (options.json.empty()) return;
  std::ofstream(options.json) << "{\"machine\":\"" << machine << "\",\"isa\":\"" << cpu_isa_name(options.isa)
                              << "\",\"dtype\":\"" << dtype_name(options.dtype) << "\",\"threads\":" << options.threads
                              << ",\"load_seconds\":" << load_seconds << ",\"packed_bytes\":" << bytes << ",\"ops\":["
                              << ops_json << "\n]}\n";
}

}  // namespace
}  // namespace capstan::benchmarks

int main(int argc, char** argv) {
  using namespace capstan::benchmarks;
  const Options options = parse(argc, argv);
  if (options.limits_only)
    print_limits(options);
  else
    run(options);
  return 0;
}
