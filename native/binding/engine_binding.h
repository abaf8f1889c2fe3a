#pragma once
// The JavaScript side of one engine: an object with functions, one thread-safe function for its events, and a cleanup
// hook, so that an environment can go at any time.
#include <napi.h>

#include <memory>
#include <mutex>
#include <vector>

#include "native/engine/load.h"

namespace capstan {

class EngineBinding : public std::enable_shared_from_this<EngineBinding> {
 public:
  // `on_events` is called with an array of events; on the environment's thread only.
  static std::shared_ptr<EngineBinding> create(Napi::Env env, const Napi::Function& on_events);

  // The sink to load the engine with: callable from the engine's thread.
  EventSink sink();
  // Takes the loaded engine and makes its JavaScript object.
  Napi::Object expose(Napi::Env env, LoadedEngine loaded);
  // Gives the thread-safe function and the hook back; for a load that failed.
  void release(Napi::Env env);

 private:
  static void call_js(Napi::Env env, Napi::Function on_events, EngineBinding* binding, void*);
  static void clean_up(void* binding);
  using EventsFunction = Napi::TypedThreadSafeFunction<EngineBinding, void, &EngineBinding::call_js>;

  Napi::Value submit(const Napi::CallbackInfo& info);
  Napi::Value compile_grammar(const Napi::CallbackInfo& info);
  Napi::Value close(Napi::Env env);
  void deliver(Napi::Env env, const Napi::Function& on_events);
  // Joins the engine's thread and frees it. From any thread, any number of times.
  void shut_down();

  std::mutex engine_mutex_;  // shut_down runs on a pool thread, and on the environment's while it is torn down
  std::unique_ptr<Engine> engine_;

  std::mutex events_mutex_;
  std::vector<Event> events_;  // not delivered yet: what a slow JavaScript side misses comes together later
  bool is_call_queued_ = false;

  // ---- the environment's thread only ----
  EventsFunction events_function_;
  bool is_released_ = false;
  bool is_closing_ = false;
  int num_open_ = 0;  // choices that have not finished; while there are any, the event loop is kept alive
  std::vector<Napi::Promise::Deferred> closing_;
};

}  // namespace capstan
