#pragma once
#include <napi.h>

#include "native/model/spec.h"

namespace capstan {

// Converts `NativeModelSpec` of ts/addon-types.ts.
ModelSpec to_spec(const Napi::Object& record);

}  // namespace capstan
