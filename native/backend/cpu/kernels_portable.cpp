// Kernels for every processor, without intrinsics.
#include "native/backend/cpu/kernels.h"
#include "native/backend/cpu/vec_portable.h"
#include "native/base/number.h"

#define CAPSTAN_KERNELS kPortableKernels
#include "native/backend/cpu/kernels.inl"
