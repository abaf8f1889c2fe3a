#pragma once
#include <vector>

#include "native/model/spec.h"

namespace capstan {

// Returns the rotation per position of each dimension pair in radians, (rotary_dim / 2). Only dynamic NTK uses
// `max_model_len`: above the trained length, its base depends on it and is the same at every position (architecture,
// contract 12).
std::vector<float> rope_frequencies(const RopeSpec& rope, int max_model_len);

// Returns cos then sin of each position, (max_model_len, 2, rotary_dim / 2), multiplied by the attention factor.
std::vector<float> make_rope_table(const RopeSpec& rope, int max_model_len);

// Returns the factor of q at each position, (max_model_len), or nothing when all are 1.
std::vector<float> make_query_scales(const RopeSpec& rope, int max_model_len);

}  // namespace capstan
