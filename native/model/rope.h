#pragma once
#include <vector>

#include "native/model/spec.h"

namespace capstan {

// Rotation per position of dimension pair i, (rotary_dim / 2). `max_model_len` matters to dynamic NTK alone: above the
// trained length one base for the configured length serves every position (architecture, contract 12).
std::vector<float> rope_frequencies(const RopeSpec& rope, int max_model_len);

// cos then sin of every position, (max_model_len, 2, rotary_dim / 2), times the attention factor.
std::vector<float> make_rope_table(const RopeSpec& rope, int max_model_len);

}  // namespace capstan
