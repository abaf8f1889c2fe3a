#pragma once
#include "native/backend/backend.h"
#include "native/model/weights.h"

namespace capstan {

// Runs the decoder of any family, from the input ids to the last hidden states, which stay in the backend. Family
// variants are data in the weights and the DeviceModel.
void decoder_forward(const Weights& weights, const StepInput& step, Backend& backend);

// The MTP head predicts the token after a row from the hidden state before the row and the row's own token. The keys
// and values of a row lie at its place, as in the other layers, so those of a full block depend on its tokens and on
// those before it only. NOTE: vLLM and SGLang keep them one place earlier. The results are the same, because rotary
// positions are relative.

// What the head keeps of a step of the decoder, after its lm_head: the keys and values of all rows, their hidden
// states, and of these the ones in `stored`. `hidden_before` is of each row, as in mtp_input.
void mtp_follow(const Weights& weights, std::span<const int32_t> hidden_before, std::span<const StoredHidden> stored,
                Backend& backend);

// Runs a step of the head alone, up to its last hidden states. Call lm_head with its norm next, and keep_hidden.
void mtp_forward(const Weights& weights, const StepInput& step, std::span<const int32_t> hidden_before,
                 Backend& backend);

}  // namespace capstan
