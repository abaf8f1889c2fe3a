#include "native/binding/engine_binding.h"

#include "native/binding/event_batch.h"
#include "native/binding/grammar_binding.h"
#include "native/binding/js_call.h"
#include "native/binding/records.h"

namespace capstan {
namespace {

// Runs `work` off the JavaScript thread, then `done` on it.
class CloseWorker final : public Napi::AsyncWorker {
 public:
  CloseWorker(Napi::Env env, std::function<void()> work, std::function<void(Napi::Env)> done)
      : Napi::AsyncWorker(env, "capstan.close"), work_(std::move(work)), done_(std::move(done)) {}
  void Execute() override { work_(); }
  void OnOK() override { done_(Env()); }

 private:
  std::function<void()> work_;
  std::function<void(Napi::Env)> done_;
};

// Loads an adapter on a pool thread.
class AdapterWorker final : public Napi::AsyncWorker {
 public:
  AdapterWorker(Napi::Env env, std::function<uint64_t()> load)
      : Napi::AsyncWorker(env, "capstan.adapter"),
        deferred_(Napi::Promise::Deferred::New(env)),
        load_(std::move(load)) {}
  Napi::Promise promise() const { return deferred_.Promise(); }

  void Execute() override {
    try {
      id_ = load_();
    } catch (...) {
      error_ = std::current_exception();
    }
  }
  void OnOK() override {
    const Napi::HandleScope scope(Env());
    if (error_)
      deferred_.Reject(to_js_error(Env(), error_).Value());
    else
      deferred_.Resolve(Napi::Number::New(Env(), static_cast<double>(id_)));
  }

 private:
  Napi::Promise::Deferred deferred_;
  std::function<uint64_t()> load_;
  uint64_t id_ = 0;
  std::exception_ptr error_;
};

}  // namespace

std::shared_ptr<EngineBinding> EngineBinding::create(Napi::Env env, const Napi::Function& on_events) {
  auto binding = std::make_shared<EngineBinding>();
  // The thread-safe function keeps the binding alive until it is finalized.
  auto* keeper = new std::shared_ptr<EngineBinding>(binding);
  binding->events_function_ = EventsFunction::New(
      env, on_events, "capstan.events", 0, 1, binding.get(),
      [](Napi::Env, std::shared_ptr<EngineBinding>* kept, EngineBinding*) { delete kept; }, keeper);
  binding->events_function_.Unref(env);
  // NOTE: hooks run in reverse order. This one comes after the hook of the thread-safe function, so the engine's thread
  // ends before the function does.
  napi_add_env_cleanup_hook(env, clean_up, binding.get());
  return binding;
}

void EngineBinding::clean_up(void* data) {
  auto* binding = static_cast<EngineBinding*>(data);
  binding->is_closing_ = true;
  binding->shut_down();
  if (!binding->is_released_) binding->events_function_.Abort();
  binding->is_released_ = true;
}

void EngineBinding::release(Napi::Env env) {
  if (is_released_) return;
  is_released_ = true;
  napi_remove_env_cleanup_hook(env, clean_up, this);
  events_function_.Release();
}

EventSink EngineBinding::sink() {
  return [this](std::vector<Event>&& events) {
    const std::lock_guard lock(events_mutex_);
    for (Event& event : events)
      events_.push_back(std::move(event));
    if (is_call_queued_) return;
    is_call_queued_ = true;
    events_function_.NonBlockingCall(static_cast<void*>(nullptr));
  };
}

void EngineBinding::call_js(Napi::Env env, Napi::Function on_events, EngineBinding* binding, void*) {
  // Node passes no environment during teardown.
  if (static_cast<napi_env>(env) != nullptr) binding->deliver(env, on_events);
}

void EngineBinding::deliver(Napi::Env env, const Napi::Function& on_events) {
  std::vector<Event> events;
  {
    const std::lock_guard lock(events_mutex_);
    is_call_queued_ = false;
    events.swap(events_);
  }
  if (events.empty()) return;
  for (const Event& event : events)
    if (event.finish) --num_open_;
  if (num_open_ == 0 && !is_released_) events_function_.Unref(env);
  call_function(env, on_events, [&] { return from_events(env, events); });
}

void EngineBinding::shut_down() {
  const std::lock_guard lock(engine_mutex_);
  if (engine_) engine_->close();
  engine_.reset();
}

Napi::Object EngineBinding::expose(Napi::Env env, LoadedEngine loaded) {
  engine_ = std::move(loaded.engine);
  Napi::Object object = Napi::Object::New(env);
  object.Set("info", from_info(env, loaded.info));
  const auto self = shared_from_this();
  object.Set("submit",
             Napi::Function::New(env, [self](const Napi::CallbackInfo& info) { return self->submit(info); }, "submit"));
  object.Set("pool",
             Napi::Function::New(env, [self](const Napi::CallbackInfo& info) { return self->pool(info); }, "pool"));
  object.Set("compileGrammar", Napi::Function::New(
                                   env, [self](const Napi::CallbackInfo& info) { return self->compile_grammar(info); },
                                   "compileGrammar"));
  object.Set("abort", Napi::Function::New(
                          env,
                          [self](const Napi::CallbackInfo& info) {
                            if (!self->is_closing_ && info[0].IsNumber())
                              self->engine_->abort(static_cast<RequestId>(info[0].As<Napi::Number>().Int64Value()));
                          },
                          "abort"));
  object.Set("stop", Napi::Function::New(
                         env,
                         [self](const Napi::CallbackInfo& info) {
                           if (self->is_closing_ || !info[0].IsNumber() || !info[1].IsNumber()) return;
                           self->engine_->stop(static_cast<RequestId>(info[0].As<Napi::Number>().Int64Value()),
                                               info[1].As<Napi::Number>().Int32Value());
                         },
                         "stop"));
  object.Set("loadAdapter",
             Napi::Function::New(
                 env, [self](const Napi::CallbackInfo& info) { return self->load_adapter(info); }, "loadAdapter"));
  object.Set("unloadAdapter",
             Napi::Function::New(
                 env,
                 [self](const Napi::CallbackInfo& info) {
                   if (!self->is_closing_ && info[0].IsNumber())
                     self->engine_->unload_adapter(static_cast<uint64_t>(info[0].As<Napi::Number>().Int64Value()));
                 },
                 "unloadAdapter"));
  object.Set("stats", Napi::Function::New(
                          env,
                          [self](const Napi::CallbackInfo& info) -> Napi::Value {
                            if (self->is_closing_)
                              throw make_error(info.Env(), ErrorCode::kEngineClosed, "the engine is closed");
                            return from_stats(info.Env(), self->engine_->stats());
                          },
                          "stats"));
  object.Set("close", Napi::Function::New(
                          env, [self](const Napi::CallbackInfo& info) { return self->close(info.Env()); }, "close"));
  return object;
}

Napi::Value EngineBinding::submit(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  if (is_closing_) throw make_error(env, ErrorCode::kEngineClosed, "the engine is closed");
  if (!info[0].IsObject()) throw make_error(env, ErrorCode::kInvalidArgument, "request: expected a record");
  try {
    Request request = to_request(info[0].As<Napi::Object>());
    const int num_choices = request.num_choices;
    const RequestId request_id = engine_->submit(std::move(request));
    count_open(env, num_choices);
    return Napi::Number::New(env, static_cast<double>(request_id));
  } catch (const Napi::Error&) {
    throw;
  } catch (...) {
    throw to_js_error(env, std::current_exception());
  }
}

Napi::Value EngineBinding::pool(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  if (is_closing_) throw make_error(env, ErrorCode::kEngineClosed, "the engine is closed");
  if (!info[0].IsArray()) throw make_error(env, ErrorCode::kInvalidArgument, "requests: expected a list of records");
  const auto records = info[0].As<Napi::Array>();
  Napi::Array results = Napi::Array::New(env, records.Length());
  std::vector<Request> requests;
  std::vector<uint32_t> indices;
  for (uint32_t i = 0; i < records.Length(); ++i) {
    const Napi::HandleScope scope(env);
    try {
      const Napi::Value record = records[i];
      if (!record.IsObject()) throw make_error(env, ErrorCode::kInvalidArgument, "request: expected a record");
      requests.push_back(to_pooled_request(record.As<Napi::Object>()));
      indices.push_back(i);
    } catch (const Napi::Error& error) {
      results.Set(i, error.Value());
    } catch (...) {
      results.Set(i, to_js_error(env, std::current_exception()).Value());
    }
  }
  std::vector<std::variant<RequestId, std::exception_ptr>> submitted;
  try {
    submitted = engine_->submit_all(std::move(requests));
  } catch (...) {
    throw to_js_error(env, std::current_exception());
  }
  for (size_t i = 0; i < submitted.size(); ++i) {
    const Napi::HandleScope scope(env);
    if (const auto* request_id = std::get_if<RequestId>(&submitted[i])) {
      count_open(env, 1);
      results.Set(indices[i], Napi::Number::New(env, static_cast<double>(*request_id)));
    } else {
      results.Set(indices[i], to_js_error(env, std::get<std::exception_ptr>(submitted[i])).Value());
    }
  }
  return results;
}

void EngineBinding::count_open(Napi::Env env, int num_choices) {
  if (num_open_ == 0) events_function_.Ref(env);
  num_open_ += num_choices;
}

Napi::Value EngineBinding::compile_grammar(const Napi::CallbackInfo& info) {
  const auto self = shared_from_this();
  return capstan::compile_grammar(info.Env(), info[0], [self] {
    const std::shared_lock lock(self->engine_mutex_);
    if (!self->engine_) throw Error(ErrorCode::kEngineClosed, "the engine is closed");
    return self->engine_->token_table();
  });
}

Napi::Value EngineBinding::load_adapter(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  if (!info[0].IsObject())
    throw make_error(env, ErrorCode::kInvalidArgument, "loadAdapter: expected an adapter record");
  const auto self = shared_from_this();
  // Closing the engine waits for the end of the load.
  auto* worker = new AdapterWorker(env, [self, source = to_adapter_source(info[0].As<Napi::Object>())] {
    const std::shared_lock lock(self->engine_mutex_);
    if (!self->engine_) throw Error(ErrorCode::kEngineClosed, "the engine is closed");
    return self->engine_->load_adapter(source);
  });
  const Napi::Promise promise = worker->promise();
  worker->Queue();
  return promise;
}

Napi::Value EngineBinding::close(Napi::Env env) {
  const auto deferred = Napi::Promise::Deferred::New(env);
  if (is_released_) {
    deferred.Resolve(env.Undefined());
    return deferred.Promise();
  }
  closing_.push_back(deferred);
  if (is_closing_) return deferred.Promise();
  is_closing_ = true;
  const auto self = shared_from_this();
  auto* worker = new CloseWorker(
      env, [self] { self->shut_down(); },
      [self](Napi::Env done_env) {
        // The events of the shutdown are queued already and are still delivered after this release.
        self->release(done_env);
        for (const auto& waiting : self->closing_)
          waiting.Resolve(done_env.Undefined());
        self->closing_.clear();
      });
  worker->Queue();
  return deferred.Promise();
}

}  // namespace capstan
