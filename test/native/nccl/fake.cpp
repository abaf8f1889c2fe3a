// Fakes of the NCCL entries that Capstan calls.
#include "test/native/nccl/fake.h"

using capstan::testing::FakeNccl;

namespace {

constexpr int kMaxRanks = 8, kInvalidArgument = 4, kFloat32 = 7, kSum = 0;
int ranks[kMaxRanks];  // a communicator points to its rank's element

int rank_of(const void* comm) {
  return static_cast<int>(static_cast<const int*>(comm) - ranks);
}

}  // namespace

extern "C" {

FakeNccl* fake_nccl() {
  static FakeNccl fake;
  return &fake;
}

int ncclGetVersion(int* version) {
  *version = fake_nccl()->version;
  return 0;
}

const char* ncclGetErrorString(int result) {
  return result == 0 ? "no error" : "a configured error";
}

int ncclCommInitAll(void** comms, int count, const int* devices) {
  std::string call = "init";
  for (int rank = 0; rank < count; ++rank) {
    call += " " + std::to_string(devices[rank]);
    comms[rank] = ranks + rank;
  }
  fake_nccl()->note(call);
  return fake_nccl()->result_of_init;
}

int ncclCommDestroy(void* comm) {
  fake_nccl()->note("destroy " + std::to_string(rank_of(comm)));
  return 0;
}

int ncclAllReduce(const void* from, void* to, size_t count, int type, int operation, void* comm, void* stream) {
  if (type != kFloat32 || operation != kSum || from != to) return kInvalidArgument;
  FakeNccl& fake = *fake_nccl();
  fake.note("sum " + std::to_string(rank_of(comm)) + " of " + std::to_string(count));
  if (fake.result_of_sum != 0) return fake.result_of_sum;
  fake.all_reduce(rank_of(comm), static_cast<float*>(to), count, stream);
  return 0;
}
}
