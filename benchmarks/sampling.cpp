// Measures sampling on the CPU over rows of 152,000 logits: the minimum and the median time of a row, in microseconds.
//   sampling [--rows 1,8] [--threads 1,2] [--isa avx512bf16] [--repeats 200]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "native/backend/cpu/isa.h"
#include "native/backend/cpu/sample.h"
#include "native/bench/limits.h"

namespace capstan::benchmarks {
namespace {

constexpr int64_t kVocab = 152000;

struct Options {
  std::vector<int> rows = {1, 8}, threads = {1, 2};
  CpuIsa isa = available_cpu_isas()[0];
  int repeats = 200;
};

struct Case {
  const char* name;
  bool is_flat;
  SampleRow row;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&](const char* name, bool is_flat, auto&& change) {
    Case one{name, is_flat, {}};
    change(one.row);
    all.push_back(one);
  };
  add("flat, top-p 0.99", true, [](SampleRow& row) { row.top_p = 0.99f; });
  add("flat, temperature 1", true, [](SampleRow&) {});
  add("flat, temperature 0.7", true, [](SampleRow& row) { row.temperature = 0.7f; });
  add("flat, greedy", true, [](SampleRow& row) { row.temperature = 0; });
  add("flat, top-k 40", true, [](SampleRow& row) { row.top_k = 40; });
  add("flat, greedy, 20 log-probabilities", true, [](SampleRow& row) { row.temperature = 0, row.num_logprobs = 20; });
  add("peaked, top-p 0.99", false, [](SampleRow& row) { row.top_p = 0.99f; });
  add("peaked, temperature 0.7, top-k 40, top-p 0.95", false,
      [](SampleRow& row) { row.temperature = 0.7f, row.top_k = 40, row.top_p = 0.95f; });
  add("peaked, temperature 1", false, [](SampleRow&) {});
  return all;
}

// Flat: standard deviation 0.5, where the likeliest id has a probability of about 5e-5. Peaked: 2.5, with ten ids far
// above the others.
std::vector<float> make_logits(bool is_flat, int num_rows) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, is_flat ? 0.5f : 2.5f);
  std::vector<float> logits(static_cast<size_t>(num_rows) * kVocab);
  for (float& logit : logits)
    logit = normal(random);
  if (!is_flat)
    for (int row = 0; row < num_rows; ++row)
      for (int i = 0; i < 10; ++i)
        logits[static_cast<size_t>(row) * kVocab + 15000 * static_cast<size_t>(i)] = 20.0f - static_cast<float>(i);
  return logits;
}

void measure(const Options& options, const Case& one, int num_rows, int num_threads) {
  const std::vector<float> logits = make_logits(one.is_flat, num_rows);
  std::vector<int> cpus;
  for (int thread = 0; thread < num_threads; ++thread)
    cpus.push_back(thread);
  Team team(cpus, true);
  team.pin_caller();
  Sampler sampler(cpu_kernels(options.isa), kVocab, kVocab, team);
  std::vector<SampleRow> rows(static_cast<size_t>(num_rows), one.row);
  std::vector<SampleResult> results(rows.size());
  std::vector<double> microseconds;
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    for (int i = 0; i < num_rows; ++i) {
      rows[static_cast<size_t>(i)].logits_row = i;
      rows[static_cast<size_t>(i)].position = static_cast<uint32_t>(repeat);
    }
    const double start = now_seconds();
    sampler.sample(logits.data(), rows, results);
    microseconds.push_back((now_seconds() - start) * 1e6 / num_rows);
  }
  std::sort(microseconds.begin(), microseconds.end());
  std::printf("| %s | %d | %d | %.0f | %.0f |\n", one.name, num_rows, num_threads, microseconds.front(),
              microseconds[microseconds.size() / 2]);
  std::fflush(stdout);
}

std::vector<int> parse_list(const std::string& text) {
  std::vector<int> list;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');)
    list.push_back(std::atoi(part.c_str()));
  return list;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--rows") options.rows = parse_list(value);
    if (name == "--threads") options.threads = parse_list(value);
    if (name == "--repeats") options.repeats = std::atoi(value.c_str());
    if (name == "--isa")
      for (const CpuIsa isa : available_cpu_isas())
        if (value == cpu_isa_name(isa)) options.isa = isa;
  }
  return options;
}

}  // namespace
}  // namespace capstan::benchmarks

int main(int argc, char** argv) {
  using namespace capstan::benchmarks;
  const Options options = parse(argc, argv);
  std::printf("%s, %s\n\n", machine_description().c_str(), capstan::cpu_isa_name(options.isa));
  std::printf("| row | rows | threads | minimum, µs a row | median |\n|---|---|---|---|---|\n");
  for (const Case& one : cases())
    for (const int rows : options.rows)
      for (const int threads : options.threads)
        measure(options, one, rows, threads);
}
