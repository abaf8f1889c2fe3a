// Measures whole steps through the device contract, with random weights of the Qwen2.5-1.5B shape: decodes at several
// batch sizes and contexts, and prefills, compared with the minimum of bytes and operations. Writes JSON lines to
// standard output.
//    gpu_steps [--device cuda] [--read-gb-per-s 3000] [--tflop-per-s 700] [--shape qwen2.5-1.5b|tiny]
//              [--fill-seconds 40] [--steps 30] [--only decode|prefill] [--deterministic yes] [--quantization
//              int8|int4] [--label TEXT]
//              [--batches 1,8,64,256] [--contexts 1024,8192] [--lengths 1024,8192] [--layers 28]
// The last four apply to the shape of Qwen2.5-1.5B. --label starts the name of each measurement.
// Both ceilings come from the same run (gpu_kernels, torch_figures.py). Without both, no limits and shares are printed.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "native/backend/registry.h"
#include "native/base/error.h"
#include "native/model/decoder.h"
#include "native/model/rope.h"
#include "native/model/weights.h"

namespace capstan::benchmarks {
namespace {

struct Options {
  std::string device = "cuda", shape = "qwen2.5-1.5b", only, label;
  std::vector<int> batches = {1, 8, 64, 256}, contexts = {1024, 8192}, lengths = {1024, 8192};
  double read_bandwidth = 0, peak = 0, fill_seconds = 40;
  int num_steps = 30, num_layers = 28;
  bool is_deterministic = false;
  std::string quantization;  // int8 or int4; empty: weights in bf16
  bool is_tiny() const { return shape == "tiny"; }
};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

ModelSpec spec_of(const Options& options) {
  ModelSpec spec;
  if (options.is_tiny()) {
    spec.vocab_size = 500, spec.hidden_size = 64, spec.intermediate_size = 128, spec.num_heads = 4,
    spec.layers.resize(2), spec.num_kv_heads = 2, spec.head_dim = 16;
    spec.max_position_embeddings = 256;
  } else {
    spec.vocab_size = 151936, spec.hidden_size = 1536, spec.intermediate_size = 8960,
    spec.layers.resize(static_cast<size_t>(options.num_layers)), spec.num_heads = 12, spec.num_kv_heads = 2,
    spec.head_dim = 128;
    spec.max_position_embeddings = 32768;
  }
  spec.tie_word_embeddings = true;
  spec.attention_scale = 1 / std::sqrt(static_cast<double>(spec.head_dim));
  RopeSpec& rope = spec.ropes.emplace_back();
  rope.theta = 1e6;
  rope.rotary_dim = spec.head_dim;
  rope.original_max_positions = spec.max_position_embeddings;
  return spec;
}

// A file of small random bf16 values that all tensors share.
int random_file(int64_t bytes) {
  const int fd = memfd_create("weights", 0);
  std::vector<uint16_t> chunk(1 << 20);
  uint64_t state = 1;
  for (uint16_t& value : chunk) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    value = static_cast<uint16_t>(((state >> 63) << 15) | (0x3c00u + ((state >> 40) & 0xffu)));  // ± 0.008 … 0.03
  }
  for (int64_t written = 0; written < bytes; written += static_cast<int64_t>(chunk.size() * 2))
    if (write(fd, chunk.data(), chunk.size() * 2) < 0)
      throw Error(ErrorCode::kIo, "the random weights cannot be written");
  return fd;
}

TensorTable tensors_of(const ModelSpec& spec, int fd) {
  TensorTable table;
  const auto add = [&](const std::string& name, int64_t rows, int64_t cols) {
    FileTensor& tensor = table[name];
    tensor.name = name;
    tensor.fd = fd;
    tensor.dtype = DType::kBf16;
    tensor.rows = rows;
    tensor.cols = cols;
  };
  const int64_t q_size = int64_t{spec.num_heads} * spec.head_dim, kv_size = int64_t{spec.num_kv_heads} * spec.head_dim;
  add("embed_tokens.weight", spec.vocab_size, spec.hidden_size);
  add("norm.weight", 1, spec.hidden_size);
  for (int layer = 0; layer < spec.num_layers(); ++layer) {
    const std::string prefix = "layers." + std::to_string(layer) + ".";
    add(prefix + "input_norm.weight", 1, spec.hidden_size);
    add(prefix + "mlp_norm.weight", 1, spec.hidden_size);
    add(prefix + "q_proj.weight", q_size, spec.hidden_size);
    add(prefix + "k_proj.weight", kv_size, spec.hidden_size);
    add(prefix + "v_proj.weight", kv_size, spec.hidden_size);
    add(prefix + "q_proj.bias", 1, q_size);
    add(prefix + "k_proj.bias", 1, kv_size);
    add(prefix + "v_proj.bias", 1, kv_size);
    add(prefix + "o_proj.weight", spec.hidden_size, q_size);
    add(prefix + "gate_proj.weight", spec.intermediate_size, spec.hidden_size);
    add(prefix + "up_proj.weight", spec.intermediate_size, spec.hidden_size);
    add(prefix + "down_proj.weight", spec.hidden_size, spec.intermediate_size);
  }
  return table;
}

// `num_seqs` sequences with `count` new tokens each, up to position `context`. Their blocks are interleaved.
struct StepBatch {
  std::vector<int32_t> ids, positions, slots, cu_seqlens{0}, context_lens, tables, rows;
  std::vector<SampleRow> samples;
  std::vector<SampleResult> results;
  int blocks_per_seq = 0;

  StepBatch(int first_seq, int num_seqs, int all_seqs, int context, int count, int block_size, int64_t vocab_size) {
    blocks_per_seq = (context + block_size - 1) / block_size;
    for (int seq = first_seq; seq < first_seq + num_seqs; ++seq) {
      const size_t table = tables.size();
      for (int block = 0; block < blocks_per_seq; ++block)
        tables.push_back(block * all_seqs + seq);
      for (int position = context - count; position < context; ++position) {
        ids.push_back(static_cast<int32_t>((seq * 7919 + position * 104729) % vocab_size));
        positions.push_back(position);
        slots.push_back(tables[table + static_cast<size_t>(position / block_size)] * block_size +
                        position % block_size);
      }
      cu_seqlens.push_back(static_cast<int32_t>(ids.size()));
      context_lens.push_back(context);
      rows.push_back(cu_seqlens.back() - 1);
      SampleRow row;
      row.logits_row = static_cast<int>(samples.size());
      row.temperature = 0;
      samples.push_back(row);
    }
    results.resize(samples.size());
  }
  // The result refers to `kv`.
  StepInput input(KvGroupInput& kv) const {
    kv = {slots, tables};
    return {ids, positions, cu_seqlens, context_lens, {&kv, 1}, blocks_per_seq};
  }
};

WeightFormats formats_of(const std::string& quantization) {
  if (quantization == "int8") return {WeightFormat::kInt8, WeightFormat::kInt8};
  if (quantization == "int4") return {WeightFormat::kInt4, WeightFormat::kInt8};
  return {};
}

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options), spec_(spec_of(options)) {
    DeviceOptions device;
    device.device = options.device;
    device.num_threads = 2;
    device.is_deterministic = options.is_deterministic;
    group_ = make_device_group(device);
    const int fd = random_file(spec_.vocab_size * spec_.hidden_size * 2);
    const double start = now();
    weights_ = load_weights(spec_, make_shard_plan(spec_, 0, 1), tensors_of(spec_, fd),
                            formats_of(options.quantization), backend(), {});
    close(fd);
    std::printf("{\"name\":\"load\",\"seconds\":%.2f,\"weight_bytes\":%lld}\n", now() - start,
                static_cast<long long>(weights_.bytes));
    const BackendInfo& info = backend().info();
    DeviceLimits limits;
    limits.max_num_tokens = options.is_tiny() ? 128 : 8192;
    limits.max_num_seqs = options.is_tiny() ? 4 : 256;
    limits.block_size = block_size_ = info.preferred_block_size;
    limits.kv_cache_dtype = info.compute_dtype;
    DeviceModel model =
        make_device_model(spec_, make_shard_plan(spec_, 0, 1), spec_.vocab_size, spec_.max_position_embeddings);
    // Enough for all decodes, or what a smaller device has left.
    backend().reserve(model, limits);
    const int64_t room =
        backend().kv_budget_bytes(0.9) / backend().kv_block_bytes(model, 0, block_size_, limits.kv_cache_dtype);
    num_blocks_ = options.is_tiny() ? 16 : static_cast<int>(std::min<int64_t>(256 * 8192 / block_size_ + 64, room));
    limits.num_blocks = {num_blocks_};
    model.rope_tables[0].values = make_rope_table(spec_.ropes[0], spec_.max_position_embeddings);
    backend().prepare(model, limits);
    linear_params_ = 0;
    for (const LayerWeights& layer : weights_.layers)
      for (const Matrix* matrix :
           {layer.qkv_proj.get(), layer.o_proj.get(), layer.gate_up_proj.get(), layer.down_proj.get()})
        linear_params_ += static_cast<double>(matrix->rows * matrix->cols);
  }

  void decode(int num_seqs, int context) {
    if (static_cast<int64_t>(num_seqs) * ((context + block_size_ - 1) / block_size_) > num_blocks_)
      return;  // does not fit in the memory of this device
    const double filled = fill(num_seqs, context - 1);
    StepBatch first(0, num_seqs, num_seqs, context, 1, block_size_, spec_.vocab_size), second = first;
    // First one step at a time, then with as many in flight as the device allows.
    const double single = median([&] { launch(first), backend().collect(); });
    double steady = single;
    if (backend().info().depth > 1) {
      for (int seq = 0; seq < num_seqs; ++seq)
        first.ids[static_cast<size_t>(seq)] = second.ids[static_cast<size_t>(seq)] = -1 - seq;
      StepBatch* batches[] = {&first, &second};
      launch(StepBatch(0, num_seqs, num_seqs, context, 1, block_size_, spec_.vocab_size));
      int batch_idx = 0;
      steady = median([&] { launch(*batches[batch_idx ^= 1]), backend().collect(); });
      backend().collect();
    }
    const double head = static_cast<double>(spec_.vocab_size * spec_.hidden_size);
    const double kv_bytes =
        static_cast<double>(num_seqs) * context * spec_.num_layers() * 2 * spec_.num_kv_heads * spec_.head_dim * 2;
    const double bytes =
        options_.quantization.empty() ? (linear_params_ + head) * 2 : static_cast<double>(weights_.bytes);
    const double flops = 2 * (linear_params_ + head) * num_seqs;
    const double limit = std::max((bytes + kv_bytes) / options_.read_bandwidth, flops / options_.peak);
    print("decode " + std::to_string(num_seqs) + "x" + std::to_string(context), single, steady, limit, num_seqs,
          filled);
  }

  void prefill(int length) {
    StepBatch batch(0, 1, 1, length, length, block_size_, spec_.vocab_size);
    const double seconds = median([&] { launch(batch), backend().collect(); });
    const double attention = 0.5 * length * (length + 1.0) * spec_.num_heads * spec_.head_dim * 4 * spec_.num_layers();
    const double flops = 2 * linear_params_ * length + attention;
    print("prefill " + std::to_string(length), seconds, seconds, flops / options_.peak, length, 1);
  }

 private:
  Backend& backend() { return *group_.backends[0]; }

  template <class Batch>
  void launch(Batch&& batch) {
    KvGroupInput kv;
    decoder_forward(weights_, batch.input(kv), backend());
    backend().lm_head(*weights_.norm, weights_.head(), batch.rows);
    // NOTE: results are written after a temporary batch is destroyed, so they are kept here.
    if constexpr (!std::is_lvalue_reference_v<Batch>) {
      spare_results_.resize(batch.samples.size());
      backend().sample(batch.samples, spare_results_);
    } else {
      backend().sample(batch.samples, batch.results);
    }
  }

  // Fills the KV cache, within the time limit. Returns the share of sequences that are filled.
  double fill(int num_seqs, int length) {
    const double start = now();
    const int chunk = options_.is_tiny() ? 64 : 8192;
    for (int seq = 0; seq < num_seqs; ++seq) {
      if (now() - start > options_.fill_seconds) return static_cast<double>(seq) / num_seqs;
      // NOTE: blocks_per_seq of a chunk follows its context, but the blocks of a sequence are always the same.
      for (int done = 0; done < length;) {
        const int count = std::min(chunk, length - done);
        done += count;
        StepBatch batch(seq, 1, num_seqs, done, count, block_size_, spec_.vocab_size);
        launch(batch), backend().collect();
      }
    }
    return 1;
  }

  template <class Run>
  double median(const Run& run) {
    for (int i = 0; i < 3; ++i)
      run();
    std::vector<double> times;
    for (int i = 0; i < options_.num_steps; ++i) {
      const double start = now();
      run();
      times.push_back(now() - start);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

  void print(const std::string& name, double single, double steady, double limit, int tokens, double filled) {
    std::printf("{\"name\":\"%s%s\",\"us\":%.2f,\"steady_us\":%.2f,\"tokens_per_s\":%.1f,\"filled\":%.2f",
                options_.label.c_str(), name.c_str(), single * 1e6, steady * 1e6, tokens / steady, filled);
    if (std::isfinite(limit))
      std::printf(",\"limit_us\":%.2f,\"share\":%.4f,\"steady_share\":%.4f", limit * 1e6, limit / single,
                  limit / steady);
    std::printf("}\n");
    std::fflush(stdout);
  }

  const Options options_;
  const ModelSpec spec_;
  DeviceGroup group_;
  Weights weights_;
  int block_size_ = 0, num_blocks_ = 0;
  double linear_params_ = 0;
  std::vector<SampleResult> spare_results_;
};

std::vector<int> parse_list(const std::string& text) {
  std::vector<int> values;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');)
    values.push_back(std::atoi(word.c_str()));
  return values;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--device")
      options.device = value;
    else if (name == "--shape")
      options.shape = value;
    else if (name == "--only")
      options.only = value;
    else if (name == "--read-gb-per-s")
      options.read_bandwidth = std::atof(value.c_str()) * 1e9;
    else if (name == "--tflop-per-s")
      options.peak = std::atof(value.c_str()) * 1e12;
    else if (name == "--fill-seconds")
      options.fill_seconds = std::atof(value.c_str());
    else if (name == "--steps")
      options.num_steps = std::atoi(value.c_str());
    else if (name == "--deterministic")
      options.is_deterministic = value == "yes";
    else if (name == "--quantization")
      options.quantization = value;
    else if (name == "--label")
      options.label = value + " ";
    else if (name == "--batches")
      options.batches = parse_list(value);
    else if (name == "--contexts")
      options.contexts = parse_list(value);
    else if (name == "--layers")
      options.num_layers = std::atoi(value.c_str());
    else if (name == "--lengths")
      options.lengths = parse_list(value);
    else
      throw Error(ErrorCode::kInvalidArgument, "unknown option " + name);
  }
  return options;
}

void run(const Options& options) {
  Bench bench(options);
  const bool decodes = options.only != "prefill", prefills = options.only != "decode";
  if (prefills)
    for (const int length : options.is_tiny() ? std::vector<int>{100} : options.lengths)
      bench.prefill(length);
  if (!decodes) return;
  if (options.is_tiny()) return bench.decode(2, 70);
  for (const int context : options.contexts)
    for (const int num_seqs : options.batches)
      bench.decode(num_seqs, context);
}

}  // namespace
}  // namespace capstan::benchmarks

int main(int argc, char** argv) {
  try {
    capstan::benchmarks::run(capstan::benchmarks::parse(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
