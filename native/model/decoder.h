#pragma once
#include "native/backend/backend.h"
#include "native/model/weights.h"

namespace capstan {

// Runs the decoder of any family, from the input ids to the last hidden states, which stay in the backend. Family
// variants are data in the weights and the DeviceModel.
void decoder_forward(const Weights& weights, const StepInput& step, Backend& backend);

}  // namespace capstan
