#pragma once
// Everything that the bits of cached keys and values depend on, besides the tokens: the content of the model's files,
// how the weights are kept and computed with, the processor, and this build.
#include <string>
#include <vector>

#include "native/disk/file_digest.h"
#include "native/engine/load.h"
#include "native/model/adapter_weights.h"

namespace capstan {

// Returns one fact per line.
std::string disk_cache_identity(const LoadRequest& request, const BackendInfo& backend, const DeviceLimits& limits,
                                int max_model_len, const std::vector<Hash128>& file_digests);

// `files` are those of the adapter, open. Throws kIo when one cannot be read.
AdapterKey adapter_content_key(const AdapterSource& source, const std::vector<disk::OpenFile>& files);

}  // namespace capstan
