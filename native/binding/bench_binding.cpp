#include "native/binding/bench_binding.h"

#if defined(__linux__)
#include <sched.h>
#endif

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "native/base/error.h"
#include "native/base/machine.h"
#include "native/bench/ops.h"
#include "native/binding/records.h"

namespace capstan {
namespace {

using benchmarks::OpsOptions;

constexpr double kMaxVocab = 1'000'000, kMaxReadBytes = 64.0 * (1 << 30);

// Restores the processors of the calling thread: the backend pins the thread that steps.
class AffinityGuard {
 public:
#if defined(__linux__)
  AffinityGuard() { is_known_ = sched_getaffinity(0, sizeof(set_), &set_) == 0; }
  ~AffinityGuard() {
    if (is_known_) sched_setaffinity(0, sizeof(set_), &set_);
  }

 private:
  cpu_set_t set_;
  bool is_known_;
#endif
};

// Runs `call`, and turns errors of the engine into JavaScript errors.
template <class Call>
Napi::Value with_errors(Napi::Env env, const Call& call) {
  [[maybe_unused]] const AffinityGuard guard;
  try {
    return call();
  } catch (const Error& error) {
    throw make_error(env, error.code(), error.what());
  }
}

// Returns an integer from 1 to `most`.
int64_t count_of(const Napi::Object& options, const char* name, double most) {
  const Napi::Value value = options.Get(name);
  const double number = value.IsNumber() ? value.As<Napi::Number>().DoubleValue() : 0;
  if (!(number >= 1 && number <= most) || number != std::floor(number))
    throw make_error(
        options.Env(), ErrorCode::kInvalidArgument,
        std::string(name) + ": expected an integer from 1 to " + std::to_string(static_cast<int64_t>(most)));
  return static_cast<int64_t>(number);
}

// `threads` of the usable processors, or all of them for 0.
std::vector<int> cpus_of(const Napi::Object& options) {
  std::vector<int> cpus = usable_cpus();
  const Napi::Value threads = options.Get("threads");
  if (threads.IsNumber() && threads.As<Napi::Number>().DoubleValue() == 0) return cpus;
  cpus.resize(static_cast<size_t>(count_of(options, "threads", static_cast<double>(cpus.size()))));
  return cpus;
}

CpuIsa isa_of(const Napi::Object& options) {
  const std::string name = options.Get("isa").ToString().Utf8Value();
  const std::vector<CpuIsa> available = available_cpu_isas();
  if (name == "auto") return available[0];
  std::string names = "auto";
  for (const CpuIsa isa : available) {
    if (name == cpu_isa_name(isa)) return isa;
    names += std::string(", ") + cpu_isa_name(isa);
  }
  throw make_error(options.Env(), ErrorCode::kInvalidArgument,
                   "isa: expected one that this machine has (" + names + "), got " + name);
}

OpsOptions ops_options(const Napi::Object& options) {
  OpsOptions result;
  result.cpus = cpus_of(options);
  result.context = static_cast<int>(count_of(options, "context", 32'768));
  result.repeats = static_cast<int>(count_of(options, "repeats", 1'000));
  result.layers = static_cast<int>(count_of(options, "layers", 100));
  result.vocab_size = count_of(options, "vocabSize", kMaxVocab);
  result.read_bytes = static_cast<size_t>(count_of(options, "readBytes", kMaxReadBytes));
  result.isa = isa_of(options);
  result.has_int8_cache = options.Get("kvCacheDtype").ToString().Utf8Value() == "int8";
  const std::string quantization = options.Get("quantization").ToString().Utf8Value();
  if (quantization == "int8") result.format = WeightFormat::kInt8;
  if (quantization == "int4") result.format = WeightFormat::kInt4;
  const std::string dtype = options.Get("dtype").ToString().Utf8Value();
  for (const DType known : {DType::kF32, DType::kF16, DType::kBf16})
    if (dtype == dtype_name(known)) result.dtype = known;
  return result;
}

Napi::Object from_result(Napi::Env env, const benchmarks::OpsResult& result) {
  Napi::Array ops = Napi::Array::New(env, result.ops.size());
  for (uint32_t i = 0; i < result.ops.size(); ++i) {
    const benchmarks::OpResult& op = result.ops[i];
    Napi::Object entry = Napi::Object::New(env);
    entry.Set("op", op.name);
    entry.Set("ms", op.ms);
    entry.Set("gbPerS", op.gb_per_s);
    entry.Set("gflopPerS", op.gflop_per_s);
    entry.Set("limitShare", op.limit_share);
    ops.Set(i, entry);
  }
  Napi::Object object = Napi::Object::New(env);
  object.Set("rows", result.rows);
  object.Set("readGbPerS", result.read_gb_per_s);
  object.Set("peakGflopPerS", result.peak_gflop_per_s);
  object.Set("ops", ops);
  return object;
}

}  // namespace

Napi::Value benchmark_limits_binding(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  return with_errors(env, [&]() -> Napi::Value {
    const auto options = info[0].As<Napi::Object>();
    const int64_t repeats = count_of(options, "repeats", 1'000);
    const std::vector<int> cpus = cpus_of(options);
    Team team(cpus, true);
    benchmarks::LimitMeter meter(team, static_cast<size_t>(count_of(options, "readBytes", kMaxReadBytes)));
    std::vector<benchmarks::ReadRate> best;
    double int8 = 0, bf16 = 0, amx_bf16 = 0, amx_int8 = 0, f32 = 0;
    for (int64_t repeat = 0; repeat < repeats; ++repeat) {
      const std::vector<benchmarks::ReadRate> rates = meter.read_rates();
      best.resize(rates.size());
      for (size_t i = 0; i < rates.size(); ++i)
        best[i] = {rates[i].pattern, std::max(best[i].gb_per_s, rates[i].gb_per_s)};
      int8 = std::max(int8, meter.int8_gop_per_s());
      bf16 = std::max(bf16, meter.bf16_gflop_per_s());
      amx_bf16 = std::max(amx_bf16, meter.amx_bf16_gflop_per_s());
      amx_int8 = std::max(amx_int8, meter.amx_int8_gop_per_s());
      f32 = std::max(f32, meter.f32_gflop_per_s());
    }
    Napi::Array reads = Napi::Array::New(env, best.size());
    for (uint32_t i = 0; i < best.size(); ++i) {
      Napi::Object read = Napi::Object::New(env);
      read.Set("pattern", best[i].pattern);
      read.Set("gbPerS", best[i].gb_per_s);
      reads.Set(i, read);
    }
    Napi::Object result = Napi::Object::New(env);
    result.Set("machine", benchmarks::machine_description());
    result.Set("threads", static_cast<double>(cpus.size()));
    result.Set("reads", reads);
    result.Set("int8GopPerS", int8);
    result.Set("bf16GflopPerS", bf16);
    result.Set("amxBf16GflopPerS", amx_bf16);
    result.Set("amxInt8GopPerS", amx_int8);
    result.Set("f32GflopPerS", f32);
    return result;
  });
}

Napi::Value benchmark_ops_binding(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  return with_errors(env, [&]() -> Napi::Value {
    const auto options = info[0].As<Napi::Object>();
    const auto on_result = info[1].As<Napi::Function>();
    const auto rows = options.Get("rows").As<Napi::Array>();
    const OpsOptions parsed = ops_options(options);
    for (uint32_t i = 0; i < rows.Length(); ++i)
      if (const double count = rows.Get(i).ToNumber(); !(count >= 1 && count <= benchmarks::kMaxOpsRows))
        throw make_error(env, ErrorCode::kInvalidArgument,
                         "rows: expected integers from 1 to " + std::to_string(benchmarks::kMaxOpsRows));
    benchmarks::OpsBench bench(parsed);
    for (uint32_t i = 0; i < rows.Length(); ++i) {
      const Napi::HandleScope scope(env);
      on_result.Call({from_result(env, bench.measure(rows.Get(i).ToNumber().Int32Value()))});
    }
    Napi::Object result = Napi::Object::New(env);
    result.Set("machine", benchmarks::machine_description());
    result.Set("isa", cpu_isa_name(parsed.isa));
    result.Set("threads", static_cast<double>(parsed.cpus.size()));
    result.Set("loadSeconds", bench.load_seconds());
    result.Set("packedBytes", bench.packed_bytes());
    return result;
  });
}

}  // namespace capstan
