#pragma once
// CAPSTAN_CHECK(condition) asserts an invariant of this code base. A failure is a bug. It throws kInternal, which ends
// the open requests but never the process.
#include "error.h"

#define CAPSTAN_STRING2(x) #x
#define CAPSTAN_STRING(x) CAPSTAN_STRING2(x)
#define CAPSTAN_CHECK(condition)                                                                              \
  do {                                                                                                        \
    if (!(condition)) [[unlikely]]                                                                            \
      throw ::capstan::Error(::capstan::ErrorCode::kInternal,                                                 \
                             "invariant failed: " #condition " (" __FILE__ ":" CAPSTAN_STRING(__LINE__) ")"); \
  } while (0)
