#include "cuda/adapters.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "native/backend/panel_reader.h"
#include "native/backend/weight_faults.h"
#include "native/base/check.h"
#include "native/base/number.h"

namespace capstan::cuda {
namespace {

// Appends arrays that begin at multiples of 16 bytes.
class Bytes {
 public:
  template <class T>
  size_t add(const std::vector<T>& values) {
    const size_t begin = (all.size() + 15) / 16 * 16;
    all.resize(begin + values.size() * sizeof(T));
    if (!values.empty()) std::memcpy(all.data() + begin, values.data(), values.size() * sizeof(T));
    return begin;
  }
  std::vector<char> all;
};

// The values of a slice as 16-bit floats, or as they are.
template <class T>
std::vector<T> read_values(const TensorSlice& slice, DType dtype) {
  std::vector<T> values;
  for (const float value : read_floats(slice)) {
    float stored = value;
    if constexpr (std::is_same_v<T, uint16_t>) {
      values.push_back(dtype == DType::kBf16 ? float_to_bf16(value) : float_to_f16(value));
      stored = dtype == DType::kBf16 ? bf16_to_float(values.back()) : f16_to_float(values.back());
    } else {
      values.push_back(value);
    }
    if (!std::isfinite(stored)) refuse_too_large(slice.tensor->name, dtype);
  }
  return values;
}

// The row of the packed matrix that holds an output feature. Gates and ups alternate in tiles.
int64_t row_of_feature(const CudaMatrix& matrix, int64_t feature) {
  if (!matrix.is_gated) return feature;
  constexpr int64_t kPairs = kTileRows / 2;
  const int64_t num_pairs = matrix.rows / 2, pair = feature % num_pairs;
  return pair / kPairs * kTileRows + (feature < num_pairs ? 0 : kPairs) + pair % kPairs;
}

const DeviceLora* device_of(const LoraMatrix* lora) {
  return lora == nullptr ? nullptr : static_cast<const CudaLora*>(lora)->device;
}

// The experts of a layer and the shared one, or 0 if no adapter of the step has updates of them.
size_t num_experts_of(const StepInput& step, size_t layer) {
  size_t count = 0;
  for (const AdapterWeights* adapter : step.adapters)
    count = std::max(count, adapter->layers[layer].experts.size());
  return count;
}

// `T`: of the values of A and B.
template <class T>
std::unique_ptr<CudaLora> upload_lora_as(const LoraSource& source, const CudaMatrix& matrix, DType dtype,
                                         CudaLoraMemory& memory, cudaStream_t stream) {
  if (!source.is_of_table && matrix.cols > kMaxLoraInputs)
    throw Error(ErrorCode::kUnsupportedModel, "CUDA: adapters: expected projections of at most " +
                                                  std::to_string(kMaxLoraInputs) + " inputs, got " +
                                                  std::to_string(matrix.cols));
  const int64_t num_features = source.is_of_table ? matrix.cols : matrix.rows;
  DeviceLora device;
  device.rows = round_up(source.is_of_table || matrix.floats != nullptr ? num_features : matrix.device.rows, kTileRows);
  device.cols = matrix.cols;
  std::vector<T> a;
  std::vector<float> scales;
  int64_t width = 0;
  // A of a table has a row for each of its rows.
  const auto rank_of = [&](const LoraFactors& factors) {
    return source.is_of_table ? factors.a.num_cols : factors.a.num_rows;
  };
  CAPSTAN_CHECK(!source.is_of_table || source.factors.size() == 1);
  for (const LoraFactors& factors : source.factors) {
    CAPSTAN_CHECK(source.is_of_table || factors.a.num_cols == matrix.cols);
    const std::vector<T> values = read_values<T>(factors.a, dtype);
    a.insert(a.end(), values.begin(), values.end());
    scales.insert(scales.end(), static_cast<size_t>(rank_of(factors)), factors.scale);
    width = std::max(width, rank_of(factors));
  }
  std::vector<LoraRange> ranges(static_cast<size_t>(device.rows));
  std::vector<T> b(static_cast<size_t>(width * device.rows), 0);
  for (const LoraFactors& factors : source.factors) {
    const int64_t count = rank_of(factors);
    for (const LoraFactors::Output& output : factors.outputs) {
      CAPSTAN_CHECK(output.b.num_cols == count && output.first_feature >= 0 &&
                    output.first_feature + output.b.num_rows <= num_features);
      const std::vector<T> values = read_values<T>(output.b, dtype);
      for (int64_t i = 0; i < output.b.num_rows; ++i) {
        const int64_t row = row_of_feature(matrix, output.first_feature + i);
        ranges[static_cast<size_t>(row)] = {device.num_values, static_cast<int32_t>(count)};
        for (int64_t j = 0; j < count; ++j)
          b[static_cast<size_t>(j * device.rows + row)] = values[static_cast<size_t>(i * count + j)];
      }
    }
    device.num_values += static_cast<int32_t>(count);
  }
  Bytes bytes;
  bytes.add(std::vector<DeviceLora>(1));
  const size_t at_a = bytes.add(a), at_b = bytes.add(b), at_scales = bytes.add(scales), at_ranges = bytes.add(ranges);
  auto lora = std::make_unique<CudaLora>();
  lora->bytes = static_cast<int64_t>(bytes.all.size());
  lora->num_values = device.num_values;
  char* const begin = memory.allocate(bytes.all.size());
  lora->device = reinterpret_cast<const DeviceLora*>(begin);
  const auto* const device_a = reinterpret_cast<const T*>(begin + at_a);
  const auto* const device_b = reinterpret_cast<const T*>(begin + at_b);
  if constexpr (std::is_same_v<T, float>) {
    device.float_a = device_a;
    device.float_b = device_b;
  } else {
    device.a = device_a;
    device.b = device_b;
  }
  device.scales = reinterpret_cast<const float*>(begin + at_scales);
  device.ranges = reinterpret_cast<const LoraRange*>(begin + at_ranges);
  std::memcpy(bytes.all.data(), &device, sizeof device);
  check(cudaMemcpyAsync(begin, bytes.all.data(), bytes.all.size(), cudaMemcpyHostToDevice, stream),
        "copying an adapter to the device");
  wait_for(stream);
  return lora;
}

}  // namespace

char* CudaLoraMemory::allocate(size_t bytes) {
  constexpr size_t kAlignment = 256, kMostAhead = size_t{64} << 20;
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (buffers_.empty() || used_ + bytes > buffers_.back().bytes()) {
    // At most a fifth of the memory stays unused.
    size_t size = std::max(bytes, std::min(total_ / 4, kMostAhead)), free = 0, device_total = 0;
    check(cudaMemGetInfo(&free, &device_total), "querying free memory");
    const int64_t available = std::max<int64_t>(static_cast<int64_t>(free) - reserve_, 0);
    if (static_cast<int64_t>(size) > available) size = bytes;
    if (static_cast<int64_t>(size) > available)
      throw Error(ErrorCode::kOutOfMemory,
                  "the adapter needs " + std::to_string((total_ + size + (1 << 20) - 1) >> 20) +
                      " MiB or more, and has " + std::to_string((total_ + static_cast<size_t>(available)) >> 20) +
                      " MiB; " + std::to_string(reserve_ >> 20) + " MiB of the device memory are reserved for steps");
    buffers_.emplace_back(size, "an adapter");
    used_ = 0;
    total_ += size;
  }
  char* const begin = buffers_.back().as<char>() + used_;
  used_ += bytes;
  return begin;
}

std::unique_ptr<CudaLora> upload_lora(const LoraSource& source, const CudaMatrix& matrix, DType dtype,
                                      CudaLoraMemory& memory, cudaStream_t stream) {
  return matrix.floats == nullptr ? upload_lora_as<uint16_t>(source, matrix, dtype, memory, stream)
                                  : upload_lora_as<float>(source, matrix, DType::kF32, memory, stream);
}

template <class Of>
StepAdapters::Loras StepAdapters::add(const StepInput& step, Of of_adapter) {
  if (std::ranges::all_of(step.adapters,
                          [&](const AdapterWeights* adapter) { return of_adapter(*adapter) == nullptr; }))
    return nullptr;
  Loras place = nullptr;
  const DeviceLora** to = staging_.reserve(num_adapters_, place);
  for (const AdapterWeights* adapter : step.adapters)
    *to++ = device_of(of_adapter(*adapter));
  return place;
}

StepAdapters::Loras StepAdapters::add_experts(const StepInput& step, size_t layer, ExpertMember matrix) {
  const size_t count = num_experts_of(step, layer);
  const auto lora_of = [&](const AdapterWeights* adapter, size_t expert) -> const LoraMatrix* {
    const std::vector<ExpertAdapter>& experts = adapter->layers[layer].experts;
    return experts.empty() ? nullptr : (experts[expert].*matrix).get();
  };
  bool has_update = false;
  for (const AdapterWeights* adapter : step.adapters)
    for (size_t expert = 0; expert < count; ++expert)
      has_update = has_update || lora_of(adapter, expert) != nullptr;
  if (!has_update) return nullptr;
  Loras place = nullptr;
  const DeviceLora** to = staging_.reserve(count * num_adapters_, place);
  for (size_t expert = 0; expert < count; ++expert)
    for (const AdapterWeights* adapter : step.adapters)
      *to++ = device_of(lora_of(adapter, expert));
  return place;
}

void StepAdapters::send(const StepInput& step, cudaStream_t stream) {
  tokens_.clear();
  if (step.adapters.empty()) return;
  adapters_.clear();
  adapter_of_token_.clear();
  for (size_t seq = 0; seq < step.adapter_indices.size(); ++seq)
    for (int32_t token = step.cu_seqlens_q[seq]; token < step.cu_seqlens_q[seq + 1]; ++token) {
      const int32_t adapter = step.adapter_indices[seq];
      adapter_of_token_.push_back(adapter);
      if (adapter >= 0) tokens_.push_back(token), adapters_.push_back(adapter);
    }
  if (tokens_.empty()) return;
  num_adapters_ = step.adapters.size();
  const size_t num_layers = step.adapters[0]->layers.size();
  // Each array begins at a multiple of 16 bytes.
  const auto size_of = [](size_t count, size_t bytes) { return (count * bytes + 15) / 16 * 16; };
  size_t bytes = 2 * size_of(tokens_.size(), 4) + size_of(adapter_of_token_.size(), 4) +
                 (num_layers * kNumMembers + kNumOuterMembers) * size_of(num_adapters_, sizeof(void*));
  for (size_t layer = 0; layer < num_layers; ++layer)
    bytes += 2 * size_of(num_experts_of(step, layer) * num_adapters_, sizeof(void*));
  staging_.begin(bytes);
  device_tokens_ = staging_.add(tokens_.data(), tokens_.size());
  device_adapters_ = staging_.add(adapters_.data(), adapters_.size());
  token_adapters_ = staging_.add(adapter_of_token_.data(), adapter_of_token_.size());
  loras_.clear();
  experts_.clear();
  for (size_t layer = 0; layer < num_layers; ++layer) {
    for (const Member matrix : kMembers)
      loras_.push_back(add(step, [&](const AdapterWeights& adapter) { return (adapter.layers[layer].*matrix).get(); }));
    experts_.push_back(
        {add_experts(step, layer, &ExpertAdapter::gate_up_proj), add_experts(step, layer, &ExpertAdapter::down_proj)});
  }
  for (const OuterMember matrix : kOuterMembers)
    loras_.push_back(add(step, [&](const AdapterWeights& adapter) { return (adapter.*matrix).get(); }));
  staging_.send(stream);
}

StepAdapters::Loras StepAdapters::loras_of(int layer, Member matrix) const {
  if (is_empty()) return nullptr;
  const auto member = static_cast<size_t>(std::ranges::find(kMembers, matrix) - std::begin(kMembers));
  return loras_[static_cast<size_t>(layer) * kNumMembers + member];
}

StepAdapters::Loras StepAdapters::loras_of(OuterMember matrix) const {
  if (is_empty()) return nullptr;
  const auto member = static_cast<size_t>(std::ranges::find(kOuterMembers, matrix) - std::begin(kOuterMembers));
  return loras_[loras_.size() - kNumOuterMembers + member];
}

LoraRows StepAdapters::rows_with(Loras loras) const {
  if (loras == nullptr) return {};
  return {device_tokens_, device_adapters_, loras, static_cast<int>(tokens_.size())};
}

LoraRows StepAdapters::rows_of(OuterMember matrix, std::span<const int32_t> tokens, Staging& staging) const {
  LoraRows rows;
  rows.loras = loras_of(matrix);
  if (rows.loras == nullptr) return {};
  int32_t* const places = staging.reserve(tokens.size(), rows.tokens);
  int32_t* const adapters = staging.reserve(tokens.size(), rows.adapters);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int32_t adapter = adapter_of_token_[static_cast<size_t>(tokens[i])];
    if (adapter < 0) continue;
    places[rows.num_rows] = static_cast<int32_t>(i);
    adapters[rows.num_rows++] = adapter;
  }
  return rows;
}

}  // namespace capstan::cuda
