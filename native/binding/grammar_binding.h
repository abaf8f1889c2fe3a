#pragma once
// Grammars as JavaScript sees them: compiled on a pool thread, a handle that requests are given, and a matcher of bytes
// for whoever wants to check or walk one without a model.
#include <napi.h>

#include <functional>
#include <memory>

#include "native/grammar/matcher.h"

namespace capstan {

// Makes the token table on the pool thread; empty for bytes only.
using TokenTableSource = std::function<std::shared_ptr<const grammar::TokenTable>()>;

// A promise of the grammar's handle. Throws for a source of the wrong form.
Napi::Value compile_grammar(Napi::Env env, const Napi::Value& source, TokenTableSource tokens);
// `NativeAddon.compileGrammar`.
Napi::Value compile_grammar_binding(const Napi::CallbackInfo& info);
// The grammar of a handle; null for null and undefined.
std::shared_ptr<const grammar::CompiledGrammar> to_compiled_grammar(const Napi::Value& handle);

}  // namespace capstan
