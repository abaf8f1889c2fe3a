#include "benchmarks/gpu/repeats.h"

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace capstan::benchmarks {
namespace {

using Word = unsigned long long;

struct Comparison {
  Word hash;          // of all words, in any order
  Word before_wrong;  // the complement of the index of the first wrong word; 0 if all are equal
};

__global__ void copy_kernel(const uint32_t* from, uint32_t* to, int64_t count) {
  griddepcontrol_launch_dependents();
  griddepcontrol_wait();
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x)
    to[i] = from[i];
}

__global__ void compare_kernel(const uint32_t* got, const uint32_t* wanted, int64_t count, Comparison* result) {
  Word hash = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    Word x = (static_cast<Word>(i) << 32 | got[i]) * 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 32) * 0xbf58476d1ce4e5b9ull;
    hash += x ^ x >> 29;
    if (got[i] != wanted[i]) atomicMax(&result->before_wrong, ~static_cast<Word>(i));
  }
  atomicAdd(&result->hash, hash);
}

dim3 grid() {
  return dim3(is_tiny ? 2 : 1024);
}

// One output, with its contents before and after the first run.
struct Tracked {
  Output output;
  DeviceBuffer before, first;
  DeviceBuffer comparisons;  // (repeats)
  int64_t words() const { return static_cast<int64_t>(output.bytes / 4); }
};

std::vector<uint32_t> words_of(const DeviceBuffer& buffer, cudaStream_t stream) {
  std::vector<uint32_t> words(buffer.bytes() / 4);
  check(cudaMemcpyAsync(words.data(), buffer.as<void>(), buffer.bytes(), cudaMemcpyDeviceToHost, stream), "an output");
  check(cudaStreamSynchronize(stream), "an output");
  return words;
}

double element_of(const std::vector<uint32_t>& words, Element type, int64_t element) {
  if (type == Element::kFloat) return bits_float(words[static_cast<size_t>(element)]);
  if (type == Element::kId) return static_cast<int32_t>(words[static_cast<size_t>(element)]);
  return bf16_to_float(static_cast<uint16_t>(words[static_cast<size_t>(element / 2)] >> element % 2 * 16));
}

uint32_t word_of(const Output& output, Word index, cudaStream_t stream) {
  uint32_t word = 0;
  check(cudaMemcpyAsync(&word, static_cast<const uint32_t*>(output.data) + index, 4, cudaMemcpyDeviceToHost, stream),
        "a word");
  check(cudaStreamSynchronize(stream), "a word");
  return word;
}

void copy(const void* from, const Output& to, bool is_early, cudaStream_t stream) {
  launch_pdl(is_early && supports_pdl(), copy_kernel, grid(), dim3(256), 0, stream, static_cast<const uint32_t*>(from),
             static_cast<uint32_t*>(to.data), static_cast<int64_t>(to.bytes / 4));
}

}  // namespace

std::string reference_name(const KernelCase& one) {
  return (is_tiny ? "tiny " : "") + one.name;
}

void write_references() {
  for (const bool tiny : {false, true}) {
    is_tiny = tiny;
    for (const KernelCase& one : repeated_cases())
      for (int n = 0; one.sample && n < kNumSamples; ++n) {
        const Sample sample = one.sample(n);
        std::printf("%s\t%lld\t%.9g\t%.3g\n", reference_name(one).c_str(), static_cast<long long>(sample.element),
                    sample.value, sample.tolerance);
      }
  }
}

References read_references(const char* file) {
  std::ifstream in(file);
  if (!in) throw Error(ErrorCode::kIo, std::string("reference values: expected a file ") + file);
  References references;
  for (std::string line; std::getline(in, line);) {
    std::istringstream fields(line);
    std::string name;
    Sample sample;
    if (std::getline(fields, name, '\t') && fields >> sample.element >> sample.value >> sample.tolerance)
      references[name].push_back(sample);
    else
      throw Error(ErrorCode::kIo, std::string("reference values: expected four fields in ") + file + ", got " + line);
  }
  return references;
}

bool check_repeats(const KernelCase& one, int repeats, const References& references, cudaStream_t stream) {
  PreparedCase prepared = one.prepare(stream);
  std::vector<Tracked> all;
  for (const Output& output : prepared.outputs) {
    Tracked tracked{output, DeviceBuffer(output.bytes, "an output"), DeviceBuffer(output.bytes, "an output"),
                    DeviceBuffer(static_cast<size_t>(repeats) * sizeof(Comparison), "comparisons")};
    copy(output.data, {tracked.before.as<void>(), output.bytes}, false, stream);
    check(cudaMemsetAsync(tracked.comparisons.as<void>(), 0, tracked.comparisons.bytes(), stream), "comparisons");
    all.push_back(std::move(tracked));
  }
  int wrong_repeat = -1;
  std::string wrong;
  Word hash = 0;
  for (int repeat = 0; repeat < repeats && wrong_repeat < 0; ++repeat) {
    for (const Tracked& tracked : all)
      copy(tracked.before.as<void>(), tracked.output, true, stream);
    prepared.run(0);
    for (const Tracked& tracked : all) {
      if (repeat == 0) copy(tracked.output.data, {tracked.first.as<void>(), tracked.output.bytes}, false, stream);
      launch(compare_kernel, grid(), dim3(256), 0, stream, static_cast<const uint32_t*>(tracked.output.data),
             static_cast<const uint32_t*>(tracked.first.as<uint32_t>()), tracked.words(),
             tracked.comparisons.as<Comparison>() + repeat);
    }
    for (size_t i = 0; i < all.size(); ++i) {
      Comparison comparison{};
      check(cudaMemcpyAsync(&comparison, all[i].comparisons.as<Comparison>() + repeat, sizeof comparison,
                            cudaMemcpyDeviceToHost, stream),
            "a comparison");
      check(cudaStreamSynchronize(stream), one.name.c_str());
      if (repeat == 0) hash = hash * 31 + comparison.hash;
      if (comparison.before_wrong == 0 || wrong_repeat >= 0) continue;
      wrong_repeat = repeat;
      const Word index = ~comparison.before_wrong;
      char text[160];
      std::snprintf(text, sizeof text, "output %zu, word %llu of %lld: 0x%08x, first 0x%08x", i, index,
                    static_cast<long long>(all[i].words()), word_of(all[i].output, index, stream),
                    word_of({all[i].first.as<void>(), 0}, index, stream));
      wrong = text;
    }
  }
  // Reference values.
  const auto found = references.find(reference_name(one));
  int num_wrong = 0, num_compared = 0;
  std::string wrong_value;
  if (found != references.end()) {
    const std::vector<uint32_t> words = words_of(all[0].first, stream);
    for (const Sample& sample : found->second) {
      const double got = element_of(words, one.element, sample.element);
      ++num_compared;
      if (std::abs(got - sample.value) <= sample.tolerance) continue;
      if (++num_wrong > 1) continue;
      char text[120];
      std::snprintf(text, sizeof text, "element %lld: %.9g, expected %.9g", static_cast<long long>(sample.element), got,
                    sample.value);
      wrong_value = text;
    }
  }
  std::printf("{\"name\":\"%s\",\"kernel\":\"%s\",\"repeats\":%d,\"hash\":\"%016llx\",\"compared\":%d,\"wrong\":%d",
              one.name.c_str(), one.kernel.c_str(), repeats, hash, num_compared, num_wrong);
  if (wrong_repeat >= 0) std::printf(",\"repeat\":%d,\"bits\":\"%s\"", wrong_repeat, wrong.c_str());
  if (num_wrong > 0) std::printf(",\"value\":\"%s\"", wrong_value.c_str());
  std::printf("}\n");
  std::fflush(stdout);
  return wrong_repeat < 0 && num_wrong == 0;
}

}  // namespace capstan::benchmarks
