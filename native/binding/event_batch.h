#pragma once
// The events of one call of JavaScript (`NativeEventSink` in ts/addon-types.ts).
#include <napi.h>

#include <vector>

#include "native/engine/request.h"

namespace capstan {

// Returns the arguments: words, text and details. `ts/event-batch.ts` reads them.
std::vector<napi_value> from_events(Napi::Env env, const std::vector<Event>& events);

}  // namespace capstan
