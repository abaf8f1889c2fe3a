#include "benchmarks/limits.h"

#include <cstring>
#include <ctime>
#include <fstream>
#include <thread>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "native/backend/cpu/memory.h"

#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

namespace capstan::benchmarks {

namespace {

constexpr size_t kReadBytes = size_t{1} << 30;
constexpr int64_t kChainSteps = 4'000'000;

uint64_t read_plain(const char* from, size_t bytes) {
  uint64_t sum = 0;
  for (size_t i = 0; i < bytes; i += 64)
    sum += *reinterpret_cast<const uint64_t*>(from + i);
  return sum;
}

#if defined(__x86_64__)
__attribute__((target("avx512f"))) uint64_t read_avx512(const char* from, size_t bytes) {
  __m512i sum[4] = {};
  for (size_t i = 0; i < bytes; i += 256)
    for (int j = 0; j < 4; ++j) {
      _mm_prefetch(from + i + 4096 + j * 64, _MM_HINT_T0);
      sum[j] = _mm512_xor_si512(sum[j], _mm512_load_si512(from + i + j * 64));
    }
  return static_cast<uint64_t>(
      _mm512_reduce_add_epi64(_mm512_xor_si512(_mm512_xor_si512(sum[0], sum[1]), _mm512_xor_si512(sum[2], sum[3]))));
}

// Twelve independent chains hide the latency. The empty asm keeps the compiler from merging the equal chains.
__attribute__((target("avx512f,avx512bf16"))) void multiply_bf16(int64_t steps) {
  __m512 sum[12];
#pragma GCC unroll 12
  for (int j = 0; j < 12; ++j) {
    sum[j] = _mm512_setzero_ps();
    asm volatile("" : "+v"(sum[j]));
  }
  const __m512bh a = (__m512bh)_mm512_set1_epi16(0x3f80), b = (__m512bh)_mm512_set1_epi16(0x3c00);
  for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < 12; ++j)
      sum[j] = _mm512_dpbf16_ps(sum[j], a, b);
  }
#pragma GCC unroll 12
  for (int j = 0; j < 12; ++j)
    asm volatile("" : : "v"(sum[j]));
}

__attribute__((target("avx512f,avx512vnni"))) void multiply_int8(int64_t steps) {
  __m512i sum[12];
#pragma GCC unroll 12
  for (int j = 0; j < 12; ++j) {
    sum[j] = _mm512_setzero_si512();
    asm volatile("" : "+v"(sum[j]));
  }
  const __m512i a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(-1);
  for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < 12; ++j)
      sum[j] = _mm512_dpbusd_epi32(sum[j], a, b);
  }
#pragma GCC unroll 12
  for (int j = 0; j < 12; ++j)
    asm volatile("" : : "v"(sum[j]));
}

__attribute__((target("avx512f"))) void multiply_f32(int64_t steps) {
  __m512 sum[12];
#pragma GCC unroll 12
  for (int j = 0; j < 12; ++j) {
    sum[j] = _mm512_setzero_ps();
    asm volatile("" : "+v"(sum[j]));
  }
  const __m512 a = _mm512_set1_ps(1.0f), b = _mm512_set1_ps(0.01f);
  for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < 12; ++j)
      sum[j] = _mm512_fmadd_ps(a, b, sum[j]);
  }
#pragma GCC unroll 12
  for (int j = 0; j < 12; ++j)
    asm volatile("" : : "v"(sum[j]));
}
#endif

bool has_avx512() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f");
#else
  return false;
#endif
}

bool has_bf16() {
#if defined(__x86_64__)
  return has_avx512() && __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

}  // namespace

static clockid_t clock_id = CLOCK_MONOTONIC;

void count_cpu_time() {
  clock_id = CLOCK_THREAD_CPUTIME_ID;
}

double now_seconds() {
  timespec time{};
  clock_gettime(clock_id, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

struct LimitMeter::Memory {
  HugeBuffer buffer{kReadBytes + 8192, "the bandwidth test"};
};

LimitMeter::LimitMeter(Team& team) : team_(team), memory_(new Memory) {
  std::memset(memory_->buffer.as<char>(), 1, kReadBytes);
}

LimitMeter::~LimitMeter() {
  delete memory_;
}

double LimitMeter::read_gb_per_s() {
  const char* data = memory_->buffer.as<char>();
  std::vector<uint64_t> sums(static_cast<size_t>(team_.size()) * 8);
  const double start = now_seconds();
  team_.run([&](int thread) {
    const size_t bytes = kReadBytes / team_.size() & ~size_t{4095};
#if defined(__x86_64__)
    if (has_avx512()) {
      sums[thread * 8] = read_avx512(data + thread * bytes, bytes);
      return;
    }
#endif
    sums[thread * 8] = read_plain(data + thread * bytes, bytes);
  });
  const double seconds = now_seconds() - start;
  if (sums[0] == 42) std::abort();
  return static_cast<double>(kReadBytes) / seconds / 1e9;
}

double LimitMeter::bf16_gflop_per_s() {
  if (!has_bf16()) return 0;
  const double start = now_seconds();
#if defined(__x86_64__)
  team_.run([&](int) { multiply_bf16(kChainSteps); });
#endif
  return 12.0 * 64 * kChainSteps * team_.size() / (now_seconds() - start) / 1e9;
}

double LimitMeter::int8_gop_per_s() {
#if defined(__x86_64__)
  if (has_avx512() && __builtin_cpu_supports("avx512vnni")) {
    const double start = now_seconds();
    team_.run([&](int) { multiply_int8(kChainSteps); });
    return 12.0 * 128 * kChainSteps * team_.size() / (now_seconds() - start) / 1e9;
  }
#endif
  return 0;
}

double LimitMeter::f32_gflop_per_s() {
  if (!has_avx512()) return 0;
  const double start = now_seconds();
#if defined(__x86_64__)
  team_.run([&](int) { multiply_f32(kChainSteps); });
#endif
  return 12.0 * 32 * kChainSteps * team_.size() / (now_seconds() - start) / 1e9;
}

std::string machine_description() {
  std::ifstream file("/proc/cpuinfo");
  std::string line, model = "unknown processor", family, number;
  while (std::getline(file, line)) {
    const auto value = [&](const char* key, std::string& to) {
      if (line.rfind(key, 0) == 0 && line.find(": ") != std::string::npos) to = line.substr(line.find(": ") + 2);
    };
    value("model name", model);
    value("cpu family", family);
    value("model\t", number);
  }
  return model + " (family " + family + ", model " + number + "), " +
         std::to_string(std::thread::hardware_concurrency()) + " cores";
}

}  // namespace capstan::benchmarks
