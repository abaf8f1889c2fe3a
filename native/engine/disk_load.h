#pragma once
// How the prefix cache on disk is attached to an engine that is loaded.
#include "native/engine/disk_identity.h"
#include "native/engine/model_runner.h"

namespace capstan {

// Throws kInvalidArgument when the model or its device has no prefix cache on disk.
void check_disk_cache(const LoadRequest& request, const BackendInfo& backend, const DeviceModel& model);

// Returns the options that do not depend on the model: how blocks are copied, and the limit. `runner` must outlive the
// engine's steps.
DiskCacheOptions make_disk_cache_options(const ModelRunner& runner, int64_t max_bytes);

}  // namespace capstan
