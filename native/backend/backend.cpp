#include "native/backend/backend.h"

namespace capstan {

int row_parallel_parts(int64_t total_cols) {
  for (const int unit : {16, 4, 2})
    for (int parts = 8; parts >= 1; parts /= 2)
      if (total_cols % (int64_t{unit} * parts) == 0) return parts;
  return 1;
}

}  // namespace capstan
