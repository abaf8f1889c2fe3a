// Measures kernels at the shapes of Qwen2.5-1.5B, with the bandwidth of copies and reads and the time between kernels
// in the same run. Writes JSON lines to standard output; benchmarks/gpu/report.py adds PyTorch's.
//    gpu_kernels [tiny] [read=GB_PER_S] [GROUP]
//    gpu_kernels [tiny] repeats=N [references=FILE] [seconds=N] [after=NAME | only=NAME]
//    gpu_kernels [tiny] once=NAME
//    gpu_kernels list | references
//
//      tiny        small shapes, to check that the program runs
//      read        the bandwidth of reads as measured by the group `limits`; without it no shares are printed
//      GROUP       limits, gemm, wgmma, gemv, codes, attention, wgmma_attention, experts, recurrent, lora,
//                  layer_inputs or sample; default: all
//      repeats     runs each case of `list` N times. The runs must write the same bits, which agree with the reference
//                  values in FILE. Exits with 1 if they do not, and with 2 after a case that hangs for `seconds` or
//                  makes the device unusable; `after` then runs the cases that follow
//      once        runs one case of `list` once, between the calls that a profiler waits for
//      references  prints reference values in double precision; uses no device
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "benchmarks/gpu/kernel_cases.h"
#include "benchmarks/gpu/repeats.h"
#include "cuda/graph.h"

#if defined(__CUDACC__)
// Of the runtime. Their header is missing from nvcc's packages on PyPI.
extern "C" cudaError_t cudaProfilerStart();
extern "C" cudaError_t cudaProfilerStop();
#endif

namespace capstan::benchmarks {
namespace {

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
    return median_of_graph(count, [&] {
      for (int n = 0; n < count; ++n)
        run(i++);
    });
  }
  // Returns the median seconds of a graph of `count` runs, divided by `count`.
  double median_of_graph(int count, const std::function<void()>& enqueue) {
    begin_capture(stream);
    enqueue();
    std::string failure;
    const Graph graph = end_capture(stream, failure);
    if (!graph) throw Error(ErrorCode::kInternal, "a graph of a measurement: " + failure);
    graph.launch(stream);
    return median([&] { graph.launch(stream); }) / count;
  }
  double median(const std::function<void()>& run) {
    std::vector<double> times;
    for (int repeat = 0; repeat < (is_tiny ? 1 : 7); ++repeat)
      times.push_back(time(run));
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

__global__ void read_kernel(const uint4* from, int64_t count, unsigned* sums) {
  unsigned sum = 0;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
#pragma unroll 8
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
    const uint4 value = ld_global_nc_no_allocate(from + i);
    sum ^= value.x ^ value.y ^ value.z ^ value.w;
  }
  if (sum == 0x12345678u) sums[0] = sum;
}

void print(const std::string& name, double seconds, double bytes, double flops) {
  std::printf("{\"name\":\"%s\",\"us\":%.3f,\"gb_per_s\":%.1f,\"tflop_per_s\":%.2f", name.c_str(), seconds * 1e6,
              bytes / seconds * 1e-9, flops / seconds * 1e-12);
  if (read_bandwidth > 0) std::printf(",\"bandwidth_share\":%.4f", bytes / seconds / read_bandwidth);
  std::printf("}\n");
  std::fflush(stdout);
}

__global__ void empty_kernel() {
  griddepcontrol_launch_dependents();
  griddepcontrol_wait();
}

// The time from one empty kernel to the next, in a graph and in a stream, with and without programmatic dependent
// launch.
void measure_boundaries(Timer& timer) {
  const int count = is_tiny ? 4 : 1000;
  const unsigned blocks = is_tiny ? 2 : static_cast<unsigned>(2 * device_resources().multiprocessors);
  for (const bool is_early : {false, true}) {
    if (is_early && !supports_pdl()) continue;
    for (const unsigned grid : {1u, blocks}) {
      const auto enqueue = [&] {
        for (int i = 0; i < count; ++i)
          launch_pdl(is_early, empty_kernel, dim3(grid), dim3(256), 0, stream);
      };
      const std::string shown =
          std::string("boundary ") + (is_early ? "early " : "") + (grid == 1 ? "one block, " : "two blocks per SM, ");
      print(shown + "graph", timer.median_of_graph(count, enqueue), 0, 0);
      print(shown + "stream", timer.median(enqueue) / count, 0, 0);
    }
  }
}

void measure_limits(Timer& timer) {
  measure_boundaries(timer);
  const int64_t bytes = is_tiny ? 1 << 16 : int64_t{4} << 30;
  const DeviceBuffer from = filled_bf16(bytes / 2, bf16_pattern(1, 1), stream),
                     to(static_cast<size_t>(bytes), "a copy"), sums(4, "sums");
  const double copy = timer.measure([&](int) {
    check(cudaMemcpyAsync(to.as<void>(), from.as<void>(), static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream),
          "a copy");
  });
  const double read = timer.measure([&](int) {
    launch(read_kernel, dim3(is_tiny ? 2 : device_resources().multiprocessors * 16), dim3(512), 0, stream,
           static_cast<const uint4*>(from.as<uint4>()), bytes / 16, sums.as<unsigned>());
  });
  read_bandwidth = static_cast<double>(bytes) / read;
  print("copy", copy, 2 * static_cast<double>(bytes), 0);
  print("read", read, static_cast<double>(bytes), 0);
}

// The cases of a group, and of all groups if it is empty. Each group runs in a separate process, so that a fault does
// not affect the others.
std::vector<KernelCase> cases_of(const std::string& group) {
  const auto is_selected = [&](const char* name) { return group.empty() || group == name; };
  std::vector<KernelCase> cases;
  const std::vector<int> tokens = is_tiny
                                      ? std::vector<int>{1, 9}
                                      : std::vector<int>{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192};
  for (const Layer& layer : layers())
    for (const int count : tokens) {
      if (layer.rows >= 100000 && count > 256) continue;
      if (is_selected("gemm")) cases.push_back(gemm_case(layer, count, GemmKernel::kGemm));
      if (is_selected("wgmma") && count > 32 && has_wgmma())
        cases.push_back(gemm_case(layer, count, GemmKernel::kWgmma));
    }
  if (is_selected("gemv"))
    for (const Layer& layer : layers())
      for (const int count : is_tiny ? std::vector<int>{1} : std::vector<int>{1, 2, 4})
        cases.push_back(gemm_case(layer, count, GemmKernel::kGemv));
  using Batch = std::pair<int, int>;
  if (is_selected("codes"))
    for (const Layer& layer : layers())
      for (const int bits : {8, 4}) {
        for (const int count : is_tiny ? std::vector<int>{1} : std::vector<int>{1, 4})
          cases.push_back(gemm_case(layer, count, GemmKernel::kGemv, bits));
        for (const int count : is_tiny ? std::vector<int>{9} : std::vector<int>{8, 64, 256})
          cases.push_back(gemm_case(layer, count, GemmKernel::kGemm, bits));
        if (!has_wgmma() || layer.rows >= 100000) continue;
        for (const int count : is_tiny ? std::vector<int>{9} : std::vector<int>{128, 256, 1024})
          cases.push_back(gemm_case(layer, count, GemmKernel::kWgmma, bits));
      }
  if (is_selected("attention"))
    for (const auto& [num_seqs, context] :
         is_tiny ? std::vector<Batch>{{2, 70}}
                 : std::vector<Batch>{{1, 1024}, {8, 1024}, {64, 1024}, {256, 1024}, {1, 8192}, {8, 8192}, {64, 8192}})
      cases.push_back(attention_case({num_seqs, context}));
  for (const int length : is_tiny ? std::vector<int>{70} : std::vector<int>{1024, 8192}) {
    if (is_selected("attention")) cases.push_back(attention_case({1, length, length}));
    if (is_selected("wgmma_attention") && has_wgmma()) cases.push_back(attention_case({1, length, length, true}));
  }
  if (is_selected("experts"))
    for (const int count : is_tiny ? std::vector<int>{3} : std::vector<int>{1, 8, 64, 1024, 8192})
      for (KernelCase& one : expert_cases(count))
        cases.push_back(std::move(one));
  if (is_selected("recurrent"))
    for (const auto& [num_seqs, count] :
         is_tiny ? std::vector<Batch>{{2, 3}} : std::vector<Batch>{{1, 1}, {8, 1}, {64, 1}, {1, 1024}, {1, 8192}})
      cases.push_back(recurrent_case(num_seqs, count));
  if (is_selected("lora"))
    for (const int count : is_tiny ? std::vector<int>{3} : std::vector<int>{1, 8, 64})
      for (KernelCase& one : lora_cases(count))
        cases.push_back(std::move(one));
  if (is_selected("layer_inputs"))
    for (const int count : is_tiny ? std::vector<int>{3} : std::vector<int>{1, 64, 1024})
      cases.push_back(layer_inputs_case(count));
  SampleRow greedy, drawn, top_p, top_k, logprobs;
  greedy.temperature = logprobs.temperature = 0;
  drawn.temperature = top_p.temperature = top_k.temperature = 0.8f;
  top_p.top_p = 0.9f, top_k.top_k = 40, logprobs.num_logprobs = 20;
  if (is_selected("sample"))
    for (const int rows : is_tiny ? std::vector<int>{2} : std::vector<int>{1, 64, 256}) {
      cases.push_back(sampling_case(rows, "greedy", greedy));
      cases.push_back(sampling_case(rows, "temperature", drawn));
      cases.push_back(sampling_case(rows, "top_p", top_p));
      cases.push_back(sampling_case(rows, "top_k", top_k));
      cases.push_back(sampling_case(rows, "20 logprobs", logprobs));
    }
  return cases;
}

void measure(const std::string& group) {
  Timer timer;
  if (group.empty() || group == "limits") measure_limits(timer);
  for (const KernelCase& one : cases_of(group))
    print(one.name, timer.measure(one.prepare(stream).run), one.bytes, one.flops);
}

// The line for a case that does not end. Written in a signal handler.
char hung_line[256];

void end_as_hung(int) {
  static_cast<void>(!write(STDOUT_FILENO, hung_line, std::strlen(hung_line)));
  _exit(2);
}

std::string fault_line(const KernelCase& one, const char* fault) {
  return "{\"name\":\"" + one.name + "\",\"kernel\":\"" + one.kernel + "\",\"fault\":\"" + fault + "\"}\n";
}

struct RepeatOptions {
  int repeats = 0;
  unsigned seconds = 0;  // of a case; 0: no limit
  std::string after, only;
  const char* references = nullptr;
};

// Returns the exit code.
int repeat(const RepeatOptions& options) {
  const References known = options.references == nullptr ? References() : read_references(options.references);
  bool is_right = true, has_begun = options.after.empty();
  std::signal(SIGALRM, end_as_hung);
  for (const KernelCase& one : repeated_cases()) {
    if (!has_begun || (!options.only.empty() && one.name != options.only)) {
      has_begun = has_begun || one.name == options.after;
      continue;
    }
    std::snprintf(hung_line, sizeof hung_line, "%s", fault_line(one, "hung").c_str());
    try {
      alarm(options.seconds);
      is_right = check_repeats(one, options.repeats, known, stream) && is_right;
    } catch (const std::exception& error) {
      std::fputs(fault_line(one, "error").c_str(), stdout);
      std::fflush(stdout);
      std::fprintf(stderr, "  %s (%s): %s\n", one.name.c_str(), one.kernel.c_str(), error.what());
      std::fflush(stderr);
      _exit(2);  // the device cannot be used again in this process
    }
  }
  return is_right ? 0 : 1;
}

void run_once(const std::string& name) {
  for (const KernelCase& one : repeated_cases()) {
    if (one.name != name) continue;
    const PreparedCase prepared = one.prepare(stream);
    check(cudaStreamSynchronize(stream), "the inputs");
#if defined(__CUDACC__)
    cudaProfilerStart();
#endif
    prepared.run(0);
    check(cudaStreamSynchronize(stream), name.c_str());
#if defined(__CUDACC__)
    cudaProfilerStop();
#endif
    return;
  }
  throw Error(ErrorCode::kInvalidArgument, "once: expected a name of `gpu_kernels list`, got " + name);
}

struct Options {
  std::string word, once;
  RepeatOptions repeat;
};

int run(const Options& options) {
  if (options.word == "references") return write_references(), 0;
  check(cudaSetDevice(0), "selecting the device");
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
  if (options.word == "list") {
    for (const KernelCase& one : repeated_cases())
      std::printf("%s\t%s\n", one.name.c_str(), one.kernel.c_str());
    return 0;
  }
  if (!options.once.empty()) return run_once(options.once), 0;
  if (options.repeat.repeats > 0) return repeat(options.repeat);
  measure(options.word);
  return 0;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    const char* const value = equals == std::string::npos ? "" : argv[i] + equals + 1;
    if (name == "tiny")
      is_tiny = true;
    else if (name == "read")
      read_bandwidth = std::atof(value) * 1e9;
    else if (name == "repeats")
      options.repeat.repeats = std::atoi(value);
    else if (name == "references" && *value != 0)
      options.repeat.references = value;
    else if (name == "seconds")
      options.repeat.seconds = static_cast<unsigned>(std::atoi(value));
    else if (name == "after")
      options.repeat.after = value;
    else if (name == "only")
      options.repeat.only = value;
    else if (name == "once")
      options.once = value;
    else
      options.word = word;
  }
  return options;
}

}  // namespace
}  // namespace capstan::benchmarks

int main(int argc, char** argv) {
  try {
    return capstan::benchmarks::run(capstan::benchmarks::parse(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
