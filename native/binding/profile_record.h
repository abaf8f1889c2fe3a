#pragma once
#include <napi.h>

#include "native/base/step_profile.h"

namespace capstan {

// Returns a NativeProfile (ts/addon-types.ts).
Napi::Object from_profile(Napi::Env env, const StepProfileTotals& totals);

}  // namespace capstan
