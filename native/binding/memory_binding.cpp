#include "native/binding/memory_binding.h"

#include <cmath>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "native/base/machine.h"

namespace capstan {
namespace {

class TrimWorker final : public Napi::AsyncWorker {
 public:
  explicit TrimWorker(Napi::Env env)
      : Napi::AsyncWorker(env, "capstan.trim"), deferred_(Napi::Promise::Deferred::New(env)) {}
  Napi::Promise promise() const { return deferred_.Promise(); }

  void Execute() override {
#if defined(__GLIBC__)
    malloc_trim(0);  // other allocators need no request
#endif
  }
  void OnOK() override { deferred_.Resolve(Env().Undefined()); }
  void OnError(const Napi::Error& error) override { deferred_.Reject(error.Value()); }

 private:
  Napi::Promise::Deferred deferred_;
};

}  // namespace

void adjust_external_memory_binding(const Napi::CallbackInfo& info) {
  const double change = info[0].IsNumber() ? info[0].As<Napi::Number>().DoubleValue() : 0;
  if (std::isfinite(change)) Napi::MemoryManagement::AdjustExternalMemory(info.Env(), static_cast<int64_t>(change));
}

Napi::Value trim_memory_binding(const Napi::CallbackInfo& info) {
  auto* worker = new TrimWorker(info.Env());
  const Napi::Promise promise = worker->promise();
  worker->Queue();
  return promise;
}

Napi::Value available_memory_binding(const Napi::CallbackInfo& info) {
  return Napi::Number::New(info.Env(), static_cast<double>(available_memory_bytes()));
}

}  // namespace capstan
