#pragma once
#include "native/backend/backend.h"
#include "native/model/weights.h"

namespace capstan {

// The decoder of every dense family, from input ids to the last hidden states (which stay in the backend). Variants are
// data in the weights and the DeviceModel.
void decoder_forward(const Weights& weights, const StepInput& step, Backend& backend);

}  // namespace capstan
