#include "native/binding/load_binding.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "native/base/thread.h"
#include "native/binding/engine_binding.h"
#include "native/binding/js_call.h"
#include "native/binding/records.h"

namespace capstan {
namespace {

// What JavaScript may do while a model loads.
class LoadControl {
 public:
  void cancel() {
    {
      const std::lock_guard lock(mutex_);
      is_cancelled_.store(true);
    }
    changed_.notify_all();
  }

  void set_tokenizer(TokenizerTables tokenizer) {
    {
      const std::lock_guard lock(mutex_);
      tokenizer_ = std::move(tokenizer);
    }
    changed_.notify_all();
  }

  // Throws kAborted after `cancel`.
  void check_cancelled() const {
    if (is_cancelled_.load()) throw Error(ErrorCode::kAborted, "loading was aborted");
  }

  TokenizerTables await_tokenizer() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_cancelled_.load() || tokenizer_.has_value(); });
    check_cancelled();
    return std::move(*tokenizer_);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> is_cancelled_{false};
  std::optional<TokenizerTables> tokenizer_;
};

// A load in progress. Lives until its thread is joined and its thread-safe function is finalized.
class LoadTask {
 public:
  LoadTask(Napi::Env env, LoadRequest request, const Napi::Function& on_progress, std::shared_ptr<EngineBinding> engine)
      : deferred_(Napi::Promise::Deferred::New(env)), request_(std::move(request)), engine_(std::move(engine)) {
    function_ = Function::New(
        env, on_progress, "capstan.load", 0, 1, this, [](Napi::Env, void*, LoadTask* task) { delete task; },
        static_cast<void*>(nullptr));
    napi_add_env_cleanup_hook(env, clean_up, this);
  }

  // A thread that cannot be started rejects the promise, like every other error of the load.
  void start() {
    try {
      thread_ = start_thread([this] { run(); });
    } catch (...) {
      error_ = std::current_exception();
      finish();
    }
  }
  Napi::Promise promise() const { return deferred_.Promise(); }
  std::shared_ptr<LoadControl> control() const { return control_; }

 private:
  static void call_js(Napi::Env env, Napi::Function on_progress, LoadTask* task, void*) {
    if (static_cast<napi_env>(env) == nullptr) return;
    task->is_call_queued_.store(false);
    // Read before the byte counts, so that the last report has the final ones.
    const bool is_done = task->is_done_.load();
    call_function(env, on_progress, [&] {
      return std::vector<napi_value>{Napi::Number::New(env, static_cast<double>(task->done_bytes_.load())),
                                     Napi::Number::New(env, static_cast<double>(task->total_bytes_.load()))};
    });
    if (is_done) task->settle(env);
  }
  using Function = Napi::TypedThreadSafeFunction<LoadTask, void, &LoadTask::call_js>;

  // Runs when the environment is torn down during the load: cancels it, waits and frees everything.
  static void clean_up(void* data) {
    auto* task = static_cast<LoadTask*>(data);
    task->control_->cancel();
    task->join();
    task->loaded_.engine.reset();
    task->function_.Abort();
  }

  void run() {
    try {
      loaded_ = load_engine(
          std::move(request_), [this](int64_t done, int64_t total) { report(done, total); }, engine_->sink(),
          [this] { return control_->await_tokenizer(); });
    } catch (...) {
      error_ = std::current_exception();
    }
    finish();
  }

  // The last call of `function_`, which settles the promise.
  void finish() {
    is_done_.store(true);
    function_.NonBlockingCall(static_cast<void*>(nullptr));
  }

  void join() {
    if (thread_.joinable()) thread_.join();
  }

  // Called on loading threads.
  void report(int64_t done, int64_t total) {
    control_->check_cancelled();
    done_bytes_.store(done);
    total_bytes_.store(total);
    constexpr int64_t kReportIntervalMs = 50;
    const int64_t now =
        std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch())
            .count();
    int64_t last = last_report_ms_.load();
    if (now - last < kReportIntervalMs || !last_report_ms_.compare_exchange_strong(last, now)) return;
    if (!is_call_queued_.exchange(true)) function_.NonBlockingCall(static_cast<void*>(nullptr));
  }

  void settle(Napi::Env env) {
    if (is_settled_) return;
    is_settled_ = true;
    join();
    napi_remove_env_cleanup_hook(env, clean_up, this);
    const Napi::HandleScope scope(env);
    if (error_) engine_->release(env);
    try {
      if (error_)
        deferred_.Reject(to_js_error(env, error_).Value());
      else
        deferred_.Resolve(engine_->expose(env, std::move(loaded_)));
    } catch (const Napi::Error&) {
      // The environment is being torn down. Its cleanup hooks free the engine.
    }
    function_.Release();
  }

  Napi::Promise::Deferred deferred_;
  LoadRequest request_;
  std::shared_ptr<EngineBinding> engine_;
  const std::shared_ptr<LoadControl> control_ = std::make_shared<LoadControl>();
  std::atomic<int64_t> done_bytes_{0}, total_bytes_{0}, last_report_ms_{0};
  std::atomic<bool> is_done_{false}, is_call_queued_{false};
  bool is_settled_ = false;
  LoadedEngine loaded_;
  std::exception_ptr error_;
  Function function_;
  std::thread thread_;
};

}  // namespace

Napi::Value load_engine_binding(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  if (!info[0].IsObject() || !info[1].IsFunction() || !info[2].IsFunction() || !info[3].IsFunction())
    throw make_error(env, ErrorCode::kInvalidArgument,
                     "load: expected a load record, onProgress, onEvents and onStart");
  LoadRequest request = to_load_request(info[0].As<Napi::Object>());
  auto* task = new LoadTask(env, std::move(request), info[1].As<Napi::Function>(),
                            EngineBinding::create(env, info[2].As<Napi::Function>()));
  const Napi::Promise promise = task->promise();
  const auto control = task->control();
  task->start();
  Napi::Object controls = Napi::Object::New(env);
  controls.Set("cancel",
               Napi::Function::New(env, [control](const Napi::CallbackInfo&) { control->cancel(); }, "cancel"));
  controls.Set("setTokenizer", Napi::Function::New(
                                   env,
                                   [control](const Napi::CallbackInfo& call) {
                                     if (!call[0].IsObject())
                                       throw make_error(call.Env(), ErrorCode::kInvalidArgument,
                                                        "setTokenizer: expected a record");
                                     control->set_tokenizer(to_tokenizer_tables(call[0].As<Napi::Object>()));
                                   },
                                   "setTokenizer"));
  info[3].As<Napi::Function>().Call({controls});
  return promise;
}

}  // namespace capstan
