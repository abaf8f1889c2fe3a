#include "native/engine/weight_formats.h"

#include <algorithm>

namespace capstan {
namespace {

// bf16 activations gain a narrow layer only microseconds, and their rounding uses up most of the tolerance of the
// number type.
constexpr int64_t kNarrowHiddenSize = 512;

bool is_fp8(const FileTensor& tensor) {
  return tensor.groups != nullptr && tensor.groups->layout == CodeLayout::kFp8;
}

double bits_per_weight(const FileTensor& tensor, WeightFormat format, DType dtype, const BackendInfo& backend) {
  if (format == WeightFormat::kInt8) return 8.125;
  if (format == WeightFormat::kInt4) return 4.25;
  if (format == WeightFormat::kFile && tensor.format != nullptr)
    return packed_bits_per_weight(tensor.format->type, tensor.format->group_size, tensor.format->block_size);
  const KeptGroups kept = kept_groups(tensor);
  if (format == WeightFormat::kFile && kept.type.bits > 0) return packed_bits_per_weight(kept.type, kept.group_size, 0);
  if (format == WeightFormat::kFile && backend.keeps_fp8_weights && is_fp8(tensor)) return 8;
  return 8.0 * static_cast<double>(dtype_size(dtype));
}

// Returns whether the gate and up projections of a layer have different formats. Then both are decoded, because they
// lie side by side in memory.
bool is_decoded_pair(const std::string& name, const FileTensor& tensor, const TensorTable& tensors) {
  const std::string gate = "gate_proj.weight", up = "up_proj.weight";
  const bool is_gate = name.ends_with(gate);
  if (!is_gate && !name.ends_with(up)) return false;
  const std::string layer = name.substr(0, name.size() - (is_gate ? gate : up).size());
  const auto partner = tensors.find(layer + (is_gate ? up : gate));
  return partner != tensors.end() && !are_kept_alike(partner->second, tensor);
}

}  // namespace

bool computes_in_f32(const LoadRequest& request) {
  const bool is_narrow = request.spec.hidden_size < kNarrowHiddenSize;
  return request.compute == ComputeChoice::kF32 || (request.compute == ComputeChoice::kAuto && is_narrow);
}

WeightFormats weight_formats(const LoadRequest& request, const BackendInfo& backend) {
  if (request.quantization == Quantization::kInt8) return {WeightFormat::kInt8, WeightFormat::kInt8};
  if (request.quantization == Quantization::kInt4) return {WeightFormat::kInt4, WeightFormat::kInt8};
  const WeightFormat format = backend.has_quantized_weights ? WeightFormat::kFile : WeightFormat::kDType;
  return {format, format};
}

int64_t expected_weight_bytes(const LoadRequest& request, const TensorTable& tensors, const BackendInfo& backend) {
  const WeightFormats formats = weight_formats(request, backend);
  double bits = 0;
  for (const auto& [name, tensor] : tensors) {
    const bool is_vocab = name == "embed_tokens.weight" || name == "lm_head.weight";
    WeightFormat format = is_vocab ? formats.vocab : formats.layers;
    if (format == WeightFormat::kFile && is_decoded_pair(name, tensor, tensors)) format = WeightFormat::kDType;
    bits += static_cast<double>(tensor.rows * tensor.cols) *
            bits_per_weight(tensor, format, request.device.weight_dtype, backend);
  }
  return static_cast<int64_t>(bits / 8);
}

std::vector<std::string> narrowing_notes(const TensorTable& tensors, DType dtype) {
  const bool is_mostly_f32 = num_file_bytes(tensors) > num_elements(tensors) * 3;
  if (!is_mostly_f32 || dtype == DType::kF32) return {};
  return {std::string("the weights are f32 in the checkpoint and are kept as ") + dtype_name(dtype)};
}

std::vector<std::string> decoding_notes(const TensorTable& tensors, const BackendInfo& backend,
                                        const LoadRequest& request) {
  const auto is_quantized = [](const auto& entry) { return entry.second.format != nullptr || entry.second.groups; };
  const auto is_decoded = [&](const auto& entry) {
    const FileTensor& tensor = entry.second;
    return tensor.groups && kept_groups(tensor).type.bits == 0 && !(backend.keeps_fp8_weights && is_fp8(tensor));
  };
  const auto num_quantized = std::ranges::count_if(tensors, is_quantized);
  const auto num_decoded = std::ranges::count_if(tensors, is_decoded);
  if (num_quantized == 0) return {};
  const std::string start = "the weights are quantized in the checkpoint and are ",
                    dtype = dtype_name(request.device.weight_dtype);
  if (request.quantization != Quantization::kNone)
    return {start + "quantized again to " + quantization_name(request.quantization)};
  if (!backend.has_quantized_weights) return {start + "decoded to " + dtype + " on " + backend.name};
  if (num_decoded == 0) return {};
  return {std::to_string(num_decoded) + " of " + std::to_string(num_quantized) + " quantized weights are decoded to " +
          dtype + ", because they are in " + (backend.keeps_fp8_weights ? "" : "FP8 or ") +
          "4 bits of bitsandbytes, have groups of fewer than 16 columns, or have g_idx in another order"};
}

}  // namespace capstan
