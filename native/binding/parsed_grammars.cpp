#include "native/binding/parsed_grammars.h"

#include <map>
#include <mutex>
#include <set>
#include <utility>

namespace capstan {
namespace {

struct Kept {
  napi_env owner;
  GrammarSource source;
};

std::mutex mutex;
std::map<double, Kept> kept_sources;  // by number
std::set<napi_env> owners;            // environments whose end is watched
double last_number = 0;

void forget_environment(void* data) {
  auto* env = static_cast<napi_env>(data);
  const std::lock_guard lock(mutex);
  owners.erase(env);
  std::erase_if(kept_sources, [env](const auto& entry) { return entry.second.owner == env; });
}

}  // namespace

double keep_parsed_grammar(Napi::Env env, GrammarSource source) {
  const std::lock_guard lock(mutex);
  if (owners.insert(env).second) napi_add_env_cleanup_hook(env, forget_environment, static_cast<napi_env>(env));
  kept_sources.emplace(++last_number, Kept{env, std::move(source)});
  return last_number;
}

GrammarSource take_parsed_grammar(double number) {
  const std::lock_guard lock(mutex);
  auto entry = kept_sources.extract(number);
  return entry.empty() ? GrammarSource() : std::move(entry.mapped().source);
}

}  // namespace capstan
