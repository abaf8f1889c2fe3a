#pragma once
// A libnccl.so.2 of ours: it notes what it is asked for, answers as it is told, and leaves the sums to the test that
// opened it.
#include <cstddef>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

namespace capstan::testing {

struct FakeNccl {
  int version = 22105;
  int result_of_init = 0, result_of_sum = 0;
  // data of all ranks, by rank, becomes their sum; called for each rank from its thread.
  std::function<void(int rank, float* data, size_t count, void* stream)> add_up;

  std::mutex mutex;
  std::vector<std::string> calls;
  void note(const std::string& call) {
    const std::lock_guard lock(mutex);
    calls.push_back(call);
  }
};

constexpr const char* kFakeNcclEntry = "fake_nccl";

}  // namespace capstan::testing
