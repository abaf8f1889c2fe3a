#include "native/bench/limits.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <ctime>
#include <fstream>
#include <thread>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "native/backend/cpu/cpu_backend.h"
#include "native/backend/cpu/memory.h"
#if defined(__x86_64__)
#include "native/backend/cpu/tiles_amx.h"
#endif

#pragma GCC diagnostic ignored "-Wuninitialized"
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace capstan::benchmarks {

namespace {

constexpr size_t kPieceBytes = size_t{64} << 10;
constexpr int kStreams = 4;
constexpr int64_t kChainSteps = 4'000'000;
constexpr int64_t kTileSteps = 1'000'000;

using Read = uint64_t (*)(const char* from, size_t bytes);

uint64_t read_plain(const char* from, size_t bytes) {
  uint64_t sum = 0;
  for (size_t i = 0; i < bytes; i += 64)
    sum += *reinterpret_cast<const uint64_t*>(from + i);
  return sum;
}

#if defined(__x86_64__)
// With a software prefetch of 4 KiB, or with that of the hardware alone.
template <bool kPrefetches>
__attribute__((target("avx512f"))) uint64_t read_avx512(const char* from, size_t bytes) {
  __m512i sum[4] = {};
  for (size_t i = 0; i < bytes; i += 256)
    for (int j = 0; j < 4; ++j) {
      if constexpr (kPrefetches) _mm_prefetch(from + i + 4096 + j * 64, _MM_HINT_T0);
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

__attribute__((target("avx2,fma"))) void multiply_f32_avx2(int64_t steps) {
  __m256 sum[12];
#pragma GCC unroll 12
  for (int j = 0; j < 12; ++j) {
    sum[j] = _mm256_setzero_ps();
    asm volatile("" : "+x"(sum[j]));
  }
  const __m256 a = _mm256_set1_ps(1.0f), b = _mm256_set1_ps(0.01f);
  for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < 12; ++j)
      sum[j] = _mm256_fmadd_ps(a, b, sum[j]);
  }
#pragma GCC unroll 12
  for (int j = 0; j < 12; ++j)
    asm volatile("" : : "x"(sum[j]));
}

// Products of bytes, added in 16 bits. No kernel without VNNI has fewer instructions per product.
__attribute__((target("avx2"))) void multiply_int8_avx2(int64_t steps) {
  __m256i sum[12];
#pragma GCC unroll 12
  for (int j = 0; j < 12; ++j) {
    sum[j] = _mm256_setzero_si256();
    asm volatile("" : "+x"(sum[j]));
  }
  const __m256i a = _mm256_set1_epi8(3);
  __m256i b = _mm256_set1_epi8(-1);
  for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < 12; ++j) {
      asm volatile("" : "+x"(b));  // otherwise all products are one
      sum[j] = _mm256_add_epi16(sum[j], _mm256_maddubs_epi16(a, b));
    }
  }
#pragma GCC unroll 12
  for (int j = 0; j < 12; ++j)
    asm volatile("" : : "x"(sum[j]));
}

// Multiplies full tiles from registers. Only for machines that can run CpuIsa::kAmx.
template <bool kIsInt8>
void multiply_tiles(int64_t steps) {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    config.rows[tile] = kMaxTileConfigRows;
    config.row_bytes[tile] = kTileRowBytes;
  }
  tile_configure(config);
  for (int64_t i = 0; i < steps; ++i) {
    if constexpr (kIsInt8) {
      tile_dot_int8<0, 4, 6>();
      tile_dot_int8<1, 4, 7>();
      tile_dot_int8<2, 5, 6>();
      tile_dot_int8<3, 5, 7>();
    } else {
      tile_dot_bf16<0, 4, 6>();
      tile_dot_bf16<1, 4, 7>();
      tile_dot_bf16<2, 5, 6>();
      tile_dot_bf16<3, 5, 7>();
    }
  }
  tile_release();
}
#endif

// Not `__builtin_cpu_supports`, which always returns false in programs that zig links.
bool can_run(CpuIsa isa) {
  const std::vector<CpuIsa> isas = available_cpu_isas();
  return std::find(isas.begin(), isas.end(), isa) != isas.end();
}

Read reader(bool prefetches) {
#if defined(__x86_64__)
  if (can_run(CpuIsa::kAvx512)) return prefetches ? read_avx512<true> : read_avx512<false>;
#endif
  static_cast<void>(prefetches);
  return read_plain;
}

// Reads several parts of a range in turns, as a matrix is read whose panels lie apart.
uint64_t read_streams(Read read, const char* from, size_t bytes) {
  const size_t part = bytes / kStreams & ~size_t{4095}, step = 4096;
  uint64_t sum = 0;
  for (size_t i = 0; i < part; i += step)
    for (int stream = 0; stream < kStreams; ++stream)
      sum += read(from + stream * part + i, step);
  return sum;
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
  HugeBuffer buffer;
};

LimitMeter::LimitMeter(Team& team, size_t read_bytes)
    : team_(team),
      read_bytes_(std::max(read_bytes, size_t{1} << 20) & ~size_t{4095}),
      memory_(new Memory{{read_bytes_ + 8192, "the bandwidth test"}}) {
  std::memset(memory_->buffer.as<char>(), 1, read_bytes_ + 8192);
}

LimitMeter::~LimitMeter() {
  delete memory_;
}

std::vector<ReadRate> LimitMeter::read_rates() {
  const char* data = memory_->buffer.as<char>();
  const size_t part = read_bytes_ / team_.size() & ~size_t{4 * 4096 - 1};
  std::vector<uint64_t> sums(static_cast<size_t>(team_.size()) * 8);
  std::vector<ReadRate> rates;
  const auto timed = [&](const char* pattern, size_t bytes, const auto& pass) {
    const double start = now_seconds();
    pass();
    rates.push_back({pattern, static_cast<double>(bytes) / (now_seconds() - start) / 1e9});
  };
  const auto each_thread = [&](const auto& read) {
    team_.run([&](int thread) { sums[thread * 8] += read(data + thread * part); });
  };
  const size_t all = part * team_.size();
  timed("one region per thread, with prefetch", all,
        [&] { each_thread([&](const char* from) { return reader(true)(from, part); }); });
  timed("one region per thread", all,
        [&] { each_thread([&](const char* from) { return reader(false)(from, part); }); });
  timed("four streams per thread", all,
        [&] { each_thread([&](const char* from) { return read_streams(reader(true), from, part); }); });
  const auto pieces = static_cast<int64_t>(read_bytes_ / kPieceBytes);
  timed("pieces that threads take in turns", pieces * kPieceBytes, [&] {
    std::atomic<uint64_t> sum{0};
    team_.for_pieces(pieces, 16, [&](int, int64_t begin, int64_t end) {
      sum += reader(true)(data + begin * kPieceBytes, static_cast<size_t>(end - begin) * kPieceBytes);
    });
    sums[0] += sum;
  });
  if (sums[0] == 42) std::abort();  // the reads have a use
  return rates;
}

double LimitMeter::read_gb_per_s() {
  double best = 0;
  for (const ReadRate& rate : read_rates())
    best = std::max(best, rate.gb_per_s);
  return best;
}

double LimitMeter::bf16_gflop_per_s() {
  if (!can_run(CpuIsa::kAvx512Bf16)) return 0;
  const double start = now_seconds();
#if defined(__x86_64__)
  team_.run([&](int) { multiply_bf16(kChainSteps); });
#endif
  return 12.0 * 64 * kChainSteps * team_.size() / (now_seconds() - start) / 1e9;
}

double LimitMeter::amx_bf16_gflop_per_s() {
  if (!can_run(CpuIsa::kAmx)) return 0;
  const double start = now_seconds();
#if defined(__x86_64__)
  team_.run([&](int) { multiply_tiles<false>(kTileSteps); });
#endif
  return 4.0 * 2 * 16 * 16 * 32 * kTileSteps * team_.size() / (now_seconds() - start) / 1e9;
}

double LimitMeter::amx_int8_gop_per_s() {
  if (!can_run(CpuIsa::kAmx)) return 0;
  const double start = now_seconds();
#if defined(__x86_64__)
  team_.run([&](int) { multiply_tiles<true>(kTileSteps); });
#endif
  return 4.0 * 2 * 16 * 16 * 64 * kTileSteps * team_.size() / (now_seconds() - start) / 1e9;
}

double LimitMeter::int8_gop_per_s() {
#if defined(__x86_64__)
  if (can_run(CpuIsa::kAvx512Vnni)) {
    const double start = now_seconds();
    team_.run([&](int) { multiply_int8(kChainSteps); });
    return 12.0 * 128 * kChainSteps * team_.size() / (now_seconds() - start) / 1e9;
  }
  if (can_run(CpuIsa::kAvx2)) {
    const double start = now_seconds();
    team_.run([&](int) { multiply_int8_avx2(kChainSteps); });
    return 12.0 * 64 * kChainSteps * team_.size() / (now_seconds() - start) / 1e9;
  }
#endif
  return 0;
}

double LimitMeter::f32_gflop_per_s() {
  const bool has_avx512 = can_run(CpuIsa::kAvx512);
  if (!has_avx512 && !can_run(CpuIsa::kAvx2)) return 0;
  const double start = now_seconds();
#if defined(__x86_64__)
  team_.run([&](int) { has_avx512 ? multiply_f32(kChainSteps) : multiply_f32_avx2(kChainSteps); });
#endif
  return 12.0 * (has_avx512 ? 32 : 16) * kChainSteps * team_.size() / (now_seconds() - start) / 1e9;
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
