#pragma once
// The weights of recurrent layers: their tensors, and the share of one rank.
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

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

// Rows of the tensor `tensor`, such as "in_proj_qkv".
struct RecurrentColumns {
  std::string tensor;
  int64_t begin = 0, count = 0;
};

using HasTensor = std::function<bool(const std::string& name)>;

// Returns the columns of the matrix in_proj of one rank, in their order. `has` says whether a delta net has
// "in_proj_qkvz" and "in_proj_ba" in place of their parts.
std::vector<RecurrentColumns> recurrent_columns(const ModelSpec& spec, Mixer mixer, const RecurrentShard& shard,
                                                const HasTensor& has);

// Returns the outputs of the projections that in_proj may be made of, by name, in the whole model.
std::map<std::string, int64_t> recurrent_projections(const ModelSpec& spec, Mixer mixer);

using LoadMatrix = std::function<std::unique_ptr<Matrix>(MatrixSource source)>;

// Loads all weights of a recurrent layer but its norm and its output projection.
RecurrentWeights load_recurrent_weights(const ModelSpec& spec, Mixer mixer, const RecurrentShard& shard,
                                        const Slicer& slicer, const std::string& prefix, const LoadMatrix& load_matrix,
                                        Backend& backend, const LoadProgress& progress);

}  // namespace capstan
