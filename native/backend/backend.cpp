#include "native/backend/backend.h"

#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "native/base/check.h"
#include "native/base/error.h"

namespace capstan {

int row_parallel_parts(int64_t total_cols) {
  for (const int unit : {16, 4, 2})
    for (int parts = 8; parts >= 1; parts /= 2)
      if (total_cols % (int64_t{unit} * parts) == 0) return parts;
  return 1;
}

int64_t file_bytes(const FileTensor& tensor, int64_t count) {
  if (tensor.groups != nullptr) return count * tensor.groups->bits / 8;
  if (tensor.format == nullptr) return count * static_cast<int64_t>(dtype_size(tensor.dtype));
  return (count + tensor.format->block_size - 1) / tensor.format->block_size * tensor.format->block_bytes;
}

void read_fully(const std::string& tensor, int fd, uint64_t offset, void* to, size_t bytes) {
  char* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got = pread(fd, at, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw Error(ErrorCode::kIo, "cannot read tensor " + tensor + ": " + std::strerror(errno));
    if (got == 0)
      throw Error(ErrorCode::kInvalidModel,
                  "tensor " + tensor + ": the file is truncated, " + std::to_string(bytes) + " bytes are missing");
    at += got;
    offset += static_cast<uint64_t>(got);
    bytes -= static_cast<size_t>(got);
  }
}

void check_step(const StepInput& step, const DeviceModel& model, const DeviceLimits& limits) {
  const int64_t rows = static_cast<int64_t>(step.input_ids.size());
  CAPSTAN_CHECK(rows > 0 && rows <= limits.max_num_tokens);
  CAPSTAN_CHECK(step.positions.size() == step.input_ids.size() && step.slot_mapping.size() == step.input_ids.size());
  CAPSTAN_CHECK(step.cu_seqlens_q.size() == step.context_lens.size() + 1 && step.cu_seqlens_q.back() == rows);
  CAPSTAN_CHECK(static_cast<int64_t>(step.block_tables.size()) >=
                static_cast<int64_t>(step.context_lens.size()) * step.max_blocks_per_seq);
  for (int64_t row = 0; row < rows; ++row) {
    CAPSTAN_CHECK(step.positions[row] >= 0 && step.positions[row] < model.max_model_len);
    CAPSTAN_CHECK(step.slot_mapping[row] >= 0 &&
                  step.slot_mapping[row] < int64_t{limits.num_blocks} * limits.block_size);
  }
  for (size_t seq = 0; seq < step.context_lens.size(); ++seq) {
    const int32_t begin = step.cu_seqlens_q[seq], end = step.cu_seqlens_q[seq + 1], context = step.context_lens[seq];
    CAPSTAN_CHECK(begin < end && step.positions[begin] == context - (end - begin));
    for (int32_t row = begin + 1; row < end; ++row)
      CAPSTAN_CHECK(step.positions[row] == step.positions[row - 1] + 1);
    const int32_t num_blocks = (context + limits.block_size - 1) / limits.block_size;
    CAPSTAN_CHECK(num_blocks <= step.max_blocks_per_seq);
    const int32_t* table = step.block_tables.data() + seq * static_cast<size_t>(step.max_blocks_per_seq);
    for (int32_t i = 0; i < num_blocks; ++i)
      CAPSTAN_CHECK(table[i] >= 0 && table[i] < limits.num_blocks);
  }
}

}  // namespace capstan
