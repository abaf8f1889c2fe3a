// Prints what native/bench/ops.h measures. `capstan bench ops` does the same through the addon.
//   ops [--rows 1,8,512] [--dtype bf16] [--isa avx512bf16] [--threads 2] [--context 512] [--prefill-context N]
//   [--repeats 5] [--layers 24] [--quantization none|int8|int4] [--clock wall|cpu] [--json FILE] [--limits 1]
#include "native/bench/ops.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace capstan::benchmarks {
namespace {

struct Options {
  OpsOptions ops;
  std::vector<int> rows = {1, 2, 4, 8, 16, 32, 64, 128, 512};
  int threads = 2;
  bool limits_only = false;
  std::string json;
};

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
    if (name == "--quantization") options.ops.format = parse_format(value);
    if (name == "--dtype") options.ops.dtype = parse_dtype(value);
    if (name == "--threads") options.threads = std::atoi(value.c_str());
    if (name == "--context") options.ops.context = std::atoi(value.c_str());
    if (name == "--prefill-context") options.ops.prefill_context = std::atoi(value.c_str());
    if (name == "--repeats") options.ops.repeats = std::atoi(value.c_str());
    if (name == "--clock" && value == "cpu") count_cpu_time();
    if (name == "--limits") options.limits_only = value != "0";
    if (name == "--layers") options.ops.layers = std::atoi(value.c_str());
    if (name == "--json") options.json = value;
    if (name == "--isa")
      for (const CpuIsa isa : available_cpu_isas())
        if (value == cpu_isa_name(isa)) options.ops.isa = isa;
  }
  for (int thread = 0; thread < options.threads; ++thread)
    options.ops.cpus.push_back(thread);
  options.ops.max_decode_rows = 1;
  for (const int rows : options.rows)
    if (rows <= 64) options.ops.max_decode_rows = std::max(options.ops.max_decode_rows, rows);
  return options;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Prints only the limits of the machine, as JSON.
void print_limits(const Options& options) {
  Team team(options.ops.cpus, true);
  LimitMeter meter(team, options.ops.read_bytes);
  std::vector<double> bandwidths, bf16_peaks, int8_peaks;
  for (int repeat = 0; repeat < options.ops.repeats; ++repeat) {
    bandwidths.push_back(meter.read_gb_per_s());
    bf16_peaks.push_back(std::max({meter.bf16_gflop_per_s(), meter.amx_bf16_gflop_per_s(), meter.f32_gflop_per_s()}));
    int8_peaks.push_back(std::max(meter.int8_gop_per_s(), meter.amx_int8_gop_per_s()));
  }
  std::printf("{\"machine\":\"%s\",\"read_gb_per_s\":%.2f,\"bf16_gflop_per_s\":%.1f,\"int8_gop_per_s\":%.1f}\n",
              machine_description().c_str(), median(bandwidths), median(bf16_peaks), median(int8_peaks));
}

// Prints a table of one batch and appends its JSON objects, separated by commas.
void report(const OpsResult& result, std::string& json) {
  std::printf("\n%d rows; limits %.1f GB/s, %.0f GFLOP/s\n%-16s %10s %8s %9s %7s\n", result.rows, result.read_gb_per_s,
              result.peak_gflop_per_s, "op", "ms", "GB/s", "GFLOP/s", "share");
  for (const OpResult& op : result.ops) {
    std::printf("%-16s %10.3f %8.1f %9.1f %6.0f%%\n", op.name.c_str(), op.ms, op.gb_per_s, op.gflop_per_s,
                100 * op.limit_share);
    std::ostringstream entry;
    entry << (json.empty() ? "" : ",") << "\n{\"rows\":" << result.rows << ",\"op\":\"" << op.name
          << "\",\"ms\":" << op.ms << ",\"gb_per_s\":" << op.gb_per_s << ",\"gflop_per_s\":" << op.gflop_per_s
          << ",\"limit_share\":" << op.limit_share << ",\"read_gb_per_s\":" << result.read_gb_per_s
          << ",\"peak_gflop_per_s\":" << result.peak_gflop_per_s << "}";
    json += entry.str();
  }
  std::fflush(stdout);
}

void run(const Options& options) {
  OpsBench bench(options.ops);
  const std::string machine = machine_description();
  std::printf("%s, %s, %s, %d threads\n", machine.c_str(), cpu_isa_name(options.ops.isa), dtype_name(options.ops.dtype),
              options.threads);
  std::printf("load: %.2f GB packed in %.2f s\n", bench.packed_bytes() / 1e9, bench.load_seconds());
  std::string ops_json;
  for (const int rows : options.rows)
    report(bench.measure(rows), ops_json);
  if (options.json.empty()) return;
  std::ofstream(options.json) << "{\"machine\":\"" << machine << "\",\"isa\":\"" << cpu_isa_name(options.ops.isa)
                              << "\",\"dtype\":\"" << dtype_name(options.ops.dtype)
                              << "\",\"threads\":" << options.threads << ",\"load_seconds\":" << bench.load_seconds()
                              << ",\"packed_bytes\":" << bench.packed_bytes() << ",\"ops\":[" << ops_json << "\n]}\n";
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
