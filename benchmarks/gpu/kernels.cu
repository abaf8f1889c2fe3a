// Measures each kernel at the shapes of Qwen2.5-1.5B, together with the bandwidth of copies and reads in the same run.
// Writes JSON lines to standard output, one per measurement; benchmarks/gpu/report.py adds PyTorch's.
//    gpu_kernels [tiny] [read=GB_PER_S] [GROUP]
//
//      tiny    small shapes, to check that the program runs
//      read    the bandwidth of reads as measured by the group `limits`; without it no shares are printed
//      GROUP   limits, gemm, wgmma, gemv, codes, attention, wgmma_attention or sample; default: all
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "benchmarks/gpu/coded_weights.h"
#include "cuda/attention_layout.h"
#include "cuda/attention_plan.h"
#include "cuda/graph.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/memory.h"
#include "cuda/sampling.h"

namespace capstan::benchmarks {
namespace {

using namespace cuda;

bool is_tiny = false;
cudaStream_t stream = nullptr;
double read_bandwidth = 0;  // bytes per second; 0: unknown

class Timer {
 public:
  Timer() {
    check(cudaEventCreateWithFlags(&begin_, 0), "an event");
    check(cudaEventCreateWithFlags(&end_, 0), "an event");
  }
  // Returns the median seconds of one `run(i)`. Several runs form one graph, because launching a small kernel takes the
  // host longer than running it takes the device. `i` increases, so that the data can vary between runs.
  double measure(const std::function<void(int)>& run) {
    int i = 0;
    run(i++);  // loads the kernel
    check(cudaStreamSynchronize(stream), "a measurement");
    const double once = time([&] { run(i++), run(i++); }) / 2;
    const int count = is_tiny ? 1 : static_cast<int>(std::clamp(0.01 / std::max(once, 1e-6), 3.0, 200.0));
    begin_capture(stream);
    for (int n = 0; n < count; ++n)
      run(i++);
    std::string failure;
    const Graph graph = end_capture(stream, failure);
    if (!graph) throw Error(ErrorCode::kInternal, "a graph of a measurement: " + failure);
    graph.launch(stream);
    std::vector<double> times;
    for (int repeat = 0; repeat < (is_tiny ? 1 : 7); ++repeat)
      times.push_back(time([&] { graph.launch(stream); }) / count);
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

 private:
  double time(const std::function<void()>& run) {
    check(cudaEventRecord(begin_, stream), "an event");
    run();
    check(cudaEventRecord(end_, stream), "an event");
    check(cudaEventSynchronize(end_), "a measurement");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin_, end_), "a measurement");
    return milliseconds * 1e-3;
  }
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

struct FillArgs {
  uint32_t* to;
  int64_t count;
  uint32_t bits;  // bits that are always set
  uint32_t mask;  // bits that are random
};
__device__ uint32_t scrambled(int64_t i) {
  uint32_t x = static_cast<uint32_t>(i) * 0x9e3779b9u + 0x7f4a7c15u;
  x = (x ^ x >> 16) * 0x85ebca6bu;
  x = (x ^ x >> 13) * 0xc2b2ae35u;
  return x ^ x >> 16;
}
__global__ void fill_kernel(FillArgs args) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < args.count;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x)
    args.to[i] = (scrambled(i) & args.mask) | args.bits;
}
// Approximately normal with deviation 2. One in 4,096 values is far above the others, as in a model's logits.
__global__ void logits_kernel(float* to, int64_t count) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const uint32_t x = scrambled(i);
    const int bytes = static_cast<int>((x & 0xff) + (x >> 8 & 0xff) + (x >> 16 & 0xff) + (x >> 24));
    to[i] = static_cast<float>(bytes - 510) / 74.0f + (scrambled(i + count) % 4096 == 0 ? 12.0f : 0.0f);
  }
}
// bf16 of both signs and a magnitude around `size`.
DeviceBuffer random_bf16(int64_t count, float size) {
  DeviceBuffer buffer(static_cast<size_t>(round_up(count, 8)) * 2, "numbers");
  uint32_t bits;
  std::memcpy(&bits, &size, sizeof bits);
  const uint32_t high = bits >> 16 & 0x7f80u;
  launch(fill_kernel, dim3(is_tiny ? 2 : 1024), dim3(256), 0, stream,
         FillArgs{buffer.as<uint32_t>(), round_up(count, 8) / 2, high << 16 | high, 0x807f807fu});
  return buffer;
}
DeviceBuffer random_words(int64_t count, uint32_t bits, uint32_t mask) {
  DeviceBuffer buffer(static_cast<size_t>(count) * 4, "numbers");
  launch(fill_kernel, dim3(is_tiny ? 2 : 1024), dim3(256), 0, stream,
         FillArgs{buffer.as<uint32_t>(), count, bits, mask});
  return buffer;
}
DeviceBuffer random_floats(int64_t count) {
  DeviceBuffer buffer(static_cast<size_t>(count) * 4, "numbers");
  launch(fill_kernel, dim3(is_tiny ? 2 : 1024), dim3(256), 0, stream,
         FillArgs{buffer.as<uint32_t>(), count, 0x3f000000u, 0x80ffffffu});
  return buffer;
}

DeviceBuffer random_logits(int64_t count) {
  DeviceBuffer buffer(static_cast<size_t>(count) * 4, "numbers");
  launch(logits_kernel, dim3(is_tiny ? 2 : 1024), dim3(256), 0, stream, buffer.as<float>(), count);
  return buffer;
}

struct ReadArgs {
  const uint4* from;
  int64_t count;
  unsigned* sums;
};
__global__ void read_kernel(ReadArgs args) {
  unsigned sum = 0;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
#pragma unroll 8
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < args.count; i += stride) {
    const uint4 value = ld_global_nc_no_allocate(args.from + i);
    sum ^= value.x ^ value.y ^ value.z ^ value.w;
  }
  if (sum == 0x12345678u) args.sums[0] = sum;
}

void print(const std::string& name, double seconds, double bytes, double flops) {
  std::printf("{\"name\":\"%s\",\"us\":%.3f,\"gb_per_s\":%.1f,\"tflop_per_s\":%.2f", name.c_str(), seconds * 1e6,
              bytes / seconds * 1e-9, flops / seconds * 1e-12);
  if (read_bandwidth > 0) std::printf(",\"bandwidth_share\":%.4f", bytes / seconds / read_bandwidth);
  std::printf("}\n");
  std::fflush(stdout);
}

DeviceResources device_resources() {
  return {attribute_of(0, cudaDevAttrMultiProcessorCount),
          static_cast<size_t>(attribute_of(0, cudaDevAttrMaxSharedMemoryPerBlockOptin))};
}

void measure_limits(Timer& timer) {
  const int64_t bytes = is_tiny ? 1 << 16 : int64_t{4} << 30;
  const DeviceBuffer from = random_bf16(bytes / 2, 1.0f), to(static_cast<size_t>(bytes), "a copy"), sums(4, "sums");
  const double copy = timer.measure([&](int) {
    check(cudaMemcpyAsync(to.as<void>(), from.as<void>(), static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream),
          "a copy");
  });
  const double read = timer.measure([&](int) {
    launch(read_kernel, dim3(is_tiny ? 2 : device_resources().multiprocessors * 16), dim3(512), 0, stream,
           ReadArgs{from.as<uint4>(), bytes / 16, sums.as<unsigned>()});
  });
  read_bandwidth = static_cast<double>(bytes) / read;
  print("copy", copy, 2 * static_cast<double>(bytes), 0);
  print("read", read, static_cast<double>(bytes), 0);
}

struct Layer {
  const char* name;
  int64_t rows, cols;
  GemmOutput output;
  bool uses_parts;  // GemmOutput::kParts with few tokens
};

// All copies of the weights together exceed any cache.
constexpr int64_t kRotatedBytes = int64_t{400} << 20;

// gemv: few tokens, fused with the norm before it (if any). wgmma: many tokens on compute capability 9.0.
enum class GemmKernel : uint8_t { kGemm, kGemv, kWgmma };

const char* kernel_name(GemmKernel kernel) {
  switch (kernel) {
    case GemmKernel::kGemm:
      return "gemm";
    case GemmKernel::kGemv:
      return "gemv";
    default:
      return "wgmma";
  }
}

bool has_wgmma() {
  return supports_gemm_wgmma() && supports_attention_wgmma();
}

// `code_bits`: 8 or 4; 16 = weights in bf16.
void measure_gemm(Timer& timer, const Layer& layer, int tokens, GemmKernel kernel, int code_bits = 16) {
  const int64_t rows = is_tiny ? 64 : layer.rows, cols = is_tiny ? 64 : layer.cols;
  const DepthSplit split = split_depth(cols, cols, row_parallel_parts(cols));
  const int64_t elements = round_up(rows, kTileRows) * split.padded();
  const int64_t copies = is_tiny ? 1 : std::max<int64_t>(1, kRotatedBytes * 8 / (elements * code_bits));
  const bool has_codes = code_bits < 16;
  const DeviceBuffer weights = random_bf16(has_codes ? 8 : elements * copies, 0.02f),
                     acts = random_bf16(round_up(tokens, 64) * split.padded(), 1.0f);
  const DeviceBuffer out = random_floats(split.parts * tokens * rows);
  const DepthSplit gated_split = split_depth(rows / 2, rows / 2, row_parallel_parts(rows / 2));
  const DeviceBuffer gated = random_bf16(round_up(tokens, 64) * gated_split.padded(), 1.0f);
  const bool is_normed = layer.output != GemmOutput::kResidual;
  const DeviceBuffer hidden = random_floats(tokens * cols), norm = random_floats(cols);
  ActMaps maps;
  if (kernel == GemmKernel::kWgmma && !make_act_maps(maps, acts.as<uint16_t>(), round_up(tokens, 64), split.padded()))
    throw Error(ErrorCode::kInternal, "cannot create tensor maps of the activations");
  const DeviceBuffer flags(static_cast<size_t>(num_tile_flags(rows, tokens)) * sizeof(int32_t),
                           "the tiles of a product");
  check(cudaMemsetAsync(flags.as<void>(), 0, flags.bytes(), stream), "the tiles of a product");
  const CodedWeights coded(has_codes ? code_bits : 8, has_codes ? rows : kTileRows, split, has_codes ? copies : 1,
                           random_words);
  const double seconds = timer.measure([&](int i) {
    GemvArgs fused;
    GemmArgs& args = fused.product;
    args.output = layer.output;
    if (layer.output == GemmOutput::kResidual) args.tile_flags = flags.as<int32_t>();
    if (has_codes)
      args.weights = coded.matrix(i % copies);
    else
      args.weights = {weights.as<uint16_t>() + i % copies * elements, nullptr, rows, split};
    args.acts = acts.as<uint16_t>();
    args.num_tokens = tokens;
    args.out = out.as<float>();
    args.out_stride = rows;
    args.gated = gated.as<uint16_t>();
    args.gated_split = gated_split;
    args.act_maps = &maps;
    if (kernel == GemmKernel::kGemm) {
      if (layer.uses_parts && tokens <= 64) args.output = GemmOutput::kParts;
      return launch_gemm(args, device_resources(), stream);
    }
    if (kernel == GemmKernel::kWgmma) return launch_gemm_wgmma(args, device_resources().multiprocessors, stream);
    fused.is_normed = is_normed;
    fused.norm.hidden = hidden.as<float>();
    fused.norm.num_rows = tokens;
    fused.norm.hidden_size = cols;
    fused.norm.weight = norm.as<float>();
    fused.norm.eps = 1e-6f;
    fused.norm.split = split;
    fused.max_blocks = 2 * device_resources().multiprocessors;
    launch_gemv(fused, stream);
  });
  const std::string kind = has_codes ? "int" + std::to_string(code_bits) + " " : "";
  print(kind + kernel_name(kernel) + " " + layer.name + " x" + std::to_string(tokens), seconds,
        static_cast<double>(has_codes ? coded.bytes() : rows * cols * 2),
        2.0 * static_cast<double>(rows * cols) * tokens);
}

// `count` queries at the end of each of `num_seqs` sequences, with 12 heads and 2 KV heads of 128, split as the engine
// does.
void measure_attention(Timer& timer, int num_seqs, int context, int count, GemmKernel kernel = GemmKernel::kGemm) {
  const bool is_wgmma = kernel == GemmKernel::kWgmma;
  const int heads = is_tiny ? 4 : 12, kv_heads = 2, head_dim = is_tiny ? 32 : 128, group = heads / kv_heads;
  const KvLayout layout = make_kv_layout(64, kv_heads, head_dim);
  const int blocks = (context + 63) / 64;
  const int64_t layer_elements = int64_t{num_seqs} * blocks * layout.block_elements();
  const int64_t copies = is_tiny ? 1 : std::max<int64_t>(1, kRotatedBytes / (layer_elements * 2));
  const DeviceBuffer cache = random_bf16(layer_elements * copies, 0.5f);
  std::vector<int32_t> tables, cu_seqlens{0}, context_lens;
  std::vector<AttentionTile> tiles;
  for (int seq = 0; seq < num_seqs; ++seq) {
    // Neighboring blocks of a sequence are not neighbors in memory.
    for (int block = 0; block < blocks; ++block)
      tables.push_back(block * num_seqs + (seq * 7 + block) % num_seqs);
    cu_seqlens.push_back((seq + 1) * count);
    context_lens.push_back(context);
    for (int row = 0; row < count * group; row += is_wgmma ? kWideRows : 16)
      tiles.push_back({seq, row});
  }
  if (is_wgmma) std::ranges::reverse(tiles);  // most keys first
  AttentionArgs args;
  const int64_t tokens = int64_t{num_seqs} * count;
  const DeviceBuffer q = random_bf16(tokens * heads * layout.k_dim, 1.0f);
  args.num_heads = heads;
  args.layout = layout;
  args.num_tiles = static_cast<int>(tiles.size());
  args.max_blocks_per_seq = blocks;
  args.scale = 1 / std::sqrt(static_cast<float>(head_dim));
  args.split = split_depth(heads * head_dim, heads * head_dim, row_parallel_parts(heads * head_dim));
  const int chunks = (context + kChunk - 1) / kChunk;
  args.is_row_major = is_wgmma;
  args.num_chunks = attention_splits(args.num_tiles, kv_heads, chunks);
  args.is_warp_per_tile = prefers_warp_per_tile(args.num_tiles, kv_heads, args.num_chunks);
  const DeviceBuffer acts = random_bf16(round_up(tokens, 64) * args.split.padded(), 1.0f),
                     scratch(static_cast<size_t>(attention_scratch_floats(kMaxSplits, layout)) * 4, "scratch");
  Staging staging("a batch");
  staging.begin((tables.size() + cu_seqlens.size() + context_lens.size() + tiles.size() * 2) * 4 + 64);
  args.q = q.as<uint16_t>();
  args.block_tables = staging.add(tables.data(), tables.size());
  args.cu_seqlens_q = staging.add(cu_seqlens.data(), cu_seqlens.size());
  args.context_lens = staging.add(context_lens.data(), context_lens.size());
  args.tiles = staging.add(tiles.data(), tiles.size());
  staging.send(stream);
  args.scratch = scratch.as<float>();
  args.acts = acts.as<uint16_t>();
  const double seconds = timer.measure([&](int i) {
    args.cache = cache.as<uint16_t>() + i % copies * layer_elements;
    is_wgmma ? launch_attention_wgmma(args, stream) : launch_attention(args, stream);
  });
  const double keys_seen = num_seqs * (static_cast<double>(count) * context - 0.5 * count * (count - 1));
  print((is_wgmma ? "wgmma attention " : "attention ") + std::to_string(num_seqs) + "x" + std::to_string(context) +
            (count == 1 ? " decode" : " prefill"),
        seconds, static_cast<double>(num_seqs) * context * kv_heads * head_dim * 4, keys_seen * heads * head_dim * 4);
}

void measure_sampling(Timer& timer, int rows, const char* name, const SampleRow& like) {
  const int64_t vocab_size = is_tiny ? 1000 : 151936;
  const DeviceBuffer logits = random_logits(rows * vocab_size);
  DeviceSampler sampler(vocab_size, vocab_size, vocab_size, rows, rows, stream);
  std::vector<SampleRow> items(static_cast<size_t>(rows), like);
  for (int row = 0; row < rows; ++row)
    items[static_cast<size_t>(row)].logits_row = row;
  std::vector<SampleItem> placed(items.size());
  sampler.place(items, placed, stream);
  const DeviceBuffer device_items(placed.size() * sizeof(SampleItem), "the rows");
  check(cudaMemcpyAsync(device_items.as<void>(), placed.data(), device_items.bytes(), cudaMemcpyHostToDevice, stream),
        "the rows");
  print(std::string("sample ") + name + " x" + std::to_string(rows),
        timer.measure([&](int) { sampler.draw(logits.as<float>(), device_items.as<SampleItem>(), rows, stream); }),
        static_cast<double>(rows * vocab_size * 4), 0);
}

// Runs one group. Each group runs in a separate process, so that a fault does not affect the others.
void run(const std::string& group) {
  check(cudaSetDevice(0), "selecting the device");
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
  Timer timer;
  const auto is_selected = [&](const char* name) { return group.empty() || group == name; };
  if (is_selected("limits")) measure_limits(timer);
  const Layer layers[] = {{"qkv", 2048, 1536, GemmOutput::kStore, true},
                          {"output", 1536, 1536, GemmOutput::kResidual, true},
                          {"gate_up", 17920, 1536, GemmOutput::kGated, false},
                          {"down", 1536, 8960, GemmOutput::kResidual, true},
                          {"head", 151936, 1536, GemmOutput::kStore, false}};
  const std::vector<int> tokens = is_tiny
                                      ? std::vector<int>{1, 9}
                                      : std::vector<int>{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192};
  for (const Layer& layer : layers)
    for (const int count : tokens) {
      if (layer.rows >= 100000 && count > 256) continue;
      if (is_selected("gemm")) measure_gemm(timer, layer, count, GemmKernel::kGemm);
      if (is_selected("wgmma") && count > 32 && has_wgmma()) measure_gemm(timer, layer, count, GemmKernel::kWgmma);
    }
  if (is_selected("gemv"))
    for (const Layer& layer : layers)
      for (const int count : is_tiny ? std::vector<int>{1} : std::vector<int>{1, 2, 4})
        measure_gemm(timer, layer, count, GemmKernel::kGemv);
  if (is_selected("codes"))
    for (const Layer& layer : layers)
      for (const int bits : {8, 4}) {
        for (const int count : is_tiny ? std::vector<int>{1} : std::vector<int>{1, 4})
          measure_gemm(timer, layer, count, GemmKernel::kGemv, bits);
        for (const int count : is_tiny ? std::vector<int>{9} : std::vector<int>{8, 64, 256})
          measure_gemm(timer, layer, count, GemmKernel::kGemm, bits);
      }
  using Batch = std::pair<int, int>;
  if (is_selected("attention"))
    for (const auto& [num_seqs, context] :
         is_tiny ? std::vector<Batch>{{2, 70}}
                 : std::vector<Batch>{{1, 1024}, {8, 1024}, {64, 1024}, {256, 1024}, {1, 8192}, {8, 8192}, {64, 8192}})
      measure_attention(timer, num_seqs, context, 1);
  for (const int length : is_tiny ? std::vector<int>{70} : std::vector<int>{1024, 8192}) {
    if (is_selected("attention")) measure_attention(timer, 1, length, length);
    if (is_selected("wgmma_attention") && has_wgmma()) measure_attention(timer, 1, length, length, GemmKernel::kWgmma);
  }
  SampleRow greedy, drawn, top_p, top_k, logprobs;
  greedy.temperature = logprobs.temperature = 0;
  drawn.temperature = top_p.temperature = top_k.temperature = 0.8f;
  top_p.top_p = 0.9f, top_k.top_k = 40, logprobs.num_logprobs = 20;
  if (is_selected("sample"))
    for (const int rows : is_tiny ? std::vector<int>{2} : std::vector<int>{1, 64, 256}) {
      measure_sampling(timer, rows, "greedy", greedy);
      measure_sampling(timer, rows, "temperature", drawn);
      measure_sampling(timer, rows, "top_p", top_p);
      measure_sampling(timer, rows, "top_k", top_k);
      measure_sampling(timer, rows, "20 logprobs", logprobs);
    }
}

}  // namespace
}  // namespace capstan::benchmarks

int main(int argc, char** argv) {
  std::string group;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "tiny") == 0)
      capstan::benchmarks::is_tiny = true;
    else if (std::strncmp(argv[i], "read=", 5) == 0)
      capstan::benchmarks::read_bandwidth = std::atof(argv[i] + 5) * 1e9;
    else
      group = argv[i];
  }
  try {
    capstan::benchmarks::run(group);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
