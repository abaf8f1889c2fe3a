#pragma once
// Adapters in memory, and how they get there.
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "native/backend/adapter.h"
#include "native/engine/prefix_key.h"
#include "native/model/adapter_weights.h"

namespace capstan {

class ModelRunner;

// An adapter on all ranks.
struct Adapter {
  std::vector<AdapterWeights> ranks;
  AdapterKey content_key{};  // depends on the content of its files; zeros = not known
};

// Callable from any thread, also while steps run. Throws kInvalidModel, kIo or kOutOfMemory.
using AdapterLoader = std::function<std::shared_ptr<const Adapter>(const AdapterSource& source)>;

// `plans` are by rank, and at most `num_sharing` ranks have their memory on one device. The loader must not be called
// after the end of `runner`. With `has_content_keys`, it reads the files twice.
AdapterLoader make_adapter_loader(ModelSpec spec, std::vector<ShardPlan> plans, const ModelRunner& runner, int max_rank,
                                  int num_sharing, bool has_content_keys);

}  // namespace capstan
