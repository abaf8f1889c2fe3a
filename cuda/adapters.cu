#include "cuda/adapters.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "native/backend/panel_reader.h"
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

// The values of a slice as 16-bit floats.
std::vector<uint16_t> read_bits(const TensorSlice& slice, DType dtype) {
  std::vector<uint16_t> bits;
  for (const float value : read_floats(slice)) {
    bits.push_back(dtype == DType::kBf16 ? float_to_bf16(value) : float_to_f16(value));
    if (!std::isfinite(dtype == DType::kBf16 ? bf16_to_float(bits.back()) : f16_to_float(bits.back())))
      throw Error(ErrorCode::kInvalidModel,
                  "tensor " + slice.tensor->name + " holds a value too large for " + dtype_name(dtype));
  }
  return bits;
}

// The row of the packed matrix that holds an output feature. Gates and ups alternate in tiles.
int64_t row_of_feature(const CudaMatrix& matrix, int64_t feature) {
  if (!matrix.is_gated) return feature;
  constexpr int64_t kPairs = kTileRows / 2;
  const int64_t num_pairs = matrix.rows / 2, pair = feature % num_pairs;
  return pair / kPairs * kTileRows + (feature < num_pairs ? 0 : kPairs) + pair % kPairs;
}

}  // namespace

std::unique_ptr<CudaLora> upload_lora(const LoraSource& source, const CudaMatrix& matrix, DType dtype,
                                      cudaStream_t stream) {
  if (matrix.cols > kMaxLoraInputs)
    throw Error(ErrorCode::kUnsupportedModel, "CUDA: adapters: expected projections of at most " +
                                                  std::to_string(kMaxLoraInputs) + " inputs, got " +
                                                  std::to_string(matrix.cols));
  DeviceLora device;
  device.rows = round_up(matrix.device.rows, kTileRows);
  device.cols = matrix.cols;
  std::vector<uint16_t> a;
  std::vector<float> scales;
  int64_t width = 0;
  for (const LoraFactors& factors : source.factors) {
    CAPSTAN_CHECK(factors.a.num_cols == matrix.cols);
    const std::vector<uint16_t> bits = read_bits(factors.a, dtype);
    a.insert(a.end(), bits.begin(), bits.end());
    scales.insert(scales.end(), static_cast<size_t>(factors.a.num_rows), factors.scale);
    width = std::max(width, factors.a.num_rows);
  }
  std::vector<LoraRange> ranges(static_cast<size_t>(device.rows));
  std::vector<uint16_t> b(static_cast<size_t>(width * device.rows), 0);
  for (const LoraFactors& factors : source.factors) {
    const int64_t count = factors.a.num_rows;
    for (const LoraFactors::Output& output : factors.outputs) {
      CAPSTAN_CHECK(output.b.num_cols == count && output.first_feature >= 0 &&
                    output.first_feature + output.b.num_rows <= matrix.rows);
      const std::vector<uint16_t> bits = read_bits(output.b, dtype);
      for (int64_t i = 0; i < output.b.num_rows; ++i) {
        const int64_t row = row_of_feature(matrix, output.first_feature + i);
        ranges[static_cast<size_t>(row)] = {device.num_values, static_cast<int32_t>(count)};
        for (int64_t j = 0; j < count; ++j)
          b[static_cast<size_t>(j * device.rows + row)] = bits[static_cast<size_t>(i * count + j)];
      }
    }
    device.num_values += static_cast<int32_t>(count);
  }
  Bytes bytes;
  bytes.add(std::vector<DeviceLora>(1));
  const size_t at_a = bytes.add(a), at_b = bytes.add(b), at_scales = bytes.add(scales), at_ranges = bytes.add(ranges);
  auto lora = std::make_unique<CudaLora>();
  lora->data = DeviceBuffer(bytes.all.size(), "an adapter");
  lora->bytes = static_cast<int64_t>(bytes.all.size());
  const char* const begin = lora->data.as<char>();
  device.a = reinterpret_cast<const uint16_t*>(begin + at_a);
  device.b = reinterpret_cast<const uint16_t*>(begin + at_b);
  device.scales = reinterpret_cast<const float*>(begin + at_scales);
  device.ranges = reinterpret_cast<const LoraRange*>(begin + at_ranges);
  std::memcpy(bytes.all.data(), &device, sizeof device);
  check(cudaMemcpyAsync(lora->data.as<void>(), bytes.all.data(), bytes.all.size(), cudaMemcpyHostToDevice, stream),
        "copying an adapter to the device");
  wait_for(stream);
  return lora;
}

void StepAdapters::send(const StepInput& step, cudaStream_t stream) {
  num_rows_ = 0;
  if (step.adapters.empty()) return;
  std::vector<int32_t> tokens, adapters;
  for (size_t seq = 0; seq < step.adapter_indices.size(); ++seq)
    for (int32_t token = step.cu_seqlens_q[seq]; token < step.cu_seqlens_q[seq + 1]; ++token)
      if (step.adapter_indices[seq] >= 0) tokens.push_back(token), adapters.push_back(step.adapter_indices[seq]);
  num_rows_ = static_cast<int>(tokens.size());
  if (num_rows_ == 0) return;
  num_adapters_ = step.adapters.size();
  const size_t num_layers = step.adapters[0]->layers.size(), num_members = std::size(kMembers);
  staging_.begin((num_layers * num_members * num_adapters_) * sizeof(void*) + tokens.size() * 8 + 64);
  tokens_ = staging_.add(tokens.data(), tokens.size());
  adapters_ = staging_.add(adapters.data(), adapters.size());
  const DeviceLora** loras = staging_.reserve(num_layers * num_members * num_adapters_, loras_);
  has_update_.assign(num_layers * num_members, false);
  for (size_t i = 0; i < num_layers * num_members; ++i)
    for (const AdapterWeights* adapter : step.adapters) {
      const auto* lora =
          static_cast<const CudaLora*>((adapter->layers[i / num_members].*kMembers[i % num_members]).get());
      *loras++ = lora == nullptr ? nullptr : lora->device();
      if (lora != nullptr) has_update_[i] = true;
    }
  staging_.send(stream);
}

LoraRows StepAdapters::rows_of(int layer, Member matrix) const {
  LoraRows rows;
  if (num_rows_ == 0 || matrix == nullptr) return rows;
  const auto member = static_cast<size_t>(std::ranges::find(kMembers, matrix) - std::begin(kMembers));
  const size_t i = static_cast<size_t>(layer) * std::size(kMembers) + member;
  if (!has_update_[i]) return rows;
  rows.tokens = tokens_;
  rows.adapters = adapters_;
  rows.loras = loras_ + i * num_adapters_;
  rows.num_rows = num_rows_;
  return rows;
}

}  // namespace capstan::cuda
