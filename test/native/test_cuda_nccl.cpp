// NCCL's all-reduce, with a fake library (test/native/nccl): when it is called, with which arguments, and when it is
// not used.
#include <dlfcn.h>

#include <algorithm>
#include <barrier>
#include <cstdlib>
#include <filesystem>

#include "cuda/memory.h"
#include "cuda/ranks.h"
#include "test/native/cuda_host/cuda_host.h"
#include "test/native/gpu/device.h"
#include "test/native/nccl/fake.h"
#include "test/native/testing.h"

namespace capstan::testing {
namespace {

using namespace cuda;

// Installs the fake as the NCCL library during its lifetime. It adds the data of two ranks in stream order.
class FoundNccl {
 public:
  FoundNccl() : fake_(open()) {
    setenv("CAPSTAN_NCCL_LIBRARY", file().c_str(), 1);
    fake_.version = 22105;
    fake_.result_of_init = fake_.result_of_sum = 0;
    fake_.all_reduce = [this](int rank, float* data, size_t count, void* stream) {
      all_reduce(static_cast<size_t>(rank), data, count, static_cast<cudaStream_t>(stream));
    };
    fake_.calls.clear();
    nccl_bytes() = 1;
  }
  ~FoundNccl() {
    fake_.all_reduce = nullptr;
    nccl_bytes() = before_;
    unsetenv("CAPSTAN_NCCL_LIBRARY");
  }
  FakeNccl& operator*() const { return fake_; }
  FakeNccl* operator->() const { return &fake_; }
  // Recorded calls with this prefix.
  std::vector<std::string> calls(const std::string& beginning) const {
    std::vector<std::string> found;
    std::ranges::copy_if(fake_.calls, std::back_inserter(found),
                         [&](const std::string& call) { return call.starts_with(beginning); });
    return found;
  }

 private:
  static std::string file() { return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "libnccl.so.2"; }
  static FakeNccl& open() {
    void* library = dlopen(file().c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(dlerror());
    return *reinterpret_cast<FakeNccl* (*)()>(dlsym(library, kFakeNcclEntry))();
  }

  // The events order writes before reads and reads before overwrites. The barriers keep a rank from recording an event
  // again before the other rank waits for it.
  void all_reduce(size_t rank, float* data, size_t count, cudaStream_t stream) {
    const auto meet = [&](std::unique_ptr<cuda::Event>(&events)[2]) {
      if (events[rank] == nullptr) events[rank] = std::make_unique<cuda::Event>();
      events[rank]->record(stream);
      barrier_.arrive_and_wait();
      check(cudaStreamWaitEvent(stream, events[1 - rank]->get(), 0), "a test");
      barrier_.arrive_and_wait();
    };
    data_[rank] = data;
    meet(written_);
    auto* sums = &sums_[rank];
    const float *first = data_[0], *second = data_[1];
    const auto enqueue = [&](auto work) { check(cuda_host::enqueue(stream, work), "a test"); };
    enqueue([=] {
      sums->resize(count);
      for (size_t i = 0; i < count; ++i)
        (*sums)[i] = first[i] + second[i];
    });
    meet(read_);
    enqueue([=] { std::ranges::copy(*sums, data); });
  }

  FakeNccl& fake_;
  const int64_t before_ = nccl_bytes();
  std::barrier<> barrier_{2};
  float* data_[2] = {};
  std::vector<float> sums_[2];
  std::unique_ptr<cuda::Event> written_[2], read_[2];  // one per rank, on its device
};

// Prompts with more and fewer tokens than the fused products take.
Prompts rank_prompts() {
  return {random_ids(1, 3, 300), random_ids(2, 5, 300), random_ids(3, 80, 300)};
}

bool says(const Session& session, const std::string& text) {
  return std::ranges::any_of(session.info().notes,
                             [&](const std::string& note) { return note.find(text) != std::string::npos; });
}

// The sum of two numbers does not depend on their order.
TEST(cuda_nccl_adds_between_devices) {
  const TinyModel model(splittable_shape(), DType::kBf16);
  const auto wanted = solo_answers(cuda_request(model, "cuda"), 4, rank_prompts());
  const FoundNccl nccl;
  {
    Session session(cuda_request(model, "cuda:1,0"));
    EXPECT(says(session, "NCCL 2.21.5 adds sums"));
    EXPECT(nccl.calls("init") == std::vector<std::string>{"init 1 0"});
    expect_same(batched_answers(session, 4, rank_prompts()), wanted, "by NCCL");
    nccl->calls.clear();
    // A prefill has one sum after the embedding and two per layer, except the last one, which needs only the rows of
    // logits. Decodes are captured.
    session.wait(session.submit(random_ids(9, 20, 300), 3));
    const auto hidden = static_cast<size_t>(model.request().spec.hidden_size),
               layers = static_cast<size_t>(model.request().spec.num_layers());
    for (const char* rank : {"0", "1"})
      EXPECT(nccl.calls(std::string("sum ") + rank) ==
             std::vector<std::string>(2 * layers, std::string("sum ") + rank + " of " + std::to_string(20 * hidden)));
    nccl_bytes() = 21 * static_cast<int64_t>(hidden) * 4;
    nccl->calls.clear();
    session.wait(session.submit(random_ids(10, 20, 300), 3));
    EXPECT(nccl->calls.empty());
  }
  EXPECT(nccl->calls == (std::vector<std::string>{"destroy 0", "destroy 1"}));
}

TEST(cuda_nccl_is_not_used_on_one_device_or_when_deterministic) {
  const TinyModel model(splittable_shape(), DType::kBf16);
  const FoundNccl nccl;
  for (const bool is_deterministic : {false, true}) {
    LoadRequest request = cuda_request(model, is_deterministic ? "cuda:0,1" : "cuda:0,0");
    request.device.is_deterministic = is_deterministic;
    Session session(request);
    session.wait(session.submit(random_ids(1, 20, 300), 2));
    EXPECT(nccl->calls.empty() && !says(session, "NCCL"));
  }
}

// Each failure has its reason in the notes, and the answers come from our kernels.
TEST(cuda_nccl_notes_explain_why_it_is_not_used) {
  const TinyModel model(splittable_shape(), DType::kBf16);
  const auto wanted = solo_answers(cuda_request(model, "cuda"), 2, rank_prompts());
  const FoundNccl nccl;
  const auto expect_own = [&](const std::string& reason) {
    Session session(cuda_request(model, "cuda:0,1"));
    if (!says(session, "NCCL is not used: " + reason)) fail(__FILE__, __LINE__, "no note of: " + reason);
    expect_same(batched_answers(session, 2, rank_prompts()), wanted, reason.c_str());
    EXPECT(nccl.calls("sum").empty());
  };
  const std::string file = std::getenv("CAPSTAN_NCCL_LIBRARY");
  nccl->version = 2708;
  expect_own(file + ": expected version 2.18.0 or newer, got 2.7.8");
  EXPECT(nccl->calls.empty());
  nccl->version = 21703;
  expect_own(file + ": expected version 2.18.0 or newer, got 2.17.3");
  nccl->version = 21800;
  nccl->result_of_init = 2;
  expect_own("it cannot connect the devices: a configured error");
  EXPECT(nccl.calls("destroy").empty());
  setenv("CAPSTAN_NCCL_LIBRARY", "libm.so.6", 1);
  expect_own("libm.so.6 has no ncclGetVersion");
  setenv("CAPSTAN_NCCL_LIBRARY", "/nowhere/libnccl.so.2", 1);
  expect_own("/nowhere/libnccl.so.2 cannot be opened: ");
  setenv("CAPSTAN_NCCL_LIBRARY", "none", 1);
  expect_own("CAPSTAN_NCCL_LIBRARY is none");
}

TEST(cuda_nccl_error_loses_the_device) {
  const TinyModel model(splittable_shape(), DType::kBf16);
  const FoundNccl nccl;
  {
    Session session(cuda_request(model, "cuda:0,1"));
    session.wait(session.submit({1, 2, 3}, 2));
    nccl->result_of_sum = 1;
    const Answer answer = session.wait(session.submit({1, 2, 3}, 2));
    EXPECT(answer.finish->reason == FinishReason::kError && answer.finish->error_code == ErrorCode::kDeviceLost);
    EXPECT(session.engine().stats().failure.find("NCCL: all-reduce: a configured error") != std::string::npos);
    EXPECT_ERROR("device_lost", session.submit({1, 2, 3}, 2));
  }
  // NCCL is not called again.
  EXPECT(nccl.calls("destroy").empty());
  nccl->calls.clear();
  EXPECT_ERROR("device_lost", Session(cuda_request(model, "cuda:0,1")));
  EXPECT(nccl->calls.empty());
  is_device_lost() = false;
}

// The other rank's all-reduce may already be enqueued, where it would wait forever.
TEST(cuda_nccl_failure_of_one_rank_loses_the_device) {
  const TinyModel model(splittable_shape(), DType::kBf16);
  const FoundNccl nccl;
  {
    Session session(cuda_request(model, "cuda:0,1"));
    nccl->all_reduce = [](int rank, float*, size_t, void*) {
      if (rank == 1) throw std::runtime_error("a rank's own fault");
    };
    const Answer answer = session.wait(session.submit({1, 2, 3}, 2));
    EXPECT(answer.finish->reason == FinishReason::kError && answer.finish->error_code == ErrorCode::kDeviceLost);
    EXPECT(session.engine().stats().failure.find("a rank's own fault") != std::string::npos);
  }
  EXPECT(nccl.calls("destroy").empty());
  is_device_lost() = false;
}

}  // namespace
}  // namespace capstan::testing
