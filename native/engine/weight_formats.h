#pragma once
// Chooses the formats in which a model's weights are kept.
#include <cstdint>
#include <string>
#include <vector>

#include "native/engine/load.h"
#include "native/model/weights.h"

namespace capstan {

WeightFormats weight_formats(const LoadRequest& request, const BackendInfo& backend);

// Returns about the bytes of the packed weights, over all ranks.
int64_t expected_weight_bytes(const LoadRequest& request, const TensorTable& tensors, const BackendInfo& backend);

// Reports a checkpoint whose numbers are stored with fewer bits than it has.
std::vector<std::string> narrowing_notes(const TensorTable& tensors, DType dtype);

// Reports quantized tensors that are not kept as they are.
std::vector<std::string> decoding_notes(const TensorTable& tensors, const BackendInfo& backend,
                                        const LoadRequest& request);

}  // namespace capstan
