// The addon's table of contents.
#include <napi.h>

#include "native/backend/registry.h"
#include "native/binding/bench_binding.h"
#include "native/binding/file_lock_binding.h"
#include "native/binding/grammar_binding.h"
#include "native/binding/load_binding.h"
#include "native/binding/memory_binding.h"
#include "native/binding/quantize_binding.h"

namespace capstan {
namespace {

Napi::Object init(Napi::Env env, Napi::Object exports) {
  exports.Set("version", CAPSTAN_VERSION);
  Napi::Array isas = Napi::Array::New(env);
  for (const std::string& name : available_isas())
    isas.Set(isas.Length(), name);
  exports.Set("isas", isas);
  exports.Set("load", Napi::Function::New(env, load_engine_binding, "load"));
  exports.Set("parseGrammar", Napi::Function::New(env, parse_grammar_binding, "parseGrammar"));
  exports.Set("compileGrammar", Napi::Function::New(env, compile_grammar_binding, "compileGrammar"));
  exports.Set("adjustExternalMemory", Napi::Function::New(env, adjust_external_memory_binding, "adjustExternalMemory"));
  exports.Set("trimMemory", Napi::Function::New(env, trim_memory_binding, "trimMemory"));
  exports.Set("availableMemoryBytes", Napi::Function::New(env, available_memory_binding, "availableMemoryBytes"));
  exports.Set("tryLockFile", Napi::Function::New(env, try_lock_file_binding, "tryLockFile"));
  exports.Set("quantizeRows", Napi::Function::New(env, quantize_rows_binding, "quantizeRows"));
  exports.Set("defaultGroupSize", Napi::Function::New(env, default_group_size_binding, "defaultGroupSize"));
  exports.Set("benchmarkLimits", Napi::Function::New(env, benchmark_limits_binding, "benchmarkLimits"));
  exports.Set("benchmarkOps", Napi::Function::New(env, benchmark_ops_binding, "benchmarkOps"));
  return exports;
}

}  // namespace
}  // namespace capstan

static Napi::Object capstan_init(Napi::Env env, Napi::Object exports) {
  return capstan::init(env, exports);
}
NODE_API_MODULE(capstan, capstan_init)
