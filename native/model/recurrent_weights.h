#pragma once
// The weights of recurrent layers: their tensors, and the share of one rank.
#include <functional>
#include <memory>
#include <string>

#include "native/backend/backend.h"
#include "native/model/slicer.h"
#include "native/model/spec.h"
#include "native/model/weights.h"

namespace capstan {

// Throws kInvalidArgument with the numbers when the layers cannot be split over `world_size` ranks: a rank holds whole
// groups of heads, or whole channels.
RecurrentShard make_recurrent_shard(const ModelSpec& spec, int rank, int world_size);

// Throws kInvalidModel unless the tensors of a recurrent layer have the correct shapes. `prefix` is "layers.N.".
void check_recurrent_tensors(const ModelSpec& spec, Mixer mixer, const TensorTable& tensors, const std::string& prefix);

using LoadMatrix = std::function<std::unique_ptr<Matrix>(MatrixSource source)>;

// Loads all weights of a recurrent layer but its norm and its output projection.
RecurrentWeights load_recurrent_weights(const ModelSpec& spec, Mixer mixer, const RecurrentShard& shard,
                                        const Slicer& slicer, const std::string& prefix, const LoadMatrix& load_matrix,
                                        Backend& backend, const LoadProgress& progress);

}  // namespace capstan
