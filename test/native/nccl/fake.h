#pragma once
// A fake libnccl.so.2. It records calls, returns configured results, and leaves the sums to a callback of the test.
#include <cstddef>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

namespace capstan::testing {

struct FakeNccl {
  int version = 22105;
  int result_of_init = 0, result_of_sum = 0;
  // Replaces the data of each rank by the sum over ranks. Called for each rank from its thread.
  std::function<void(int rank, float* data, size_t count, void* stream)> all_reduce;

  std::mutex mutex;
  std::vector<std::string> calls;
  void note(const std::string& call) {
    const std::lock_guard lock(mutex);
    calls.push_back(call);
  }
};

constexpr const char* kFakeNcclEntry = "fake_nccl";

}  // namespace capstan::testing
