#pragma once
// Chooses the formats of a model's weights and activations.
#include <cstdint>
#include <string>
#include <vector>

#include "native/engine/load.h"
#include "native/model/weights.h"

namespace capstan {

// Whether the activations that bf16 weights are multiplied with are f32.
bool computes_in_f32(const LoadRequest& request);

WeightFormats weight_formats(const LoadRequest& request, const BackendInfo& backend);

// Returns about the bytes of the packed weights, over all ranks.
int64_t expected_weight_bytes(const LoadRequest& request, const TensorTable& tensors, const BackendInfo& backend);

// Reports a checkpoint whose numbers are stored with fewer bits than it has.
std::vector<std::string> narrowing_notes(const TensorTable& tensors, DType dtype);

// Reports quantized tensors that are not kept in the format of the file.
std::vector<std::string> decoding_notes(const TensorTable& tensors, const BackendInfo& backend,
                                        const LoadRequest& request);

}  // namespace capstan
