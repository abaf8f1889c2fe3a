#pragma once
// The JavaScript object of one engine, with one thread-safe function for its events. A cleanup hook stops the engine
// when its environment is torn down, which may happen at any time.
#include <napi.h>

#include <memory>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "native/engine/load.h"

namespace capstan {

class EngineBinding : public std::enable_shared_from_this<EngineBinding> {
 public:
  // `on_events` receives batches of events (event_batch.h). Call on the environment's thread.
  static std::shared_ptr<EngineBinding> create(Napi::Env env, const Napi::Function& on_events);
  // The engine's last events need the other members.
  ~EngineBinding() { shut_down(); }

  // Returns the sink to load the engine with. Callable from the engine's thread.
  EventSink sink();
  // Takes ownership of the loaded engine and returns its JavaScript object.
  Napi::Object expose(Napi::Env env, LoadedEngine loaded);
  // Releases the thread-safe function and the cleanup hook. For a load that failed.
  void release(Napi::Env env);

 private:
  static void call_js(Napi::Env env, Napi::Function on_events, EngineBinding* binding, void*);
  static void clean_up(void* binding);
  using EventsFunction = Napi::TypedThreadSafeFunction<EngineBinding, void, &EngineBinding::call_js>;

  Napi::Value submit(const Napi::CallbackInfo& info);
  Napi::Value pool(const Napi::CallbackInfo& info);
  void count_open(Napi::Env env, int num_choices);
  Napi::Value compile_grammar(const Napi::CallbackInfo& info);
  Napi::Value load_adapter(const Napi::CallbackInfo& info);
  Napi::Value close(Napi::Env env);
  void deliver(Napi::Env env, const Napi::Function& on_events);
  // Joins the engine's thread and frees the engine. Idempotent. Callable from any thread.
  void shut_down();

  // shut_down() runs on a pool thread, or on the environment's during its teardown. Work of other pool threads on the
  // engine holds a shared lock.
  std::shared_mutex engine_mutex_;
  std::unique_ptr<Engine> engine_;

  std::mutex events_mutex_;
  std::vector<Event> events_;  // not delivered yet; a slow JavaScript side gets several steps in one call
  bool is_call_queued_ = false;

  // ---- used by the environment's thread only ----
  EventsFunction events_function_;
  bool is_released_ = false;
  bool is_closing_ = false;
  int num_open_ = 0;  // choices that have not finished; the event loop stays alive while there are any
  std::vector<Napi::Promise::Deferred> closing_;  // promises of close()
};

}  // namespace capstan
